//! What a kubelet and a virt-handler say about their node: the Node object, its lease and KubeVirt's heartbeat.

use std::str::FromStr;
use std::time::Duration;

use banlieue_crds::kubevirt::LABEL_SCHEDULABLE;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::pod::HOST_IP;
use crate::weight::{LABEL, Weight};

/// Field manager of what is said about nodes.
const MANAGER: &str = "banlieue-hypervisor";
/// How often the lease is renewed (kubelet: every 10 s, for leases of 40 s).
const RENEWAL: Duration = Duration::from_secs(10);
/// How many renewals pass between two heartbeats (virt-handler: once a minute; given up after five).
const HEARTBEAT: u32 = 3;

/// A node to play.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name.
    pub name: String,
    /// What stands behind its instances.
    pub weight: Weight,
    /// What it can hold.
    pub capacity: Capacity,
}

/// What a node can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Processors.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Pods.
    pub pods: u32,
}

impl Capacity {
    /// Room that is not what a test is about; memory is the host's where machines really use it.
    fn default_of(weight: Weight) -> Self {
        match weight {
            Weight::Full => Self { cpu: 16, memory_mib: host_memory_mib(), pods: 110 },
            Weight::Light => Self { cpu: 64, memory_mib: 256 << 10, pods: 250 },
            Weight::Weightless => Self { cpu: 2000, memory_mib: 8 << 20, pods: 2000 },
        }
    }
}

/// Total memory of this host (`MemTotal` of proc(5)); 4 GiB when it cannot be read.
fn host_memory_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(4096, |kib| kib / 1024)
}

impl FromStr for NodeSpec {
    type Err = String;

    /// `name=weight`, then any of `:cpu=N`, `:memory=MIB`, `:pods=N`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("{text}: {why}. A node is written NAME=full|light|weightless[:cpu=N][:memory=MIB][:pods=N]")
        };
        let mut parts = text.split(':');
        let (name, weight) = parts.next().and_then(|head| head.split_once('=')).ok_or_else(|| wrong("no weight"))?;
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(allowed) {
            return Err(wrong("a node's name has lower-case letters, digits and dashes"));
        }
        let weight = weight.parse::<Weight>().map_err(|error| wrong(&error))?;
        let mut capacity = Capacity::default_of(weight);
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(|| wrong("a capacity has no value"))?;
            let number: u32 = value.parse().map_err(|_| wrong("a capacity is not a number"))?;
            match key {
                "cpu" => capacity.cpu = number,
                "memory" => capacity.memory_mib = number.into(),
                "pods" => capacity.pods = number,
                _ => return Err(wrong("a capacity is cpu, memory or pods")),
            }
        }
        Ok(Self { name: name.to_owned(), weight, capacity })
    }
}

impl NodeSpec {
    fn labels(&self) -> Value {
        json!({
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            LABEL_SCHEDULABLE: "true",
            "machine-type.node.kubevirt.io/q35": "true",
            "cpumanager": "false",
            "kubevirt.io/cpumanager": "false",
            LABEL: self.weight.as_str(),
        })
    }

    /// Metadata that virt-handler keeps fresh.
    fn metadata(&self, now: Timestamp) -> Value {
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        json!({ "metadata": {
            "labels": self.labels(),
            // virt-handler writes the JSON of a metav1.Time, without its quotes.
            "annotations": { "kubevirt.io/heartbeat": second.to_string() },
        } })
    }

