//! Secrets and certificates, each in a file of its own. Their content appears in no error.

use std::path::{Path, PathBuf};

use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use zeroize::Zeroizing;

use super::Tls;
use crate::tokens::keys::{KeyError, SigningKey};

/// Longest such file, in bytes.
const FILE_LIMIT: u64 = 256 * 1024;

/// Why a file gives no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It has other content than it should.
    #[error("{} {what}", path.display())]
    Content {
        /// Its path.
        path: PathBuf,
        /// What it should be.
        what: String,
    },
}

/// The content of a file, whatever it is, wiped when it is dropped.
///
/// # Errors
/// When it cannot be read, or is too long for a secret.
pub fn secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    read(path)
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let file = |source| SecretError::File { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(file)?.len() > FILE_LIMIT {
        return Err(content(path, "is too long for a key or certificate"));
    }
    std::fs::read(path).map(Zeroizing::new).map_err(file)
}

fn content(path: &Path, what: impl Into<String>) -> SecretError {
    SecretError::Content { path: path.to_owned(), what: what.into() }
}

/// A key for grants: 32 bytes, or 64 hexadecimal digits with or without a line end.
///
/// # Errors
/// When the file has anything else.
pub fn sealing_key(path: &Path) -> Result<Zeroizing<[u8; 32]>, SecretError> {
    let bytes = read(path)?;
    let mut key = Zeroizing::new([0; 32]);
    if let Ok(raw) = <&[u8; 32]>::try_from(bytes.as_slice()) {
        key.copy_from_slice(raw);
        return Ok(key);
    }
    let wrong = || content(path, "must hold 32 bytes or their 64 hexadecimal digits (make one: openssl rand -hex 32)");
    let text = std::str::from_utf8(&bytes).map_err(|_| wrong())?;
    hex::decode_to_slice(text.trim(), key.as_mut_slice()).map_err(|_| wrong())?;
    Ok(key)
}

/// A key for tokens: P-256 in PKCS #8 PEM.
///
/// # Errors
/// When the file has anything else.
pub fn signing_key(path: &Path) -> Result<SigningKey, SecretError> {
    SigningKey::from_pem(&read(path)?).map_err(|KeyError(what)| content(path, what))
}

/// Certificates of authorities.
///
/// # Errors
/// When the file has anything else, or none.
pub fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, SecretError> {
    let wrong = || content(path, "must hold certificates in PEM");
    let all: Vec<_> = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<_, _>>().map_err(|_| wrong())?;
    if all.is_empty() { Err(wrong()) } else { Ok(all) }
}

/// A certificate chain with its key.
///
/// # Errors
/// When either is unusable, or they do not belong together.
pub fn certificate(tls: &Tls) -> Result<CertifiedKey, SecretError> {
    let pem = read(&tls.certificate_file)?;
    let wrong = |path: &Path, what: &str| content(path, what.to_owned());
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|_| wrong(&tls.certificate_file, "must hold certificates in PEM"))?;
    if chain.is_empty() {
        return Err(wrong(&tls.certificate_file, "must hold certificates in PEM"));
    }
    let key = PrivateKeyDer::from_pem_slice(&read(&tls.key_file)?)
        .map_err(|_| wrong(&tls.key_file, "must hold a private key in PEM"))?;
    CertifiedKey::from_der(chain, key, &rustls::crypto::aws_lc_rs::default_provider()).map_err(|error| {
        content(&tls.key_file, format!("does not go with {}: {error}", tls.certificate_file.display()))
    })
}
