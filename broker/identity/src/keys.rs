//! An issuer's key set (RFC 7517, 7518 section 6, 8037), bounded, and which key may do what.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::config::Algorithm;
use crate::refusal::{Refusal, RefusalReason, shown};

/// The largest key set that is read, in bytes.
pub const MAX_BYTES: usize = 64 * 1024;

/// The most keys that a set may have, those included that are of no use here.
pub const MAX_KEYS: usize = 50;

/// Members of a JWK that are private or symmetric. A key that publishes one proves nothing any more.
const SECRET_MEMBERS: &[&str] = &["d", "p", "q", "dp", "dq", "qi", "oth", "k"];

/// A key set that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// More than [`MAX_BYTES`].
    #[error("the key set has more than {MAX_BYTES} bytes")]
    TooLarge,
    /// Not `{"keys": [{…}]}`.
    #[error("the key set is not JSON of the form {{\"keys\": […]}}")]
    Malformed,
    /// More than [`MAX_KEYS`].
    #[error("the key set has {0} keys and may have {MAX_KEYS}")]
    TooMany(usize),
    /// No key that could verify a token.
    #[error("the key set has no public signature key with a `kid`")]
    Empty,
}

/// The keys of one issuer, by `kid`.
#[derive(Debug, Clone, Default)]
pub struct KeySet {
    keys: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone)]
enum Entry {
    One(Key),
    /// Several keys have this `kid`. None of them is used: which one was meant must not be for the token to choose.
    Ambiguous,
}

/// A public key, and what it may verify.
#[derive(Clone)]
pub struct Key {
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("algorithms", &self.algorithms).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Map<String, Value>>,
}

impl KeySet {
    /// Reads a key set. Keys that are of no use here are left out: for encryption, of an unknown type, without `kid`,
    /// too short, with private parts.
    ///
    /// # Errors
    /// [`KeysError`], when the set as a whole is of no use.
    pub fn parse(bytes: &[u8]) -> Result<Self, KeysError> {
        if bytes.len() > MAX_BYTES {
            return Err(KeysError::TooLarge);
        }
        let document: Document = serde_json::from_slice(bytes).map_err(|_| KeysError::Malformed)?;
        if document.keys.len() > MAX_KEYS {
            return Err(KeysError::TooMany(document.keys.len()));
        }
        let mut set = Self::default();
        let mut seen = std::collections::BTreeSet::new();
        for jwk in document.keys {
            let text = |name: &str| jwk.get(name).and_then(Value::as_str);
            // A key for encryption may share a name with one for signatures (RFC 7517, section 4.5).
            let (Some(kid), true) = (text("kid"), text("use").is_none_or(|usage| usage == "sig")) else { continue };
            // Counted before it is known to be usable: a bad twin makes the name ambiguous too.
            if !seen.insert(kid.to_owned()) {
                set.keys.insert(kid.to_owned(), Entry::Ambiguous);
            } else if let Some(key) = Key::from_jwk(&jwk) {
                set.keys.insert(kid.to_owned(), Entry::One(key));
            }
        }
        if set.usable() == 0 {
            return Err(KeysError::Empty);
        }
        Ok(set)
    }

    /// The key of this name, if it may verify this algorithm.
    ///
    /// # Errors
    /// `key_unknown`, `key_ambiguous`.
    pub fn key(&self, kid: &str, algorithm: Algorithm) -> Result<&Key, Refusal> {
        match self.keys.get(kid) {
            Some(Entry::One(key)) if key.algorithms.contains(&algorithm) => Ok(key),
            Some(Entry::One(_)) => {
                let detail = format!("the issuer's key {} is not for {algorithm}", shown(kid));
                Err(Refusal::new(RefusalReason::KeyUnknown, detail))
            }
            Some(Entry::Ambiguous) => {
                let detail = format!("the issuer has several keys of the name {}, so none is used", shown(kid));
                Err(Refusal::new(RefusalReason::KeyAmbiguous, detail))
            }
            None => {
                let detail = format!("the issuer has no key {}; get a new token", shown(kid));
                Err(Refusal::new(RefusalReason::KeyUnknown, detail))
            }
        }
    }

