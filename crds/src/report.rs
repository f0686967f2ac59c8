//! `EndorsementReport`: the host side says which endorsement key it plugged into which instance.

use crate::rule::Rule;
use crate::shared::Timestamp;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What one node says about the endorsement keys of one instance. Immutable, named `<instance uid>.<node name>`, without
/// an owner: it outlives its member as the tombstone of the key.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "banlieue.io",
    version = "v1alpha1",
    kind = "EndorsementReport",
    plural = "endorsementreports",
    shortname = "bereport",
    category = "banlieue",
    namespaced,
    derive = "PartialEq",
    status = "EndorsementReportStatus",
    doc = "What one node says about the endorsement keys of one instance. Immutable; the tombstone of the key once its member ended.",
    selectable = ".spec.instanceUid",
    selectable = ".spec.nodeName",
    printcolumn(name = "Instance", type_ = "string", json_path = ".spec.instanceRef.name"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Source", type_ = "string", json_path = ".spec.source"),
    printcolumn(name = "Ended", type_ = "date", json_path = ".status.endedAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct EndorsementReportSpec {
    /// `metadata.uid` of the instance.
    #[schemars(
        length(min = 36, max = 36),
        regex(pattern = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
    )]
    pub instance_uid: String,
    /// The instance, for people; what counts is the uid.
    pub instance_ref: ReportedInstance,
    /// Node that runs the instance and says so. Must be the node of the writer's token.
    #[schemars(length(min = 1, max = 200), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub node_name: String,
    /// SHA-256 of the SubjectPublicKeyInfo (DER) of each endorsement key of the instance's TPM, lower-case hex.
    #[schemars(
        length(min = 1, max = 8),
        inner(length(min = 64, max = 64), regex(pattern = "^[0-9a-f]{64}$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub ek_digests: Vec<String>,
    /// What read the key, for example `swtpm`.
    #[schemars(length(min = 1, max = 64))]
    pub source: String,
    /// When it was read.
    pub observed_at: Timestamp,
}

/// The instance that a report is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedInstance {
    /// `kubevirt.io/v1` or `v1`.
    #[schemars(length(min = 1, max = 128))]
    pub api_version: String,
    /// `VirtualMachineInstance` or `Pod`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name of the instance, in the report's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What the attestor controller adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EndorsementReportStatus {
    /// When the member of the instance ended; from then on the report is a tombstone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// SHA-256 of the key that ended: the one that was pinned to the member, because it was proved. What else a node
    /// reports is its word about itself and takes no key from anybody.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 64, max = 64), regex(pattern = "^[0-9a-f]{64}$"))]
    pub ek_digest: Option<String>,
}

/// The rules that the API server checks on every report.
pub const RULES: &[Rule] = &[
    Rule::new(
        "",
        "",
        "self.metadata.name == self.spec.instanceUid + '.' + self.spec.nodeName",
        "a report must be named <spec.instanceUid>.<spec.nodeName>: change metadata.name",
    ),
    Rule::immutable(
        "spec",
        "",
        "a report is immutable: it says what was plugged in, once; another instance needs another report",
    ),
    Rule::write_once(
        "",
        ".status.endedAt",
        "status.endedAt is set once and never changed or removed: the key of an ended member never comes back",
    ),
    Rule::write_once(
        "",
        ".status.ekDigest",
        "status.ekDigest is set once and never changed or removed: the key of an ended member never comes back",
    ),
];
