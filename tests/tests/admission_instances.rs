//! The policies on members' instances let KubeVirt's own programs do their work, and nobody else.
#![allow(clippy::unwrap_used, clippy::panic)] // a test ends at what it did not expect

mod api;

use api::{eventually, objects, refused};
use banlieue_cluster::{Cluster, Identity};
use banlieue_crds::VirtualMachinePool;
use banlieue_crds::kubevirt::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

fn instance(name: &str, labels: Value) -> VirtualMachineInstance {
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": { "name": name, "labels": labels },
        "spec": {
            "evictionStrategy": "None", "terminationGracePeriodSeconds": 0,
            "domain": {
                "cpu": { "cores": 1 }, "memory": { "guest": "512Mi" }, "machine": { "type": "q35" },
                "features": { "smm": { "enabled": true } },
                "firmware": { "bootloader": { "efi": { "secureBoot": false } } },
                "devices": {
                    "tpm": { "persistent": false },
                    "disks": [{ "name": "image", "bootOrder": 1, "disk": { "bus": "virtio" } }],
                    "interfaces": [{ "name": "default", "masquerade": {} }]
                }
            },
            "networks": [{ "name": "default", "pod": {} }],
            "volumes": [{ "name": "image", "containerDisk": { "image": "registry/x:1" } }]
        }
    });
    serde_json::from_value(object).unwrap()
}

#[tokio::test]
async fn instances_of_members_are_written_by_the_controller_and_kubevirt() {
    let cluster = Cluster::builder().kubevirt().start().await.unwrap_or_else(|error| panic!("{error}"));
    let here = async |who: Identity| -> Api<VirtualMachineInstance> {
        Api::namespaced(cluster.kube(&who).await.unwrap(), "sandboxes")
    };
    let post = PostParams::default();
    let author: Api<VirtualMachinePool> =
        Api::namespaced(cluster.kube(&Identity::PoolAuthor).await.unwrap(), "sandboxes");
    author.create(&post, &objects::pool("p")).await.unwrap();
    let ours = json!({ "banlieue.io/pool": "p", "banlieue.io/member": "m" });

    let admin = here(Identity::Admin).await;
    let says =
        "virtualmachineinstances with the label banlieue.io/pool are written by banlieue-controller and KubeVirt";
    eventually("the policy is in force", async || {
        admin.create(&PostParams { dry_run: true, ..post.clone() }, &instance("m", ours.clone())).await.is_err()
    })
    .await;
    refused(admin.create(&post, &instance("m", ours.clone())).await, says);
    let controller = here(Identity::Controller).await;
    controller.create(&post, &instance("m", ours)).await.unwrap();

    // virt-controller, under its own account, makes the pod and moves the instance on.
    let pods: Api<Pod> = Api::namespaced(cluster.admin(), "sandboxes");
    eventually("virt-controller made the launcher pod", async || {
        let launchers = ListParams::default().labels("kubevirt.io=virt-launcher,banlieue.io/member=m");
        !pods.list(&launchers).await.unwrap().items.is_empty()
    })
    .await;
    eventually("virt-controller wrote the instance", async || admin.get("m").await.unwrap().phase().is_some()).await;

    let touch = Patch::Merge(json!({ "metadata": { "annotations": { "touched": "yes" } } }));
    let params = PatchParams::default();
    for who in [Identity::Hypervisor, Identity::VirtController] {
        here(who).await.patch("m", &params, &touch).await.unwrap();
    }
    refused(admin.patch("m", &params, &touch).await, says);
    refused(admin.delete("m", &DeleteParams::default()).await, says);
    // Taking the label away first is no way around.
    let strip = Patch::Merge(json!({ "metadata": { "labels": { "banlieue.io/pool": null } } }));
    refused(admin.patch("m", &params, &strip).await, says);
    // Nor is moving it to a node of one's choice.
    let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstanceMigration");
    let migrations = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.admin(), "sandboxes", &migrations);
    let mut migration = DynamicObject::new("move", &migrations);
    migration.data = json!({ "spec": { "vmiName": "m" } });
    refused(api.create(&post, &migration).await, "holds the pool p: its members cannot be entered or moved");

    // Instances that are none of ours are none of our business.
    admin.create(&post, &instance("other", json!({}))).await.unwrap();
    admin.delete("other", &DeleteParams::default()).await.unwrap();
    controller.delete("m", &DeleteParams::default()).await.unwrap();
    eventually("both instances are gone", async || admin.list(&ListParams::default()).await.unwrap().items.is_empty())
        .await;
    cluster.stop().await.unwrap();
}
