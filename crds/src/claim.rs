//! `VirtualMachineClaim`: somebody's wish for one member, its acknowledgement, its deadline and its end.

use crate::rule::Rule;
use crate::shared::{Address, NameRef, ObjectRef, Timestamp, condition_list};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::ClaimReason;

/// A claim on one member of a pool, for one subject, for a limited time.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "banlieue.io",
    version = "v1alpha1",
    kind = "VirtualMachineClaim",
    plural = "virtualmachineclaims",
    shortname = "bclaim",
    category = "banlieue",
    namespaced,
    derive = "PartialEq",
    status = "VirtualMachineClaimStatus",
    doc = "A claim on one member of a pool, for one subject, for a limited time.",
    selectable = ".spec.poolRef.name",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.poolRef.name"),
    printcolumn(name = "Member", type_ = "string", json_path = ".status.memberRef.name"),
    printcolumn(name = "Subject", type_ = "string", json_path = ".spec.subject.display"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".status.expiresAt"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Bound\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Place", type_ = "integer", json_path = ".status.queuePosition", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineClaimSpec {
    /// The pool, in the claim's namespace. One that does not exist is waited for like a warm member, with `Bound=False`
    /// and the reason `PoolNotFound`, until the bind deadline.
    pub pool_ref: NameRef,
    /// For whom.
    pub subject: Subject,
    /// Seconds that the member is lent, counted from bind. May grow up to the pool's maximum, never shrink.
    #[serde(default = "defaults::ttl")]
    #[schemars(range(min = 1, max = 31536000))]
    pub ttl_seconds: u32,
    /// Seconds that the claim may wait, for a member or for its pool; Pending longer than this fails with
    /// `BindDeadlineExceeded`.
    #[serde(default = "defaults::bind_deadline")]
    #[schemars(range(min = 1, max = 86400))]
    pub bind_deadline_seconds: u32,
    /// What to do when no member is warm. A pool that does not exist is waited for either way.
    #[serde(default)]
    pub when_empty: WhenEmpty,
    /// Higher is served first, up to the pool's `maxPriority`.
    #[serde(default)]
    #[schemars(range(max = 1000000))]
    pub priority: u32,
    /// Downstream services that the workload may ask tokens for and reach.
    #[serde(default)]
    #[schemars(length(max = 32), inner(length(min = 1, max = 512)), extend("x-kubernetes-list-type" = "atomic"))]
    pub audiences: Vec<String>,
    /// What runs.
    pub workload: Workload,
    /// Seconds that a finished claim stays readable.
    #[serde(default = "defaults::retention")]
    #[schemars(range(max = 604800))]
    pub retention_seconds: u32,
}

/// For whom a claim is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// Issuer of the identity, byte for byte as in the token.
    #[schemars(length(min = 1, max = 1024))]
    pub issuer: String,
    /// The subject's stable key at that issuer.
    #[schemars(length(min = 1, max = 512))]
    pub id: String,
    /// A name to show. Never decided on.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub display: String,
    /// The agent that asked for the person, or empty.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub azp: String,
}

/// What to do when no member is warm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenEmpty {
    /// Wait until the bind deadline.
    #[default]
    Wait,
    /// Fail at once with `NoMemberAvailable`.
    Fail,
}

/// What runs in the member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// OCI image reference, by tag or digest.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// The whole argv; the image's entrypoint is ignored.
    #[serde(default)]
    #[schemars(length(max = 256), inner(length(max = 4096)), extend("x-kubernetes-list-type" = "atomic"))]
    pub args: Vec<String>,
    /// Environment of the workload. No secrets: a claim is readable by many.
    #[serde(default)]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Whether a finished workload is started again.
    #[serde(default)]
    pub restart_policy: RestartPolicy,
    /// Limits of the jail.
    #[serde(default)]
    pub resources: WorkloadResources,
}

/// One environment variable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Its name.
    #[schemars(length(max = 256))]
    pub name: String,
    /// Its value.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub value: String,
}

