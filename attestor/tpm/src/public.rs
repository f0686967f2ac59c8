//! Public areas of TPM keys: TPM2B_PUBLIC and TPMT_PUBLIC (Part 2, 12.2), their names, and their X.509 form.

use std::fmt;

use aws_lc_rs::signature::{self, UnparsedPublicKey};

pub use crate::attributes::Attributes;
use crate::hash::{Hash, sha256};
use crate::wire::{Hex, Reader, WireError, put_sized};

/// Most bytes in a TPM2B_PUBLIC we read: an RSA-4096 key with a SHA-512 policy has less than half of it.
pub const MAX_PUBLIC: usize = 1200;

const ALG_RSA: u16 = 0x0001;
const ALG_ECC: u16 = 0x0023;
const ALG_AES: u16 = 0x0006;
const ALG_CFB: u16 = 0x0043;
/// TPM_ALG_NULL.
pub const ALG_NULL: u16 = 0x0010;
/// TPM_ALG_ECDSA.
pub const ALG_ECDSA: u16 = 0x0018;
const ALG_RSAES: u16 = 0x0015;
const ALG_ECDAA: u16 = 0x001a;
const HASH_SCHEMES: [u16; 7] = [
    0x0014, // RSASSA
    0x0016, // RSAPSS
    0x0017, // OAEP
    ALG_ECDSA, 0x0019, // ECDH
    0x001b, // SM2
    0x001c, // ECSCHNORR
];

/// An elliptic curve as the TPM numbers it (Part 2, 6.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Curve {
    /// NIST P-256.
    P256,
    /// NIST P-384.
    P384,
    /// NIST P-521: read, so that it can be refused by name.
    P521,
}

impl Curve {
    fn id(self) -> u16 {
        match self {
            Self::P256 => 0x0003,
            Self::P384 => 0x0004,
            Self::P521 => 0x0005,
        }
    }

    fn read(id: u16) -> Result<Self, WireError> {
        [Self::P256, Self::P384, Self::P521]
            .into_iter()
            .find(|curve| curve.id() == id)
            .ok_or(WireError::Unsupported { what: "curve", value: u64::from(id) })
    }

    /// Bytes of one coordinate.
    pub fn size(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }
}

impl fmt::Display for Curve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::P256 => "P-256",
            Self::P384 => "P-384",
            Self::P521 => "P-521",
        })
    }
}

/// Symmetric algorithm of a storage key (TPMT_SYM_DEF_OBJECT).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Symmetric {
    /// None: the key is no storage key.
    Null,
    /// AES in CFB mode with a key of so many bits.
    AesCfb {
        /// Key size in bits: 128, 192 or 256.
        bits: u16,
    },
}

/// Signing or encryption scheme (TPMT_RSA_SCHEME, TPMT_ECC_SCHEME).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// None fixed.
    Null,
    /// RSAES, which has no parameters.
    Rsaes,
    /// A scheme with a hash.
    Hashed {
        /// TPM_ALG_ID of the scheme.
        alg: u16,
        /// Its hash.
        hash: Hash,
    },
    /// ECDAA.
    Ecdaa {
        /// Its hash.
        hash: Hash,
        /// Its commit counter.
        count: u16,
    },
}

/// The algorithm's part of a public area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// An RSA key.
    Rsa {
        /// Symmetric algorithm for its children.
        symmetric: Symmetric,
        /// Scheme.
        scheme: Scheme,
        /// Size in bits.
        bits: u16,
        /// Public exponent as written; 0 stands for 65537.
        exponent: u32,
        /// Modulus, big-endian; empty or zero in a template.
        modulus: Vec<u8>,
    },
    /// An ECC key.
    Ecc {
        /// Symmetric algorithm for its children.
        symmetric: Symmetric,
        /// Scheme.
        scheme: Scheme,
        /// Curve.
        curve: Curve,
        /// X coordinate, big-endian; empty or zero in a template.
        x: Vec<u8>,
        /// Y coordinate, as `x`.
        y: Vec<u8>,
    },
}

