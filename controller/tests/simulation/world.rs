//! Everybody else: KubeVirt, the attestor, the garbage collector, people.

use banlieue_controller::api::Kind;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::chance::Chance;
use crate::invariants::is_deleting;
use crate::server::{Name, Server};

pub const NAMESPACE: &str = "ns";
const POOLS: [&str; 2] = ["p", "q"];
const NODES: [&str; 2] = ["n1", "n2"];

/// How hostile people and machines are.
#[derive(Debug, Clone, Copy)]
pub struct Mood {
    /// People act at all.
    pub people: bool,
    /// Machines fail, attestation is refused, operators meddle.
    pub trouble: bool,
}

fn name(kind: Kind, object: &str) -> Name {
    (kind, NAMESPACE.into(), object.into())
}

fn stamp(now: Timestamp) -> Value {
    json!(format!("{now:.6}"))
}

fn whole(now: Timestamp) -> Value {
    json!(format!("{now:.0}"))
}

/// The world as it is before the controller starts.
pub fn begin(server: &mut Server, chance: &Chance, now: Timestamp, vtpm: bool) {
    for node in NODES {
        server.put_node(node, false);
    }
    let document = "pcrs: {}";
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, document.as_bytes());
    let sha256: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let bundle = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    server.insert(
        (Kind::ConfigMap, "banlieue-system".into(), "spire-bundle".into()),
        json!({ "metadata": { "name": "spire-bundle" }, "data": { "bundle.crt": bundle } }),
        now,
    );
    let measured = json!({ "metadata": { "name": "measured" }, "data": { "measurements.yaml": document } });
    server.insert(name(Kind::ConfigMap, "measured"), measured, now);
    for (n, pool) in POOLS.into_iter().enumerate() {
        let attestation = if vtpm && n == 0 {
            json!({ "mode": "VTPM", "maxAgeSeconds": 60,
                    "measurements": { "configMapRef": { "name": "measured" }, "sha256": sha256 } })
        } else {
            json!({ "mode": "None" })
        };
        let warm = 1 + chance.below(3);
        let object = json!({
            "metadata": { "name": pool, "annotations": { "banlieue.io/allow-unattested": "true" } },
            "spec": {
                "warmReplicas": warm, "maxReplicas": warm + chance.below(4), "maxSurge": 1 + chance.below(3),
                "template": { "kubeVirt": { "spec": {
                    "domain": { "devices": { "disks": [{ "name": "image", "disk": { "bus": "virtio" } }] } },
                    "volumes": [{ "name": "image", "containerDisk": { "image": "r/guest:1" } }],
                } } },
                "attestation": attestation,
                "failureBudget": { "consecutive": 2, "backoffMaxSeconds": 20, "keepFailed": chance.below(2) },
                "claimPolicy": { "allowedImages": ["r/*"], "maxClaimsPerSubject": 4, "maxPriority": 3 },
            },
        });
        server.insert(name(Kind::Pool, pool), object, now);
    }
}

/// Somebody does something.
pub fn step(server: &mut Server, chance: &Chance, now: Timestamp, mood: Mood) {
    match chance.below(if mood.people { 10 } else { 7 }) {
        0..=3 => machine(server, chance, now, mood),
        4 | 5 => attestor(server, chance, now, mood),
        6 => collect(server, now),
        _ => person(server, chance, now, mood),
    }
}

pub fn collect(server: &mut Server, now: Timestamp) {
    if let Some(orphan) = server.orphan() {
        server.delete(&orphan, now);
    }
}

