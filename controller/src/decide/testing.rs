//! Objects for tests.

use banlieue_crds::{PoolMember, VirtualMachinePool};
use serde_json::json;

/// A pool of mode None with two warm members, as the API server would store it.
pub(crate) fn pool(name: &str) -> VirtualMachinePool {
    serde_json::from_value(json!({
        "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachinePool",
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("uid-{name}"), "generation": 1, "resourceVersion": "1",
            "creationTimestamp": "2026-11-30T20:00:00Z",
            "annotations": {"banlieue.io/allow-unattested": "true"},
            "finalizers": ["banlieue.io/drain"],
        },
        "spec": {
            "warmReplicas": 2, "maxReplicas": 6, "maxSurge": 2,
            "template": {"kubeVirt": {"spec": {
                "domain": {
                    "cpu": {"cores": 1}, "memory": {"guest": "64Mi"},
                    "devices": {"disks": [{"name": "image", "disk": {"bus": "virtio"}}]},
                },
                "volumes": [{"name": "image", "containerDisk": {"image": "registry.local/guest:1"}}],
            }}},
            "attestation": {"mode": "None"},
            "claimPolicy": {"allowedImages": ["*"]},
        },
    }))
    .unwrap()
}

/// A fresh member of that pool.
pub(crate) fn member(pool: &VirtualMachinePool, name: &str, uid: &str) -> PoolMember {
    let mut object = crate::runtime::member_object(pool, name, &crate::decide::revision(pool));
    object["metadata"]["uid"] = json!(uid);
    object["metadata"]["resourceVersion"] = json!("10");
    object["metadata"]["creationTimestamp"] = json!("2026-11-30T20:00:01Z");
    serde_json::from_value(object).unwrap()
}
