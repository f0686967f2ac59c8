//! The fields of KubeVirt's VirtualMachineInstance that we read or write; the rest is kept as it came.
//!
//! Source: `kubevirt.io/api/core/v1` at 1.8. Unknown fields survive a round trip in `rest`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// `apiVersion` of an instance.
pub const API_VERSION: &str = "kubevirt.io/v1";
/// Kind of an instance.
pub const KIND: &str = "VirtualMachineInstance";
/// On launcher pods: uid of the instance.
pub const LABEL_CREATED_BY: &str = "kubevirt.io/created-by";
/// On launcher pods: the value `virt-launcher`.
pub const LABEL_APP: &str = "kubevirt.io";
/// Value of [`LABEL_APP`] on launcher pods.
pub const LABEL_APP_LAUNCHER: &str = "virt-launcher";
/// On instances and pods: node of the instance.
pub const LABEL_NODE_NAME: &str = "kubevirt.io/nodeName";
/// On launcher pods: name of the instance.
pub const ANNOTATION_DOMAIN: &str = "kubevirt.io/domain";
/// On nodes that run instances, the value `true`.
pub const LABEL_SCHEDULABLE: &str = "kubevirt.io/schedulable";

/// Spec of a VirtualMachineInstance (kubevirt.io/v1).
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstance",
    plural = "virtualmachineinstances",
    namespaced,
    schema = "disabled",
    status = "VirtualMachineInstanceStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineInstanceSpec {
    /// Labels that the node must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// What happens when the node drains; ours are `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<String>,
    /// Seconds between the power button and the plug; ours are 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// The machine.
    pub domain: Domain,
    /// Where interfaces lead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Map<String, Value>>,
    /// What disks hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// The machine of an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Domain {
    /// Processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Machine type; ours are q35.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// Devices.
    pub devices: Devices,
    /// Requests and limits of the launcher pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Everything else (features, clock, …).
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Processors of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cpu {
    /// Cores per socket; KubeVirt's default is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Sockets; KubeVirt's default is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// Threads per core; KubeVirt's default is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Everything else (model, features, …).
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Cpu {
    /// Processors that the guest sees.
    pub fn vcpus(&self) -> u32 {
        [self.cores, self.sockets, self.threads].into_iter().map(|n| n.unwrap_or(1).max(1)).fold(1, u32::saturating_mul)
    }
}

/// Memory of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// What the guest sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<Quantity>,
    /// Everything else (hugepages, …).
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Machine type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Machine {
    /// QEMU's name of it, for example `q35`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Firmware of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Firmware {
    /// SMBIOS uuid; ours is the member's uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// EFI or BIOS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootloader: Option<Value>,
    /// Everything else (serial, kernelBoot, …).
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Devices of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Devices {
    /// Disks, in the order the machine has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
    /// Network interfaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Map<String, Value>>,
    /// The virtual TPM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<Tpm>,
    /// The random number device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rng: Option<Value>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A virtual TPM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tpm {
    /// Whether its state outlives the instance; ours never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A disk of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Disk {
    /// The volume behind it.
    pub name: String,
    /// Place in the boot order; ours has 1 on the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_order: Option<u32>,
    /// Serial that the guest sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// As a disk, with its bus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskTarget>,
    /// Everything else (cdrom, lun, cache, …).
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// How a disk is attached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskTarget {
    /// `virtio`, `sata`, `scsi`, `usb`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// Whether the guest may not write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readonly: Option<bool>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Requests and limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// What the scheduler sets aside.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
    /// What the node enforces.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What a disk holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// Name that disks refer to.
    pub name: String,
    /// An image from a registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_disk: Option<ContainerDisk>,
    /// A Secret as a read-only disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolume>,
    /// Scratch space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_disk: Option<EmptyDisk>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// An image from a registry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerDisk {
    /// Its reference.
    pub image: String,
    /// Everything else (path, imagePullPolicy, …).
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A Secret as a read-only disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretVolume {
    /// Its name.
    pub secret_name: String,
    /// Label of the file system on the disk; KubeVirt gives none by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_label: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Scratch space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EmptyDisk {
    /// Its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Status of a VirtualMachineInstance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineInstanceStatus {
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<InstancePhase>,
    /// Why it is in that phase, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its node, once scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Its interfaces, with addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// KubeVirt's conditions; not `metav1.Condition`, for they lack required fields of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<InstanceCondition>,
    /// uid of each live launcher pod, and its node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub active_pods: BTreeMap<String, String>,
    /// When it reached each phase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phase_transition_timestamps: Vec<PhaseTransition>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Phases of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InstancePhase {
    /// Accepted, no pod yet.
    Pending,
    /// The launcher pod is being scheduled and started.
    Scheduling,
    /// The launcher pod runs; the node takes over.
    Scheduled,
    /// The machine runs.
    Running,
    /// The guest powered off.
    Succeeded,
    /// The machine or its pod ended otherwise.
    Failed,
    /// Out of KubeVirt's sight, or a phase that we don't know.
    #[serde(other)]
    Unknown,
}

/// An interface of an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    /// Name of the interface in the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// First address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<String>,
    /// All addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<String>,
    /// Hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A condition as KubeVirt writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceCondition {
    /// Its type: `Ready`, `PodScheduled`, `Synchronized`, …
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    /// Why, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the status changed, RFC 3339; KubeVirt writes null at times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    /// When it was looked at, RFC 3339; KubeVirt writes null at times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// When an instance reached a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseTransition {
    /// The phase.
    pub phase: InstancePhase,
    /// When, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_transition_timestamp: Option<String>,
}

impl VirtualMachineInstance {
    /// The phase, when there is a status.
    pub fn phase(&self) -> Option<InstancePhase> {
        self.status.as_ref().and_then(|status| status.phase)
    }

    /// The node, once scheduled.
    pub fn node_name(&self) -> Option<&str> {
        self.status.as_ref().and_then(|status| status.node_name.as_deref())
    }

    /// The condition of a type.
    pub fn condition(&self, type_: &str) -> Option<&InstanceCondition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_we_do_not_know_survives() {
        let object = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": { "name": "m" },
            "spec": {
                "domain": {
                    "cpu": { "cores": 2, "sockets": 3, "model": "host-model" },
                    "memory": { "guest": "512Mi", "maxGuest": "2Gi" },
                    "machine": { "type": "q35" },
                    "firmware": { "uuid": "u", "bootloader": { "efi": { "secureBoot": false } }, "serial": "s" },
                    "features": { "smm": { "enabled": true } },
                    "devices": {
                        "tpm": {}, "rng": {}, "autoattachGraphicsDevice": false,
                        "disks": [{ "name": "image", "bootOrder": 1, "disk": { "bus": "virtio" }, "cache": "none" }],
                        "interfaces": [{ "name": "default", "masquerade": {} }]
                    }
                },
                "networks": [{ "name": "default", "pod": {} }],
                "volumes": [
                    { "name": "image", "containerDisk": { "image": "r/x:1", "imagePullPolicy": "Always" } },
                    { "name": "scratch", "emptyDisk": { "capacity": "1Gi" } }
                ],
                "hostname": "h", "tolerations": [{ "key": "k" }]
            },
            "status": {
                "phase": "Running", "nodeName": "n",
                "conditions": [{ "type": "Ready", "status": "False", "reason": "x", "severity": "odd" }],
                "activePods": { "uid": "n" },
                "interfaces": [{ "ipAddress": "10.0.0.2", "queueCount": 1 }],
                "phaseTransitionTimestamps": [{ "phase": "Pending", "phaseTransitionTimestamp": "2026-01-01T00:00:00Z" }],
                "qosClass": "Burstable"
            }
        });
        let instance: VirtualMachineInstance = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(serde_json::to_value(&instance).unwrap(), object);
        assert_eq!(instance.spec.domain.cpu.as_ref().unwrap().vcpus(), 6);
        assert_eq!(instance.phase(), Some(InstancePhase::Running));
    }

    #[test]
    fn a_phase_of_tomorrow_is_unknown() {
        let status: VirtualMachineInstanceStatus =
            serde_json::from_value(json!({ "phase": "WaitingForSync", "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": null }] }))
                .unwrap();
        assert_eq!(status.phase, Some(InstancePhase::Unknown));
    }
}