/// A public area (TPMT_PUBLIC). Parsing and marshalling are exact inverses, so the name may be computed from either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Public {
    /// Hash of the key's name.
    pub name_alg: Hash,
    /// Attributes.
    pub attributes: Attributes,
    /// Policy digest; empty for none.
    pub auth_policy: Vec<u8>,
    /// The key.
    pub key: Key,
}

/// A name: TPM_ALG_ID and digest (Part 1, 16), or four bytes of a permanent handle.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl Name {
    /// Name of the endorsement hierarchy: its handle, TPM_RH_ENDORSEMENT.
    pub fn endorsement() -> Self {
        Self(0x4000_000b_u32.to_be_bytes().to_vec())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn read(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

/// Why a key is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Modulus of a wrong length, or even.
    #[error("RSA modulus is not an odd number of exactly {0} bits")]
    Modulus(u16),
    /// Another exponent than 65537.
    #[error("RSA exponent is {0}, not 65537")]
    Exponent(u32),
    /// A coordinate has not the curve's size, or the point is not on the curve.
    #[error("point is not on curve {0}")]
    Point(Curve),
    /// Curve or size that nothing here uses.
    #[error("key size or curve is not supported")]
    Unsupported,
}

impl KeyError {
    /// Fixed word for metrics.
    pub fn category(&self) -> &'static str {
        "key"
    }
}

impl Public {
    /// Reads a TPM2B_PUBLIC: size, TPMT_PUBLIC and nothing after it.
    pub fn parse(tpm2b: &[u8]) -> Result<Self, WireError> {
        let mut outer = Reader::new(tpm2b);
        let inner = outer.sized("TPM2B_PUBLIC", MAX_PUBLIC)?;
        outer.end("TPM2B_PUBLIC")?;
        Self::parse_area(inner)
    }

    /// Reads a TPMT_PUBLIC and nothing after it.
    pub fn parse_area(tpmt: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(tpmt);
        let kind = r.u16("key type")?;
        let name_alg = Hash::read(r.u16("nameAlg")?, "nameAlg")?;
        let attributes = Attributes(r.u32("objectAttributes")?);
        let auth_policy = r.sized("authPolicy", 64)?.to_vec();
        if !auth_policy.is_empty() && auth_policy.len() != name_alg.size() {
            return Err(WireError::Unsupported { what: "authPolicy size", value: auth_policy.len() as u64 });
        }
        let key = match kind {
            ALG_RSA => Key::Rsa {
                symmetric: read_symmetric(&mut r)?,
                scheme: read_scheme(&mut r)?,
                bits: r.u16("keyBits")?,
                exponent: r.u32("exponent")?,
                modulus: r.sized("modulus", 512)?.to_vec(),
            },
            ALG_ECC => {
                let symmetric = read_symmetric(&mut r)?;
                let scheme = read_scheme(&mut r)?;
                let curve = Curve::read(r.u16("curve")?)?;
                let kdf = r.u16("kdf")?;
                if kdf != ALG_NULL {
                    return Err(WireError::Unsupported { what: "kdf", value: u64::from(kdf) });
                }
                let x = r.sized("point x", 66)?.to_vec();
                let y = r.sized("point y", 66)?.to_vec();
                Key::Ecc { symmetric, scheme, curve, x, y }
            }
            other => return Err(WireError::Unsupported { what: "key type", value: u64::from(other) }),
        };
        r.end("TPMT_PUBLIC")?;
        Ok(Self { name_alg, attributes, auth_policy, key })
    }

