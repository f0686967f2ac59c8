//! Hash algorithms as the TPM numbers them (Part 2, 6.3), with digest and HMAC.

use aws_lc_rs::{digest, hmac};

use crate::wire::WireError;

/// A hash algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hash {
    /// SHA-1: read in event logs, never relied on.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// The TPM_ALG_ID.
    pub fn id(self) -> u16 {
        match self {
            Self::Sha1 => 0x0004,
            Self::Sha256 => 0x000b,
            Self::Sha384 => 0x000c,
            Self::Sha512 => 0x000d,
        }
    }

    /// From a TPM_ALG_ID.
    pub fn from_id(id: u16) -> Option<Self> {
        [Self::Sha1, Self::Sha256, Self::Sha384, Self::Sha512].into_iter().find(|hash| hash.id() == id)
    }

    /// The word used in documents, `sha256` for one.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// Digest size in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Digest of the parts, one after the other.
    pub fn digest(self, parts: &[&[u8]]) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            Self::Sha256 => &digest::SHA256,
            Self::Sha384 => &digest::SHA384,
            Self::Sha512 => &digest::SHA512,
        };
        let mut context = digest::Context::new(algorithm);
        for part in parts {
            context.update(part);
        }
        context.finish().as_ref().to_vec()
    }

    /// HMAC of the parts, one after the other.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        };
        let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, key));
        for part in parts {
            context.update(part);
        }
        context.sign().as_ref().to_vec()
    }

    pub(crate) fn read(id: u16, what: &'static str) -> Result<Self, WireError> {
        Self::from_id(id).ok_or(WireError::Unsupported { what, value: u64::from(id) })
    }
}

/// SHA-256 of the parts, one after the other.
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(part);
    }
    let mut out = [0u8; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}
