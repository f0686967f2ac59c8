//! Objects as people write them read into the types and come back as they were.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use banlieue_crds::{EndorsementReport, PoolMember, VirtualMachineClaim, VirtualMachinePool};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

fn round_trip<T: Serialize + DeserializeOwned>(object: Value) -> T {
    let read: T = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), object);
    read
}

fn meta(kind: &str, spec: Value, status: Value) -> Value {
    json!({
        "apiVersion": "banlieue.io/v1alpha1", "kind": kind, "metadata": { "name": "x" }, "spec": spec, "status": status
    })
}

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const WHEN: &str = "2026-11-30T20:16:00.000000Z";

#[test]
fn a_whole_pool() {
    let pool: VirtualMachinePool = round_trip(meta(
        "VirtualMachinePool",
        json!({
            "warmReplicas": 5, "maxReplicas": 20, "maxSurge": 2, "paused": false,
            "template": {
                "metadata": { "labels": { "a": "b" }, "annotations": {} },
                "kubeVirt": { "spec": { "domain": { "devices": {} } } }
            },
            "attestation": {
                "mode": "VTPM", "endorsement": "HostReported",
                "measurements": { "configMapRef": { "name": "guest-1-2-0" }, "sha256": HEX },
                "timeoutSeconds": 120, "maxAgeSeconds": 3600, "revoked": [{ "digest": HEX, "reason": "leaked" }]
            },
            "provisioningTimeoutSeconds": 600, "maxIdleSeconds": 86400,
            "updateStrategy": { "type": "RollingUpdate", "maxUnavailable": 1 },
            "failureBudget": { "consecutive": 5, "backoffMaxSeconds": 600, "keepFailed": 1 },
            "networkPolicy": "Managed",
            "autoscaling": { "minWarm": 2, "maxWarm": 20, "targetHitPercent": 99, "scaleDownStabilizationSeconds": 600 },
            "claimPolicy": {
                "maxTtlSeconds": 28800, "maxClaimsPerSubject": 5, "allowedImages": ["registry.internal:5000/sandbox/*"],
                "requireDigest": false, "allowedAudiences": [], "maxPriority": 0, "maxRetentionSeconds": 3600,
                "maxBindDeadlineSeconds": 600
            }
        }),
        json!({
            "observedGeneration": 1, "replicas": 6, "warm": 5, "provisioning": 0, "attesting": 0, "bound": 1,
            "terminating": 0, "failed": 0, "updated": 5, "currentRevision": "abc", "selector": "banlieue.io/pool=x",
            "runtime": "KubeVirt", "pendingClaims": 0, "hitPercent": 99, "recommendedWarm": 5,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Warm", "message": "", "observedGeneration": 1,
                "lastTransitionTime": "2026-11-30T20:16:00Z"
            }]
        }),
    ));
    assert_eq!(pool.spec.template.runtime(), Some(banlieue_crds::pool::RuntimeKind::KubeVirt));
    let policy = &pool.spec.claim_policy;
    assert!(policy.allows_image("registry.internal:5000/sandbox/claude:latest"));
    assert!(!policy.allows_image("registry.internal:5000/other"));
    assert_eq!(policy.denied_audience(&["a".into()]), Some("a"));
    assert_eq!(policy.denied_audience(&[]), None);
}

#[test]
fn a_pool_of_four_lines_gets_its_defaults() {
    let pool: VirtualMachinePool = serde_json::from_value(json!({
        "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachinePool", "metadata": { "name": "x" },
        "spec": { "maxReplicas": 3, "template": { "kata": { "podTemplate": {} } } }
    }))
    .unwrap();
    assert_eq!(pool.spec.warm_replicas, 1);
    assert_eq!(pool.spec.failure_budget, Default::default());
    assert_eq!(pool.spec.template.kata.unwrap().runtime_class_name, "kata");
    assert!(!pool.spec.claim_policy.allows_image("anything"), "an empty list allows none");
}

#[test]
fn a_whole_member() {
    round_trip::<PoolMember>(meta(
        "PoolMember",
        json!({
            "poolRef": { "name": "p", "uid": "u" }, "revision": "r", "claimRef": { "name": "c", "uid": "v" },
            "attestation": {
                "mode": "VTPM", "endorsement": "FirstUse", "policyDigest": HEX, "maxAgeSeconds": 60,
            },
        }),
        json!({
            "phase": "Ready",
            "instanceRef": { "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "x", "uid": "i" },
            "nodeName": "n", "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
            "enrolment": { "seedDigest": HEX, "expiresAt": WHEN, "consumedAt": WHEN },
            "endorsement": { "source": "HostReported", "ekDigest": HEX, "pinnedAt": WHEN },
            "attestation": {
                "verifiedAt": WHEN, "policyDigest": HEX, "akName": "000b00", "resetCount": 1, "restartCount": 0,
                "clock": 12345678901u64, "latched": false
            },
            "phaseTimes": { "created": WHEN, "running": WHEN, "attested": WHEN, "ready": WHEN }
        }),
    ));
}

#[test]
fn a_whole_claim() {
    round_trip::<VirtualMachineClaim>(meta(
        "VirtualMachineClaim",
        json!({
            "poolRef": { "name": "p" }, "subject": { "issuer": "https://i", "id": "1", "display": "ann", "azp": "" },
            "ttlSeconds": 3600, "bindDeadlineSeconds": 60, "whenEmpty": "Wait", "priority": 0, "audiences": ["api://a"],
            "workload": {
                "image": "r/x:1", "args": ["/bin/true"], "env": [{ "name": "A", "value": "b" }], "restartPolicy": "Never",
                "resources": { "cpu": "500m", "memory": "1Gi", "pids": 64 }
            },
            "retentionSeconds": 300
        }),
        json!({
            "phase": "Released", "memberRef": { "name": "m", "uid": "u" },
            "instanceRef": { "kind": "VirtualMachineInstance", "name": "m", "uid": "i" },
            "spiffeId": "spiffe://td/banlieue/claim/u", "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
            "boundAt": WHEN, "expiresAt": WHEN, "queuePosition": 1,
            "workload": {
                "state": "Finished", "latchedAt": WHEN, "exitCode": -1, "startedAt": WHEN, "finishedAt": WHEN,
                "imageDigest": "sha256:00"
            },
            "terminationReason": "WorkloadFinished"
        }),
    ));
}

#[test]
fn a_whole_report() {
    round_trip::<EndorsementReport>(meta(
        "EndorsementReport",
        json!({
            "instanceUid": "5d307ca9-b3ef-428c-8861-06e72d69f223",
            "instanceRef": { "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "m" },
            "nodeName": "n", "ekDigests": [HEX], "source": "swtpm", "observedAt": WHEN
        }),
        json!({ "endedAt": WHEN, "ekDigest": HEX }),
    ));
}

#[test]
fn times_of_any_precision_read() {
    let status: banlieue_crds::EndorsementReportStatus =
        serde_json::from_value(json!({ "endedAt": "2026-11-30T20:16:00Z" })).unwrap();
    assert!(status.ended_at.is_some());
}
