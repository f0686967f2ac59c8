//! P-256 keys for signing tokens (ES256, RFC 7518, 3.4), and the JWK set that verifiers fetch.

use aws_lc_rs::{
    digest::{SHA256, digest},
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use serde::Serialize;
use serde_json::{Value, json};

/// What is wrong with a key, to be read after the name of its file.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KeyError(pub String);

/// One key that signs.
#[derive(Clone)]
pub struct SigningKey {
    id: String,
    x: String,
    y: String,
    encoding: EncodingKey,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Reads a PKCS #8 PEM.
    ///
    /// # Errors
    /// When it is not a P-256 key.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        let wrong = || {
            KeyError("must hold a P-256 key in PKCS #8 PEM (make one: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256)".to_owned())
        };
        let PrivateKeyDer::Pkcs8(der) = PrivateKeyDer::from_pem_slice(pem).map_err(|_| wrong())? else {
            return Err(wrong());
        };
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_pkcs8_der()).map_err(|_| wrong())?;
        // SEC 1, 2.3.3: 04, then x and y.
        let public = pair.public_key().as_ref();
        let (Some(x), Some(y), 65) = (public.get(1..33), public.get(33..65), public.len()) else {
            return Err(wrong());
        };
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        Ok(Self { id: thumbprint(&x, &y), x, y, encoding: EncodingKey::from_ec_der(der.secret_pkcs8_der()) })
    }

    /// Its name: the JWK thumbprint (RFC 7638), so that one key has one name wherever it is configured.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    fn jwk(&self) -> Value {
        json!({ "kty": "EC", "crv": "P-256", "x": self.x, "y": self.y, "kid": self.id, "alg": "ES256", "use": "sig" })
    }
}

fn thumbprint(x: &str, y: &str) -> String {
    // Members in lexical order, no spaces (RFC 7638, 3.2). base64url needs no escaping.
    let canonical = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
    URL_SAFE_NO_PAD.encode(digest(&SHA256, canonical.as_bytes()))
}

/// The keys of one issuer: the first signs, all are published.
#[derive(Debug, Clone)]
pub struct SigningKeys {
    first: SigningKey,
    others: Vec<SigningKey>,
}

impl SigningKeys {
    /// At least one.
    #[must_use]
    pub fn new(keys: Vec<SigningKey>) -> Option<Self> {
        let mut keys = keys.into_iter();
        let first = keys.next()?;
        Some(Self { first, others: keys.collect() })
    }

    /// Signs claims as an access token (RFC 9068: `typ` is `at+jwt`).
    ///
    /// # Errors
    /// When the library refuses, which is a defect.
    pub fn sign(&self, claims: &impl Serialize) -> Result<String, KeyError> {
        let header = Header {
            typ: Some("at+jwt".to_owned()),
            kid: Some(self.first.id.clone()),
            ..Header::new(Algorithm::ES256)
        };
        jsonwebtoken::encode(&header, claims, &self.first.encoding).map_err(|error| KeyError(error.to_string()))
    }

    /// The JWK set (RFC 7517, 5), public parts only.
    #[must_use]
    pub fn jwks(&self) -> Value {
        json!({ "keys": std::iter::once(&self.first).chain(&self.others).map(SigningKey::jwk).collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SigningKey {
        SigningKey::from_pem(rcgen::KeyPair::generate().unwrap().serialize_pem().as_bytes()).unwrap()
    }

    #[test]
    fn a_verifier_needs_the_published_set_alone() {
        let (old, new) = (key(), key());
        let keys = SigningKeys::new(vec![old.clone(), new.clone()]).unwrap();
        let later = SigningKeys::new(vec![new, old]).unwrap();
        let token = keys.sign(&json!({ "aud": "a", "exp": 4_000_000_000_u64 })).unwrap();
        // Made before the rotation, verified after it.
        let set: jsonwebtoken::jwk::JwkSet = serde_json::from_value(later.jwks()).unwrap();
        let header = jsonwebtoken::decode_header(&token).unwrap();
        assert_eq!(header.typ.as_deref(), Some("at+jwt"));
        let jwk = set.find(header.kid.as_deref().unwrap()).unwrap();
        let mut rules = jsonwebtoken::Validation::new(Algorithm::ES256);
        rules.set_audience(&["a"]);
        let key = jsonwebtoken::DecodingKey::from_jwk(jwk).unwrap();
        jsonwebtoken::decode::<Value>(&token, &key, &rules).unwrap();
        let second = set.keys.iter().find(|it| it.common.key_id != header.kid).unwrap();
        let other = jsonwebtoken::DecodingKey::from_jwk(second).unwrap();
        assert!(jsonwebtoken::decode::<Value>(&token, &other, &rules).is_err());
        assert!(!later.jwks().to_string().contains("\"d\""));
    }

    #[test]
    fn the_name_of_a_key_is_its_thumbprint() {
        // RFC 7638 has no P-256 example; this one is RFC 7517, A.1, with the thumbprint computed by hand.
        let id =
            thumbprint("MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM");
        assert_eq!(id, "cn-I_WNMClehiVp51i_0VpOENW1upEerA8sEam5hn-s");
    }
}
