//! The promise kept: two warm members, one lent to one claim, the other refilled, the deadline.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use banlieue_cluster::Identity;
use banlieue_crds::{VirtualMachineClaim, VirtualMachinePool};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use super::watch::{self, NAMESPACE, condition};
use super::{Stage, publish_measurements};

/// Longest wait for two machines to boot and attest. Generous: shared machines are slow, and a state ends the wait.
const BOOT: Duration = Duration::from_secs(600);
/// Longest wait for a write of our own programs.
const SOON: Duration = Duration::from_secs(120);

/// A member that is, or was, lent.
pub struct Lent {
    /// Name of the claim.
    pub claim: String,
    /// Name of the member, its instance and its pod.
    pub member: String,
    /// uid of the member: firmware UUID, and part of its SPIFFE ids.
    pub member_uid: String,
    /// uid of the instance.
    pub instance_uid: String,
}

/// Applies the pool of `docs/examples` with the digest just recorded, and waits for two warm members.
pub async fn fill(stage: &mut Stage) -> anyhow::Result<String> {
    let mut pool = example::<VirtualMachinePool>(stage, "pool.yaml")?;
    let digest = publish_measurements(stage, "guest-dev").await?;
    if let Some(measurements) = &mut pool.spec.attestation.measurements {
        measurements.sha256 = digest;
    }
    println!("   docs/examples/pool.yaml: {} warm, at most {}", pool.spec.warm_replicas, pool.spec.max_replicas);
    let name = pool.name_any();
    let warm = pool.spec.warm_replicas;
    stage.watch.restart();
    stage.watch.pools.create(&PostParams::default(), &pool).await.context("creating the pool as its author")?;
    let pools = stage.watch.pools.clone();
    let wanted = name.clone();
    stage
        .watch
        .until(&name, "two warm members", BOOT, async |_| {
            let pool = pools.get(&wanted).await.context("reading the pool")?;
            let status = pool.status.unwrap_or_default();
            if let Some((state, reason, message)) = condition(&status.conditions, "ProvisioningHalted")
                && state == "True"
            {
                bail!("the pool gave up ({reason}): {message}");
            }
            Ok((status.warm >= warm).then_some(()))
        })
        .await?;
    let pool = stage.watch.pools.get(&name).await.context("reading the pool")?;
    if let Some((state, reason, message)) = condition(&pool.status.unwrap_or_default().conditions, "Ready") {
        // A pool that is as it should be has nothing to add.
        let more = if message.is_empty() { message } else { format!(": {message}") };
        stage.watch.say(&format!("pool Ready={state} ({reason}){more}"));
    }
    facts(stage, &name).await?;
    Ok(name)
}

/// What the record of each warm member says about its evidence.
async fn facts(stage: &Stage, pool: &str) -> anyhow::Result<()> {
    for member in stage.watch.of_pool(pool).await? {
        let status = member.status.clone().unwrap_or_default();
        let key = status.endorsement.map(|pinned| pinned.ek_digest).unwrap_or_default();
        let policy = status.attestation.and_then(|evidence| evidence.policy_digest).unwrap_or_default();
        let short = |hex: &str| hex.chars().take(12).collect::<String>();
        println!(
            "   {}: endorsement key {} as its host reported, judged by policy {}",
            member.name_any(),
            short(&key),
            short(&policy)
        );
    }
    Ok(())
}

