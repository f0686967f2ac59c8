//! What a kubelet writes about launcher pods.

use std::net::Ipv4Addr;

use banlieue_crds::kubevirt::{LABEL_APP, LABEL_APP_LAUNCHER, LABEL_CREATED_BY};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::decide::{End, PodPhase, PodView};

/// Address of every node: the host.
pub const HOST_IP: &str = "127.0.0.1";

/// uid of the instance that a launcher pod runs; none for any other pod.
pub fn instance_uid(pod: &Pod) -> Option<&str> {
    let label = |key: &str| pod.labels().get(key).map(String::as_str);
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    let launcher = label(LABEL_APP) == Some(LABEL_APP_LAUNCHER) && owner.kind == banlieue_crds::kubevirt::KIND;
    (launcher && label(LABEL_CREATED_BY) == Some(owner.uid.as_str())).then_some(owner.uid.as_str())
}

/// Name of the instance that a launcher pod runs.
pub fn instance_name(pod: &Pod) -> Option<&str> {
    pod.owner_references().iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.name.as_str())
}

/// A pod as [`decide`](crate::decide) needs it.
pub fn view(pod: &Pod) -> PodView {
    let phase = match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Running") => PodPhase::Running,
        Some("Succeeded" | "Failed") => PodPhase::Over,
        _ => PodPhase::Pending,
    };
    PodView {
        phase,
        ready_is_due: phase == PodPhase::Running && !condition(pod, "Ready") && gates_open(pod),
        // For pods the timestamp is the end of the grace already.
        deleted_by: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        vanishing: pod.metadata.deletion_grace_period_seconds == Some(0),
    }
}

fn condition(pod: &Pod, kind: &str) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn gates_open(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref());
    gates.into_iter().flatten().all(|gate| condition(pod, &gate.condition_type))
}

/// Address of a pod, once reported.
pub fn ip(pod: &Pod) -> Option<Ipv4Addr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

/// Container disks that a launcher pod would pull. KubeVirt names their containers after the volumes.
pub fn images(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .filter(|container| container.name.starts_with("volume"))
        .filter_map(|container| container.image.as_deref())
}

/// Status patch (strategic merge) of a pod whose containers all run.
pub fn running(pod: &Pod, ip: Ipv4Addr, now: Timestamp) -> Value {
    let spec = pod.spec.as_ref();
    let state = json!({ "running": { "startedAt": now.to_string() } });
    let containers: Vec<_> =
        spec.into_iter().flat_map(|spec| &spec.containers).map(|c| container(pod, c, true, &state)).collect();
    let done = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "startedAt": now.to_string(), "finishedAt": now.to_string() } });
    let init: Vec<_> = spec
        .into_iter()
        .filter_map(|spec| spec.init_containers.as_ref())
        .flatten()
        .map(|c| container(pod, c, true, if c.restart_policy.as_deref() == Some("Always") { &state } else { &done }))
        .collect();
    let ready = gates_open(pod);
    let mut conditions: Vec<Value> = ["PodReadyToStartContainers", "Initialized", "ContainersReady"]
        .map(|kind| json!({ "type": kind, "status": "True", "reason": null, "message": null, "lastTransitionTime": now.to_string() }))
        .into();
    conditions.push(ready_condition(ready, now));
    json!({ "status": {
        "phase": "Running",
        "startTime": now.to_string(),
        "hostIP": HOST_IP, "hostIPs": [{ "ip": HOST_IP }],
        "podIP": ip.to_string(), "podIPs": [{ "ip": ip.to_string() }],
        "conditions": conditions,
        "containerStatuses": containers,
        "initContainerStatuses": init,
    } })
}

fn container(pod: &Pod, container: &Container, ready: bool, state: &Value) -> Value {
    let image = container.image.clone().unwrap_or_default();
    json!({
        "name": container.name, "image": image, "imageID": image,
        "containerID": format!("banlieue://{}/{}", pod.uid().unwrap_or_default(), container.name),
        "ready": ready, "started": ready, "restartCount": 0, "state": state,
    })
}

fn ready_condition(ready: bool, now: Timestamp) -> Value {
    if ready {
        json!({ "type": "Ready", "status": "True", "reason": null, "message": null, "lastTransitionTime": now.to_string() })
    } else {
        json!({ "type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady",
            "message": "a readiness gate of the pod is not true yet", "lastTransitionTime": now.to_string() })
    }
}