/// Whether a finished workload is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartPolicy {
    /// A finished job is finished.
    #[default]
    Never,
    /// Again after a failure.
    OnFailure,
    /// Again always, until the deadline.
    Always,
}

/// Limits of the jail. What is not set is bounded by the member itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadResources {
    /// CPUs, as a Kubernetes quantity (`500m`, `2`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub cpu: Option<Quantity>,
    /// Bytes of memory, as a Kubernetes quantity (`512Mi`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub memory: Option<Quantity>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub pids: Option<u32>,
}

/// What it looks like is a rule, for a pattern's refusal says nothing but the pattern.
fn quantity(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "maxLength": 32 })
}

/// How far a claim is, and what it got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineClaimStatus {
    /// Forward only; a terminal one never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<ClaimPhase>,
    /// The member it got. Acknowledged only when that member's `claimRef` names this claim by uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member_ref: Option<ObjectRef>,
    /// The instance of that member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_ref: Option<ClaimInstanceRef>,
    /// SPIFFE id of the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub spiffe_id: Option<String>,
    /// Addresses of the instance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<Address>,
    /// When it was bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_at: Option<Timestamp>,
    /// The deadline: `boundAt` plus `ttlSeconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Place in the pool's queue while Pending; 1 is next. Written once the claim has waited some seconds, and again only
    /// when it has halved or doubled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<u32>,
    /// What the workload does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadStatus>,
    /// Why it ended or ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_reason: Option<ClaimReason>,
    /// Bound, IdentityReady, WorkloadRunning, Destroyed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition_list")]
    pub conditions: Vec<Condition>,
}

/// Stages of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ClaimPhase {
    /// Waits for a member.
    #[default]
    Pending,
    /// Has its member.
    Bound,
    /// Ends: no token any more, the member is being destroyed.
    Releasing,
    /// Ended as it should; the member is verified gone.
    Released,
    /// Never bound, or ended as it should not; the member, if any, is verified gone.
    Failed,
}

impl ClaimPhase {
    /// Whether the phase never changes again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Released | Self::Failed)
    }

    /// Where a claim ends for this reason: Released for ends that were wanted, Failed for the rest.
    pub fn ended_by(reason: ClaimReason) -> Self {
        use ClaimReason::{Expired, PoolDeleted, Released, WorkloadFinished};
        match reason {
            Released | Expired | WorkloadFinished | PoolDeleted => Self::Released,
            _ => Self::Failed,
        }
    }
}

/// The instance behind a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimInstanceRef {
    /// `VirtualMachineInstance` or `Pod`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name of the instance.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// `metadata.uid` of the instance.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// What the workload does, as the guest reported it to mediatore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadStatus {
    /// Its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<WorkloadState>,
    /// When the guest latched "used" into its TPM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latched_at: Option<Timestamp>,
    /// Exit code of the workload; 128 plus the signal when one ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// When it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Digest of the image that runs, `sha256:…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub image_digest: Option<String>,
}

/// States of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkloadState {
    /// The guest has not begun.
    Pending,
    /// The image is being pulled.
    Pulling,
    /// The image is being unpacked.
    Unpacking,
    /// The workload runs.
    Running,
    /// The workload exited; see `exitCode`.
    Finished,
    /// The workload could not be started.
    Failed,
}

mod defaults {
    pub(super) fn ttl() -> u32 {
        3600
    }
    pub(super) fn bind_deadline() -> u32 {
        60
    }
    pub(super) fn retention() -> u32 {
        300
    }
}

