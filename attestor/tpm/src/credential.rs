//! MakeCredential in software (Part 1, 24 and B.10, C.6): a secret that only the TPM with both keys can open.

use aws_lc_rs::agreement::{self, UnparsedPublicKey};
use aws_lc_rs::cipher::{AES_128, AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rand::SecureRandom;
use aws_lc_rs::rsa::{OAEP_SHA256_MGF1SHA256, OaepPublicEncryptingKey, PublicEncryptingKey};
use zeroize::Zeroizing;

use crate::hash::Hash;
use crate::kdf::{kdf_a, kdf_e};
use crate::public::{Curve, Key, KeyError, Name, Public, Symmetric, point};
use crate::wire::put_sized;

/// OAEP label and KDFe label for credentials.
const IDENTITY: &str = "IDENTITY";

/// Both blobs of TPM2_ActivateCredential, without the size in front of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// Content of the TPM2B_ID_OBJECT.
    pub id_object: Vec<u8>,
    /// Content of the TPM2B_ENCRYPTED_SECRET.
    pub encrypted_secret: Vec<u8>,
}

/// Why no credential was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// The endorsement key is no sound key.
    #[error("cannot make a credential: {0}")]
    Key(#[from] KeyError),
    /// The endorsement key is none of the kinds of [`crate::template`].
    #[error("cannot make a credential for this kind of endorsement key")]
    Unsupported,
    /// The secret is empty or longer than the digest of the key's name.
    #[error("a credential's secret has 1 to {0} bytes")]
    SecretSize(usize),
    /// The cryptographic library failed.
    #[error("cannot make a credential: {0} failed")]
    Crypto(&'static str),
}

impl CredentialError {
    /// Fixed word for metrics.
    pub fn category(&self) -> &'static str {
        "credential"
    }
}

/// Encrypts `secret` (1 byte up to the digest size of the EK's nameAlg) so that only a TPM that holds `ek` and an
/// object named `object` can read it.
pub fn make_credential(
    ek: &Public,
    object: &Name,
    secret: &[u8],
    random: &dyn SecureRandom,
) -> Result<Credential, CredentialError> {
    let hash = ek.name_alg;
    let size = hash.size();
    if secret.is_empty() || secret.len() > size {
        return Err(CredentialError::SecretSize(size));
    }
    let (seed, encrypted_secret, symmetric) = match &ek.key {
        Key::Rsa { symmetric, .. } => {
            let (seed, blob) = rsa_seed(ek, random)?;
            (seed, blob, *symmetric)
        }
        Key::Ecc { symmetric, curve, x, y, .. } => {
            ek.check_key()?;
            let (seed, blob) = ecc_seed(hash, *curve, x, y)?;
            (seed, blob, *symmetric)
        }
    };
    let (cipher, key_bytes) = match symmetric {
        Symmetric::AesCfb { bits: 128 } => (&AES_128, 16),
        Symmetric::AesCfb { bits: 256 } => (&AES_256, 32),
        _ => return Err(CredentialError::Unsupported),
    };
    let key = Zeroizing::new(kdf_a(hash, &seed, "STORAGE", object.as_bytes(), &[], key_bytes));
    let mut identity = Vec::with_capacity(size.saturating_add(2));
    put_sized(&mut identity, secret);
    let failed = |_| CredentialError::Crypto("AES-CFB");
    // The key is fresh for each credential, so the specification's all-zero IV never repeats under one key.
    UnboundCipherKey::new(cipher, &key)
        .and_then(EncryptingKey::cfb128)
        .and_then(|key| {
            key.less_safe_encrypt(&mut identity, EncryptionContext::Iv128(FixedLength::<16>::from([0u8; 16])))
        })
        .map_err(failed)?;
    let integrity_key = Zeroizing::new(kdf_a(hash, &seed, "INTEGRITY", &[], &[], size));
    let integrity = hash.hmac(&integrity_key, &[&identity, object.as_bytes()]);
    let mut id_object = Vec::with_capacity(identity.len().saturating_add(size).saturating_add(2));
    put_sized(&mut id_object, &integrity);
    id_object.extend_from_slice(&identity);
    Ok(Credential { id_object, encrypted_secret })
}

type Seed = Zeroizing<Vec<u8>>;

/// A random seed, sent under RSA-OAEP (Part 1, B.10.3). The label's final zero is part of it.
fn rsa_seed(ek: &Public, random: &dyn SecureRandom) -> Result<(Seed, Vec<u8>), CredentialError> {
    if ek.name_alg != Hash::Sha256 {
        return Err(CredentialError::Unsupported);
    }
    let failed = |_| CredentialError::Crypto("RSA-OAEP");
    let spki = ek.spki_der()?;
    let mut seed = Zeroizing::new(vec![0u8; ek.name_alg.size()]);
    random.fill(&mut seed).map_err(|_| CredentialError::Crypto("the random source"))?;
    let key = PublicEncryptingKey::from_der(&spki).map_err(|_| CredentialError::Crypto("RSA key import"))?;
    let key = OaepPublicEncryptingKey::new(key).map_err(failed)?;
    let mut blob = vec![0u8; key.ciphertext_size()];
    let label = format!("{IDENTITY}\0");
    let written = key.encrypt(&OAEP_SHA256_MGF1SHA256, &seed, &mut blob, Some(label.as_bytes())).map_err(failed)?.len();
    blob.truncate(written);
    Ok((seed, blob))
}

/// A seed from one-pass ECDH (Part 1, C.6.3). The blob is the ephemeral point (TPMS_ECC_POINT).
fn ecc_seed(hash: Hash, curve: Curve, x: &[u8], y: &[u8]) -> Result<(Seed, Vec<u8>), CredentialError> {
    let failed = CredentialError::Crypto("ECDH");
    let algorithm = match curve {
        Curve::P256 => &agreement::ECDH_P256,
        Curve::P384 => &agreement::ECDH_P384,
        Curve::P521 => return Err(CredentialError::Unsupported),
    };
    let ephemeral = agreement::PrivateKey::generate(algorithm).map_err(|_| failed.clone())?;
    let public = ephemeral.compute_public_key().map_err(|_| failed.clone())?;
    let (own_x, own_y) = public
        .as_ref()
        .strip_prefix(&[4])
        .and_then(|rest| rest.split_at_checked(curve.size()))
        .ok_or_else(|| failed.clone())?;
    let peer = UnparsedPublicKey::new(algorithm, point(x, y));
    let seed = agreement::agree(&ephemeral, peer, failed, |z| {
        Ok(Zeroizing::new(kdf_e(hash, z, IDENTITY, own_x, x, hash.size())))
    })?;
    let mut blob = Vec::with_capacity(100);
    put_sized(&mut blob, own_x);
    put_sized(&mut blob, own_y);
    Ok((seed, blob))
}
