//! What a claim is called, and the digest of the request that it answers. Pure.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use banlieue_identity::SubjectKey;

/// Longest `Idempotency-Key`, in bytes.
const KEY_LIMIT: usize = 255;
/// Bytes of a hash, or of randomness, that a name carries. What a name stands for is compared whole afterwards, so this
/// decides about accidents only.
const NAME_BYTES: usize = 20;

/// A header that makes a retry safe: 1 to 255 visible ASCII characters.
#[derive(Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Checks a header's value.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let fits = (1..=KEY_LIMIT).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
        fits.then(|| String::from_utf8(value.to_vec()).ok().map(Self)).flatten()
    }
}

/// SHA-256 over parts, each with its length before it, so that no two lists of parts read alike.
pub(crate) struct Parts(Context);

impl Parts {
    pub(crate) fn new(purpose: &str) -> Self {
        let mut parts = Self(Context::new(&SHA256));
        parts.add(purpose.as_bytes());
        parts
    }

    pub(crate) fn add(&mut self, part: impl AsRef<[u8]>) {
        let part = part.as_ref();
        self.0.update(&(part.len() as u64).to_be_bytes());
        self.0.update(part);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(hex::encode(self.0.finish()))
    }
}

/// A SHA-256 in lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Digest(String);

impl Digest {
    /// The 64 digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name that every replica gives to the claim of this subject, agent and key.
#[must_use]
pub fn of_key(subject: &SubjectKey, azp: &str, key: &IdempotencyKey) -> String {
    let mut parts = Parts::new("claim name");
    parts.add(subject.as_bytes());
    parts.add(azp);
    parts.add(&key.0);
    let digits: String = parts.finish().as_str().chars().take(2 * NAME_BYTES).collect();
    format!("c-{digits}")
}

/// A name for a request that has no key.
#[must_use]
pub fn random(bytes: [u8; NAME_BYTES]) -> String {
    format!("c-{}", hex::encode(bytes))
}

/// Whether a text could be such a name: what cannot is asked of nobody.
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.strip_prefix("c-").is_some_and(|digits| {
        digits.len() == 2 * NAME_BYTES && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(text: &str) -> IdempotencyKey {
        IdempotencyKey::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_name_belongs_to_one_subject_agent_and_key() {
        let (alice, bob) = (SubjectKey::of("i", "alice"), SubjectKey::of("i", "bob"));
        let name = of_key(&alice, "", &key("k"));
        assert!(is_name(&name) && name.len() == 42, "{name}");
        assert_eq!(name, of_key(&alice, "", &key("k")));
        for other in [of_key(&bob, "", &key("k")), of_key(&alice, "bot", &key("k")), of_key(&alice, "", &key("l"))] {
            assert_ne!(name, other);
        }
        // A part's end is part of it.
        assert_ne!(of_key(&alice, "ab", &key("c")), of_key(&alice, "a", &key("bc")));
        assert!(is_name(&random([7; 20])));
    }

    #[test]
    fn keys_that_are_none() {
        for bad in [&b""[..], b"a b", b"a\n", "\u{e4}".as_bytes(), &[b'a'; 256], b"\x7f"] {
            assert!(IdempotencyKey::parse(bad).is_none(), "{bad:?}");
        }
        assert!(IdempotencyKey::parse(&[b'a'; 255]).is_some());
    }

    proptest! {
        #[test]
        fn only_our_own_names_are_names(text in ".{0,60}") {
            prop_assert!(!is_name(&text) || text.len() == 42);
            let path = format!("{text}/../c-");
            prop_assert!(!is_name(&path));
        }
    }
}
