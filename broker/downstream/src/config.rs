//! What an operator says: one YAML file, unknown keys refused.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use banlieue_identity::{Issuer, Issuers};
use banlieue_protocol::names::TrustDomain;
use serde::Deserialize;

use crate::sandbox::Expected;
use crate::verifier::Verifier;

/// The configuration, as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where it listens.
    pub address: SocketAddr,
    /// The certificate, PEM, leaf first.
    pub certificate_file: PathBuf,
    /// Its key, PEM.
    pub key_file: PathBuf,
    /// This service, as mediatore's configuration calls it.
    pub audience: String,
    /// The trust domain that sandboxes are of.
    pub trust_domain: String,
    /// Whose tokens sandboxes send.
    pub mediatore: Mediatore,
    /// Whose tokens orchestrators send to the relay: entries as in mediatore's `issuers`, where `audience` is this
    /// service's own. Without any, nobody may meet a sandbox at the relay.
    #[serde(default)]
    pub orchestrators: Vec<Issuer>,
}

/// One mediatore.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mediatore {
    /// Its issuer, `sts.issuer` of its configuration.
    pub issuer: String,
    /// Authorities besides the system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

impl Config {
    /// Reads the file.
    ///
    /// # Errors
    /// With what is wrong, and where.
    pub fn load(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        serde_saphyr::from_str(&text).with_context(|| format!("{} is not usable", file.display()))
    }

    /// Who verifies what sandboxes send.
    ///
    /// # Errors
    /// With the key that is at fault.
    pub fn verifier(&self) -> anyhow::Result<Verifier> {
        if !self.mediatore.issuer.starts_with("https://") {
            bail!("mediatore.issuer: {:?} does not begin with https://", self.mediatore.issuer);
        }
        let trust_domain = TrustDomain::parse(&self.trust_domain).context("trust_domain")?;
        let expected =
            Expected { issuer: self.mediatore.issuer.clone(), audience: self.audience.clone(), trust_domain };
        Verifier::new(expected, self.mediatore.ca_file.clone()).context("mediatore.ca_file")
    }

    /// Who verifies what orchestrators send.
    ///
    /// # Errors
    /// With the key that is at fault.
    pub fn orchestrators(&self) -> anyhow::Result<Option<Issuers>> {
        if self.orchestrators.is_empty() {
            return Ok(None);
        }
        Issuers::new(self.orchestrators.clone()).map(Some).context("orchestrators")
    }
}
