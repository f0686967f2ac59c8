//! From claim to Bound.
//!
//! Baseline: what any binder must do and nothing else. A plain client creates an object, makes the two guarded writes
//! that a binding needs, and waits until its own watch shows the second. Product: a claim is created, and the same kind
//! of watch shows it Bound.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use banlieue_crds::VirtualMachineClaim;
use banlieue_crds::claim::ClaimPhase;
use futures::{StreamExt, TryStreamExt, pin_mut, stream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Bench, LIMIT, NAMESPACE, compare, until};

/// Pairs, one after another.
const PAIRS: usize = 60;
/// Rounds of a burst, and how many at once: as many as the pool keeps warm.
const ROUNDS: usize = 3;

/// A claim that was served.
pub struct Served {
    /// Of the claim.
    pub name: String,
    /// Of its member, instance and Secret's stem.
    pub member: String,
}

/// Alternates both, one by one and in bursts; returns the claims that were served, those of the pairs first.
pub async fn measure(bench: &Bench<'_>) -> anyhow::Result<Vec<Served>> {
    let (mut bare, mut ours, mut served) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..PAIRS {
        warm(bench, bench.pool.spec.warm_replicas / 2).await?;
        bare.push(baseline(bench, &format!("bare-{n}")).await?);
        let (took, claim) = claim(bench, &format!("claim-{n}")).await?;
        ours.push(took);
        served.push(claim);
    }
    compare(
        &format!("time to bind in milliseconds, {PAIRS} pairs, one after another"),
        (&bare, "create, two guarded writes, seen by watch"),
        (&ours, "claim created, Bound seen by watch"),
    );

    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    let burst = bench.pool.spec.warm_replicas as usize;
    for round in 0..ROUNDS {
        warm(bench, bench.pool.spec.warm_replicas).await?;
        let begun = Instant::now();
        let all = (0..burst).map(async |n| baseline(bench, &format!("bare-{round}-{n}")).await);
        stream::iter(all).buffer_unordered(burst).try_collect::<Vec<_>>().await?;
        bare.push(begun.elapsed());
        let begun = Instant::now();
        let all = (0..burst).map(async |n| claim(bench, &format!("burst-{round}-{n}")).await);
        let bound: Vec<_> = stream::iter(all).buffer_unordered(burst).try_collect().await?;
        ours.push(begun.elapsed());
        served.extend(bound.into_iter().map(|(_, claim)| claim));
    }
    compare(
        &format!("until the last of {burst} at once is bound, in milliseconds, {ROUNDS} rounds"),
        (&bare, "the same, by as many plain clients at once"),
        (&ours, "the same, by one controller"),
    );
    Ok(served)
}

/// Waits until so many members are warm: the hot path is measured, not the refill.
async fn warm(bench: &Bench<'_>, least: u32) -> anyhow::Result<()> {
    let name = bench.pool.name_any();
    until(&format!("{least} warm members in pool {name}"), async || {
        let pool = bench.pools.get(&name).await.context("reading the pool")?;
        Ok(pool.status.is_some_and(|status| status.warm >= least))
    })
    .await
}

async fn baseline(bench: &Bench<'_>, name: &str) -> anyhow::Result<Duration> {
    let maps: Api<ConfigMap> = Api::namespaced(bench.bare.clone(), NAMESPACE);
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    let begun = Instant::now();
    let mut object = maps.create(&PostParams::default(), &map).await.context("creating the baseline's object")?;
    let created = object.resource_version().unwrap_or_default();
    for step in ["commit", "acknowledge"] {
        let patch = json!({"metadata": {"resourceVersion": object.resource_version()}, "data": {"step": step}});
        object = maps.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.context("a guarded write")?;
    }
    let acknowledged =
        |map: &ConfigMap| map.data.as_ref().and_then(|data| data.get("step")).is_some_and(|step| step == "acknowledge");
    seen(&maps, name, &created, acknowledged).await?;
    let took = begun.elapsed();
    maps.delete(name, &DeleteParams::default()).await.context("deleting the baseline's object")?;
    Ok(took)
}

async fn claim(bench: &Bench<'_>, name: &str) -> anyhow::Result<(Duration, Served)> {
    let claim: VirtualMachineClaim = serde_json::from_value(json!({
        "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachineClaim", "metadata": {"name": name},
        "spec": {
            "poolRef": {"name": bench.pool.name_any()}, "ttlSeconds": 1, "retentionSeconds": 0,
            "bindDeadlineSeconds": 300,
            "subject": {"issuer": "https://local", "id": name}, "workload": {"image": "registry.local/job:1"},
        },
    }))?;
    let begun = Instant::now();
    let created = bench.claims.create(&PostParams::default(), &claim).await.context("creating a claim")?;
    let version = created.resource_version().unwrap_or_default();
    let bound =
        |claim: &VirtualMachineClaim| claim.status.as_ref().and_then(|status| status.phase) == Some(ClaimPhase::Bound);
    let claim = seen(&bench.claims, name, &version, bound).await?;
    let took = begun.elapsed();
    let member = claim.status.and_then(|status| status.member_ref).context("a Bound claim names no member")?;
    Ok((took, Served { name: name.to_owned(), member: member.name }))
}

/// Watches one object from a version on until it is as wanted.
async fn seen<K>(api: &Api<K>, name: &str, version: &str, wanted: impl Fn(&K) -> bool) -> anyhow::Result<K>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
    K::DynamicType: Default,
{
    let watch = WatchParams::default().fields(&format!("metadata.name={name}"));
    let events = api.watch(&watch, version).await.with_context(|| format!("watching {name}"))?;
    pin_mut!(events);
    let look = async {
        while let Some(event) = events.next().await {
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event?
                && wanted(&object)
            {
                return Ok(object);
            }
        }
        bail!("the watch on {name} ended early")
    };
    tokio::time::timeout(LIMIT, look).await.with_context(|| format!("waiting for {name}"))?
}
