//! The first message, before anything is known about who sent it.

use banlieue_policy::Digest;
use banlieue_protocol::{message::M1, reason::Reason, transcript::m1_hash};

use super::Refusal;

/// A parsed M1, of nobody in particular yet.
#[derive(Debug, Clone)]
pub struct Hello {
    /// The message.
    pub m1: M1,
    /// Hash of its bytes.
    pub hash: [u8; 32],
    /// SHA-256 of the endorsement key's SubjectPublicKeyInfo: how the key is known everywhere else.
    pub ek: Digest,
}

impl Hello {
    /// Sizes and syntax, and nothing that costs more than hashing.
    ///
    /// # Errors
    /// A stranger's refusal.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let m1 = M1::decode(bytes).map_err(|error| Refusal::stranger(Reason::from(&error), error))?;
        let ek = m1.ek.key_digest().map_err(|error| Refusal::stranger(Reason::EkUnsound, error))?;
        Ok(Self { m1, hash: m1_hash(bytes), ek: Digest(ek) })
    }
}
