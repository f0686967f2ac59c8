//! What virt-handler writes about instances. Their status has no subresource of its own and is shared with
//! virt-controller, so every patch carries the resource version that it was made from.
//!
//! virt-controller's own patches test that conditions and interfaces are, byte for byte, what Go writes: times in whole
//! seconds, and null where there is none. A JSON merge patch cannot write null, hence JSON patches (RFC 6902).

use std::net::Ipv4Addr;
use std::time::Duration;

use banlieue_crds::kubevirt::{
    InstanceCondition, InstancePhase, Interface, PhaseTransition, VirtualMachineInstance, VirtualMachineInstanceStatus,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::decide::{End, InstanceView};
use crate::machine::DEFAULT_MAC;

/// KubeVirt's default for `terminationGracePeriodSeconds`.
const DEFAULT_GRACE: i64 = 30;

/// An instance as [`decide`](crate::decide) needs it, seen from one node.
pub fn view(instance: &VirtualMachineInstance, node: &str) -> InstanceView {
    let grace = instance.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE).max(0);
    let grace = Duration::from_secs(u64::try_from(grace).unwrap_or_default());
    let deleted = instance.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    InstanceView::There {
        phase: instance.phase().unwrap_or(InstancePhase::Pending),
        ours: instance.node_name() == Some(node),
        deleted_by: deleted.map(|time| time.checked_add(grace).unwrap_or(Timestamp::MAX)),
    }
}

/// Patch of an instance whose machine runs.
pub fn running(instance: &VirtualMachineInstance, ip: Option<Ipv4Addr>, now: Timestamp) -> Value {
    let status = instance.status.clone().unwrap_or_default();
    let conditions = conditions(
        &status,
        Some(condition(
            "LiveMigratable",
            "False",
            "DisksNotLiveMigratable",
            "a local hypervisor does not migrate instances",
            now,
        )),
    );
    patch(
        instance,
        json!({
            "phase": InstancePhase::Running,
            "phaseTransitionTimestamps": transitions(&status, InstancePhase::Running, now),
            "interfaces": interfaces(instance, ip),
            "machine": { "type": "pc-q35-7.2" },
            "conditions": conditions,
        }),
    )
}

/// Patch of an instance whose machine ended.
pub fn over(instance: &VirtualMachineInstance, end: &End, now: Timestamp) -> Value {
    let status = instance.status.clone().unwrap_or_default();
    // Why it failed stands on the pod: virt-controller takes the condition of an instance that is over away.
    let (phase, reason) = match end {
        End::PoweredOff => (InstancePhase::Succeeded, None),
        End::Failed(_) => (InstancePhase::Failed, Some("MachineFailed")),
    };
    patch(
        instance,
        json!({
            "phase": phase,
            "reason": reason.or(status.reason.as_deref()).unwrap_or_default(),
            "phaseTransitionTimestamps": transitions(&status, phase, now),
            "conditions": conditions(&status, None),
        }),
    )
}

/// Patch of an instance whose machine cannot be started for now; none when it says so already.
pub fn not_started(instance: &VirtualMachineInstance, why: &str, now: Timestamp) -> Option<Value> {
    let said = instance.condition("Synchronized").and_then(|condition| condition.message.as_deref());
    if said == Some(why) {
        return None;
    }
    let status = instance.status.clone().unwrap_or_default();
    let failure = condition("Synchronized", "False", "Synchronizing with the Domain failed.", why, now);
    Some(patch(instance, json!({ "conditions": conditions(&status, Some(failure)) })))
}