/// KubeVirt moves one instance on.
pub fn machine(server: &mut Server, chance: &Chance, now: Timestamp, mood: Mood) {
    let instances = server.of(Kind::Instance);
    let Some((at, object)) = chance.pick(&instances).map(|(name, object)| ((*name).clone(), (*object).clone())) else {
        return;
    };
    let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
    let pod = name(Kind::Pod, &format!("virt-launcher-{}", at.2));
    if is_deleting(&object) {
        // The launcher pod may outlive its instance or not.
        if server.objects.contains_key(&pod) && chance.percent(70) {
            server.delete(&pod, now);
        } else {
            server.edit(&at, |object| object["metadata"]["finalizers"] = json!([]));
        }
        return;
    }
    let reached = |object: &mut Value, phase: &str| {
        object["status"]["phase"] = json!(phase);
        if !object["status"]["phaseTransitionTimestamps"].is_array() {
            object["status"]["phaseTransitionTimestamps"] = json!([]);
        }
        let list = object["status"]["phaseTransitionTimestamps"].as_array_mut().unwrap();
        list.push(json!({ "phase": phase, "phaseTransitionTimestamp": whole(now) }));
    };
    match object["status"]["phase"].as_str() {
        None => {
            let mut labels = object["metadata"]["labels"].clone();
            labels["kubevirt.io/created-by"] = json!(uid);
            let owner = json!({ "kind": "VirtualMachineInstance", "name": at.2, "uid": uid });
            let body = json!({ "metadata": { "name": pod.2, "labels": labels, "ownerReferences": [owner] } });
            if !server.objects.contains_key(&pod) {
                server.insert(pod, body, now);
            }
            server.edit(&at, |object| reached(object, "Scheduling"));
        }
        Some("Scheduling") => {
            if mood.trouble && chance.percent(20) {
                server.edit(&pod, |pod| {
                    pod["status"]["conditions"] = json!([{ "type": "PodScheduled", "status": "False",
                        "reason": "Unschedulable", "message": "0/2 nodes" }]);
                });
                return;
            }
            let node = *chance.pick(&NODES).unwrap();
            server.edit(&pod, |pod| {
                pod["status"]["conditions"] = json!([{ "type": "PodScheduled", "status": "True",
                    "lastTransitionTime": whole(now) }]);
            });
            server.edit(&at, |object| {
                reached(object, "Scheduled");
                object["status"]["nodeName"] = json!(node);
            });
        }
        Some("Scheduled") => server.edit(&at, |object| {
            reached(object, "Running");
            object["status"]["interfaces"] = json!([{ "name": "default", "ipAddress": "10.0.0.2" }]);
        }),
        Some("Running") if mood.trouble && chance.percent(3) => {
            let phase = if chance.percent(50) { "Failed" } else { "Succeeded" };
            server.edit(&at, |object| reached(object, phase));
        }
        _ => {}
    }
}

fn set_condition(object: &mut Value, type_: &str, holds: bool, reason: &str, now: Timestamp) {
    if !object["status"]["conditions"].is_array() {
        object["status"]["conditions"] = json!([]);
    }
    let list = object["status"]["conditions"].as_array_mut().unwrap();
    list.retain(|condition| condition["type"] != json!(type_));
    list.push(json!({
        "type": type_, "status": if holds { "True" } else { "False" }, "reason": reason, "message": "PCR 11",
        "lastTransitionTime": whole(now),
    }));
}

/// The plugin and the attestor controller judge one member, or revoke its identity.
pub fn attestor(server: &mut Server, chance: &Chance, now: Timestamp, mood: Mood) {
    let mut members = server.of(Kind::Member);
    members.retain(|(_, object)| object.pointer("/status/enrolment/seedDigest").is_some());
    let Some((at, object)) = chance.pick(&members).map(|(name, object)| ((*name).clone(), (*object).clone())) else {
        return;
    };
    if is_deleting(&object) {
        server.edit(&at, |object| set_condition(object, "IdentityRevoked", true, "Revoked", now));
        return;
    }
    let running = server
        .objects
        .get(&name(Kind::Instance, &at.2))
        .is_some_and(|instance| instance["status"]["phase"] == json!("Running"));
    if !running {
        return;
    }
    if mood.trouble && chance.percent(6) {
        server.edit(&at, |object| set_condition(object, "Attested", false, "AttestationRefused", now));
        return;
    }
    server.edit(&at, |object| {
        object["status"]["enrolment"]["consumedAt"] = stamp(now);
        object["status"]["attestation"]["verifiedAt"] = stamp(now);
    });
    server.edit(&at, |object| set_condition(object, "Attested", true, "Verified", now));
}

