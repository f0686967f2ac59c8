//! The promise's opposite, refused: members whose boot differs from what the pool's measurements say.

use std::time::Duration;

use anyhow::{Context, bail};
use banlieue_crds::VirtualMachinePool;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};

use super::watch::condition;
use super::{Stage, publish_measurements};
use crate::image;

/// Longest wait for the failure budget to be spent: two boots and two refusals.
const SPENT: Duration = Duration::from_secs(900);

/// One byte of one file in the initrd differs.
pub async fn tampered(stage: &mut Stage) -> anyhow::Result<()> {
    refused(stage, "tampered", image::TAMPERED).await
}

/// The image is honest; a file lies where the stub looks for credentials.
pub async fn credential(stage: &mut Stage) -> anyhow::Result<()> {
    refused(stage, "credential", image::CREDENTIAL).await
}

async fn refused(stage: &mut Stage, name: &str, reference: &str) -> anyhow::Result<()> {
    let digest = publish_measurements(stage, "guest-dev").await?;
    let path = stage.examples.join("pool.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let text = text.replace(image::HONEST, reference);
    let mut pool: VirtualMachinePool = serde_saphyr::from_str(&text).context("parsing docs/examples/pool.yaml")?;
    pool.metadata.name = Some(name.to_owned());
    pool.spec.warm_replicas = 1;
    pool.spec.max_surge = 1;
    if let Some(measurements) = &mut pool.spec.attestation.measurements {
        measurements.sha256 = digest;
    }
    stage.watch.restart();
    stage.watch.pools.create(&PostParams::default(), &pool).await.context("creating the pool as its author")?;

    let pools = stage.watch.pools.clone();
    stage
        .watch
        .until(name, "the failure budget to be spent", SPENT, async |members| {
            if let Some(member) = members.iter().find(|member| super::watch::state(member) == "Ready") {
                bail!("member {} of a pool that must be refused became Ready", member.name_any());
            }
            let status = pools.get(name).await.context("reading the pool")?.status.unwrap_or_default();
            Ok(condition(&status.conditions, "ProvisioningHalted").filter(|(state, _, _)| state == "True"))
        })
        .await?;
    for member in stage.watch.of_pool(name).await? {
        let status = member.status.clone().unwrap_or_default();
        if let Some((state, reason, message)) = condition(&status.conditions, "Attested") {
            stage.watch.say(&format!("{} Attested={state} ({reason})", member.name_any()));
            print_parts(&message);
        }
    }
    let status = stage.watch.pools.get(name).await.context("reading the pool")?.status.unwrap_or_default();
    for kind in ["Ready", "ProvisioningHalted"] {
        if let Some((state, reason, message)) = condition(&status.conditions, kind) {
            stage.watch.say(&format!("pool {name} {kind}={state} ({reason})"));
            if kind == "ProvisioningHalted" {
                print_parts(&message);
            }
        }
    }
    stage.watch.pools.delete(name, &DeleteParams::default()).await.context("deleting the pool as its author")?;
    let pools = stage.watch.pools.clone();
    stage
        .watch
        .until(name, "the pool to be gone", SPENT, async |members| {
            let there = pools.get_opt(name).await.context("reading the pool")?.is_some();
            Ok((!there && members.is_empty()).then_some(()))
        })
        .await
}

/// A long message, one finding a line.
fn print_parts(message: &str) {
    for part in message.split("; ") {
        println!("                 {part}");
    }
}