/// Status patch of a running pod whose readiness gates opened.
pub fn ready(now: Timestamp) -> Value {
    json!({ "status": { "conditions": [ready_condition(true, now)] } })
}

/// Status patch of a pod whose images cannot be had.
pub fn image_missing(pod: &Pod, reason: &str) -> Value {
    let state = json!({ "waiting": { "reason": "ErrImagePull", "message": reason } });
    let containers: Vec<_> =
        pod.spec.iter().flat_map(|spec| &spec.containers).map(|c| container(pod, c, false, &state)).collect();
    json!({ "status": { "phase": "Pending", "hostIP": HOST_IP, "containerStatuses": containers } })
}

/// Status patch of a pod whose machine ended.
pub fn over(pod: &Pod, end: &End, now: Timestamp) -> Value {
    let (phase, code, reason, message) = match end {
        End::PoweredOff => ("Succeeded", 0, "Completed", None),
        End::Failed(why) => ("Failed", 1, "Error", Some(why)),
    };
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map_or(now, |time| time.0);
    let state = json!({ "terminated": {
        "exitCode": code, "reason": reason, "startedAt": started.to_string(), "finishedAt": now.to_string() } });
    let containers: Vec<_> =
        pod.spec.iter().flat_map(|spec| &spec.containers).map(|c| container(pod, c, false, &state)).collect();
    let conditions: Vec<Value> = ["ContainersReady", "Ready"]
        .map(|kind| json!({ "type": kind, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now.to_string() }))
        .into();
    json!({ "status": { "phase": phase, "message": message, "conditions": conditions, "containerStatuses": containers } })
}

/// Status patch of a pod that is no launcher pod: refused, never pretended to run.
pub fn refused(now: Timestamp) -> Value {
    json!({ "status": {
        "phase": "Failed",
        "reason": "NotALauncherPod",
        "message": "This node belongs to a local hypervisor, which runs virtual machine instances only. Use a node selector that leads elsewhere.",
        "startTime": now.to_string(),
    } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launcher() -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "virt-launcher-m-abcde", "uid": "p-1",
                "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "i-1"},
                "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "m", "uid": "i-1", "controller": true}]
            },
            "spec": {
                "readinessGates": [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}],
                "initContainers": [
                    {"name": "container-disk-binary", "image": "l"},
                    {"name": "guest-console-log", "image": "l", "restartPolicy": "Always"}
                ],
                "containers": [{"name": "compute", "image": "l"}, {"name": "volumeimage", "image": "r/guest:dev"}]
            }
        }))
        .unwrap()
    }

    fn with_status(mut pod: Pod, status: Value) -> Pod {
        pod.status = Some(serde_json::from_value(status).unwrap());
        pod
    }

    #[test]
    fn only_a_launcher_pod_of_its_owner_counts() {
        assert_eq!(instance_uid(&launcher()), Some("i-1"));
        assert_eq!(instance_name(&launcher()), Some("m"));
        let mut forged = launcher();
        forged.metadata.owner_references = None;
        assert_eq!(instance_uid(&forged), None);
        let mut other = launcher();
        other.metadata.labels = Some([("kubevirt.io".to_owned(), "virt-launcher".to_owned())].into());
        assert_eq!(instance_uid(&other), None);
    }

    #[test]
    fn readiness_follows_the_gate_that_virt_controller_opens() {
        let now = Timestamp::UNIX_EPOCH;
        let patch = running(&launcher(), Ipv4Addr::new(10, 244, 0, 1), now);
        let pod = with_status(launcher(), patch["status"].clone());
        assert!(!view(&pod).ready_is_due, "the gate is closed");
        let states = patch["status"]["initContainerStatuses"].as_array().unwrap();
        assert!(states[0]["state"].get("terminated").is_some() && states[1]["state"].get("running").is_some());
        let mut opened = patch["status"].clone();
        opened["conditions"]
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "kubevirt.io/virtual-machine-unpaused", "status": "True"}));
        assert!(view(&with_status(launcher(), opened)).ready_is_due);
    }

    #[test]
    fn images_of_volumes_only() {
        assert_eq!(images(&launcher()).collect::<Vec<_>>(), ["r/guest:dev"]);
    }
}
