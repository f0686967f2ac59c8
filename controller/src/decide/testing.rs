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

/// A moment, seconds after 20:00.
pub(crate) fn at(seconds: i64) -> jiff::Timestamp {
    let start: jiff::Timestamp = "2026-11-30T20:00:00Z".parse().unwrap();
    start + jiff::SignedDuration::from_secs(seconds)
}

/// A member with its pool and a running instance of its own, in phase Ready since 20:00:30.
pub(crate) fn ready(pool: &VirtualMachinePool, name: &str) -> crate::store::MemberSnapshot {
    let uid = format!("uid-{name}");
    let mut member = member(pool, name, &uid);
    member.metadata.labels.as_mut().unwrap().insert("banlieue.io/state".into(), "warm".into());
    member.status = serde_json::from_value(json!({
        "phase": "Ready", "nodeName": "n1",
        "instanceRef": {
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name, "uid": format!("vm-{name}"),
        },
        "phaseTimes": {
            "created": "2026-11-30T20:00:01.000000Z", "running": "2026-11-30T20:00:20.000000Z",
            "ready": "2026-11-30T20:00:30.000000Z",
        },
        "conditions": [
            {"type": "Provisioned", "status": "True", "reason": "InstanceCreated", "message": "made",
             "lastTransitionTime": "2026-11-30T20:00:02Z", "observedGeneration": 1},
            {"type": "Ready", "status": "True", "reason": "Ready",
             "message": super::member::LENDABLE_UNATTESTED,
             "lastTransitionTime": "2026-11-30T20:00:30Z", "observedGeneration": 1},
        ],
    }))
    .unwrap();
    snapshot(pool, member, Some(instance(&uid, &format!("vm-{name}"), Some("Running"))))
}

/// A member on its way: made, with an instance in that phase that it owns and has recorded.
pub(crate) fn coming(pool: &VirtualMachinePool, name: &str, phase: Option<&str>) -> crate::store::MemberSnapshot {
    let mut snapshot = ready(pool, name);
    let member = std::sync::Arc::make_mut(&mut snapshot.member);
    member.metadata.labels.as_mut().unwrap().insert("banlieue.io/state".into(), "provisioning".into());
    let status = member.status.as_mut().unwrap();
    status.phase = Some(banlieue_crds::member::MemberPhase::Provisioning);
    status.phase_times = Some(Default::default());
    status.conditions.retain(|condition| condition.type_ != "Ready");
    snapshot.instance = Some(std::sync::Arc::new(instance(&format!("uid-{name}"), &format!("vm-{name}"), phase)));
    snapshot
}

/// An instance owned by a member, on node n1.
pub(crate) fn instance(owner: &str, uid: &str, phase: Option<&str>) -> crate::store::InstanceFacts {
    crate::store::InstanceFacts {
        uid: uid.into(),
        owner_uid: Some(owner.into()),
        phase: phase.map(|phase| serde_json::from_value(json!(phase)).unwrap()),
        node_name: Some("n1".into()),
        addresses: Vec::new(),
        deleting: false,
        scheduled_at: None,
        running_at: None,
        trouble: None,
        over_quota: false,
        image_missing: false,
    }
}

/// A snapshot of a member on a usable node.
pub(crate) fn snapshot(
    pool: &VirtualMachinePool,
    member: PoolMember,
    instance: Option<crate::store::InstanceFacts>,
) -> crate::store::MemberSnapshot {
    crate::store::MemberSnapshot {
        key: crate::store::ObjectKey::of(&member),
        member: std::sync::Arc::new(member),
        pool: Some(std::sync::Arc::new(pool.clone())),
        instance: instance.map(std::sync::Arc::new),
        pods: Vec::new(),
        node: Some(std::sync::Arc::new(crate::store::NodeFacts { unusable: None, since: at(0) })),
        claim: None,
        held: false,
        steps: Default::default(),
    }
}

/// A pool's snapshot with these members, its template accepted and its namespace seen.
pub(crate) fn pool_snapshot(
    pool: &VirtualMachinePool,
    members: Vec<crate::store::MemberSnapshot>,
) -> crate::store::PoolSnapshot {
    let revision = crate::decide::revision(pool);
    crate::store::PoolSnapshot {
        key: crate::store::ObjectKey::of(pool),
        pool: std::sync::Arc::new(pool.clone()),
        members,
        expected: 0,
        waiting: 0,
        facts: crate::store::PoolFacts {
            template: Some((revision, crate::decide::TemplateVerdict::Accepted)),
            network_policy: Some(("uid-policy".into(), 1)),
            ..Default::default()
        },
        policy_copies: Vec::new(),
        measurements_version: String::new(),
        namespace_seen: true,
        network_policy: Some(("uid-policy".into(), 1)),
        hit_percent: None,
    }
}

/// A claim on that pool, made at 20:01, with its status when given.
pub(crate) fn claim(pool: &VirtualMachinePool, status: serde_json::Value) -> banlieue_crds::VirtualMachineClaim {
    serde_json::from_value(json!({
        "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachineClaim",
        "metadata": {
            "name": "c", "namespace": "ns", "uid": "uid-c", "resourceVersion": "5", "generation": 1,
            "creationTimestamp": "2026-11-30T20:01:00Z", "finalizers": ["banlieue.io/claim-protection"],
        },
        "spec": {
            "poolRef": {"name": pool.metadata.name}, "subject": {"issuer": "i", "id": "s"},
            "ttlSeconds": 100, "bindDeadlineSeconds": 60, "retentionSeconds": 30, "workload": {"image": "r/job:1"},
        },
        "status": status,
    }))
    .unwrap()
}

/// A claim's snapshot. A member given is its own, in both directions as far as the claim's status says.
pub(crate) fn claim_snapshot(
    pool: &VirtualMachinePool,
    claim: banlieue_crds::VirtualMachineClaim,
    member: Option<crate::store::MemberSnapshot>,
) -> crate::store::ClaimSnapshot {
    let committed: Vec<_> = member
        .into_iter()
        .map(|mut member| {
            let object = std::sync::Arc::make_mut(&mut member.member);
            object.spec.claim_ref =
                Some(banlieue_crds::ObjectRef { name: "c".into(), uid: claim.metadata.uid.clone().unwrap() });
            member
        })
        .collect();
    let named = claim.status.as_ref().is_some_and(|status| status.member_ref.is_some());
    crate::store::ClaimSnapshot {
        key: crate::store::ObjectKey::of(&claim),
        pool: Some(std::sync::Arc::new(pool.clone())),
        acknowledged: committed.first().filter(|_| named).cloned(),
        committed,
        subject_before: 0,
        unserved: None,
        serving: false,
        steps: Default::default(),
        claim: std::sync::Arc::new(claim),
    }
}
