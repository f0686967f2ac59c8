//! What providers give and nobody else may see: refresh tokens, access tokens on their way, secrets of clients.

use std::collections::BTreeMap;

use serde::Deserialize;
use zeroize::Zeroizing;

/// A secret text. No debug output shows it, and it is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct Material(Zeroizing<String>);

impl From<String> for Material {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

impl Material {
    /// The text, for the one who is to have it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether it may stand in a form or an answer: printable ASCII without spaces, and not endless.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        (1..=LONGEST).contains(&self.0.len()) && self.0.bytes().all(|byte| byte.is_ascii_graphic())
    }
}

/// Longest token that is taken from a provider, in bytes.
const LONGEST: usize = 16 * 1024;

/// Refresh tokens that are kept with a claim's grant, by audience. Empty for most claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept(BTreeMap<String, Material>);

impl Kept {
    /// With one more.
    pub fn add(&mut self, audience: &str, material: Material) {
        self.0.insert(audience.to_owned(), material);
    }

    /// That of an audience.
    #[must_use]
    pub fn of(&self, audience: &str) -> Option<&Material> {
        self.0.get(audience)
    }

    /// As it is sealed; nothing when there is nothing to keep.
    #[must_use]
    pub fn text(&self) -> Option<Zeroizing<Vec<u8>>> {
        if self.0.is_empty() {
            return None;
        }
        let texts: BTreeMap<&str, &str> =
            self.0.iter().map(|(audience, material)| (audience.as_str(), material.reveal())).collect();
        // Texts always serialise.
        serde_json::to_vec(&texts).ok().map(Zeroizing::new)
    }

    /// What was sealed, read again.
    #[must_use]
    pub fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok().map(Self)
    }

    /// What its seal is bound to: the claim, and that it is no grant (whose seal is bound to the uid alone).
    #[must_use]
    pub fn bound_to(claim_uid: &str) -> Vec<u8> {
        format!("refresh tokens of claim {claim_uid}").into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shows_it_and_it_reads_back() {
        let mut kept = Kept::default();
        assert_eq!(kept.text(), None);
        kept.add("api://a", "top secret".to_owned().into());
        assert!(!format!("{kept:?}").contains("top"));
        assert_eq!(Kept::read(&kept.text().unwrap()), Some(kept));
        assert_eq!(Kept::read(b"{\"a\": 1}"), None);
    }

    #[test]
    fn what_may_stand_in_an_answer() {
        for (text, plain) in [("a.b-c_d~", true), ("", false), ("a b", false), ("a\nb", false), ("ä", false)] {
            assert_eq!(Material::from(text.to_owned()).is_plain(), plain, "{text:?}");
        }
        assert!(!Material::from("x".repeat(LONGEST + 1)).is_plain());
    }
}
