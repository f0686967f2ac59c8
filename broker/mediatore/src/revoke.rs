//! Taking rights away, through objects that all replicas watch. Doing it again is safe, and each step says what it did.

use anyhow::{Context, Result, bail};
use banlieue_identity::SubjectKey;

use crate::{
    claims::{
        cluster::{Cluster, place},
        lend,
        record::subject_key,
    },
    config::Config,
};

/// Times that a subject's claims are looked for. Requests that were let in before the denial make a few more at most; who
/// writes claims past mediatore can go on for ever, and that is said.
const ROUNDS: usize = 20;

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

/// Revokes, and says each thing that it did or found done.
///
/// # Errors
/// When anything of it may not have been done; doing it again is safe.
pub async fn revoke(
    config: &Config,
    cluster: &Cluster,
    target: &Target,
    reason: &str,
    mut say: impl FnMut(String),
) -> Result<()> {
    match target {
        Target::Claim(text) => {
            let (namespace, name) = parts(config, text)?;
            let Some(claim) = cluster.claim(namespace, name).await? else {
                say(format!("claim {text}: there is none, nothing is released"));
                return Ok(());
            };
            if lend::is_ending(&claim) {
                say(format!("claim {text}: was ending already"));
            }
            let uid = claim.metadata.uid.as_deref().unwrap_or_default();
            let done = cluster.end(namespace, name, uid).await?;
            say(format!("claim {text}: {}", if done { "released" } else { "is gone" }));
        }
        Target::Member(text) => {
            let (namespace, name) = parts(config, text)?;
            let done = cluster.quarantine(namespace, name, reason).await?;
            say(format!(
                "member {text}: {}",
                if done { "quarantined" } else { "there is none, nothing is quarantined" }
            ));
        }
        Target::Subject(key) => subject(config, cluster, key, reason, &mut say).await?,
    }
    Ok(())
}

/// Denied first. Whoever makes a claim reads the denials after that and before the grant: a claim that got its grant all
/// the same was there before the denial, so the list below has it.
async fn subject(
    config: &Config,
    cluster: &Cluster,
    key: &SubjectKey,
    reason: &str,
    say: &mut impl FnMut(String),
) -> Result<()> {
    for namespace in &config.namespaces {
        let new = cluster.deny(namespace.as_str(), &key.to_string(), reason).await?;
        say(format!("subject {key}: {} in {namespace}", if new { "denied" } else { "was denied already" }));
    }
    let mut released = 0;
    for _ in 0..ROUNDS {
        let mut living = 0;
        for namespace in &config.namespaces {
            for claim in cluster.claims(namespace.as_str()).await? {
                if subject_key(&claim) != *key || lend::is_ending(&claim) {
                    continue;
                }
                living += 1;
                let (namespace, name) = place(&claim);
                let uid = claim.metadata.uid.as_deref().unwrap_or_default();
                if cluster.end(namespace, name, uid).await? {
                    released += 1;
                    say(format!("claim {namespace}/{name}: released"));
                }
            }
        }
        if living == 0 {
            say(format!("subject {key}: {released} claim(s) released, none lives"));
            return Ok(());
        }
    }
    bail!(
        "claims of subject {key} keep appearing: somebody makes them past mediatore; take the right to create claims away \
         there, then do this again"
    )
}

fn parts<'a>(config: &Config, text: &'a str) -> Result<(&'a str, &'a str)> {
    let (namespace, name) = text.split_once('/').context("write namespace/name")?;
    if !config.namespaces.iter().any(|known| known.as_str() == namespace) {
        bail!("{namespace} is none of the namespaces in the configuration");
    }
    Ok((namespace, name))
}
