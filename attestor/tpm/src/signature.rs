//! Signatures over quotes: TPMT_SIGNATURE with ECDSA (Part 2, 11.3.4), verified in software.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

use crate::hash::Hash;
use crate::public::{ALG_ECDSA, Curve, Key, Public, Scheme, point};
use crate::wire::{Reader, WireError, put_sized};

/// Most bytes in a TPMT_SIGNATURE we read.
pub const MAX_SIGNATURE: usize = 80;

/// Order of P-256 (FIPS 186-4, D.1.2.3).
const P256_ORDER: [u8; 32] = [
    0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa,
    0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
];

/// An ECDSA signature with SHA-256 over P-256, with both numbers from 1 to the order less one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    r: [u8; 32],
    s: [u8; 32],
}

/// Why a signature does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// Not ECDSA with SHA-256.
    #[error("signature is not ECDSA with SHA-256")]
    Algorithm,
    /// One of its numbers is zero or not below the curve's order.
    #[error("signature is degenerate")]
    Degenerate,
    /// Made by another key, or over other bytes.
    #[error("signature does not verify")]
    Mismatch,
    /// Malformed.
    #[error("signature: {0}")]
    Wire(#[from] WireError),
}

impl SignatureError {
    /// Fixed word for metrics: `algorithm`, `degenerate`, `mismatch` or `malformed`.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Algorithm => "algorithm",
            Self::Degenerate => "degenerate",
            Self::Mismatch => "mismatch",
            Self::Wire(wire) => wire.category(),
        }
    }
}

impl Signature {
    /// Reads a TPMT_SIGNATURE and nothing after it.
    pub fn parse(bytes: &[u8]) -> Result<Self, SignatureError> {
        let mut reader = Reader::new(bytes);
        if reader.u16("sigAlg")? != ALG_ECDSA || reader.u16("signature hash")? != Hash::Sha256.id() {
            return Err(SignatureError::Algorithm);
        }
        let r = number(reader.sized("signature r", 32)?)?;
        let s = number(reader.sized("signature s", 32)?)?;
        reader.end("signature")?;
        Ok(Self { r, s })
    }

    /// Writes the TPMT_SIGNATURE.
    pub fn marshal(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(72);
        out.extend_from_slice(&ALG_ECDSA.to_be_bytes());
        out.extend_from_slice(&Hash::Sha256.id().to_be_bytes());
        put_sized(&mut out, &self.r);
        put_sized(&mut out, &self.s);
        out
    }

    /// From the fixed form r || s.
    pub fn from_fixed(bytes: &[u8]) -> Result<Self, SignatureError> {
        let (r, s) = bytes.split_at_checked(32).ok_or(WireError::Short("signature"))?;
        if s.len() != 32 {
            return Err(SignatureError::Algorithm);
        }
        Ok(Self { r: number(r)?, s: number(s)? })
    }

    /// Whether `key`, a P-256 ECDSA key with SHA-256, signed `message`.
    pub fn verify(&self, key: &Public, message: &[u8]) -> Result<(), SignatureError> {
        let Key::Ecc {
            curve: Curve::P256, scheme: Scheme::Hashed { alg: ALG_ECDSA, hash: Hash::Sha256 }, x, y, ..
        } = &key.key
        else {
            return Err(SignatureError::Algorithm);
        };
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point(x, y))
            .verify(message, [self.r, self.s].as_flattened())
            .map_err(|_| SignatureError::Mismatch)
    }
}

/// Pads to the curve's size; TPMs may leave leading zeros out.
fn number(bytes: &[u8]) -> Result<[u8; 32], SignatureError> {
    let mut padded = [0u8; 32];
    let from = padded.len().saturating_sub(bytes.len());
    padded.get_mut(from..).ok_or(SignatureError::Degenerate)?.copy_from_slice(bytes);
    if padded == [0; 32] || padded >= P256_ORDER { Err(SignatureError::Degenerate) } else { Ok(padded) }
}
