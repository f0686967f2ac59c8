//! kill -9 of the controller at ten points of a member's and a claim's life, each recognised from outside. The next
//! process goes on from the objects alone: nothing is bound twice, nothing is left over.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod lending;

use std::collections::BTreeSet;

use banlieue_cluster::{Signal, component};
use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::kubevirt::VirtualMachineInstance;
use banlieue_crds::member::MemberPhase;
use banlieue_crds::{PoolMember, VirtualMachineClaim};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Resource, ResourceExt};
use lending::{Bindings, Fixture, eventually, test};
use serde::de::DeserializeOwned;

/// Waits for an object of the namespace that shows what is looked for; the watch tells at once.
async fn seen<K>(at: &Fixture, what: &str, shows: impl Fn(&K) -> bool) -> K
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    K::DynamicType: Default,
{
    let objects = watcher(at.all::<K>(), watcher::Config::default()).default_backoff().applied_objects();
    let mut objects = std::pin::pin!(objects);
    let found = tokio::time::timeout(std::time::Duration::from_secs(600), async {
        while let Some(object) = objects.try_next().await.unwrap() {
            if shows(&object) {
                return object;
            }
        }
        panic!("{what}: the watch ended");
    });
    found.await.unwrap_or_else(|_| panic!("{what}: not within ten minutes"))
}

fn phase(claim: &VirtualMachineClaim) -> Option<ClaimPhase> {
    claim.status.as_ref().and_then(|status| status.phase)
}

async fn kill(at: &Fixture) {
    at.cluster.kill(component::CONTROLLER, Signal::Kill).await.unwrap();
    at.cluster.restart(component::CONTROLLER).await.unwrap();
}

/// Every binding that the API server granted, by the audit log's word: one claimRef for each member, ever.
#[test]
fn kill_at_ten_points() {
    test(async |at: Fixture| {
        at.pool("p", 2, 8, 2).await;
        // 1: a member exists, nothing of it is made.
        seen::<PoolMember>(&at, "a member", |_| true).await;
        kill(&at).await;
        // 2: an instance exists, perhaps not recorded.
        seen::<VirtualMachineInstance>(&at, "an instance", |_| true).await;
        kill(&at).await;
        // 3: a member just became Ready.
        let ready = |member: &PoolMember| member.status.as_ref().and_then(|s| s.phase) == Some(MemberPhase::Ready);
        seen(&at, "a Ready member", ready).await;
        kill(&at).await;
        at.pool_is_warm("p").await;

        let mut bindings = Bindings::default();
        for (n, point) in (4..=10).enumerate() {
            let name = format!("c{n}");
            let is_ours = |claim: &VirtualMachineClaim| claim.name_any() == name;
            at.claim("p", &name, if point >= 7 { 3 } else { 600 }).await;
            let committed =
                |member: &PoolMember| member.spec.claim_ref.as_ref().is_some_and(|claim_ref| claim_ref.name == name);
            match point {
                // 4: the claim was just made.
                4 => {}
                // 5: a member is committed, the claim perhaps not acknowledged.
                5 => drop(seen(&at, "a committed member", committed).await),
                // 6: just Bound, no finalizer yet.
                6 => drop(seen(&at, "Bound", |c| is_ours(c) && phase(c) == Some(ClaimPhase::Bound)).await),
                // 7: the end is only decided.
                7 => drop(seen(&at, "Releasing", |c| is_ours(c) && phase(c) == Some(ClaimPhase::Releasing)).await),
                // 8: the member is being deleted.
                8 => {
                    let going = |m: &PoolMember| committed(m) && m.metadata.deletion_timestamp.is_some();
                    seen(&at, "a member that goes", going).await;
                }
                // 9: its instance is being deleted.
                9 => {
                    let member = seen(&at, "a committed member", committed).await.name_any();
                    let going =
                        |i: &VirtualMachineInstance| i.name_any() == member && i.metadata.deletion_timestamp.is_some();
                    seen(&at, "an instance that goes", going).await;
                }
                // 10: ended, not yet deleted.
                _ => drop(seen(&at, "Released", |c| is_ours(c) && phase(c) == Some(ClaimPhase::Released)).await),
            }
            bindings.see(&at.members().await, &at.claims().await);
            kill(&at).await;
            if point < 7 {
                at.phase_is(&name, ClaimPhase::Bound).await;
                bindings.see(&at.members().await, &at.claims().await);
                at.release(&name).await;
            }
            at.claim_is_gone(&name).await;
            bindings.see(&at.members().await, &at.claims().await);
        }

        at.pool_is_warm("p").await;
        eventually("nothing is left over", async || {
            let all = ListParams::default();
            let members: BTreeSet<String> = at.members().await.iter().map(ResourceExt::name_any).collect();
            let instances = at.all::<VirtualMachineInstance>().list(&all).await.unwrap();
            let instances: BTreeSet<String> = instances.iter().map(ResourceExt::name_any).collect();
            let pods = at.all::<Pod>().list(&all).await.unwrap().items.len();
            let secrets = at.all::<Secret>().list(&all).await.unwrap();
            let enrolments = secrets.iter().filter(|secret| secret.name_any().ends_with("-enrol")).count();
            members.len() == 2 && members == instances && pods == 2 && enrolments == 0
        })
        .await;
    });
}
