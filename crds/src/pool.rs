//! `VirtualMachinePool`: what a pool's members look like, how many are kept warm, and who may claim them.

use crate::rule::Rule;
use crate::shared::NameRef;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod claim_policy;
mod instance_schema;
mod status;
mod template;
pub use claim_policy::ClaimPolicy;
pub use status::{FailureRecord, VirtualMachinePoolStatus};
pub use template::{KataTemplate, KubeVirtTemplate, PoolTemplate, RuntimeKind, TemplateMetadata};

/// A warm pool of attested virtual machines: members are made ahead of time, lent to one claim each, then destroyed.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "banlieue.io",
    version = "v1alpha1",
    kind = "VirtualMachinePool",
    plural = "virtualmachinepools",
    shortname = "bpool",
    category = "banlieue",
    namespaced,
    derive = "PartialEq",
    status = "VirtualMachinePoolStatus",
    doc = "A warm pool of attested virtual machines: members are made ahead of time, lent to one claim each, then destroyed.",
    scale(
        spec_replicas_path = ".spec.warmReplicas",
        status_replicas_path = ".status.warm",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.warmReplicas"),
    printcolumn(name = "Max", type_ = "integer", json_path = ".spec.maxReplicas"),
    printcolumn(name = "Warm", type_ = "integer", json_path = ".status.warm"),
    printcolumn(name = "Bound", type_ = "integer", json_path = ".status.bound"),
    printcolumn(name = "Pending", type_ = "integer", json_path = ".status.pendingClaims"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Provisioning", type_ = "integer", json_path = ".status.provisioning", priority = 1),
    printcolumn(name = "Attesting", type_ = "integer", json_path = ".status.attesting", priority = 1),
    printcolumn(name = "Terminating", type_ = "integer", json_path = ".status.terminating", priority = 1),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failed", priority = 1),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.currentRevision", priority = 1),
    printcolumn(name = "Hit%", type_ = "integer", json_path = ".status.hitPercent", priority = 1),
    printcolumn(name = "Runtime", type_ = "string", json_path = ".status.runtime", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolSpec {
    /// Ready, unbound members to keep; what the scale subresource writes.
    #[serde(default = "defaults::warm_replicas")]
    #[schemars(range(max = 10000))]
    pub warm_replicas: u32,
    /// Hard cap on all living members, bound and terminating ones included. Has no default: a cap nobody chose is none.
    #[schemars(range(max = 10000))]
    pub max_replicas: u32,
    /// Members that may be provisioning at once.
    #[serde(default = "defaults::max_surge")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_surge: u32,
    /// Stops filling, rollout and scale-down. Binding and ending go on.
    #[serde(default)]
    pub paused: bool,
    /// What a member is made of. A change makes a new revision, for unbound members only.
    pub template: PoolTemplate,
    /// How a member proves itself before anybody may have it. A change makes a new revision, `revoked` excepted, and
    /// concerns members that are made from then on: each carries what it is judged by.
    #[serde(default)]
    pub attestation: Attestation,
    /// Seconds from scheduled to running, and again from running to Ready; a member that takes longer is deleted and
    /// counts against the failure budget. Pulling an image that is not there does not count, nor does waiting for an
    /// attestor that does not answer.
    #[serde(default = "defaults::provisioning_timeout")]
    #[schemars(range(min = 1, max = 86400))]
    pub provisioning_timeout_seconds: u32,
    /// Seconds after which a warm member is replaced by a fresh one.
    #[serde(default = "defaults::max_idle")]
    #[schemars(range(min = 1, max = 31536000))]
    pub max_idle_seconds: u32,
    /// How unbound members of an older revision are replaced.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,
    /// When to stop trying.
    #[serde(default)]
    pub failure_budget: FailureBudget,
    /// Whether the controller keeps one static NetworkPolicy for the pool's members.
    #[serde(default)]
    pub network_policy: NetworkPolicyMode,
    /// When set, the autoscaler owns `warmReplicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// What claims on this pool may ask for. The controller enforces it again at bind.
    #[serde(default)]
    pub claim_policy: ClaimPolicy,
}

/// How a member proves itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attestation {
    /// By what. `None` needs the pool annotation `banlieue.io/allow-unattested: "true"`: CEL in a CRD cannot see
    /// annotations, so a ValidatingAdmissionPolicy of the chart checks it, and the controller again (`TemplateInvalid`).
    #[serde(default)]
    pub mode: AttestationMode,
    /// Who says which endorsement key belongs to a member.
    #[serde(default)]
    pub endorsement: Endorsement,
    /// The PCR and event policy, by content. Required in mode VTPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurements: Option<MeasurementsRef>,
    /// Seconds that one attestation may take.
    #[serde(default = "defaults::attestation_timeout")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Seconds after which evidence no longer counts: older means not attested. A member keeps what it was made with.
    #[serde(default = "defaults::attestation_max_age")]
    #[schemars(range(min = 1, max = 86400))]
    pub max_age_seconds: u32,
    /// Policies or images that end even bound members. Set on purpose, by an operator.
    #[serde(default)]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["digest"]))]
    pub revoked: Vec<Revocation>,
}

/// What evidence a member gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AttestationMode {
    /// A quote of the member's virtual TPM.
    #[default]
    #[serde(rename = "VTPM")]
    Vtpm,
    /// The pod's own identity (Kata).
    Pod,
    /// No evidence. For tests and for pools that need no identity.
    None,
}

