//! Objects that several kinds of test start from.

use banlieue_cluster::{Cluster, Identity};
use banlieue_crds::VirtualMachineClaim;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

/// `spec.template.kubeVirt.spec` of a pool: one processor, an image to boot from, one interface, entropy, on nodes of one
/// weight.
#[must_use]
pub fn template(weight: &str, memory: &str, image: &str) -> Value {
    json!({
        "nodeSelector": { "banlieue.io/node-weight": weight },
        "domain": {
            "cpu": { "cores": 1 }, "memory": { "guest": memory },
            "devices": {
                "disks": [{ "name": "image", "disk": { "bus": "virtio" } }],
                "interfaces": [{ "name": "default", "masquerade": {} }],
                "rng": {},
            },
        },
        "networks": [{ "name": "default", "pod": {} }],
        "volumes": [{ "name": "image", "containerDisk": { "image": image } }],
    })
}

/// Posts a claim as the broker does, but without a finalizer: an hour for subject `s`, where `spec` says no other.
///
/// # Panics
/// It is refused.
pub async fn claim(cluster: &Cluster, namespace: &str, pool: &str, name: &str, spec: Value) -> VirtualMachineClaim {
    let mut object = json!({
        "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachineClaim",
        "metadata": { "name": name },
        "spec": {
            "poolRef": { "name": pool }, "ttlSeconds": 3600,
            "subject": { "issuer": "https://issuer.example", "id": "s" },
            "workload": { "image": "registry.local/job:1" },
        },
    });
    if let (Some(all), Value::Object(more)) = (object.pointer_mut("/spec").and_then(Value::as_object_mut), spec) {
        all.extend(more);
    }
    let claim: VirtualMachineClaim = serde_json::from_value(object).unwrap();
    let claims: Api<VirtualMachineClaim> = Api::namespaced(cluster.kube(&Identity::Broker).await.unwrap(), namespace);
    claims.create(&PostParams::default(), &claim).await.unwrap()
}
