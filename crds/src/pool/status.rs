//! What the controller has seen and done about a pool.

use super::RuntimeKind;
use crate::shared::{Timestamp, condition_list};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the controller has seen and done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachinePoolStatus {
    /// `metadata.generation` that this status speaks about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// All living members, bound, failed and terminating ones included: what `maxReplicas` caps.
    pub replicas: u32,
    /// Ready and unbound members: what `warmReplicas` asks for.
    pub warm: u32,
    /// Members in Provisioning or Booting.
    pub provisioning: u32,
    /// Members in Attesting.
    pub attesting: u32,
    /// Members with a claimRef that are not terminating.
    pub bound: u32,
    /// Members with a deletionTimestamp.
    pub terminating: u32,
    /// Failed and quarantined members.
    pub failed: u32,
    /// Ready members of the current revision.
    pub updated: u32,
    /// Hash of the template and attestation policy that new members get.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub current_revision: Option<String>,
    /// Label selector of the pool's members and their pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub selector: Option<String>,
    /// What the members run on, for the wide listing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeKind>,
    /// Claims on this pool that wait for a member.
    pub pending_claims: u32,
    /// Share of recent claims, in percent, that found a warm member at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub hit_percent: Option<u32>,
    /// Warm members that recent demand asks for, whether or not the autoscaler may act on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recommended_warm: Option<u32>,
    /// Failures since a member last became Ready: what the failure budget is counted by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<FailureRecord>,
    /// Ready, Progressing, TemplateValid, Capacity, AttestorReachable, ProvisioningHalted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition_list")]
    pub conditions: Vec<Condition>,
}

/// Failures in a row. Failed members are deleted, so what was counted is kept here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureRecord {
    /// Failures since a member last became Ready.
    pub consecutive: u32,
    /// The revision that failed. Another revision starts anew.
    #[schemars(length(max = 64))]
    pub revision: String,
    /// When the last failure was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failed_at: Option<Timestamp>,
    /// What the last failure was, in the failed member's own words.
    #[schemars(length(max = 4096))]
    pub last_message: String,
    /// uids of failed members that are counted and still there, so that none is counted twice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 64)), extend("x-kubernetes-list-type" = "set"))]
    pub counted: Vec<String>,
}
