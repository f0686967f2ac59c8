//! Every reason against a token, each as the only thing that is wrong with it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use std::sync::LazyLock;
use std::time::{Duration, UNIX_EPOCH};

use banlieue_downstream::sandbox::judge;
use banlieue_downstream::{Expected, Refusal, Sandbox};
use banlieue_identity::keys::KeySet;
use banlieue_identity::token::Unverified;
use banlieue_identity::{Algorithm, SubjectKey};
use banlieue_protocol::names::TrustDomain;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{EncodingKey, Header, encode};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

const CLAIM: &str = "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab";
const OTHER: &str = "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ac";
const NOW: u64 = 10_000;

static PAIR: LazyLock<rcgen::KeyPair> = LazyLock::new(|| rcgen::KeyPair::generate().unwrap());
static KEYS: LazyLock<KeySet> = LazyLock::new(|| {
    let point = PAIR.public_key_raw();
    let part = |range| URL_SAFE_NO_PAD.encode(&point[range]);
    let key = json!({ "kty": "EC", "crv": "P-256", "kid": "k", "x": part(1..33), "y": part(33..65) });
    KeySet::parse(json!({ "keys": [key] }).to_string().as_bytes()).unwrap()
});

fn good() -> Value {
    json!({
        "iss": "https://mediatore.example",
        "sub": SubjectKey::of("https://idp.example", "ada"),
        "aud": "api://reports",
        "exp": NOW + 900, "nbf": NOW, "iat": NOW,
        "jti": "01", "client_id": "mediatore",
        "act": { "sub": format!("spiffe://banlieue.local/banlieue/claim/{CLAIM}"), "act": { "sub": "bot" } },
        "claim_uid": CLAIM,
        "upstream_iss": "https://idp.example", "upstream_sub": "ada",
    })
}

fn signed(typ: &str, claims: &Value) -> String {
    let mut header = Header::new(jsonwebtoken::Algorithm::ES256);
    (header.typ, header.kid) = (Some(typ.to_owned()), Some("k".to_owned()));
    encode(&header, claims, &EncodingKey::from_ec_der(&PAIR.serialize_der())).unwrap()
}

fn judged(token: &str) -> Result<Sandbox, Refusal> {
    let expected = Expected {
        issuer: "https://mediatore.example".into(),
        audience: "api://reports".into(),
        trust_domain: TrustDomain::parse("banlieue.local").unwrap(),
    };
    let verified = Unverified::parse(token)?.verified_by(&KEYS, "mediatore", &[Algorithm::ES256])?;
    judge(&expected, &verified, UNIX_EPOCH + Duration::from_secs(NOW))
}

#[test]
fn a_sandbox_is_known_with_whom_it_acts_for() {
    let sandbox = judged(&signed("at+jwt", &good())).unwrap();
    assert_eq!((sandbox.claim.as_str(), sandbox.upstream_id.as_str()), (CLAIM, "ada"));
    assert_eq!(sandbox.subject, SubjectKey::of("https://idp.example", "ada"));
    assert_eq!((sandbox.agent.as_deref(), sandbox.expires_at), (Some("bot"), 10_900));
    let mut alone = good();
    alone["act"].as_object_mut().unwrap().remove("act");
    assert_eq!(judged(&signed("application/at+JWT", &alone)).unwrap().agent, None);
    let mut list = good();
    list["aud"] = json!(["api://reports"]);
    assert!(judged(&signed("at+jwt", &list)).is_ok());
}

fn act(id: &str) -> Value {
    json!({ "sub": id })
}

