//! The node half against KubeVirt's own control plane, with nothing behind the instances.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod world;

use banlieue_cluster::{Signal, component};
use banlieue_crds::kubevirt::InstancePhase;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;
use world::World;

#[tokio::test]
async fn instances_run_restart_and_go() {
    let world = World::start("w-1=weightless,w-2=weightless:pods=1", &[]).await;
    let first = world.create("first", "weightless", "any/image:1").await;
    let seen = world.until_phase("first", InstancePhase::Running).await;
    let ready =
        || async { world.instances.get("first").await.unwrap().condition("Ready").is_some_and(|c| c.status == "True") };
    world.until("first is Ready", ready).await;
    let status = seen.status.unwrap();
    let address = status.interfaces[0].ip_address.clone().unwrap();
    assert!(address.starts_with("10.244."), "{address}");
    let pod = world.pod_of(&first).await.unwrap();
    assert_eq!(pod.status.unwrap().pod_ip, Some(address.clone()));

    let second = world.create("second", "weightless", "any/image:1").await;
    let other = world.until_phase("second", InstancePhase::Running).await.status.unwrap();
    assert_ne!(other.interfaces[0].ip_address.as_ref(), Some(&address));

    // One is deleted while nobody is there to see it, the other lives on.
    world.cluster.kill(component::HYPERVISOR, Signal::Kill).await.unwrap();
    world.delete("first").await;
    world.cluster.restart(component::HYPERVISOR).await.unwrap();
    world.until_gone(&first).await;
    assert_eq!(world.phase("second").await, Some(InstancePhase::Running));

    // A pod that is taken away takes its machine along.
    let pod = world.pod_of(&second).await.unwrap();
    world.pods.delete(pod.metadata.name.as_ref().unwrap(), &DeleteParams::default()).await.unwrap();
    world
        .until("second is over", async || {
            matches!(world.phase("second").await, Some(InstancePhase::Failed | InstancePhase::Succeeded))
        })
        .await;
    world.delete("second").await;
    world.until_gone(&second).await;

    world.cluster.stop().await.unwrap();
}

#[tokio::test]
async fn nodes_are_fresh_refuse_other_pods_and_stay_deleted() {
    let world = World::start("w-1=weightless", &[]).await;
    let pod = json!({
        "metadata": {"name": "other"},
        "spec": {"nodeName": "w-1", "containers": [{"name": "a", "image": "b"}]}
    });
    world.pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    world
        .until("the pod is refused", async || {
            let status = world.pods.get("other").await.unwrap().status.unwrap();
            status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some("NotALauncherPod")
        })
        .await;
    world.pods.delete("other", &DeleteParams::default()).await.unwrap();
    world
        .until("the pod is gone", async || world.pods.list(&ListParams::default()).await.unwrap().items.is_empty())
        .await;

    let nodes: Api<Node> = Api::all(world.cluster.admin());
    let heartbeat = async || {
        nodes
            .get_opt("w-1")
            .await
            .unwrap()
            .and_then(|node| node.metadata.annotations?.get("kubevirt.io/heartbeat").cloned())
    };
    let first = heartbeat().await.unwrap();
    world.until("another heartbeat", async || heartbeat().await.is_some_and(|now| now != first)).await;

    nodes.delete("w-1", &DeleteParams::default()).await.unwrap();
    let log = world.cluster.log(component::HYPERVISOR);
    world
        .until("the hypervisor takes note", async || std::fs::read_to_string(&log).unwrap().contains("stays so"))
        .await;
    assert!(nodes.get_opt("w-1").await.unwrap().is_none());
    world.cluster.stop().await.unwrap();
}