/// Where the endorsement key of a member comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Endorsement {
    /// An EndorsementReport of the instance's own node names the key.
    #[default]
    HostReported,
    /// The first key that also proves the enrolment secret is pinned. Weaker.
    FirstUse,
}

/// A measurements document, by place and by content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeasurementsRef {
    /// ConfigMap of the pool's namespace that holds the document under the key `measurements.yaml`.
    pub config_map_ref: NameRef,
    /// SHA-256 of that value's bytes, lower-case hex. Other content is `MeasurementsNotFound`.
    #[schemars(length(max = 128))]
    pub sha256: String,
}

/// One policy or image that is no longer good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revocation {
    /// SHA-256 of a measurements document or digest of an image, lower-case hex without a prefix.
    #[schemars(length(max = 128))]
    pub digest: String,
    /// Why, for the people whose members end.
    #[schemars(length(min = 1, max = 512))]
    pub reason: String,
}

/// How unbound members of an older revision are replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// The way.
    #[serde(rename = "type", default)]
    pub type_: UpdateStrategyType,
    /// Warm members that may be missing during a rolling update.
    #[serde(default = "defaults::max_unavailable")]
    #[schemars(range(max = 10000))]
    pub max_unavailable: u32,
}

/// Ways to replace members of an older revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategyType {
    /// A few at a time, never below `warmReplicas - maxUnavailable`.
    #[default]
    RollingUpdate,
    /// Old members stay until a claim takes them; only their replacements are new.
    OnReplenish,
    /// All unbound members at once.
    Recreate,
}

/// When to stop trying.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureBudget {
    /// Failures in a row that halt provisioning with `ProvisioningHalted`.
    #[serde(default = "defaults::consecutive")]
    #[schemars(range(min = 1, max = 1000))]
    pub consecutive: u32,
    /// Longest pause in seconds between attempts after a failure.
    #[serde(default = "defaults::backoff_max")]
    #[schemars(range(min = 1, max = 86400))]
    pub backoff_max_seconds: u32,
    /// Failed members that are kept for inspection. They count as living.
    #[serde(default = "defaults::keep_failed")]
    #[schemars(range(max = 100))]
    pub keep_failed: u32,
}

/// Who keeps the network policy of a pool's members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NetworkPolicyMode {
    /// The controller keeps one static NetworkPolicy.
    #[default]
    Managed,
    /// Somebody else does.
    Unmanaged,
}

/// Bounds and target of the autoscaler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Autoscaling {
    /// Fewest warm members.
    #[schemars(range(max = 10000))]
    pub min_warm: u32,
    /// Most warm members.
    #[schemars(range(max = 10000))]
    pub max_warm: u32,
    /// Share of claims, in percent, that should find a warm member at once.
    #[serde(default = "defaults::target_hit")]
    #[schemars(range(min = 1, max = 100))]
    pub target_hit_percent: u32,
    /// Seconds that demand must stay low before the target shrinks.
    #[serde(default = "defaults::scale_down")]
    #[schemars(range(max = 86400))]
    pub scale_down_stabilization_seconds: u32,
}

impl Default for Attestation {
    fn default() -> Self {
        Self {
            mode: AttestationMode::default(),
            endorsement: Endorsement::default(),
            measurements: None,
            timeout_seconds: defaults::attestation_timeout(),
            max_age_seconds: defaults::attestation_max_age(),
            revoked: Vec::new(),
        }
    }
}

impl Default for UpdateStrategy {
    fn default() -> Self {
        Self { type_: UpdateStrategyType::default(), max_unavailable: defaults::max_unavailable() }
    }
}

