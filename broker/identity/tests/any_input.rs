//! No input makes anything panic, and none of these inputs is accepted.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod forge;

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use banlieue_identity::keys::KeySet;
use banlieue_identity::token::{MAX_BYTES, Unverified, bearer};
use banlieue_identity::{Issuer, Issuers, accept};
use forge::{Signer, base64url, jwks};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

static SIGNER: LazyLock<Signer> = LazyLock::new(|| Signer::p256("k1"));

fn keys() -> KeySet {
    KeySet::parse(jwks(&[&SIGNER]).to_string().as_bytes()).unwrap()
}

fn issuers() -> Vec<Issuer> {
    [
        "{name: a, url: 'https://a.test', client_id: m, accepts: access_token, subject_claim: oid, clients: [az], peers: [agent],
          require: {scope: s, group: g}, apps: {allowed: true, role: r}}",
        "{name: d, url: 'https://d.test', client_id: m, accepts: id_token, clients: [az], peers: [agent], require: {role: r}}",
    ]
    .map(|yaml| serde_saphyr::from_str(yaml).unwrap())
    .into()
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        ".{0,20}".prop_map(Value::from),
        prop::sample::select(vec![
            "m",
            "az",
            "agent",
            "s",
            "g",
            "r",
            "app",
            "user",
            "https://a.test",
            "https://d.test",
            "1"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,8}", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Claims by names that mean something, with values that mostly do not.
fn any_claims() -> impl Strategy<Value = Map<String, Value>> {
    let name = prop::sample::select(vec![
        "iss",
        "aud",
        "exp",
        "nbf",
        "iat",
        "sub",
        "oid",
        "azp",
        "client_id",
        "appid",
        "azpacr",
        "appidacr",
        "idtyp",
        "scp",
        "scope",
        "roles",
        "groups",
        "act",
        "cnf",
        "nonce",
        "typ",
        "token_use",
        "events",
        "preferred_username",
        "_claim_names",
        "hasgroups",
    ]);
    prop::collection::btree_map(name.prop_map(str::to_owned), any_json(), 0..12)
        .prop_map(|map| map.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_text_is_refused(text in "\\PC{0,200}") {
        prop_assert!(Unverified::parse(&text).is_err());
        let _ = bearer(Some(&text));
    }

    #[test]
    fn any_three_parts_are_no_token_of_ours(header in any::<Vec<u8>>(), claims in any::<Vec<u8>>(), signature in any::<Vec<u8>>()) {
        let token = format!("{}.{}.{}", base64url(header), base64url(claims), base64url(signature));
        prop_assert!(Unverified::parse(&token).is_err());
    }

    #[test]
    fn any_json_as_header_and_claims(header in any_json(), claims in any_json()) {
        let token = SIGNER.sign_raw(&header.to_string(), &claims.to_string());
        for issuer in issuers() {
            if let Ok(token) = Unverified::parse(&token) {
                prop_assert!(accept(&issuer, &keys(), token, SystemTime::now()).is_err());
            }
        }
    }

    /// Well signed, so that every claim is read.
    #[test]
    fn any_claims_are_judged(claims in any_claims(), seconds in any::<u32>()) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into());
        for issuer in issuers() {
            // Half of the checks come after the issuer's, so it is given.
            let mut claims = claims.clone();
            claims.insert("iss".to_owned(), json!(issuer.url));
            let token = SIGNER.token(&Value::Object(claims.clone()));
            if let Ok(caller) = accept(&issuer, &keys(), Unverified::parse(&token).unwrap(), now) {
                // Rare, and then nothing that must be there is missing.
                prop_assert!(!caller.id.is_empty() && claims.contains_key("exp") && !claims.contains_key("act"));
                prop_assert!(["az", "agent"].contains(&caller.client.as_str()) || claims["roles"] != Value::Null);
            }
        }
    }

    /// One byte changed anywhere in a good token.
    #[test]
    fn a_changed_token_is_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let issuer = &issuers()[0];
        let claims = json!({"iss": issuer.url, "aud": "m", "oid": "p", "azp": "az", "scp": "s", "groups": ["g"], "exp": 2_000_000_000});
        let token = SIGNER.token(&claims);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_999_999_000);
        prop_assert!(accept(issuer, &keys(), Unverified::parse(&token).unwrap(), now).is_ok());
        let mut changed = token.clone().into_bytes();
        let at = at.index(changed.len());
        changed[at] = byte;
        let changed = String::from_utf8_lossy(&changed).into_owned();
        if changed != token && let Ok(parsed) = Unverified::parse(&changed) {
            prop_assert!(accept(issuer, &keys(), parsed, now).is_err());
        }
    }

    #[test]
    fn any_bytes_as_key_set(bytes in any::<Vec<u8>>()) {
        prop_assert!(KeySet::parse(&bytes).is_err());
    }

    #[test]
    fn any_keys_in_a_set(keys in prop::collection::vec(any_json(), 0..6), kty in ".{0,4}", n in ".{0,40}") {
        let _ = KeySet::parse(json!({"keys": keys}).to_string().as_bytes());
        let _ = KeySet::parse(json!({"keys": [{"kid": "k", "kty": kty, "n": n, "e": n, "crv": kty, "x": n, "y": n}]}).to_string().as_bytes());
        for kty in ["RSA", "EC", "OKP"] {
            let _ = KeySet::parse(json!({"keys": [{"kid": "k", "kty": kty, "n": n, "e": n, "crv": "P-256", "x": n, "y": n}]}).to_string().as_bytes());
        }
    }
}

#[test]
fn any_bearer_is_answered() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let issuers = Issuers::new(issuers()).unwrap();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(300));
    let strategy = prop_oneof![
        "\\PC{0,100}",
        any_claims().prop_map(|mut claims| {
            claims.remove("iss"); // nothing is to be fetched here
            SIGNER.token(&Value::Object(claims))
        }),
    ];
    runner
        .run(&strategy, |token| {
            prop_assert!(runtime.block_on(issuers.validate(&token, SystemTime::now())).is_err());
            Ok(())
        })
        .unwrap();
    let long = "a".repeat(MAX_BYTES + 1);
    assert!(runtime.block_on(issuers.validate(&long, SystemTime::now())).is_err());
}

#[test]
fn the_authorization_header() {
    assert_eq!(bearer(Some("Bearer abc")).unwrap(), "abc");
    assert_eq!(bearer(Some("bearer  abc ")).unwrap(), "abc");
    for missing in [None, Some(""), Some("Bearer"), Some("Bearer "), Some("Basic abc"), Some("abc"), Some("Bearerabc")]
    {
        let refusal = bearer(missing).unwrap_err();
        assert_eq!((refusal.status, refusal.challenge()), (401, Some(r#"Bearer realm="mediatore""#)), "{missing:?}");
    }
}
