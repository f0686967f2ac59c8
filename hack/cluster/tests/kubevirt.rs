//! KubeVirt's own webhooks and controllers act on an instance.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use std::time::Duration;

use banlieue_cluster::{Cluster, progress};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;

fn instances() -> ApiResource {
    let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstance");
    ApiResource::from_gvk_with_plural(&kind, "virtualmachineinstances")
}

fn instance(cpu: i64) -> DynamicObject {
    let mut instance = DynamicObject::new("m1", &instances());
    instance.data = json!({"spec": {
        "evictionStrategy": "None",
        "terminationGracePeriodSeconds": 0,
        "domain": {
            "cpu": {"cores": cpu},
            "memory": {"guest": "512Mi"},
            "devices": {
                "disks": [{"name": "image", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "image", "containerDisk": {"image": "registry/x:1"}}],
    }});
    instance
}

async fn until(what: &str, done: impl AsyncFn() -> bool) {
    let looking = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(120), looking).await.is_ok(), "never saw: {what}");
}

#[tokio::test]
async fn an_instance_gets_its_finalizer_and_its_launcher_pod() {
    let cluster = Cluster::builder().kubevirt().progress(progress::print).start().await.unwrap();
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.admin(), "sandboxes", &instances());

    let error = api.create(&PostParams::default(), &instance(-1)).await.unwrap_err();
    assert!(error.to_string().contains("cores"), "{error}");
    let mut nothing = instance(1);
    nothing.data["spec"]["volumes"] = json!([]);
    let error = api.create(&PostParams::default(), &nothing).await.unwrap_err();
    assert!(error.to_string().contains("admission webhook") && error.to_string().contains("kubevirt.io"), "{error}");

    let created = api.create(&PostParams::default(), &instance(1)).await.unwrap();
    assert_eq!(created.metadata.finalizers.unwrap(), ["kubevirt.io/foregroundDeleteVirtualMachine"]);
    let pods: Api<Pod> = Api::namespaced(cluster.admin(), "sandboxes");
    until("the launcher pod", async || {
        let list = pods.list(&ListParams::default().labels("kubevirt.io=virt-launcher")).await.unwrap();
        !list.items.is_empty()
    })
    .await;
    until("that no node has room for it", async || {
        let seen = api.get("m1").await.unwrap().data;
        seen["status"]["phase"] == "Scheduling" && seen["status"]["conditions"].to_string().contains("Unschedulable")
    })
    .await;

    // Nothing has run yet, so KubeVirt's controller alone ends it, finalizer and pod.
    api.delete("m1", &DeleteParams::default()).await.unwrap();
    until("the instance to be gone", async || api.get_opt("m1").await.unwrap().is_none()).await;
    until("the pod to be gone", async || pods.list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    cluster.stop().await.unwrap();
}
