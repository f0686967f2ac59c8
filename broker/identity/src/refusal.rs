//! Why a token is refused: one reason, which decides status and code.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The `error` of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// 401: this is no token for us.
    Unauthorized,
    /// 403: a genuine token of somebody who may not.
    Forbidden,
    /// 503: it cannot be told, for the identity provider cannot be reached or makes no sense.
    Unavailable,
}

impl Code {
    /// `unauthorized`, `forbidden` or `unavailable`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Unavailable => "unavailable",
        }
    }

    /// The HTTP status: 401, 403 or 503.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::Unavailable => 503,
        }
    }
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $reason:ident = $label:literal, $code:ident;)+) => {
        /// The reason, stable: metrics and the audit record carry it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum RefusalReason {
            $($(#[doc = $doc])+ $reason,)+
        }

        impl RefusalReason {
            /// Every reason, in order of declaration.
            pub const ALL: &'static [RefusalReason] = &[$(Self::$reason,)+];

            /// The label of metrics and audit: snake case, as in JSON.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$reason => $label,)+ }
            }

            /// The code, and with it the status.
            #[must_use]
            pub fn code(self) -> Code {
                match self { $(Self::$reason => Code::$code,)+ }
            }
        }
    };
}

reasons! {
    /// No `Authorization` header, or no bearer token in it.
    TokenMissing = "token_missing", Unauthorized;
    /// Longer than [`crate::token::MAX_BYTES`].
    TokenTooLarge = "token_too_large", Unauthorized;
    /// No compact JWS of two JSON objects, a member twice, a claim of the wrong JSON type, or a `crit` header.
    TokenMalformed = "token_malformed", Unauthorized;
    /// An ID token where access tokens are accepted, the reverse, or something else that is signed.
    TokenType = "token_type", Unauthorized;
    /// Bound to a key (`cnf`), so it is not for use as a bearer token.
    TokenBound = "token_bound", Unauthorized;
    /// `none`, a symmetric algorithm, or one that the issuer entry does not list.
    AlgorithmNotAllowed = "algorithm_not_allowed", Unauthorized;
    /// No `kid` in the header.
    KeyIdMissing = "key_id_missing", Unauthorized;
    /// The issuer has no key of this `kid` that may be used with this algorithm.
    KeyUnknown = "key_unknown", Unauthorized;
    /// The issuer publishes this `kid` more than once.
    KeyAmbiguous = "key_ambiguous", Unauthorized;
    /// The key named did not make this signature.
    SignatureInvalid = "signature_invalid", Unauthorized;
    /// No issuer entry has this `iss`, byte for byte.
    IssuerUnknown = "issuer_unknown", Unauthorized;
    /// Issued by the broker itself: a sandbox never claims sandboxes.
    IssuerReserved = "issuer_reserved", Unauthorized;
    /// No `aud`.
    AudienceMissing = "audience_missing", Unauthorized;
    /// `aud` does not name us.
    AudienceWrong = "audience_wrong", Unauthorized;
    /// `aud` names others besides us, who could replay the token.
    AudienceShared = "audience_shared", Unauthorized;
    /// No `exp`.
    ExpiryMissing = "expiry_missing", Unauthorized;
    /// Past `exp`.
    Expired = "expired", Unauthorized;
    /// Before `nbf`, or issued in the future.
    NotYetValid = "not_yet_valid", Unauthorized;
    /// No usable subject.
    SubjectMissing = "subject_missing", Unauthorized;
    /// It does not say, or contradicts itself about, which client asked for it.
    ClientMissing = "client_missing", Unauthorized;
    /// The token of a sandbox (`act`): a sandbox never claims sandboxes.
    SandboxToken = "sandbox_token", Forbidden;
    /// Asked for by the broker itself: a sandbox never claims sandboxes.
    OwnToken = "own_token", Forbidden;
    /// The client that asked for it is neither a login client nor a trusted agent.
    ClientUntrusted = "client_untrusted", Forbidden;
    /// The required scope is missing.
    ScopeMissing = "scope_missing", Forbidden;
    /// The required group is missing.
    GroupMissing = "group_missing", Forbidden;
    /// The required role is missing.
    RoleMissing = "role_missing", Forbidden;
    /// A service, and this issuer's services, or this one, may not claim.
    AppNotAllowed = "app_not_allowed", Forbidden;
    /// Looks like a service's token, and does not prove it is one.
    AppUnproven = "app_unproven", Forbidden;
    /// The identity provider did not answer, or not with success.
    ProviderUnreachable = "provider_unreachable", Unavailable;
    /// The identity provider's discovery document or key set is not acceptable.
    ProviderInvalid = "provider_invalid", Unavailable;
}

/// A refusal. `detail` is for the caller: it never contains the token, nor secrets.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Refusal {
    /// The HTTP status: 401, 403 or 503.
    pub status: u16,
    /// The `error` of the answer.
    pub code: Code,
    /// The reason, for metrics and audit.
    pub reason: RefusalReason,
    /// One or two sentences: what is wrong and what to do.
    pub detail: String,
}

impl Refusal {
    /// A refusal for this reason.
    #[must_use]
    pub fn new(reason: RefusalReason, detail: impl Into<String>) -> Self {
        Self { status: reason.code().status(), code: reason.code(), reason, detail: detail.into() }
    }

    /// The value of `WWW-Authenticate` (RFC 6750, section 3), for a 401 and a 403.
    #[must_use]
    pub fn challenge(&self) -> Option<&'static str> {
        match (self.code, self.reason) {
            (Code::Unauthorized, RefusalReason::TokenMissing) => Some(r#"Bearer realm="mediatore""#),
            (Code::Unauthorized, _) => Some(r#"Bearer realm="mediatore", error="invalid_token""#),
            (Code::Forbidden, _) => Some(r#"Bearer realm="mediatore", error="insufficient_scope""#),
            (Code::Unavailable, _) => None,
        }
    }
}

/// A foreign text in a sentence: quoted, escaped, short.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 64;
    match text.char_indices().nth(MOST) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
    }
}

/// A token that is none.
pub(crate) fn malformed(detail: impl Into<String>) -> Refusal {
    Refusal::new(RefusalReason::TokenMalformed, detail)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.as_str(), self.detail)
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({}): {}", self.status, self.code.as_str(), self.reason.as_str(), self.detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_what_json_says_and_differ() {
        let mut labels: Vec<_> = RefusalReason::ALL.iter().map(|reason| reason.as_str()).collect();
        for reason in RefusalReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), RefusalReason::ALL.len());
    }

    #[test]
    fn a_challenge_goes_with_every_401() {
        for reason in RefusalReason::ALL {
            let refusal = Refusal::new(*reason, "x");
            assert_eq!(refusal.challenge().is_some(), refusal.status != 503, "{reason:?}");
        }
    }
}