    /// Whether exactly one key has this name: looking again could not help.
    #[must_use]
    pub fn knows(&self, kid: &str) -> bool {
        matches!(self.keys.get(kid), Some(Entry::One(_)))
    }

    /// How many keys can verify tokens.
    #[must_use]
    pub fn usable(&self) -> usize {
        self.keys.values().filter(|entry| matches!(entry, Entry::One(_))).count()
    }
}

impl Key {
    /// Whether this key made this signature (base64url) over these bytes.
    #[must_use]
    pub fn verifies(&self, algorithm: Algorithm, signed: &[u8], signature: &str) -> bool {
        self.algorithms.contains(&algorithm)
            && jsonwebtoken::crypto::verify(signature, signed, &self.key, library(algorithm)).unwrap_or(false)
    }

    /// A key from its JWK, unless it is of no use here.
    fn from_jwk(jwk: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        if SECRET_MEMBERS.iter().any(|member| jwk.contains_key(*member)) {
            return None;
        }
        if let Some(operations) = jwk.get("key_ops")
            && !operations.as_array()?.iter().any(|operation| operation == "verify")
        {
            return None;
        }
        let (mut algorithms, key) = match (text("kty")?, text("crv")) {
            ("RSA", None) => {
                use Algorithm::{PS256, PS384, PS512, RS256, RS384, RS512};
                // 2048 to 8192 bits, which verification demands too.
                let (modulus, exponent) = (text("n")?, text("e")?);
                let bytes = URL_SAFE_NO_PAD.decode(modulus).ok()?;
                if !(256..=1024).contains(&bytes.len()) || URL_SAFE_NO_PAD.decode(exponent).ok()?.len() > 8 {
                    return None;
                }
                let key = DecodingKey::from_rsa_components(modulus, exponent).ok()?;
                (vec![RS256, RS384, RS512, PS256, PS384, PS512], key)
            }
            ("EC", Some(curve)) => {
                let (algorithm, bytes) = match curve {
                    "P-256" => (Algorithm::ES256, 32),
                    "P-384" => (Algorithm::ES384, 48),
                    _ => return None,
                };
                let (x, y) = (text("x")?, text("y")?);
                if [x, y].iter().any(|part| URL_SAFE_NO_PAD.decode(part).map_or(0, |part| part.len()) != bytes) {
                    return None;
                }
                (vec![algorithm], DecodingKey::from_ec_components(x, y).ok()?)
            }
            ("OKP", Some("Ed25519")) => {
                let x = text("x")?;
                if URL_SAFE_NO_PAD.decode(x).ok()?.len() != 32 {
                    return None;
                }
                (vec![Algorithm::EdDSA], DecodingKey::from_ed_components(x).ok()?)
            }
            _ => return None,
        };
        match jwk.get("alg") {
            None => {}
            Some(Value::String(only)) => algorithms.retain(|algorithm| algorithm.as_str() == only),
            Some(_) => return None,
        }
        (!algorithms.is_empty()).then_some(Self { algorithms, key })
    }
}

fn library(algorithm: Algorithm) -> jsonwebtoken::Algorithm {
    match algorithm {
        Algorithm::RS256 => jsonwebtoken::Algorithm::RS256,
        Algorithm::RS384 => jsonwebtoken::Algorithm::RS384,
        Algorithm::RS512 => jsonwebtoken::Algorithm::RS512,
        Algorithm::PS256 => jsonwebtoken::Algorithm::PS256,
        Algorithm::PS384 => jsonwebtoken::Algorithm::PS384,
        Algorithm::PS512 => jsonwebtoken::Algorithm::PS512,
        Algorithm::ES256 => jsonwebtoken::Algorithm::ES256,
        Algorithm::ES384 => jsonwebtoken::Algorithm::ES384,
        Algorithm::EdDSA => jsonwebtoken::Algorithm::EdDSA,
    }
}
