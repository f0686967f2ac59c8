//! What lending costs, against a bare baseline of the same run.
//!
//! Baseline: what any binder must do and nothing else. A plain client creates an object, makes the two guarded writes
//! that a binding needs, and waits until its own watch shows the second. Product: a claim is created, and the same kind
//! of watch shows it Bound. The two alternate, so that both see the same machine. etcd waits for the disk here.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use banlieue_cluster::{Cluster, Identity};
use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::names::accounts;
use banlieue_crds::{VirtualMachineClaim, VirtualMachinePool};
use futures::{StreamExt, pin_mut};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::packages::{self, Purpose};
use crate::{product, tools};

/// Namespace of the pool in `docs/examples`.
const NAMESPACE: &str = "sandboxes";
/// Pairs that are measured.
const PAIRS: usize = 100;
/// Longest wait for one event or for the pool.
const LIMIT: Duration = Duration::from_secs(300);

/// Builds what is missing, measures, prints.
pub fn run(root: &Path) -> anyhow::Result<()> {
    packages::ensure(&[Purpose::Build])?;
    product::build(root)?;
    tools::ensure(root, &["control-plane", "kubevirt"])?;
    let runtime = tokio::runtime::Runtime::new().context("starting the async runtime")?;
    runtime.block_on(async {
        let builder = Cluster::builder().nodes("w-1=weightless,w-2=weightless").controller().fsync();
        let cluster = builder.progress(banlieue_cluster::progress::print).start().await?;
        let measured = measure(root, &cluster).await;
        let writes = writes_per_claim(&cluster)?;
        cluster.stop().await?;
        report(&measured?, &writes);
        Ok(())
    })
}

struct Measured {
    baseline: Vec<Duration>,
    product: Vec<Duration>,
}

async fn measure(root: &Path, cluster: &Cluster) -> anyhow::Result<Measured> {
    let path = root.join("docs/examples/weightless-pool.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let pool: VirtualMachinePool = serde_saphyr::from_str(&text).context("parsing the pool")?;
    let pools: Api<VirtualMachinePool> = Api::namespaced(cluster.kube(&Identity::PoolAuthor).await?, NAMESPACE);
    pools.create(&PostParams::default(), &pool).await.context("creating the pool")?;
    // A client of its own for the baseline, so that neither warms the other's connections.
    let (bare, broker) = (cluster.admin(), cluster.kube(&Identity::Broker).await?);
    let mut measured = Measured { baseline: Vec::new(), product: Vec::new() };
    for n in 0..PAIRS {
        warm(&pools, &pool.name_any()).await?;
        measured.baseline.push(baseline(&bare, &format!("bare-{n}")).await?);
        measured.product.push(claim(&broker, &format!("claim-{n}"), &pool.name_any()).await?);
    }
    Ok(measured)
}

/// Waits until half of the pool is warm: the hot path is measured, not the refill.
async fn warm(pools: &Api<VirtualMachinePool>, name: &str) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let pool = pools.get(name).await.context("reading the pool")?;
        if pool.status.is_some_and(|status| status.warm >= pool.spec.warm_replicas / 2) {
            return Ok(());
        }
        if begun.elapsed() > LIMIT {
            bail!("pool {name} did not get warm in {} s", LIMIT.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn baseline(client: &Client, name: &str) -> anyhow::Result<Duration> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
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

async fn claim(client: &Client, name: &str, pool: &str) -> anyhow::Result<Duration> {
    let claims: Api<VirtualMachineClaim> = Api::namespaced(client.clone(), NAMESPACE);
    let claim: VirtualMachineClaim = serde_json::from_value(json!({
        "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachineClaim", "metadata": {"name": name},
        "spec": {
            "poolRef": {"name": pool}, "ttlSeconds": 1, "retentionSeconds": 0, "bindDeadlineSeconds": 300,
            "subject": {"issuer": "https://local", "id": name}, "workload": {"image": "registry.local/job:1"},
        },
    }))?;
    let begun = Instant::now();
    let created = claims.create(&PostParams::default(), &claim).await.context("creating a claim")?;
    let version = created.resource_version().unwrap_or_default();
    let bound =
        |claim: &VirtualMachineClaim| claim.status.as_ref().and_then(|status| status.phase) == Some(ClaimPhase::Bound);
    seen(&claims, name, &version, bound).await?;
    Ok(begun.elapsed())
}

/// Watches one object from a version on until it is as wanted.
async fn seen<K>(api: &Api<K>, name: &str, version: &str, wanted: impl Fn(&K) -> bool) -> anyhow::Result<()>
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
                return Ok(());
            }
        }
        bail!("the watch on {name} ended early")
    };
    tokio::time::timeout(LIMIT, look).await.with_context(|| format!("waiting for {name}"))?
}

/// Writes of our controller on the claims and members of the run, without events, for each claim.
fn writes_per_claim(cluster: &Cluster) -> anyhow::Result<String> {
    let audit = cluster.audit()?;
    let user = accounts::username(accounts::SYSTEM_NAMESPACE, accounts::CONTROLLER);
    let count = |resource: &str| {
        audit
            .writes(&user)
            .filter(|event| event.object_ref.as_ref().is_some_and(|object| object.resource == resource))
            .count()
    };
    let (claims, members, instances) =
        (count("virtualmachineclaims"), count("poolmembers"), count("virtualmachineinstances"));
    Ok(format!(
        "{claims} on claims, {members} on members, {instances} on instances, for {PAIRS} claims and their members"
    ))
}

fn report(measured: &Measured, writes: &str) {
    println!("\ntime to bind, {PAIRS} pairs, milliseconds, etcd with fsync");
    println!("            p50      p90      max");
    let (bare, ours) = (spread(&measured.baseline), spread(&measured.product));
    println!("  baseline {:>8.1} {:>8.1} {:>8.1}   create, two guarded writes, watch", bare[0], bare[1], bare[2]);
    println!("  claim    {:>8.1} {:>8.1} {:>8.1}   create, Bound seen by watch", ours[0], ours[1], ours[2]);
    println!("  ratio    {:>8.2} {:>8.2} {:>8.2}", ours[0] / bare[0], ours[1] / bare[1], ours[2] / bare[2]);
    println!("writes of the controller: {writes}");
}

/// Median, ninth decile and maximum, in milliseconds.
fn spread(times: &[Duration]) -> [f64; 3] {
    let mut sorted: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1000.0).collect();
    sorted.sort_by(f64::total_cmp);
    let at = |part: usize| {
        sorted.get((sorted.len() * part / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
    };
    [at(50), at(90), at(100)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_taken_from_sorted_times() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(spread(&times), [51.0, 91.0, 100.0]);
    }
}
