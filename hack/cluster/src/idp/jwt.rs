//! Tokens from the outside: reading them, checking them against a key set, and the one that a client signs itself.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use aws_lc_rs::{digest, rand};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use super::http::LoginError;

fn unexpected(what: impl Into<String>) -> LoginError {
    LoginError::Unexpected(what.into())
}

/// Header and claims, whoever signed them.
///
/// # Errors
/// When the text is no JWT.
pub fn decode(token: &str) -> Result<(Value, Value), LoginError> {
    let part = |text: Option<&str>| {
        let bytes = URL_SAFE_NO_PAD.decode(text?).ok()?;
        serde_json::from_slice::<Value>(&bytes).ok()
    };
    let mut parts = token.split('.');
    let (header, claims) = (part(parts.next()), part(parts.next()));
    header.zip(claims).ok_or_else(|| unexpected("this is no JWT"))
}

/// The claims, once a key of the set has proven to have signed them.
pub(crate) fn verify(token: &str, jwks: &Value) -> Result<Value, LoginError> {
    let (header, claims) = decode(token)?;
    let (signed, signature) = token.rsplit_once('.').ok_or_else(|| unexpected("this is no JWT"))?;
    let signature = bytes(Some(signature))?;
    let keys = jwks.get("keys").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let key = keys.iter().find(|key| key.get("kid") == header.get("kid") && header.get("kid").is_some());
    let key = key.ok_or_else(|| unexpected(format!("no key of the set has the token's kid: {header}")))?;
    let field = |name: &str| bytes(key.get(name).and_then(Value::as_str));
    let good = match header.get("alg").and_then(Value::as_str) {
        Some("RS256") => RsaPublicKeyComponents { n: field("n")?, e: field("e")? }
            .verify(&signature::RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &signature)
            .is_ok(),
        Some("ES256") => {
            let point = [vec![4], field("x")?, field("y")?].concat();
            UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                .verify(signed.as_bytes(), &signature)
                .is_ok()
        }
        other => return Err(unexpected(format!("algorithm {other:?} is none of those the tests use"))),
    };
    if good { Ok(claims) } else { Err(unexpected("the signature is not of that key")) }
}

fn bytes(text: Option<&str>) -> Result<Vec<u8>, LoginError> {
    let text = text.ok_or_else(|| unexpected("a key lacks a field"))?;
    URL_SAFE_NO_PAD.decode(text).map_err(|error| unexpected(format!("not base64url: {error}")))
}

/// What a client with a certificate proves itself with, as Entra asks for it: PS256, the certificate named by its
/// thumbprint (<https://learn.microsoft.com/entra/identity-platform/certificate-credentials>).
///
/// # Errors
/// When the files hold no certificate or no RSA key.
pub fn client_assertion(client_id: &str, audience: &str, cert: &Path, key: &Path) -> Result<String, LoginError> {
    let wrong = |what: &dyn std::fmt::Display| unexpected(format!("no assertion of {client_id}: {what}"));
    let cert = CertificateDer::from_pem_file(cert).map_err(|error| wrong(&error))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(&error))?;
    let key = signature::RsaKeyPair::from_pkcs8(key.secret_der()).map_err(|error| wrong(&error))?;
    let thumbprint = URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, &cert));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let header = json!({ "alg": "PS256", "typ": "JWT", "x5t#S256": thumbprint });
    let claims = json!({
        "iss": client_id, "sub": client_id, "aud": audience, "jti": random(), "iat": now, "nbf": now, "exp": now + 300,
    });
    let signed = format!("{}.{}", encode(&header), encode(&claims));
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&signature::RSA_PSS_SHA256, &rand::SystemRandom::new(), signed.as_bytes(), &mut signature)
        .map_err(|error| wrong(&error))?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

fn encode(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// 32 random bytes in base64url: a state, a verifier, an id.
pub(crate) fn random() -> String {
    URL_SAFE_NO_PAD.encode(::rand::random::<[u8; 32]>())
}

/// PKCE's S256 (RFC 7636, section 4.2).
pub(crate) fn challenge(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, verifier.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_challenge_is_that_of_the_specification() {
        // RFC 7636, appendix B.
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        assert_eq!(challenge(verifier), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for text in ["", "a.b", "e30", "e30.e30"] {
            assert!(verify(text, &json!({ "keys": [] })).is_err(), "{text}");
        }
    }
}
