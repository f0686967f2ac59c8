//! How mediatore proves itself to Entra: an assertion signed with the key of a certificate that is registered there
//! (RFC 7523, 2.2; <https://learn.microsoft.com/entra/identity-platform/certificate-credentials>).

use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;

use super::material::Material;
use crate::config::{SecretError, Tls, certificate, secret};

/// Lifetime of an assertion, in seconds.
const LIFETIME: i64 = 300;

/// A certificate and its RSA key.
pub struct ClientCertificate {
    thumbprint: String,
    key: EncodingKey,
}

impl std::fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCertificate").field("thumbprint", &self.thumbprint).finish_non_exhaustive()
    }
}

impl ClientCertificate {
    /// From two PEM files.
    ///
    /// # Errors
    /// When they cannot be read, do not belong together, or the key is no RSA key.
    pub fn read(certificate_file: &Path, key_file: &Path) -> Result<Self, SecretError> {
        certificate(&Tls { certificate_file: certificate_file.to_owned(), key_file: key_file.to_owned() })?;
        let wrong = |path: &Path, what: &str| SecretError::Content { path: path.to_owned(), what: what.to_owned() };
        let leaf = CertificateDer::from_pem_slice(&secret(certificate_file)?)
            .map_err(|_| wrong(certificate_file, "must hold a certificate in PEM"))?;
        let key = EncodingKey::from_rsa_pem(&secret(key_file)?)
            .map_err(|_| wrong(key_file, "must hold an RSA key in PEM; Entra takes no other"))?;
        Ok(Self { thumbprint: URL_SAFE_NO_PAD.encode(digest(&SHA256, &leaf)), key })
    }

    /// An assertion of this client for this token endpoint, good for one use soon.
    #[must_use]
    pub fn assertion(&self, client_id: &str, endpoint: &str, now: i64, random: [u8; 16]) -> Option<Material> {
        let header = Header {
            typ: Some("JWT".to_owned()),
            x5t_s256: Some(self.thumbprint.clone()),
            ..Header::new(Algorithm::PS256)
        };
        let claims = json!({
            "iss": client_id, "sub": client_id, "aud": endpoint, "jti": hex::encode(random),
            "iat": now, "nbf": now, "exp": now + LIFETIME,
        });
        jsonwebtoken::encode(&header, &claims, &self.key).ok().map(Material::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn files(folder: &Path, name: &str, algorithm: &'static rcgen::SignatureAlgorithm) -> [std::path::PathBuf; 2] {
        let pair = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["mediatore".to_owned()]).unwrap().self_signed(&pair).unwrap();
        let files = [folder.join(format!("{name}.crt")), folder.join(format!("{name}.key"))];
        std::fs::write(&files[0], leaf.pem()).unwrap();
        std::fs::write(&files[1], pair.serialize_pem()).unwrap();
        files
    }

    #[test]
    fn an_assertion_names_its_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let [leaf, key] = files(folder.path(), "rsa", &rcgen::PKCS_RSA_SHA256);
        let certificate = ClientCertificate::read(&leaf, &key).unwrap();
        let made = certificate.assertion("mediatore", "https://idp.example/token", 1000, [7; 16]).unwrap();
        let header = jsonwebtoken::decode_header(made.reveal()).unwrap();
        let der = CertificateDer::from_pem_file(&leaf).unwrap();
        assert_eq!(header.x5t_s256, Some(URL_SAFE_NO_PAD.encode(digest(&SHA256, &der))));
        assert_eq!((header.alg, header.typ.as_deref()), (Algorithm::PS256, Some("JWT")));
        let claims = URL_SAFE_NO_PAD.decode(made.reveal().split('.').nth(1).unwrap()).unwrap();
        let claims: Value = serde_json::from_slice(&claims).unwrap();
        let expected = json!({
            "iss": "mediatore", "sub": "mediatore", "aud": "https://idp.example/token", "jti": "07".repeat(16),
            "iat": 1000, "nbf": 1000, "exp": 1300,
        });
        assert_eq!(claims, expected);
    }

    #[test]
    fn other_keys_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [leaf, key] = files(folder.path(), "ec", &rcgen::PKCS_ECDSA_P256_SHA256);
        let error = ClientCertificate::read(&leaf, &key).unwrap_err().to_string();
        assert!(error.contains("RSA"), "{error}");
        let [other, _] = files(folder.path(), "other", &rcgen::PKCS_ECDSA_P256_SHA256);
        assert!(ClientCertificate::read(&other, &key).is_err(), "they do not belong together");
    }
}