/// Setting the version, rather than testing it, makes a stale patch a conflict.
fn patch(instance: &VirtualMachineInstance, status: Value) -> Value {
    let set = |path: String, value: Value| json!({ "op": "add", "path": path, "value": value });
    let version = set("/metadata/resourceVersion".into(), json!(instance.metadata.resource_version));
    let Value::Object(status) = status else { return json!([version]) };
    let fields = status.into_iter().map(|(field, value)| set(format!("/status/{field}"), value));
    Value::Array(std::iter::once(version).chain(fields).collect())
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> InstanceCondition {
    InstanceCondition {
        type_: kind.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_transition_time: Some(seconds(now)),
        ..InstanceCondition::default()
    }
}

/// The conditions with one replaced, and an earlier failure to start taken back.
fn conditions(status: &VirtualMachineInstanceStatus, new: Option<InstanceCondition>) -> Vec<Value> {
    let replaced = |kind: &str| kind == "Synchronized" || new.as_ref().is_some_and(|new| new.type_ == kind);
    let kept = status.conditions.iter().filter(|old| !replaced(&old.type_));
    kept.chain(&new).map(as_go_writes).collect()
}

fn as_go_writes(condition: &InstanceCondition) -> Value {
    let mut value = json!(condition);
    if let Some(fields) = value.as_object_mut() {
        for time in ["lastProbeTime", "lastTransitionTime"] {
            fields.entry(time).or_insert(Value::Null);
        }
    }
    value
}

fn transitions(status: &VirtualMachineInstanceStatus, phase: InstancePhase, now: Timestamp) -> Vec<PhaseTransition> {
    let now = PhaseTransition { phase, phase_transition_timestamp: Some(seconds(now)) };
    status.phase_transition_timestamps.iter().filter(|old| old.phase != phase).cloned().chain([now]).collect()
}

/// `metav1.Time` has whole seconds.
fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

fn interfaces(instance: &VirtualMachineInstance, ip: Option<Ipv4Addr>) -> Vec<Interface> {
    let known = instance.status.as_ref().map(|status| status.interfaces.as_slice()).unwrap_or_default();
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let specs = &instance.spec.domain.devices.interfaces;
    specs
        .iter()
        .map(|spec| {
            let name = text(spec.get("name"));
            // virt-controller has put down what it knows of the pod's side.
            let mut interface = known.iter().find(|known| known.name == name).cloned().unwrap_or_default();
            interface.name = name;
            interface.mac = Some(text(spec.get("macAddress")).unwrap_or_else(|| DEFAULT_MAC.into()));
            interface.ip_address = ip.map(|ip| ip.to_string());
            interface.ip_addresses = ip.iter().map(ToString::to_string).collect();
            interface.rest.insert("queueCount".into(), 1.into());
            interface.rest.entry("podInterfaceName").or_insert_with(|| "eth0".into());
            interface.rest.insert("infoSource".into(), "domain".into());
            interface
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduled() -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "m", "resourceVersion": "7"},
            "spec": {"terminationGracePeriodSeconds": 10, "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}]}}},
            "status": {
                "phase": "Scheduled", "nodeName": "full-1",
                "conditions": [
                    {"type": "Ready", "status": "False", "reason": "GuestNotRunning", "extra": 1},
                    {"type": "Synchronized", "status": "False", "message": "no image"}
                ],
                "phaseTransitionTimestamps": [{"phase": "Scheduled", "phaseTransitionTimestamp": "2026-11-30T00:00:00Z"}],
                "interfaces": [{"name": "default", "podInterfaceName": "eth0"}]
            }
        }))
        .unwrap()
    }

    /// What a patch sets, by path.
    fn set(patch: &Value, path: &str) -> Value {
        let operations = patch.as_array().unwrap();
        operations.iter().find(|operation| operation["path"] == path).map(|it| it["value"].clone()).unwrap_or_default()
    }

    #[test]
    fn running_keeps_what_virt_controller_wrote() {
        let patch = running(&scheduled(), Some(Ipv4Addr::new(10, 244, 0, 9)), Timestamp::UNIX_EPOCH);
        assert_eq!(set(&patch, "/metadata/resourceVersion"), "7");
        assert_eq!(set(&patch, "/status/phase"), "Running");
        let interfaces = set(&patch, "/status/interfaces");
        assert_eq!(interfaces[0]["ipAddress"], "10.244.0.9");
        assert_eq!(interfaces[0]["podInterfaceName"], "eth0");
        let conditions = set(&patch, "/status/conditions");
        let kinds: Vec<_> = conditions.as_array().unwrap().iter().map(|c| c["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["Ready", "LiveMigratable"], "the failure to start is taken back");
        assert_eq!(conditions[0]["extra"], 1);
        assert!(conditions[0].get("lastProbeTime").is_some_and(Value::is_null), "Go writes times that are not there");
        assert_eq!(conditions[1]["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert_eq!(set(&patch, "/status/phaseTransitionTimestamps").as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_failure_is_said_once_and_with_its_cause() {
        assert_eq!(not_started(&scheduled(), "no image", Timestamp::UNIX_EPOCH), None);
        let patch = not_started(&scheduled(), "no disk", Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(set(&patch, "/status/conditions")[1]["message"], "no disk");
        let patch = over(&scheduled(), &End::Failed("killed by signal 9".into()), Timestamp::UNIX_EPOCH);
        assert_eq!(set(&patch, "/status/phase"), "Failed");
        assert_eq!(set(&over(&scheduled(), &End::PoweredOff, Timestamp::UNIX_EPOCH), "/status/phase"), "Succeeded");
    }

    #[test]
    fn grace_counts_from_the_deletion() {
        let mut instance = scheduled();
        instance.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::from_second(100).unwrap()));
        let InstanceView::There { deleted_by, ours, .. } = view(&instance, "full-1") else { panic!() };
        assert_eq!((deleted_by, ours), (Some(Timestamp::from_second(110).unwrap()), true));
        assert!(matches!(view(&instance, "other"), InstanceView::There { ours: false, .. }));
    }
}
