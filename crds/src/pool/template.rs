//! What a member is made of.

use super::instance_schema::instance_spec;
use crate::shared::{annotation_map, label_map};
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
    /// Labels. Keys under `app.kubernetes.io/`, and those that the operator of the controller allows with
    /// `--allow-template-key-prefix`; others are refused with `TemplateInvalid` and the key, for such keys steer what
    /// becomes of the launcher pod.
    #[serde(default)]
    #[schemars(schema_with = "label_map")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, with keys as for labels.
    #[serde(default)]
    #[schemars(schema_with = "annotation_map")]
    pub annotations: BTreeMap<String, String>,
}

/// A virtual machine template for KubeVirt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtTemplate {
    /// The fields of a kubevirt.io/v1 VirtualMachineInstanceSpec that stand in `docs/define-a-pool.md`. The controller
    /// refuses the rest with `TemplateInvalid` and the field's name; what not even the schema knows, the API server drops.
    #[schemars(schema_with = "instance_spec")]
    pub spec: serde_json::Map<String, serde_json::Value>,
}

/// A pod template for Kata containers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KataTemplate {
    /// Will be a core/v1 PodTemplateSpec. Kata members are not supported yet, so nothing in it is kept.
    #[schemars(schema_with = "nothing")]
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

/// An object that holds nothing: the API server drops what is in it.
fn nothing(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object", "properties": {} })
}

fn runtime_class() -> String {
    "kata".into()
}
