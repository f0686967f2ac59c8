//! The few facts we keep of foreign objects.

use banlieue_crds::Address;
use banlieue_crds::kubevirt::{InstancePhase, LABEL_CREATED_BY, VirtualMachineInstance};
use banlieue_crds::names::labels;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

/// Reasons of the kubelet, and of KubeVirt which repeats them, for an image that is not to be had.
const NO_IMAGE: [&str; 5] =
    ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"];

/// An instance, as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceFacts {
    /// Its uid.
    pub uid: String,
    /// uid of the PoolMember that controls it, if one does.
    pub owner_uid: Option<String>,
    /// Its phase; nothing until virt-controller has seen it.
    pub phase: Option<InstancePhase>,
    /// Its node.
    pub node_name: Option<String>,
    /// Its addresses, in the order of its interfaces.
    pub addresses: Vec<Address>,
    /// Whether its deletion was asked for.
    pub deleting: bool,
    /// When it got its node.
    pub scheduled_at: Option<Timestamp>,
    /// When its machine ran.
    pub running_at: Option<Timestamp>,
    /// What KubeVirt says keeps it from going on, if anything.
    pub trouble: Option<String>,
    /// Whether that trouble is a refused launcher pod for lack of quota.
    pub over_quota: bool,
    /// Whether that trouble is an image that its node cannot pull.
    pub image_missing: bool,
}

impl InstanceFacts {
    /// Reads them off the object.
    pub fn of(instance: &VirtualMachineInstance) -> Self {
        let status = instance.status.clone().unwrap_or_default();
        let reached = |wanted: InstancePhase| {
            status
                .phase_transition_timestamps
                .iter()
                .filter(|transition| transition.phase == wanted)
                .find_map(|transition| transition.phase_transition_timestamp.as_deref()?.parse::<Timestamp>().ok())
        };
        let in_trouble = status
            .conditions
            .iter()
            .filter(|condition| condition.status == "False")
            .find(|condition| matches!(condition.type_.as_str(), "PodScheduled" | "Synchronized" | "Provisioning"));
        let image_missing = in_trouble
            .and_then(|condition| condition.reason.as_deref())
            .is_some_and(|reason| NO_IMAGE.contains(&reason));
        let trouble = in_trouble.map(|condition| {
            let reason = condition.reason.as_deref().unwrap_or(&condition.type_);
            format!("{reason}: {}", condition.message.as_deref().unwrap_or("no message"))
        });
        let addresses = status
            .interfaces
            .iter()
            .filter_map(|interface| interface.ip_address.clone())
            .filter(|address| !address.is_empty())
            .map(|address| Address { type_: "InternalIP".into(), address })
            .collect();
        Self {
            uid: instance.uid().unwrap_or_default(),
            owner_uid: instance
                .owner_references()
                .iter()
                .find(|owner| owner.kind == "PoolMember" && owner.controller == Some(true))
                .map(|owner| owner.uid.clone()),
            phase: status.phase,
            node_name: status.node_name.filter(|node| !node.is_empty()),
            addresses,
            deleting: instance.metadata.deletion_timestamp.is_some(),
            scheduled_at: reached(InstancePhase::Scheduled),
            running_at: reached(InstancePhase::Running),
            image_missing,
            over_quota: trouble.as_deref().is_some_and(|text| text.contains("exceeded quota")),
            trouble,
        }
    }

    /// Whether its machine runs.
    pub fn is_running(&self) -> bool {
        self.phase == Some(InstancePhase::Running)
    }

    /// Whether its machine ended by itself.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Some(InstancePhase::Succeeded | InstancePhase::Failed))
    }
}

/// A launcher pod, as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// uid of the instance it was made for.
    pub instance_uid: String,
    /// Name of the member, by the label that it inherited from the instance.
    pub member: Option<String>,
    /// When a node took it.
    pub scheduled_at: Option<Timestamp>,
    /// The scheduler's words when no node takes it.
    pub unschedulable: Option<String>,
    /// The kubelet's words when it cannot pull an image.
    pub image_missing: Option<String>,
}

impl PodFacts {
    /// Reads them off the object; nothing when it is no launcher pod.
    pub fn of(pod: &Pod) -> Option<Self> {
        let instance_uid = pod.labels().get(LABEL_CREATED_BY)?.clone();
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let scheduled = conditions.and_then(|list| list.iter().find(|condition| condition.type_ == "PodScheduled"));
        let holds = scheduled.is_some_and(|condition| condition.status == "True");
        Some(Self {
            instance_uid,
            member: pod.labels().get(labels::MEMBER).cloned(),
            scheduled_at: scheduled
                .filter(|_| holds)
                .and_then(|condition| condition.last_transition_time.as_ref())
                .map(|time| time.0),
            image_missing: pod.status.as_ref().and_then(|status| {
                let init = status.init_container_statuses.iter().flatten();
                init.chain(status.container_statuses.iter().flatten()).find_map(|container| {
                    let waiting = container.state.as_ref()?.waiting.as_ref()?;
                    let reason = waiting.reason.as_deref().filter(|reason| NO_IMAGE.contains(reason))?;
                    Some(format!("{reason}: {}", waiting.message.as_deref().unwrap_or(&container.image)))
                })
            }),
            unschedulable: scheduled.filter(|condition| condition.status == "False").map(|condition| {
                let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
                format!("{reason}: {}", condition.message.as_deref().unwrap_or("no node takes it"))
            }),
        })
    }
}

/// A node, as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Why no member on it may be lent; nothing when it is fine.
    pub unusable: Option<String>,
    /// Since when, as this process saw it. A restart begins the grace period anew, which delays a replacement and
    /// lends nothing.
    pub since: Timestamp,
}

impl NodeFacts {
    /// Reads them off the object; `before` is what was known.
    pub fn of(node: &Node, before: Option<&NodeFacts>, now: Timestamp) -> Self {
        let cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
        let not_ready = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref())
            .and_then(|list| list.iter().find(|condition| condition.type_ == "Ready"))
            .is_none_or(|condition| condition.status != "True");
        let unusable = if cordoned {
            Some("is cordoned".to_owned())
        } else if not_ready {
            Some("is not ready".to_owned())
        } else {
            None
        };
        let since = match before {
            Some(before) if before.unusable.is_some() == unusable.is_some() => before.since,
            _ => now,
        };
        Self { unusable, since }
    }
}

/// A ConfigMap without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMapFacts {
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion, to see changes.
    pub version: String,
    /// The pool whose policy copy it is, by label.
    pub pool: Option<String>,
}
