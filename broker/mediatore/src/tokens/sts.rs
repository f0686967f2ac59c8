//! What stands in a token that mediatore signs, and how long it lives. Pure.
//!
//! The downstream service reads: `sub` is the person (or service) that the sandbox works for; `act.sub` is the sandbox
//! itself, by the SPIFFE id of its claim; an inner `act.sub` is the agent that asked for the person (RFC 8693, 4.1).

use banlieue_protocol::names::{SpiffeId, TrustDomain, Uid, claim};
use serde::Serialize;

/// Longest life of any token, in seconds.
pub const LONGEST: i64 = 900;
/// Who asks for tokens at mediatore's backends, as `client_id` says it (RFC 9068, 2.2).
pub const CLIENT_ID: &str = "mediatore";

/// Claims of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Claims {
    /// mediatore's issuer.
    pub iss: String,
    /// The subject key, 64 hexadecimal digits.
    pub sub: String,
    /// One audience, ever.
    pub aud: String,
    /// Seconds since 1970.
    pub exp: i64,
    /// Seconds since 1970.
    pub iat: i64,
    /// Seconds since 1970.
    pub nbf: i64,
    /// 128 random bits.
    pub jti: String,
    /// [`CLIENT_ID`].
    pub client_id: String,
    /// Who acts.
    pub act: Actor,
    /// `metadata.uid` of the claim.
    pub claim_uid: String,
    /// Issuer of the subject's own identity.
    pub upstream_iss: String,
    /// The subject's id there.
    pub upstream_sub: String,
}

/// An actor, and the one that it acts for (RFC 8693, 4.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Actor {
    /// Its id.
    pub sub: String,
    /// The actor before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act: Option<Box<Actor>>,
}

/// For whom, for what and until when.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// mediatore's issuer.
    pub issuer: &'a str,
    /// The trust domain of the claim's id.
    pub trust_domain: &'a TrustDomain,
    /// Uid of the claim.
    pub claim: &'a Uid,
    /// The subject key in hexadecimal digits.
    pub subject_key: String,
    /// Issuer of the subject.
    pub upstream_issuer: &'a str,
    /// Id of the subject there.
    pub upstream_id: &'a str,
    /// The agent that asked for the person, or empty.
    pub agent: &'a str,
    /// The audience.
    pub audience: &'a str,
    /// Longest life that the audience allows, in seconds.
    pub max_ttl: u32,
    /// The claim's deadline, in seconds since 1970.
    pub deadline: i64,
}

/// When a token made now ends: the earliest of a quarter of an hour, the audience's own limit and the deadline. Nothing
/// at or after the deadline.
#[must_use]
pub fn expiry(now: i64, max_ttl: u32, deadline: i64) -> Option<i64> {
    let longest = now.saturating_add(LONGEST.min(i64::from(max_ttl)));
    (now < deadline).then_some(longest.min(deadline))
}

/// The claims of a token, or nothing when the deadline has passed.
#[must_use]
pub fn claims(wanted: &Wanted<'_>, now: i64, random: [u8; 16]) -> Option<Claims> {
    let agent = (!wanted.agent.is_empty()).then(|| Box::new(Actor { sub: wanted.agent.to_owned(), act: None }));
    let sandbox: SpiffeId = claim(wanted.trust_domain, wanted.claim);
    Some(Claims {
        iss: wanted.issuer.to_owned(),
        sub: wanted.subject_key.clone(),
        aud: wanted.audience.to_owned(),
        exp: expiry(now, wanted.max_ttl, wanted.deadline)?,
        iat: now,
        nbf: now,
        jti: hex::encode(random),
        client_id: CLIENT_ID.to_owned(),
        act: Actor { sub: sandbox.as_str().to_owned(), act: agent },
        claim_uid: wanted.claim.as_str().to_owned(),
        upstream_iss: wanted.upstream_issuer.to_owned(),
        upstream_sub: wanted.upstream_id.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::plain(1000, 900, 100_000, Some(1900))]
    #[case::audience(1000, 60, 100_000, Some(1060))]
    #[case::deadline(1000, 900, 1005, Some(1005))]
    #[case::at_the_deadline(1000, 900, 1000, None)]
    #[case::after_it(1000, 900, 10, None)]
    #[case::an_audience_that_wants_more(1000, 86_400, 100_000, Some(1900))]
    fn lifetimes(#[case] now: i64, #[case] max: u32, #[case] deadline: i64, #[case] expected: Option<i64>) {
        assert_eq!(expiry(now, max, deadline), expected);
    }

    proptest! {
        #[test]
        fn no_token_outlives_any_bound(now in 0..i64::MAX / 2, max: u32, deadline: i64) {
            if let Some(exp) = expiry(now, max, deadline) {
                prop_assert!(exp <= deadline && exp <= now + LONGEST && exp <= now + i64::from(max) && now < deadline);
            } else {
                prop_assert!(now >= deadline);
            }
        }
    }

    #[test]
    fn the_chain_says_who_acts_for_whom() {
        let domain = TrustDomain::parse("banlieue.local").unwrap();
        let uid = Uid::parse("0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab").unwrap();
        let wanted = Wanted {
            issuer: "https://m.example",
            trust_domain: &domain,
            claim: &uid,
            subject_key: "ab".repeat(32),
            upstream_issuer: "https://idp.example",
            upstream_id: "alice",
            agent: "bot",
            audience: "api://trading-data",
            max_ttl: 900,
            deadline: 5000,
        };
        let made = serde_json::to_value(claims(&wanted, 1000, [1; 16]).unwrap()).unwrap();
        assert_eq!(
            made,
            json!({
                "iss": "https://m.example", "sub": "ab".repeat(32), "aud": "api://trading-data",
                "exp": 1900, "iat": 1000, "nbf": 1000, "jti": "01".repeat(16), "client_id": "mediatore",
                "act": {
                    "sub": "spiffe://banlieue.local/banlieue/claim/0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab",
                    "act": { "sub": "bot" },
                },
                "claim_uid": "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab",
                "upstream_iss": "https://idp.example", "upstream_sub": "alice",
            })
        );
        let alone = serde_json::to_value(claims(&Wanted { agent: "", ..wanted }, 1000, [1; 16]).unwrap()).unwrap();
        assert_eq!(alone.pointer("/act/act"), None);
    }
}
