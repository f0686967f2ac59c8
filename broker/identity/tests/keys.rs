//! Key sets: which keys are used, which are not, and which sets are refused as a whole.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod forge;

use banlieue_identity::keys::{KeySet, KeysError, MAX_BYTES, MAX_KEYS};
use banlieue_identity::{Algorithm, RefusalReason as Why};
use forge::{Signer, jwks, with};
use serde_json::{Value, json};

fn parse(document: &Value) -> Result<KeySet, KeysError> {
    KeySet::parse(document.to_string().as_bytes())
}

#[test]
fn a_key_does_only_what_its_type_and_alg_allow() {
    use Algorithm::{ES256, ES384, PS256, RS256};
    let (rsa, ec) = (Signer::rsa("rsa"), Signer::p256("ec"));
    let only = with(&rsa.jwk(), json!({"alg": "RS256", "kid": "only"}));
    let set = parse(&json!({"keys": [rsa.jwk(), ec.jwk(), only]})).unwrap();
    for (kid, algorithm, allowed) in [
        ("rsa", RS256, true),
        ("rsa", PS256, true),
        ("rsa", ES256, false),
        ("only", RS256, true),
        ("only", PS256, false),
        ("ec", ES256, true),
        ("ec", ES384, false),
        ("ec", RS256, false),
    ] {
        match set.key(kid, algorithm) {
            Ok(_) => assert!(allowed, "{kid} {algorithm}"),
            Err(refusal) => assert!(!allowed && refusal.reason == Why::KeyUnknown, "{kid} {algorithm}: {refusal:?}"),
        }
    }
}

#[test]
fn a_name_given_twice_is_nobodys() {
    let (one, two, good) = (Signer::p256("twice"), Signer::rsa("twice"), Signer::p256("good"));
    // The last is one that could not be used itself.
    for twin in [two.jwk(), one.jwk(), json!({"kty": "oct", "k": "AAAA", "kid": "twice"}), json!({"kid": "twice"})] {
        for keys in [json!([one.jwk(), good.jwk(), twin]), json!([twin, good.jwk(), one.jwk()])] {
            let set = parse(&json!({"keys": keys})).unwrap();
            assert_eq!(set.key("twice", Algorithm::ES256).unwrap_err().reason, Why::KeyAmbiguous, "{keys}");
            assert!(set.key("good", Algorithm::ES256).is_ok());
            assert!(!set.knows("twice") && set.knows("good"));
            assert_eq!(set.usable(), 1);
        }
    }
    let encryption = with(&two.jwk(), json!({"use": "enc"}));
    let set = parse(&json!({"keys": [one.jwk(), encryption]})).unwrap();
    assert!(set.key("twice", Algorithm::ES256).is_ok(), "a key for encryption is no twin");
}

#[test]
fn keys_of_no_use_are_left_out() {
    let (good, ec, rsa, ed) = (Signer::p256("good"), Signer::p256("k"), Signer::rsa("k"), Signer::ed25519("k"));
    let short = "A".repeat(171); // 1024 bits
    for (name, key) in [
        ("symmetric", json!({"kty": "oct", "k": "c2VjcmV0", "kid": "k"})),
        ("for encryption", with(&rsa.jwk(), json!({"use": "enc"}))),
        ("for other operations", with(&rsa.jwk(), json!({"key_ops": ["encrypt"]}))),
        ("operations that are no list", with(&rsa.jwk(), json!({"key_ops": "verify"}))),
        ("with its private half", with(&ec.jwk(), json!({"d": "AAAA"}))),
        ("of an unknown type", with(&ec.jwk(), json!({"kty": "AKP"}))),
        ("of an unknown curve", with(&ec.jwk(), json!({"crv": "secp256k1"}))),
        ("of a curve too large to mean it", with(&ec.jwk(), json!({"crv": "P-384"}))),
        ("of a curve for key agreement", with(&ed.jwk(), json!({"crv": "X25519"}))),
        ("with a short coordinate", with(&ec.jwk(), json!({"x": "AAAA"}))),
        ("with a coordinate that is not base64url", with(&ec.jwk(), json!({"y": "!".repeat(43)}))),
        ("short", with(&rsa.jwk(), json!({"n": short}))),
        ("huge", with(&rsa.jwk(), json!({"n": "A".repeat(2000)}))),
        ("with a huge exponent", with(&rsa.jwk(), json!({"e": "A".repeat(400)}))),
        ("for an algorithm of another type", with(&rsa.jwk(), json!({"alg": "ES256"}))),
        ("for an unknown algorithm", with(&rsa.jwk(), json!({"alg": "RSA-OAEP"}))),
        ("for an algorithm that is no text", with(&rsa.jwk(), json!({"alg": 1}))),
        ("without a modulus", with(&rsa.jwk(), json!({"n": null}))),
    ] {
        assert_eq!(parse(&json!({"keys": [key]})).unwrap_err(), KeysError::Empty, "{name}");
        let set = parse(&json!({"keys": [key, good.jwk()]})).unwrap();
        assert!(!set.knows("k") && set.knows("good"), "{name}");
    }
    let set = parse(&json!({"keys": [with(&ec.jwk(), json!({"kid": null})), good.jwk()]})).unwrap();
    assert_eq!(set.usable(), 1, "a key without a name");
}

#[test]
fn a_point_off_the_curve_verifies_nothing() {
    let signer = Signer::p256("k");
    let bad = with(&signer.jwk(), json!({"x": forge::base64url([0x55; 32])}));
    let set = parse(&json!({"keys": [bad]})).unwrap();
    let token = signer.token(&json!({}));
    let (signed, signature) = token.rsplit_once('.').unwrap();
    assert!(!set.key("k", Algorithm::ES256).unwrap().verifies(Algorithm::ES256, signed.as_bytes(), signature));
}

#[test]
fn sets_refused_as_a_whole() {
    let good = Signer::p256("good");
    for (name, bytes, error) in [
        ("not JSON", "<html>".to_owned(), KeysError::Malformed),
        ("a list", "[]".to_owned(), KeysError::Malformed),
        ("keys that are no objects", r#"{"keys": [1]}"#.to_owned(), KeysError::Malformed),
        ("keys twice", r#"{"keys": [], "keys": []}"#.to_owned(), KeysError::Malformed),
        ("empty", r#"{"keys": []}"#.to_owned(), KeysError::Empty),
        ("too large", format!("{}{}", jwks(&[&good]), " ".repeat(MAX_BYTES)), KeysError::TooLarge),
    ] {
        assert_eq!(KeySet::parse(bytes.as_bytes()).unwrap_err(), error, "{name}");
    }
    let many = |count: usize| {
        let mut keys: Vec<Value> = (1..count).map(|_| json!({})).collect();
        keys.push(good.jwk());
        json!({"keys": keys})
    };
    assert!(parse(&many(MAX_KEYS)).is_ok());
    assert_eq!(parse(&many(MAX_KEYS + 1)).unwrap_err(), KeysError::TooMany(MAX_KEYS + 1));
}
