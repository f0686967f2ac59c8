//! A pool until it is warm.
//!
//! Baseline: a plain client creates as many instances of the pool's template at once and waits until KubeVirt and the
//! node report all of them Running. Product: a pool is created and is warm. What the product does besides, for each
//! member: the member itself, its Secret, the gate, its records.

use std::time::{Duration, Instant};

use anyhow::Context;
use banlieue_crds::PoolMember;
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{Bench, NAMESPACE, compare, until};

/// Pairs, one after another.
const ROUNDS: usize = 2;

/// Alternates both and leaves the pool warm.
pub async fn measure(bench: &Bench<'_>) -> anyhow::Result<()> {
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        bare.push(baseline(bench).await?);
        ours.push(pool(bench).await?);
        if round + 1 < ROUNDS {
            empty(bench).await?;
        }
    }
    let count = bench.pool.spec.warm_replicas;
    compare(
        &format!("until {count} are ready, in milliseconds, {ROUNDS} pairs"),
        (&bare, "instances created at once by a plain client, all Running"),
        (&ours, "pool created, all warm"),
    );
    if let (Some(bare), Some(ours)) = (bare.iter().min(), ours.iter().min()) {
        let rate = |took: &Duration| f64::from(count) / took.as_secs_f64();
        println!("  best rate: {:.1} instances a second bare, {:.1} members a second", rate(bare), rate(ours));
    }
    Ok(())
}

async fn pool(bench: &Bench<'_>) -> anyhow::Result<Duration> {
    let name = bench.pool.name_any();
    let begun = Instant::now();
    bench.pools.create(&PostParams::default(), &bench.pool).await.context("creating the pool")?;
    until(&format!("pool {name} to be warm"), async || {
        let pool = bench.pools.get(&name).await.context("reading the pool")?;
        Ok(pool.status.is_some_and(|status| status.warm >= bench.pool.spec.warm_replicas))
    })
    .await?;
    Ok(begun.elapsed())
}

async fn empty(bench: &Bench<'_>) -> anyhow::Result<()> {
    let name = bench.pool.name_any();
    bench.pools.delete(&name, &DeleteParams::default()).await.context("deleting the pool")?;
    let members: Api<PoolMember> = Api::namespaced(bench.bare.clone(), NAMESPACE);
    until(&format!("pool {name} and its members to be gone"), async || {
        let left = members.list(&ListParams::default()).await.context("listing members")?.items;
        Ok(left.is_empty() && bench.pools.get_opt(&name).await.context("reading the pool")?.is_none())
    })
    .await
}

async fn baseline(bench: &Bench<'_>) -> anyhow::Result<Duration> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstance"));
    // Not in a pool namespace: there an instance belongs to a member.
    let instances: Api<DynamicObject> = Api::namespaced_with(bench.bare.clone(), "default", &kind);
    let spec = bench.pool.spec.template.kube_virt.as_ref().context("the pool's template is not KubeVirt's")?;
    let mut spec = serde_json::to_value(&spec.spec).context("reading the pool's template")?;
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("terminationGracePeriodSeconds".into(), json!(0));
    }
    let count = bench.pool.spec.warm_replicas as usize;
    let begun = Instant::now();
    let all = (0..count).map(async |n| {
        let instance: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": format!("bare-{n}")}, "spec": spec,
        }))?;
        instances.create(&PostParams::default(), &instance).await.context("creating a bare instance")
    });
    stream::iter(all).buffer_unordered(count).try_collect::<Vec<_>>().await?;
    until("the bare instances to run", async || {
        let there = instances.list(&ListParams::default()).await.context("listing instances")?;
        let running = |it: &&DynamicObject| it.data.pointer("/status/phase").is_some_and(|phase| phase == "Running");
        Ok(there.items.iter().filter(running).count() == count)
    })
    .await?;
    let took = begun.elapsed();
    for n in 0..count {
        instances.delete(&format!("bare-{n}"), &DeleteParams::default()).await.context("deleting an instance")?;
    }
    until("the bare instances to be gone", async || {
        Ok(instances.list(&ListParams::default()).await.context("listing instances")?.items.is_empty())
    })
    .await?;
    Ok(took)
}
