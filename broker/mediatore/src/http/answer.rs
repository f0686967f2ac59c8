//! The one shape of every error: `{"error": code, "detail": text}`.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use banlieue_identity::Refusal;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use crate::claims::cluster::CallError;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $code:ident = $word:literal, $status:ident;)+) => {
        /// Codes of errors. Stable API.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($(#[doc = $doc])+ $code,)+ }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$code,)+];

            /// The word in answers, metrics and audit.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => $word,)+ }
            }

            /// Its HTTP status.
            #[must_use]
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$code => StatusCode::$status,)+ }
            }
        }
    };
}

codes! {
    /// The request makes no sense, or breaks a rule of the API.
    InvalidRequest = "invalid_request", BAD_REQUEST;
    /// An audience that is not configured, not allowed by the pool, or not in the claim.
    UnknownAudience = "unknown_audience", BAD_REQUEST;
    /// A lifetime that the pool does not allow.
    InvalidTtl = "invalid_ttl", BAD_REQUEST;
    /// An image that the pool does not allow.
    ImageDenied = "image_denied", BAD_REQUEST;
    /// No token, or none for us.
    Unauthorized = "unauthorized", UNAUTHORIZED;
    /// A genuine caller who may not.
    Forbidden = "forbidden", FORBIDDEN;
    /// The member was taken out; the guest powers off.
    MemberRevoked = "member_revoked", FORBIDDEN;
    /// No such route, or no such claim of the caller's.
    NotFound = "not_found", NOT_FOUND;
    /// No such pool, or none for this caller.
    PoolNotFound = "pool_not_found", NOT_FOUND;
    /// The member has no claim yet.
    NoClaim = "no_claim", NOT_FOUND;
    /// The route has no such method.
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED;
    /// The body did not arrive in time.
    RequestTimeout = "request_timeout", REQUEST_TIMEOUT;
    /// The key was used for another request.
    IdempotencyConflict = "idempotency_conflict", CONFLICT;
    /// The claim is over; the guest powers off.
    Released = "released", GONE;
    /// The request's head is too long.
    HeadersTooLarge = "headers_too_large", REQUEST_HEADER_FIELDS_TOO_LARGE;
    /// The body is too long.
    PayloadTooLarge = "payload_too_large", PAYLOAD_TOO_LARGE;
    /// The subject has as many claims as the pool allows.
    TooManyClaims = "too_many_claims", TOO_MANY_REQUESTS;
    /// The subject or claim asks too often.
    RateLimited = "rate_limited", TOO_MANY_REQUESTS;
    /// A defect of mediatore.
    Internal = "internal", INTERNAL_SERVER_ERROR;
    /// Something that mediatore needs does not answer; asking again later may help.
    Unavailable = "unavailable", SERVICE_UNAVAILABLE;
}

/// An error as it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub code: Code,
    /// What is wrong and what to do, for a person. Never a secret.
    pub detail: String,
    /// For audit and metrics, where it says more than the code.
    pub reason: &'static str,
    /// `WWW-Authenticate`.
    pub challenge: Option<&'static str>,
    /// `Retry-After` in seconds.
    pub retry_after: Option<u64>,
    /// `Allow`.
    pub allow: Option<String>,
}

impl Failure {
    /// An error of this code.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after = match code {
            Code::RateLimited | Code::Unavailable => Some(1),
            _ => None,
        };
        let challenge = (code == Code::Unauthorized).then_some(r#"Bearer realm="mediatore""#);
        Self { code, detail: detail.into(), reason: code.as_str(), challenge, retry_after, allow: None }
    }

    /// With a reason that says more than the code.
    #[must_use]
    pub fn because(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }
}

impl Failure {
    /// The body of the answer.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        // Two texts always serialise.
        serde_json::to_vec(&Shape { error: self.code.as_str(), detail: &self.detail }).unwrap_or_default()
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal.code {
            banlieue_identity::Code::Unauthorized => Code::Unauthorized,
            banlieue_identity::Code::Forbidden => Code::Forbidden,
            banlieue_identity::Code::Unavailable => Code::Unavailable,
        };
        let challenge = refusal.challenge();
        Self { challenge, ..Self::new(code, refusal.detail.clone()).because(refusal.reason.as_str()) }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        // What the API server said is for the log; a caller can only ask again.
        tracing::warn!(%error, category = error.category(), "the API server did not do what was asked");
        Self::new(Code::Unavailable, "the cluster does not answer as it should; try again").because("cluster")
    }
}

#[derive(Serialize)]
struct Shape<'a> {
    error: &'a str,
    detail: &'a str,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = answered(self.code.status(), self.text());
        let headers = response.headers_mut();
        if let Some(challenge) = self.challenge {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::try_from(allow).ok()) {
            headers.insert(header::ALLOW, allow);
        }
        response.extensions_mut().insert(Outcome { code: self.code.as_str(), reason: self.reason });
        response
    }
}

/// What an answer was, for metrics.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// The code.
    pub code: &'static str,
    /// The reason.
    pub reason: &'static str,
}

/// A JSON answer that nobody may keep.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let Ok(text) = serde_json::to_vec(value) else {
        // No type of ours fails to serialise.
        return Failure::new(Code::Internal, "mediatore has a defect here; see its log").into_response();
    };
    answered(status, text)
}

fn answered(status: StatusCode, text: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_differ_and_a_401_has_its_challenge() {
        let mut words: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Code::ALL.len());
        let response = Failure::new(Code::Unauthorized, "x").into_response();
        assert_eq!(response.status(), 401);
        assert!(response.headers().contains_key(header::WWW_AUTHENTICATE));
        assert!(Failure::new(Code::RateLimited, "x").into_response().headers().contains_key(header::RETRY_AFTER));
    }
}
