//! Nodes that are lost: one whose Node object is deleted while its hypervisor lives, and one whose hypervisor is killed for
//! good and whose Node object somebody deletes, as people do with a host that burned. Their instances end, the claim on
//! one of them fails, and the pool has other members elsewhere.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod lending;

use banlieue_cluster::{Cluster, Identity, Signal, component, programs};
use banlieue_crds::PoolMember;
use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::conditions::ClaimReason;
use banlieue_crds::kubevirt::{InstancePhase, VirtualMachineInstance};
use banlieue_crds::member::MemberPhase;
use banlieue_supervisor::Spec;
use banlieue_tests::members::{cordon, first, now};
use banlieue_tests::objects;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use lending::{Fixture, eventually};
use serde_json::json;

/// Where members are made again.
const ELSEWHERE: &str = "w-1";
/// Its Node object is deleted.
const FORGOTTEN: &str = "w-2";
/// Its hypervisor is killed, and its Node object deleted.
const BURNED: &str = "w-3";
const SECOND: &str = "hypervisor-2";

/// A second hypervisor, with one node that has room for one member.
async fn second(cluster: &Cluster) {
    let program = programs::binary(component::HYPERVISOR).unwrap();
    let kubeconfig = cluster.kubeconfig(&Identity::Hypervisor).await.unwrap();
    let state = cluster.dir().join("vm-2");
    let path = |path: &std::path::Path| path.display().to_string();
    let flags = [
        ("--kubeconfig", path(&kubeconfig)),
        ("--supervisor", path(cluster.dir())),
        ("--images", path(&programs::images())),
        ("--state", path(&state)),
        ("--nodes", format!("{BURNED}=weightless:pods=1")),
    ];
    let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    let argv = std::iter::once(path(&program)).chain(flags).collect();
    let spec = Spec { name: SECOND.into(), argv, log: cluster.log(SECOND), ..Spec::default() };
    cluster.supervisor().spawn(spec).await.unwrap();
    let nodes: Api<Node> = Api::all(cluster.admin());
    eventually("the second hypervisor's node is ready", async || {
        let status = nodes.get_opt(BURNED).await.unwrap().and_then(|node| node.status);
        let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
    .await;
}

fn node_of(member: &PoolMember) -> Option<&str> {
    member.status.as_ref()?.node_name.as_deref()
}

/// Nothing of a lost member counts any more: it failed or is gone, its instance is over or gone, no pod is left.
async fn is_over(at: &Fixture, member: &PoolMember) {
    let name = member.name_any();
    let phase = async || now(&at.all(), member).await.and_then(|member| member.status?.phase);
    eventually(&format!("member {name} failed or is gone"), async || {
        matches!(phase().await, None | Some(MemberPhase::Failed))
    })
    .await;
    let instances: Api<VirtualMachineInstance> = at.all();
    eventually(&format!("instance {name} is over"), async || {
        let instance = instances.get_opt(&name).await.unwrap();
        instance.is_none_or(|it| matches!(it.phase(), Some(InstancePhase::Failed | InstancePhase::Succeeded)))
    })
    .await;
    let pods: Api<Pod> = at.all();
    let launchers = ListParams::default().labels(&format!("banlieue.io/member={name}"));
    eventually(&format!("no launcher pod of {name} is left on a node that is gone"), async || {
        pods.list(&launchers).await.unwrap().items.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_lost_nodes_end_and_are_made_elsewhere() {
    let nodes = format!("{ELSEWHERE}=weightless,{FORGOTTEN}=weightless:pods=1");
    let builder = Cluster::builder().nodes(nodes).controller();
    let cluster: &'static Cluster =
        Box::leak(Box::new(builder.start().await.unwrap_or_else(|error| panic!("{error}"))));
    second(cluster).await;
    let at = Fixture::of(cluster).await;

    // One member on each of the nodes that will be lost: they have room for one.
    cordon(cluster.admin(), ELSEWHERE, true).await;
    at.pool("p", 2, 6, 2).await;
    at.pool_is_warm("p").await;
    let lost = at.members().await;
    let mut places: Vec<_> = lost.iter().filter_map(node_of).collect();
    places.sort_unstable();
    assert_eq!(places, [FORGOTTEN, BURNED]);
    cordon(cluster.admin(), ELSEWHERE, false).await;
    objects::claim(cluster, &at.namespace, "p", "c", json!({})).await;
    at.phase_is("c", ClaimPhase::Bound).await;

    let all: Api<Node> = Api::all(cluster.admin());
    all.delete(FORGOTTEN, &DeleteParams::default()).await.unwrap();
    cluster.supervisor().signal(SECOND, Signal::Kill).await.unwrap();
    cluster.supervisor().wait(SECOND).await.unwrap();
    all.delete(BURNED, &DeleteParams::default()).await.unwrap();

    for member in &lost {
        is_over(&at, member).await;
    }
    let claim = at.phase_is("c", ClaimPhase::Failed).await;
    assert_eq!(claim.status.unwrap().termination_reason, Some(ClaimReason::MemberLost));
    at.pool_is_warm("p").await;
    let lost: Vec<_> = lost.iter().map(ResourceExt::uid).collect();
    for member in at.members().await.iter().filter(|member| !lost.contains(&member.uid())) {
        assert_eq!(node_of(member), Some(ELSEWHERE), "{}", member.name_any());
    }

    // A hypervisor that starts again registers its node again, and members are made there.
    cluster.kill(component::HYPERVISOR, Signal::Kill).await.unwrap();
    cluster.restart(component::HYPERVISOR).await.unwrap();
    eventually("the forgotten node is back", async || all.get_opt(FORGOTTEN).await.unwrap().is_some()).await;
    cordon(cluster.admin(), ELSEWHERE, true).await;
    at.claim("p", "d", 3600).await;
    let is_there = |member: &PoolMember| {
        let phase = member.status.as_ref().and_then(|status| status.phase);
        node_of(member) == Some(FORGOTTEN) && phase == Some(MemberPhase::Ready)
    };
    eventually("a member is ready on it", async || first(&at.all(), "p", is_there).await.is_some()).await;
}
