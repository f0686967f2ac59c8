//! The subject key: what a person or a service is called wherever subjects are compared, counted, revoked or named.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Hex characters of the key that a username carries.
const USERNAME_DIGITS: usize = 12;

/// SHA-256 over issuer and id, each with its length (unsigned, 64 bit, big-endian) before it.
///
/// The lengths keep `("https://a", "b")` and `("https://ab", "")` apart. All 256 bits are the key: [`SubjectKey::username`]
/// is an abbreviation for use inside one VM, where nobody else lives, and never for comparing subjects.
/// Written as 64 lower-case hex characters, in JSON too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubjectKey([u8; 32]);

impl SubjectKey {
    /// The key of `id` at `issuer`, both byte for byte as the token has them.
    #[must_use]
    pub fn of(issuer: &str, id: &str) -> Self {
        let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
        for part in [issuer, id] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part.as_bytes());
        }
        let mut key = [0; 32];
        for (to, from) in key.iter_mut().zip(context.finish().as_ref()) {
            *to = *from;
        }
        Self(key)
    }

    /// The 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The Unix user of this subject inside a VM, and the SPIRE selector that names it: `sb-` and 12 hex characters.
    #[must_use]
    pub fn username(&self) -> String {
        let digits: String = self.to_string().chars().take(USERNAME_DIGITS).collect();
        format!("sb-{digits}")
    }
}

impl fmt::Display for SubjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for SubjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a subject key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a subject key is 64 lower-case hexadecimal characters")]
pub struct NotASubjectKey;

impl FromStr for SubjectKey {
    type Err = NotASubjectKey;

    fn from_str(text: &str) -> Result<Self, NotASubjectKey> {
        // One spelling only, since keys are compared as names of objects too.
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(NotASubjectKey);
        }
        let mut key = [0; 32];
        hex::decode_to_slice(text, &mut key).map_err(|_| NotASubjectKey)?;
        Ok(Self(key))
    }
}

impl Serialize for SubjectKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SubjectKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with coreutils: `printf '\0\0\0\0\0\0\0\x13https://idp.example\0\0\0\0\0\0\0\x03bob' | sha256sum`.
    #[test]
    fn is_the_digest_that_another_program_computes() {
        let key = SubjectKey::of("https://idp.example", "bob");
        assert_eq!(key.to_string(), "9c44bc6011d977e779d19cc3d76a197b89f24584f1c4c2919c7a993cb779e87b");
        assert_eq!(key.username(), "sb-9c44bc6011d9");
    }

    #[test]
    fn keeps_apart_what_concatenation_would_not() {
        assert_ne!(SubjectKey::of("https://a", "b"), SubjectKey::of("https://ab", ""));
        assert_ne!(SubjectKey::of("", "https://ab"), SubjectKey::of("https://ab", ""));
        assert_ne!(SubjectKey::of("https://idp.example", "b"), SubjectKey::of("https://idp.example/", "b"));
    }

    #[test]
    fn reads_back_what_it_writes_and_nothing_else() {
        let key = SubjectKey::of("https://idp.example", "bob");
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(serde_json::from_str::<SubjectKey>(&serde_json::to_string(&key).unwrap()).unwrap(), key);
        for other in ["", "00", &key.to_string().to_uppercase(), &format!("{key}00"), &"g".repeat(64)] {
            assert_eq!(other.parse::<SubjectKey>(), Err(NotASubjectKey), "{other}");
        }
    }
}
