//! Small types that several kinds hold, and the schema of what Kubernetes' own types leave unbounded.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A moment, RFC 3339 in UTC with microseconds, as all our own fields write it (conditions keep `metav1.Time`).
/// Readers must accept any RFC 3339 precision.
pub type Timestamp = MicroTime;

/// Another object of the same namespace, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameRef {
    /// Name of the object, in the namespace of the object that refers to it.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// One particular object of the same namespace: the name finds it, the uid says which life of that name is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// `metadata.uid` of the object.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// One address of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// Kind of address: `InternalIP` or `Hostname`, as on nodes.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 32))]
    pub type_: String,
    /// The address itself, without a port.
    #[schemars(length(min = 1, max = 253))]
    pub address: String,
}

/// A map of label values.
pub(crate) fn label_map(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 32, "additionalProperties": { "type": "string", "maxLength": 63 } })
}

/// A map of annotation values.
pub(crate) fn annotation_map(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 32, "additionalProperties": { "type": "string", "maxLength": 2048 } })
}

/// A list of `metav1.Condition`, a map by type, with the bounds that upstream documents.
pub(crate) fn condition_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": { "type": "string", "description": "Which aspect this is about.", "minLength": 1, "maxLength": 316 },
                "status": { "type": "string", "description": "Whether it holds.", "enum": ["True", "False", "Unknown"] },
                "reason": {
                    "type": "string", "description": "One stable CamelCase word for why.", "minLength": 1, "maxLength": 128,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
                },
                "message": { "type": "string", "description": "A sentence for a person.", "maxLength": 32768 },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time", "description": "When the status last changed."
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "metadata.generation of this object that the condition speaks about."
                }
            }
        }
    })
}