    /// Writes the TPMT_PUBLIC.
    pub fn marshal_area(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(320);
        let kind = match self.key {
            Key::Rsa { .. } => ALG_RSA,
            Key::Ecc { .. } => ALG_ECC,
        };
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&self.name_alg.id().to_be_bytes());
        out.extend_from_slice(&self.attributes.0.to_be_bytes());
        put_sized(&mut out, &self.auth_policy);
        match &self.key {
            Key::Rsa { symmetric, scheme, bits, exponent, modulus } => {
                put_symmetric(&mut out, *symmetric);
                put_scheme(&mut out, *scheme);
                out.extend_from_slice(&bits.to_be_bytes());
                out.extend_from_slice(&exponent.to_be_bytes());
                put_sized(&mut out, modulus);
            }
            Key::Ecc { symmetric, scheme, curve, x, y } => {
                put_symmetric(&mut out, *symmetric);
                put_scheme(&mut out, *scheme);
                out.extend_from_slice(&curve.id().to_be_bytes());
                out.extend_from_slice(&ALG_NULL.to_be_bytes());
                put_sized(&mut out, x);
                put_sized(&mut out, y);
            }
        }
        out
    }

    /// Writes the TPM2B_PUBLIC.
    pub fn marshal(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(320);
        put_sized(&mut out, &self.marshal_area());
        out
    }

    /// The name: nameAlg and digest of the TPMT_PUBLIC.
    pub fn name(&self) -> Name {
        self.named(&[&self.marshal_area()])
    }

    /// The qualified name below a parent with the given qualified name (Part 1, 16). A primary key's parent is its
    /// hierarchy, [`Name::endorsement`] for one.
    pub fn qualified_name(&self, parent: &Name) -> Name {
        self.named(&[parent.as_bytes(), self.name().as_bytes()])
    }

    fn named(&self, parts: &[&[u8]]) -> Name {
        let mut name = self.name_alg.id().to_be_bytes().to_vec();
        name.extend_from_slice(&self.name_alg.digest(parts));
        Name(name)
    }

    /// Checks that the key is one: an odd RSA modulus of its exact size with exponent 65537, or a point on its curve.
    pub fn check_key(&self) -> Result<(), KeyError> {
        match &self.key {
            Key::Rsa { bits, exponent, modulus, .. } => {
                if !matches!(bits, 2048 | 3072 | 4096) {
                    return Err(KeyError::Unsupported);
                }
                if !matches!(exponent, 0 | 65537) {
                    return Err(KeyError::Exponent(*exponent));
                }
                let exact = modulus.len() == usize::from(*bits) / 8
                    && modulus.first().is_some_and(|top| top & 0x80 != 0)
                    && modulus.last().is_some_and(|low| low & 1 == 1);
                if exact { Ok(()) } else { Err(KeyError::Modulus(*bits)) }
            }
            Key::Ecc { curve, x, y, .. } => {
                let algorithm = match curve {
                    Curve::P256 => &signature::ECDSA_P256_SHA256_FIXED,
                    Curve::P384 => &signature::ECDSA_P384_SHA384_FIXED,
                    Curve::P521 => return Err(KeyError::Unsupported),
                };
                if x.len() != curve.size() || y.len() != curve.size() {
                    return Err(KeyError::Point(*curve));
                }
                // Parsing an uncompressed point checks the curve's equation.
                UnparsedPublicKey::new(algorithm, point(x, y)).parse().map_err(|_| KeyError::Point(*curve))?;
                Ok(())
            }
        }
    }

    /// SubjectPublicKeyInfo in DER (RFC 5280, 4.1; RFC 3279, 2.3.1; RFC 5480, 2), for a key that passes
    /// [`Public::check_key`].
    pub fn spki_der(&self) -> Result<Vec<u8>, KeyError> {
        self.check_key()?;
        match &self.key {
            Key::Rsa { modulus, .. } => {
                let mut integer = vec![0];
                integer.extend_from_slice(modulus);
                let key = der(0x30, &[&der(0x02, &[&integer]), &[0x02, 0x03, 0x01, 0x00, 0x01]]);
                Ok(der(0x30, &[RSA_ALGORITHM, &der(0x03, &[&[0], &key])]))
            }
            Key::Ecc { curve, x, y, .. } => {
                let algorithm = match curve {
                    Curve::P256 => P256_ALGORITHM,
                    Curve::P384 => P384_ALGORITHM,
                    Curve::P521 => return Err(KeyError::Unsupported),
                };
                Ok(der(0x30, &[algorithm, &der(0x03, &[&[0], &point(x, y)])]))
            }
        }
    }

    /// SHA-256 of [`Public::spki_der`]: how reports and members name an endorsement key.
    pub fn key_digest(&self) -> Result<[u8; 32], KeyError> {
        Ok(sha256(&[&self.spki_der()?]))
    }
}