    /// Status that kubelet keeps fresh.
    fn status(&self, now: Timestamp) -> Value {
        let Capacity { cpu, memory_mib, pods } = self.capacity;
        let capacity = json!({
            "cpu": cpu.to_string(),
            "memory": format!("{memory_mib}Mi"),
            "pods": pods.to_string(),
            "ephemeral-storage": "100Ti",
            "devices.kubevirt.io/kvm": "5000",
            "devices.kubevirt.io/tun": "5000",
            "devices.kubevirt.io/vhost-net": "5000",
            "devices.kubevirt.io/vhost-vsock": "5000",
        });
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({ "type": kind, "status": status, "reason": reason, "message": "local hypervisor",
                "lastHeartbeatTime": now.to_string(), "lastTransitionTime": now.to_string() })
        };
        json!({ "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [
                condition("Ready", "True", "KubeletReady"),
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            ],
            "addresses": [
                { "type": "InternalIP", "address": HOST_IP },
                { "type": "Hostname", "address": self.name },
            ],
            "nodeInfo": {
                "machineID": self.name, "systemUUID": self.name, "bootID": self.name,
                "kernelVersion": "local", "osImage": "banlieue local hypervisor",
                "containerRuntimeVersion": "banlieue://0", "kubeletVersion": "v1.37.2", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64",
            },
        } })
    }

    /// Registers the node, again if need be, as a kubelet does when it starts.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn register(&self, client: &Client) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(client.clone());
        let mut object = self.metadata(Timestamp::now());
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("name".into(), self.name.as_str().into());
        }
        let node: Node = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        match nodes.create(&PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() }, &node).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error),
        }
        self.renew(client).await?;
        self.beat(client).await
    }

    async fn beat(&self, client: &Client) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(client.clone());
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let now = Timestamp::now();
        nodes.patch(&self.name, &params, &Patch::Merge(self.metadata(now))).await?;
        nodes.patch_status(&self.name, &params, &Patch::Strategic(self.status(now))).await?;
        Ok(())
    }

    async fn renew(&self, client: &Client) -> Result<(), kube::Error> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(Timestamp::now());
        let spec = json!({ "holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now });
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        match leases.patch(&self.name, &params, &Patch::Merge(json!({ "spec": spec }))).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let lease = json!({ "metadata": { "name": self.name }, "spec": spec });
                let lease: Lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
                leases.create(&PostParams::default(), &lease).await.map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Keeps the node fresh until somebody deletes it; a deleted node stays deleted.
    pub async fn keep(&self, client: &Client) {
        let mut count: u32 = 0;
        loop {
            tokio::time::sleep(RENEWAL).await;
            count = count.wrapping_add(1);
            let renewed = self.renew(client).await;
            // A lease alone is no sign of life of a node that is gone: the garbage collector takes it.
            let beaten = if count.is_multiple_of(HEARTBEAT) { self.beat(client).await } else { Ok(()) };
            match renewed.and(beaten) {
                Ok(()) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    tracing::warn!(
                        node = self.name,
                        "the node was deleted: it stays so until this program starts again"
                    );
                    return;
                }
                Err(error) => tracing::warn!(%error, node = self.name, "cannot keep the node fresh"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_as_people_write_them() {
        let node: NodeSpec = "full-1=full:cpu=4:pods=3".parse().unwrap();
        assert_eq!((node.name.as_str(), node.weight), ("full-1", Weight::Full));
        assert_eq!((node.capacity.cpu, node.capacity.pods), (4, 3));
        assert!(node.capacity.memory_mib > 0);
        for wrong in ["full-1", "=full", "a=heavy", "A=full", "a=full:cpu", "a=full:cpu=x", "a=full:disk=1"] {
            assert!(wrong.parse::<NodeSpec>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_the_scheduler_and_virt_controller_look_for() {
        let node: NodeSpec = "w-1=weightless".parse().unwrap();
        let metadata = node.metadata(Timestamp::UNIX_EPOCH);
        assert_eq!(metadata["metadata"]["annotations"]["kubevirt.io/heartbeat"], "1970-01-01T00:00:00Z");
        assert_eq!(metadata["metadata"]["labels"]["kubevirt.io/schedulable"], "true");
        assert_eq!(metadata["metadata"]["labels"]["banlieue.io/node-weight"], "weightless");
        let status = node.status(Timestamp::UNIX_EPOCH);
        assert_eq!(status["status"]["conditions"][0]["type"], "Ready");
        assert_eq!(status["status"]["capacity"]["devices.kubevirt.io/tun"], "5000");
    }
}
