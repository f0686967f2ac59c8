//! Objects that the API server accepts, to change one thing on.

use banlieue_crds::{EndorsementReport, PoolMember, VirtualMachineClaim, VirtualMachinePool};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// 64 digits of hex.
pub const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// Other 64 digits of hex.
pub const HEX2: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";
/// An instance's uid.
pub const UID: &str = "5d307ca9-b3ef-428c-8861-06e72d69f223";
/// Some moment.
pub const WHEN: &str = "2026-11-30T20:16:00.000000Z";

fn object<K: DeserializeOwned>(kind: &str, name: &str, spec: Value) -> K {
    let object =
        json!({ "apiVersion": "banlieue.io/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec });
    serde_json::from_value(object).unwrap()
}

/// Changes a field of an object by its JSON pointer; a null removes it.
pub fn with<K: serde::Serialize + DeserializeOwned>(object: &K, pointer: &str, value: Value) -> K {
    let mut json = serde_json::to_value(object).unwrap();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let mut target = &mut json;
    for step in parent.split('/').skip(1) {
        target = &mut target[step.replace("~1", "/")];
    }
    let field = field.replace("~1", "/");
    if value.is_null() {
        target.as_object_mut().unwrap().remove(&field);
    } else {
        target[field] = value;
    }
    serde_json::from_value(json).unwrap_or_else(|error| panic!("{pointer} does not fit the type: {error}"))
}

/// A pool of mode VTPM whose policy allows images below `r/` and the audience `api://a`.
pub fn pool(name: &str) -> VirtualMachinePool {
    object(
        "VirtualMachinePool",
        name,
        json!({
            "warmReplicas": 2, "maxReplicas": 4,
            "template": { "kubeVirt": { "spec": { "domain": { "devices": {} } } } },
            "attestation": { "measurements": { "configMapRef": { "name": "m" }, "sha256": HEX } },
            "claimPolicy": { "allowedImages": ["r/*", "exact:1"], "allowedAudiences": ["api://a"], "maxTtlSeconds": 7200 }
        }),
    )
}

/// A member of pool `p`.
pub fn member(name: &str) -> PoolMember {
    object("PoolMember", name, json!({ "poolRef": { "name": "p", "uid": "u" }, "revision": "r1" }))
}

/// A claim on pool `p`.
pub fn claim(name: &str) -> VirtualMachineClaim {
    object(
        "VirtualMachineClaim",
        name,
        json!({
            "poolRef": { "name": "p" }, "subject": { "issuer": "https://issuer", "id": "ann" },
            "workload": { "image": "r/x:1" }, "audiences": ["api://a"]
        }),
    )
}

/// A report of node `node`.
pub fn report(node: &str) -> EndorsementReport {
    object(
        "EndorsementReport",
        &format!("{UID}.{node}"),
        json!({
            "instanceUid": UID,
            "instanceRef": { "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "m" },
            "nodeName": node, "ekDigests": [HEX], "source": "swtpm", "observedAt": WHEN
        }),
    )
}