/// AlgorithmIdentifier rsaEncryption with NULL.
const RSA_ALGORITHM: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
/// AlgorithmIdentifier id-ecPublicKey with prime256v1.
const P256_ALGORITHM: &[u8] = &[
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03,
    0x01, 0x07,
];
/// AlgorithmIdentifier id-ecPublicKey with secp384r1.
const P384_ALGORITHM: &[u8] =
    &[0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];

/// Uncompressed point (SEC 1, 2.3.3).
pub(crate) fn point(x: &[u8], y: &[u8]) -> Vec<u8> {
    [&[4], x, y].concat()
}

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut out = vec![tag];
    let size = body.len().to_be_bytes();
    let significant = size.iter().position(|byte| *byte != 0).map_or(&[0][..], |at| size.get(at..).unwrap_or(&[0]));
    if body.len() >= 0x80 {
        out.push(0x80 | u8::try_from(significant.len()).unwrap_or(0));
    }
    out.extend_from_slice(significant);
    out.extend_from_slice(&body);
    out
}

fn read_symmetric(r: &mut Reader<'_>) -> Result<Symmetric, WireError> {
    match r.u16("symmetric algorithm")? {
        ALG_NULL => Ok(Symmetric::Null),
        ALG_AES => {
            let bits = r.u16("symmetric key bits")?;
            let mode = r.u16("symmetric mode")?;
            if !matches!(bits, 128 | 192 | 256) {
                return Err(WireError::Unsupported { what: "symmetric key bits", value: u64::from(bits) });
            }
            if mode != ALG_CFB {
                return Err(WireError::Unsupported { what: "symmetric mode", value: u64::from(mode) });
            }
            Ok(Symmetric::AesCfb { bits })
        }
        other => Err(WireError::Unsupported { what: "symmetric algorithm", value: u64::from(other) }),
    }
}

fn put_symmetric(out: &mut Vec<u8>, symmetric: Symmetric) {
    match symmetric {
        Symmetric::Null => out.extend_from_slice(&ALG_NULL.to_be_bytes()),
        Symmetric::AesCfb { bits } => {
            for value in [ALG_AES, bits, ALG_CFB] {
                out.extend_from_slice(&value.to_be_bytes());
            }
        }
    }
}

fn read_scheme(r: &mut Reader<'_>) -> Result<Scheme, WireError> {
    match r.u16("scheme")? {
        ALG_NULL => Ok(Scheme::Null),
        ALG_RSAES => Ok(Scheme::Rsaes),
        ALG_ECDAA => {
            let hash = Hash::read(r.u16("scheme hash")?, "scheme hash")?;
            Ok(Scheme::Ecdaa { hash, count: r.u16("ECDAA count")? })
        }
        alg if HASH_SCHEMES.contains(&alg) => {
            Ok(Scheme::Hashed { alg, hash: Hash::read(r.u16("scheme hash")?, "scheme hash")? })
        }
        other => Err(WireError::Unsupported { what: "scheme", value: u64::from(other) }),
    }
}

fn put_scheme(out: &mut Vec<u8>, scheme: Scheme) {
    let values: &[u16] = match scheme {
        Scheme::Null => &[ALG_NULL],
        Scheme::Rsaes => &[ALG_RSAES],
        Scheme::Hashed { alg, hash } => &[alg, hash.id()],
        Scheme::Ecdaa { hash, count } => &[ALG_ECDAA, hash.id(), count],
    };
    for value in values {
        out.extend_from_slice(&value.to_be_bytes());
    }
}
