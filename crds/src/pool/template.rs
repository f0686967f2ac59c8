//! What a member is made of.

use crate::shared::{annotation_map, label_map, preserved_object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a member is made of. Exactly one of `kubeVirt` and `kata`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolTemplate {
    /// Labels and annotations that every instance gets, ours excepted.
    #[serde(default)]
    pub metadata: TemplateMetadata,
    /// Members are KubeVirt VirtualMachineInstances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_virt: Option<KubeVirtTemplate>,
    /// Members are Kata pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kata: Option<KataTemplate>,
}

/// Metadata of the instances of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels; keys under `banlieue.io/` are ours and are refused with `TemplateInvalid`.
    #[serde(default)]
    #[schemars(schema_with = "label_map")]
    pub labels: BTreeMap<String, String>,
    /// Annotations; KubeVirt's hook annotations and keys under `banlieue.io/` are refused with `TemplateInvalid`.
    #[serde(default)]
    #[schemars(schema_with = "annotation_map")]
    pub annotations: BTreeMap<String, String>,
}

/// A virtual machine template for KubeVirt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtTemplate {
    /// A kubevirt.io/v1 VirtualMachineInstanceSpec. The controller judges it by an allow-list and refuses the rest with
    /// `TemplateInvalid` and the field's name.
    #[schemars(schema_with = "preserved_object")]
    pub spec: serde_json::Map<String, serde_json::Value>,
}

/// A pod template for Kata containers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KataTemplate {
    /// A core/v1 PodTemplateSpec, judged by the controller.
    #[schemars(schema_with = "preserved_object")]
    pub pod_template: serde_json::Map<String, serde_json::Value>,
    /// RuntimeClass of the pods.
    #[serde(default = "runtime_class")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: String,
}

/// What members run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RuntimeKind {
    /// VirtualMachineInstances.
    KubeVirt,
    /// Pods with a Kata RuntimeClass.
    Kata,
}

impl PoolTemplate {
    /// The runtime that the template names, or nothing when it names none or both (which the API server refuses).
    pub fn runtime(&self) -> Option<RuntimeKind> {
        match (&self.kube_virt, &self.kata) {
            (Some(_), None) => Some(RuntimeKind::KubeVirt),
            (None, Some(_)) => Some(RuntimeKind::Kata),
            _ => None,
        }
    }
}

fn runtime_class() -> String {
    "kata".into()
}