fn person(server: &mut Server, chance: &Chance, now: Timestamp, mood: Mood) {
    let names = |server: &Server, kind| -> Vec<Name> {
        server.of(kind).into_iter().map(|(name, _)| name.clone()).filter(|name| name.1 == NAMESPACE).collect()
    };
    let claims = names(server, Kind::Claim);
    let act = chance.below(if mood.trouble { 20 } else { 12 });
    match act {
        0..=6 => claim(server, chance, now),
        7 | 8 => {
            if let Some(claim) = chance.pick(&claims) {
                server.delete(claim, now);
            }
        }
        9 => {
            if let Some(claim) = chance.pick(&claims) {
                server.edit(claim, |claim| {
                    let ttl = claim["spec"]["ttlSeconds"].as_u64().unwrap();
                    claim["spec"]["ttlSeconds"] = json!(ttl + 20);
                });
            }
        }
        10 => {
            if let Some(claim) = chance.pick(&claims) {
                server.edit(claim, |claim| {
                    if claim["status"]["phase"] == json!("Bound") {
                        claim["status"]["workload"]["state"] = json!("Finished");
                    }
                });
            }
        }
        11 | 12 => {
            let pool = *chance.pick(&POOLS).unwrap();
            let warm = chance.below(4);
            server.edit(&name(Kind::Pool, pool), |pool| pool["spec"]["warmReplicas"] = json!(warm));
            server.edit(&name(Kind::Pool, pool), |pool| {
                if pool["spec"]["maxReplicas"].as_u64().unwrap() < warm as u64 {
                    pool["spec"]["maxReplicas"] = json!(warm);
                }
            });
        }
        13 => {
            let pool = *chance.pick(&POOLS).unwrap();
            server.edit(&name(Kind::Pool, pool), |pool| {
                pool["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/version"] =
                    json!(format!("e{}", chance.below(3)));
            });
        }
        14 => {
            let node = *chance.pick(&NODES).unwrap();
            let cordoned = chance.percent(50);
            server.put_node(node, cordoned);
        }
        15 => {
            if let Some(member) = chance.pick(&names(server, Kind::Member)) {
                server.edit(member, |member| {
                    member["metadata"]["annotations"]["banlieue.io/quarantine"] = json!("suspicious");
                });
            }
        }
        16 => {
            if let Some(instance) = chance.pick(&names(server, Kind::Instance)) {
                server.delete(instance, now);
            }
        }
        17 => {
            if let Some(member) = chance.pick(&names(server, Kind::Member)) {
                server.delete(member, now);
            }
        }
        18 => {
            if let Some(claim) = chance.pick(&claims)
                && chance.percent(20)
            {
                server.edit(claim, |claim| {
                    claim["metadata"]["annotations"]["banlieue.io/force-release"] = json!("yes");
                });
            }
        }
        _ => {
            if chance.percent(15) {
                let pool = *chance.pick(&POOLS).unwrap();
                if chance.percent(50) {
                    server.edit(&name(Kind::Pool, pool), |pool| {
                        pool["metadata"]["annotations"]["banlieue.io/drain"] = json!("now");
                    });
                }
                server.delete(&name(Kind::Pool, pool), now);
            }
        }
    }
}

fn claim(server: &mut Server, chance: &Chance, now: Timestamp) {
    let number = chance.next() % 1_000_000;
    let pool = if chance.percent(95) { *chance.pick(&POOLS).unwrap() } else { "nowhere" };
    let mut metadata = json!({ "name": format!("c{number}") });
    if chance.percent(50) {
        metadata["finalizers"] = json!(["banlieue.io/claim-protection"]);
    }
    let at = name(Kind::Claim, &format!("c{number}"));
    if server.objects.contains_key(&at) {
        return;
    }
    let body = json!({
        "metadata": metadata,
        "spec": {
            "poolRef": { "name": pool },
            "subject": { "issuer": "i", "id": format!("s{}", chance.below(3)) },
            "ttlSeconds": 1 + chance.below(60), "bindDeadlineSeconds": 1 + chance.below(60),
            "whenEmpty": if chance.percent(20) { "Fail" } else { "Wait" },
            "priority": chance.below(4), "retentionSeconds": chance.below(20),
            "workload": { "image": if chance.percent(95) { "r/job:1" } else { "evil/job:1" } },
        },
    });
    server.insert(at, body, now);
}

/// A while without surprises: how far the clock goes in one step.
pub fn pause(chance: &Chance) -> SignedDuration {
    SignedDuration::from_millis(10 + (chance.next() % 3000) as i64)
}