#[rstest]
#[case::another_issuer("/iss", json!("https://mediatore.example/"), "issuer_unknown")]
#[case::another_audience("/aud", json!("api://trading"), "audience_wrong")]
#[case::two_audiences("/aud", json!(["api://reports", "api://trading"]), "audience_wrong")]
#[case::no_audience("/aud", Value::Null, "audience_wrong")]
#[case::expired("/exp", json!(NOW - 60), "expired")]
#[case::no_expiry("/exp", Value::Null, "token_malformed")]
#[case::a_fraction("/exp", json!(10_900.5), "token_malformed")]
#[case::a_text_for_a_time("/exp", json!("10900"), "token_malformed")]
#[case::not_yet("/nbf", json!(NOW + 61), "not_yet_valid")]
#[case::from_the_future("/iat", json!(NOW + 61), "not_yet_valid")]
#[case::no_actor("/act", Value::Null, "actor")]
#[case::an_actor_that_is_a_text("/act", json!("spiffe://banlieue.local/banlieue/claim"), "actor")]
#[case::another_claims_sandbox("/act/sub", json!(format!("spiffe://banlieue.local/banlieue/claim/{OTHER}")), "actor")]
#[case::another_domain("/act/sub", json!(format!("spiffe://banlieue.locals/banlieue/claim/{CLAIM}")), "actor")]
#[case::a_guest("/act/sub", json!(format!("spiffe://banlieue.local/banlieue/node/{CLAIM}")), "actor")]
#[case::an_agent_alone("/act/sub", json!("bot"), "actor")]
#[case::an_empty_agent("/act/act", json!({}), "token_malformed")]
#[case::an_agent_that_is_a_text("/act/act", json!("bot"), "actor")]
#[case::a_longer_chain("/act/act/act", act("another"), "actor")]
#[case::a_claim_uid_that_is_none("/claim_uid", json!("x"), "claim_uid")]
#[case::another_claim("/claim_uid", json!(OTHER), "actor")]
#[case::another_persons_key("/sub", json!(SubjectKey::of("https://idp.example", "eve")), "subject")]
#[case::another_person("/upstream_sub", json!("eve"), "subject")]
#[case::another_provider("/upstream_iss", json!("https://idp.exampl"), "subject")]
#[case::a_line_break_for_the_log("/upstream_sub", json!("ada\n{\"claim\":"), "token_malformed")]
#[case::an_endless_name("/upstream_sub", json!("a".repeat(256)), "token_malformed")]
fn one_thing_is_wrong(#[case] at: &str, #[case] value: Value, #[case] reason: &str) {
    let mut claims = good();
    let (parent, name) = at.rsplit_once('/').unwrap();
    let object = claims.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    if value.is_null() {
        drop(object.remove(name))
    } else {
        drop(object.insert(name.to_owned(), value))
    }
    let refusal = judged(&signed("at+jwt", &claims)).unwrap_err();
    assert_eq!((refusal.reason, refusal.status.as_u16()), (reason, 401), "{refusal:?}");
}

#[rstest]
#[case::no_access_token("jwt")]
#[case::something_else_that_is_signed("logout+jwt")]
fn what_is_no_access_token_is_refused(#[case] typ: &str) {
    assert_eq!(judged(&signed(typ, &good())).unwrap_err().reason, "token_type");
}

#[test]
fn what_was_not_signed_by_mediatore_is_refused() {
    let token = signed("at+jwt", &good());
    let (head, rest) = token.split_once('.').unwrap();
    let (body, signature) = rest.split_once('.').unwrap();
    let mut claims = good();
    claims["upstream_sub"] = json!("eve");
    let forged = URL_SAFE_NO_PAD.encode(claims.to_string());
    assert_eq!(judged(&format!("{head}.{forged}.{signature}")).unwrap_err().reason, "signature_invalid");
    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"at+jwt","kid":"k"}"#);
    assert_eq!(judged(&format!("{none}.{body}.")).unwrap_err().reason, "algorithm_not_allowed");
    // The public key as the secret of a symmetric algorithm.
    let mut header = Header::new(jsonwebtoken::Algorithm::HS256);
    (header.typ, header.kid) = (Some("at+jwt".into()), Some("k".into()));
    let confused = encode(&header, &good(), &EncodingKey::from_secret(PAIR.public_key_raw()).unwrap()).unwrap();
    assert_eq!(judged(&confused).unwrap_err().reason, "algorithm_not_allowed");
    let other = rcgen::KeyPair::generate().unwrap();
    let mut header = Header::new(jsonwebtoken::Algorithm::ES256);
    (header.typ, header.kid) = (Some("at+jwt".into()), Some("k".into()));
    let foreign = encode(&header, &good(), &EncodingKey::from_ec_der(&other.serialize_der())).unwrap();
    assert_eq!(judged(&foreign).unwrap_err().reason, "signature_invalid");
}

proptest! {
    /// Whatever stands in the token: it is refused, or it says whom it acts for without contradiction.
    #[test]
    fn any_claims(names in prop::collection::vec(0_usize..12, 0..4), values in prop::collection::vec(any_value(), 4)) {
        let mut claims = good();
        let known: Vec<String> = claims.as_object().unwrap().keys().cloned().collect();
        for (name, value) in names.iter().zip(values) {
            claims[&known[*name % known.len()]] = value;
        }
        if let Ok(sandbox) = judged(&signed("at+jwt", &claims)) {
            prop_assert_eq!(&claims["iss"], "https://mediatore.example");
            prop_assert_eq!(sandbox.subject, SubjectKey::of(&sandbox.upstream_issuer, &sandbox.upstream_id));
            let act = claims["act"]["sub"].as_str().unwrap();
            prop_assert!(act.ends_with(sandbox.claim.as_str()) && act.starts_with("spiffe://banlieue.local/"));
            prop_assert!(sandbox.expires_at + 60 > i64::try_from(NOW).unwrap());
        }
    }

    #[test]
    fn any_token(token in ".{0,200}") {
        prop_assert!(judged(&token).is_err());
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(json!("api://reports")),
        Just(json!({ "sub": format!("spiffe://banlieue.local/banlieue/claim/{OTHER}") })),
        Just(json!({ "sub": format!("spiffe://banlieue.local/banlieue/claim/{CLAIM}"), "act": { "sub": "x" } })),
    ]
}
