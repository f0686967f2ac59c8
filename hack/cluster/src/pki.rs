//! Keys and certificates of one cluster. Every client verifies its server against this authority; nothing is skipped.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::error::{Error, Result};

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate in PEM.
    pub pem: String,
    /// Its certificate in DER.
    pub der: Vec<u8>,
    /// File that holds [`Self::pem`].
    pub path: PathBuf,
}

/// A certificate and its private key, as files.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Pair {
    pub fn cert_flag(&self, name: &str) -> String {
        format!("--{name}={}", self.cert.display())
    }

    pub fn key_flag(&self, name: &str) -> String {
        format!("--{name}={}", self.key.display())
    }
}

impl Authority {
    /// Makes one called `name`, with its certificate in `dir`.
    pub fn new(dir: &Path, name: &str) -> Result<Self> {
        let wrong = |source| Error::Certificate { name: name.to_owned(), source };
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(name, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(wrong)?;
        let certificate = params.self_signed(&key).map_err(wrong)?;
        let path = dir.join(format!("{name}.crt"));
        write(&path, &certificate.pem())?;
        Ok(Self { pem: certificate.pem(), der: certificate.der().to_vec(), path, issuer: Issuer::new(params, key) })
    }

    /// A server's certificate for 127.0.0.1, `localhost` and `names`.
    pub fn server(&self, dir: &Path, name: &str, names: &[&str]) -> Result<Pair> {
        let mut sans = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        sans.extend(names.iter().map(|&it| it.to_owned()));
        self.issue(dir, name, subject(name, None), sans, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client's certificate: user and group towards the API server.
    pub fn client(&self, dir: &Path, file: &str, user: &str, group: Option<&str>) -> Result<Pair> {
        self.issue(dir, file, subject(user, group), Vec::new(), ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        dir: &Path,
        file: &str,
        subject: DistinguishedName,
        sans: Vec<String>,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Pair> {
        let wrong = |source| Error::Certificate { name: file.to_owned(), source };
        let mut params = CertificateParams::new(sans).map_err(wrong)?;
        params.distinguished_name = subject;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().map_err(wrong)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(wrong)?;
        let pair = Pair { cert: dir.join(format!("{file}.crt")), key: dir.join(format!("{file}.key")) };
        write(&pair.cert, &certificate.pem())?;
        write(&pair.key, &key.serialize_pem())?;
        Ok(pair)
    }
}

/// A bare key: the private half in `<name>.key`, the public one in `<name>.crt`, both PEM.
pub(crate) fn signing_key(dir: &Path, name: &str) -> Result<Pair> {
    let key = KeyPair::generate().map_err(|source| Error::Certificate { name: name.to_owned(), source })?;
    let pair = Pair { cert: dir.join(format!("{name}.crt")), key: dir.join(format!("{name}.key")) };
    write(&pair.cert, &key.public_key_pem())?;
    write(&pair.key, &key.serialize_pem())?;
    Ok(pair)
}

fn subject(name: &str, group: Option<&str>) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group);
    }
    subject
}

/// Writes a file that only its owner may read.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::write(folder))?;
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::write(path))
}