/// The rules that the API server checks on every claim.
pub const RULES: &[Rule] = &[
    Rule::immutable("spec", ".poolRef", "poolRef is immutable: delete this claim and create one on the other pool"),
    Rule::immutable("spec", ".subject", "subject is immutable: a claim belongs to one subject; create a new claim"),
    Rule::new(
        "spec",
        ".ttlSeconds",
        "self.ttlSeconds >= oldSelf.ttlSeconds",
        "ttlSeconds may only grow: delete the claim to end it earlier",
    ),
    Rule::immutable("spec", ".bindDeadlineSeconds", "bindDeadlineSeconds is immutable: create a new claim"),
    Rule::immutable("spec", ".whenEmpty", "whenEmpty is immutable: create a new claim"),
    Rule::immutable("spec", ".priority", "priority is immutable: create a new claim"),
    Rule::immutable("spec", ".audiences", "audiences are immutable: create a new claim"),
    Rule::immutable(
        "spec",
        ".workload",
        "workload is immutable: a claim runs what it was made for; create a new claim",
    ),
    // Every reader of claims holds them all: what a workload is told is bounded as a whole, not only piece by piece.
    Rule::new(
        "spec.workload",
        "",
        "self.args.map(a, a.size()).sum() + self.env.map(e, e.name.size() + e.value.size()).sum() <= 65536",
        "args and env together have at most 65536 characters: put more into the image, or let the workload fetch it",
    ),
    Rule::new(
        "spec.workload",
        ".env",
        "self.env.all(e, e.name.matches('^[A-Za-z_][A-Za-z0-9_]*$'))",
        "the name of a variable is letters, digits and underscores, and begins with no digit: correct env[].name",
    ),
    Rule::new(
        "spec.workload.resources",
        ".cpu",
        "!has(self.cpu) || self.cpu.matches('^([0-9]+([.][0-9]*)?|[.][0-9]+)(m|k|Ki|M|Mi|G|Gi|T|Ti)?$')",
        "cpu is a number of CPUs, whole, with a point, or in thousandths with m: 2, 0.5 or 500m",
    ),
    Rule::new(
        "spec.workload.resources",
        ".memory",
        "!has(self.memory) || self.memory.matches('^([0-9]+([.][0-9]*)?|[.][0-9]+)(m|k|Ki|M|Mi|G|Gi|T|Ti)?$')",
        "memory is a number of bytes, with a unit if any of k, M, G, T (thousands) or Ki, Mi, Gi, Ti (1024s): 512Mi or 2G",
    ),
    Rule::immutable("spec", ".retentionSeconds", "retentionSeconds is immutable: create a new claim"),
    // The rules on status stand on the root: a rule on an optional field sees neither its addition nor its removal.
    Rule::write_once(
        "",
        ".status.memberRef",
        "status.memberRef is set once and never changed or removed: a claim has one member; end the claim instead",
    ),
    Rule::write_once(
        "",
        ".status.boundAt",
        "status.boundAt is set once and never changed or removed: the deadline counts from it",
    ),
    Rule::new(
        "",
        ".status.phase",
        "!has(oldSelf.status) || !has(oldSelf.status.phase) || (has(self.status) && has(self.status.phase) && (self.status.phase == oldSelf.status.phase || oldSelf.status.phase == 'Pending' || (oldSelf.status.phase == 'Bound' && self.status.phase == 'Releasing') || (oldSelf.status.phase == 'Releasing' && self.status.phase in ['Released', 'Failed'])))",
        "status.phase only moves forward (Pending, Bound, Releasing, then Released or Failed), a bound claim passes through Releasing, and a terminal phase never changes: create a new claim",
    ),
    Rule::new(
        "",
        ".status.terminationReason",
        "!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Released', 'Failed']) || (has(oldSelf.status.terminationReason) == has(self.status.terminationReason) && (!has(oldSelf.status.terminationReason) || self.status.terminationReason == oldSelf.status.terminationReason))",
        "status.terminationReason of an ended claim never changes",
    ),
    Rule::new(
        "status",
        ".memberRef",
        "!has(self.phase) || self.phase != 'Bound' || (has(self.memberRef) && has(self.boundAt) && has(self.expiresAt))",
        "a claim is Bound only together with memberRef, boundAt and expiresAt: write them in one patch",
    ),
];