impl Default for FailureBudget {
    fn default() -> Self {
        Self {
            consecutive: defaults::consecutive(),
            backoff_max_seconds: defaults::backoff_max(),
            keep_failed: defaults::keep_failed(),
        }
    }
}

/// Defaults that are not zero, by field. The schema takes them from here too.
mod defaults {
    pub(super) fn warm_replicas() -> u32 {
        1
    }
    pub(super) fn max_surge() -> u32 {
        2
    }
    pub(super) fn provisioning_timeout() -> u32 {
        600
    }
    pub(super) fn max_idle() -> u32 {
        86_400
    }
    pub(super) fn attestation_timeout() -> u32 {
        120
    }
    pub(super) fn attestation_max_age() -> u32 {
        3600
    }
    pub(super) fn max_unavailable() -> u32 {
        1
    }
    pub(super) fn consecutive() -> u32 {
        5
    }
    pub(super) fn backoff_max() -> u32 {
        600
    }
    pub(super) fn keep_failed() -> u32 {
        1
    }
    pub(super) fn target_hit() -> u32 {
        99
    }
    pub(super) fn scale_down() -> u32 {
        600
    }
}

/// The rules that the API server checks on every pool.
pub const RULES: &[Rule] = &[
    // A member is named <pool>-<5 characters>, and its name is a label's value: 63 at most.
    Rule::new(
        "",
        "",
        "self.metadata.name.size() <= 57",
        "the name of a pool has at most 57 characters, for its members are named after it: choose a shorter metadata.name",
    ),
    Rule::new(
        "spec",
        ".maxReplicas",
        "self.maxReplicas >= self.warmReplicas",
        "maxReplicas must be at least warmReplicas: raise maxReplicas or lower warmReplicas",
    ),
    Rule::new(
        "spec",
        ".template.kata",
        "self.attestation.mode != 'Pod' || has(self.template.kata)",
        "attestation.mode Pod is for kata templates: use mode VTPM with a kubeVirt template",
    ),
    Rule::new(
        "spec",
        ".autoscaling",
        "!has(self.autoscaling) || self.autoscaling.maxWarm <= self.maxReplicas",
        "autoscaling.maxWarm must not exceed maxReplicas: lower maxWarm or raise maxReplicas",
    ),
    Rule::new(
        "spec.template",
        "",
        "has(self.kubeVirt) != has(self.kata)",
        "template needs exactly one runtime: set either kubeVirt or kata, not both and not none",
    ),
    // On the spec, not on attestation: the API server checks defaults against the rules below them, and the default is
    // mode VTPM without measurements, so that leaving both out asks for measurements.
    Rule::immutable(
        "spec",
        ".attestation.mode",
        "attestation.mode is immutable: members that have an identity would end without losing it; make another pool",
    ),
    Rule::new(
        "spec",
        ".attestation.endorsement",
        "self.attestation.endorsement == 'HostReported' || oldSelf.attestation.endorsement == 'FirstUse'",
        "attestation.endorsement never gets weaker: whoever claims from this pool counts on HostReported; make another pool",
    ),
    Rule::new(
        "spec",
        ".attestation.measurements",
        "self.attestation.mode != 'VTPM' || has(self.attestation.measurements)",
        "attestation.mode VTPM needs measurements: name the ConfigMap and its sha256 in attestation.measurements",
    ),
    // What a digest looks like is a rule, for a pattern's refusal says nothing but the pattern.
    Rule::new(
        "spec.attestation.measurements",
        ".sha256",
        "self.sha256.matches('^[0-9a-f]{64}$')",
        "sha256 is 64 lower-case hex digits without a prefix: what `sha256sum measurements.yaml` prints",
    ),
    Rule::new(
        "spec.attestation",
        ".revoked",
        "self.revoked.all(r, r.digest.matches('^[0-9a-f]{64}$'))",
        "a revoked digest is 64 lower-case hex digits without a prefix: leave sha256: out",
    ),
    Rule::new(
        "spec.claimPolicy",
        ".allowedImages",
        "self.allowedImages.all(i, i.matches('^([^*[:space:]]+[*]?|[*])$'))",
        "an entry of allowedImages is a whole image, or its beginning and then one *, as registry.internal/team/*; * alone \
         allows all",
    ),
    Rule::new(
        "spec.autoscaling",
        ".maxWarm",
        "self.maxWarm >= self.minWarm",
        "autoscaling.maxWarm must be at least minWarm: raise maxWarm or lower minWarm",
    ),
];
