//! Taking rights away, through objects that all replicas watch.

use anyhow::{Context, Result, bail};
use banlieue_identity::SubjectKey;

use crate::{
    claims::{
        cluster::{Cluster, place},
        record::subject_key,
    },
    config::Config,
};

/// What to revoke.
#[derive(Debug, Clone)]
pub enum Target {
    /// One claim, `namespace/name`: it is released.
    Claim(String),
    /// A subject, by its key: no claims and no tokens any more, and its claims are released.
    Subject(SubjectKey),
    /// A member, `namespace/name`: it is quarantined, which ends its claim.
    Member(String),
}

/// Revokes.
///
/// # Errors
/// When anything of it may not have been done; doing it again is safe.
pub async fn revoke(config: &Config, cluster: &Cluster, target: &Target, reason: &str) -> Result<()> {
    match target {
        Target::Claim(name) => {
            let (namespace, name) = parts(config, name)?;
            let Some(claim) = cluster.claim(namespace, name).await? else {
                bail!("there is no claim {namespace}/{name}")
            };
            cluster.release(namespace, name, claim.metadata.uid.as_deref().unwrap_or_default()).await?;
        }
        Target::Member(name) => {
            let (namespace, name) = parts(config, name)?;
            cluster.quarantine(namespace, name, reason).await?;
        }
        Target::Subject(key) => {
            // Denied first, so that nothing new comes while the old is released.
            for namespace in &config.namespaces {
                cluster.deny(namespace.as_str(), &key.to_string(), reason).await?;
            }
            for namespace in &config.namespaces {
                for claim in cluster.claims(namespace.as_str()).await?.iter().filter(|it| subject_key(it) == *key) {
                    let (namespace, name) = place(claim);
                    cluster.release(namespace, name, claim.metadata.uid.as_deref().unwrap_or_default()).await?;
                }
            }
        }
    }
    Ok(())
}

fn parts<'a>(config: &Config, text: &'a str) -> Result<(&'a str, &'a str)> {
    let (namespace, name) = text.split_once('/').context("write namespace/name")?;
    if !config.namespaces.iter().any(|known| known.as_str() == namespace) {
        bail!("{namespace} is none of the namespaces in the configuration");
    }
    Ok((namespace, name))
}