/// Creates the claim of `docs/examples`, as mediatore would, and waits until it is Bound and the pool is full again.
pub async fn claim(stage: &mut Stage, pool: &str) -> anyhow::Result<Lent> {
    let claim = example::<VirtualMachineClaim>(stage, "claim.yaml")?;
    let name = claim.name_any();
    let broker: Api<VirtualMachineClaim> = Api::namespaced(stage.cluster.kube(&Identity::Broker).await?, NAMESPACE);
    stage.watch.restart();
    let created = Instant::now();
    broker.create(&PostParams::default(), &claim).await.context("creating the claim under mediatore's account")?;
    let bound = bound(&broker, &name, created).await?;
    stage.watch.say(&format!("claim {name} Bound after {:.0} ms", bound.1.as_secs_f64() * 1000.0));
    let lent = bound.0;

    let member = stage.watch.members.get(&lent.member).await.context("reading the bound member")?;
    let named = member.spec.claim_ref.as_ref().map(|claim| claim.name.as_str());
    if named != Some(&name) {
        bail!("member {} says it belongs to {named:?}, the claim says {name}", lent.member);
    }
    let claims = stage.watch.claims.list(&kube::api::ListParams::default()).await.context("listing claims")?;
    let holders = claims.items.iter().filter(|claim| holds(claim, &lent.member_uid)).count();
    stage.watch.say(&format!("member {} names claim {name}, and {holders} claim names that member", lent.member));
    if holders != 1 {
        bail!("{holders} claims name member {}", lent.member);
    }

    let pools = stage.watch.pools.clone();
    let wanted = pool.to_owned();
    stage
        .watch
        .until(pool, "the pool to refill", BOOT, async |members| {
            let pool = pools.get(&wanted).await.context("reading the pool")?;
            // Either the refill is on its way or, where boots are quick, done: the deadline is not waited past here.
            let coming = members
                .iter()
                .any(|member| matches!(watch::state(member).as_str(), "Provisioning" | "Booting" | "Attesting"));
            let full = pool.status.unwrap_or_default().warm >= pool.spec.warm_replicas;
            Ok((coming || full).then_some(()))
        })
        .await?;
    stage.watch.say("the pool refills");
    Ok(lent)
}

fn holds(claim: &VirtualMachineClaim, member_uid: &str) -> bool {
    claim.status.as_ref().and_then(|status| status.member_ref.as_ref()).is_some_and(|member| member.uid == member_uid)
}

/// Polls tightly: this wait is the number that is printed.
async fn bound(claims: &Api<VirtualMachineClaim>, name: &str, created: Instant) -> anyhow::Result<(Lent, Duration)> {
    loop {
        let claim = claims.get(name).await.context("reading the claim")?;
        let status = claim.status.unwrap_or_default();
        if let (Some(member), Some(instance)) = (status.member_ref, status.instance_ref) {
            let lent = Lent {
                claim: name.to_owned(),
                member: member.name,
                member_uid: member.uid,
                instance_uid: instance.uid,
            };
            return Ok((lent, created.elapsed()));
        }
        if created.elapsed() > SOON {
            bail!("claim {name} is not Bound after {} s; its status: {:?}", SOON.as_secs(), status.conditions);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the claim is over and prints why and when.
pub async fn deadline(stage: &mut Stage, lent: &Lent) -> anyhow::Result<()> {
    let claims = stage.watch.claims.clone();
    let name = lent.claim.clone();
    let pool = example::<VirtualMachinePool>(stage, "pool.yaml")?.name_any();
    let claim = stage
        .watch
        .until(&pool, "the claim to be Released", SOON, async |_| {
            let claim = claims.get(&name).await.context("reading the claim")?;
            let over = claim.status.as_ref().and_then(|status| status.phase).is_some_and(|phase| phase.is_terminal());
            Ok(over.then_some(claim))
        })
        .await?;
    let status = claim.status.unwrap_or_default();
    let phase = status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default();
    let reason = status.termination_reason.map(|reason| format!("{reason:?}")).unwrap_or_default();
    stage.watch.say(&format!("claim {name} {phase}, reason {reason}"));
    if let Some(deadline) = status.expires_at {
        stage.watch.say(&format!(
            "its deadline was {}, now it is {}",
            deadline.0.strftime("%T"),
            Timestamp::now().strftime("%T")
        ));
    }
    if let Some((state, _, message)) = condition(&status.conditions, "Destroyed") {
        stage.watch.say(&format!("Destroyed={state}: {message}"));
    }
    if reason != "Expired" {
        bail!("the claim ended as {phase} with reason {reason}, expected Released with reason Expired");
    }
    Ok(())
}

fn example<T: serde::de::DeserializeOwned>(stage: &Stage, file: &str) -> anyhow::Result<T> {
    let path = stage.examples.join(file);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("parsing {}", path.display()))
}
