//! `PoolMember`: one virtual machine's place in a pool, from its first plan to its verified end. The unit of truth.

use crate::conditions::{self, MemberCondition};
use crate::rule::Rule;
use crate::shared::{Address, ObjectRef, Timestamp, condition_list};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pool::{Attestation, AttestationMode, Endorsement};

/// One member of a pool. It has exactly one instance and serves at most one claim in its life.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "banlieue.io",
    version = "v1alpha1",
    kind = "PoolMember",
    plural = "poolmembers",
    shortname = "bmember",
    category = "banlieue",
    namespaced,
    derive = "PartialEq",
    status = "PoolMemberStatus",
    doc = "One member of a pool. It has exactly one instance and serves at most one claim in its life.",
    selectable = ".spec.poolRef.name",
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.poolRef.name"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Claim", type_ = "string", json_path = ".spec.claimRef.name"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeName"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Deleted", type_ = "date", json_path = ".metadata.deletionTimestamp"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Revision", type_ = "string", json_path = ".spec.revision", priority = 1),
    printcolumn(name = "Endorsement", type_ = "string", json_path = ".status.endorsement.source", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct PoolMemberSpec {
    /// The pool it was made for.
    pub pool_ref: ObjectRef,
    /// The pool's revision it was made from.
    #[schemars(length(min = 1, max = 64))]
    pub revision: String,
    /// What it is judged by for its whole life: what its pool demanded when it was made.
    #[serde(default)]
    pub attestation: MemberAttestation,
    /// The one claim it serves. Set together with the label `banlieue.io/state=bound`, never changed, never removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_ref: Option<ObjectRef>,
}

/// What a member is judged by for its whole life. Later changes of its pool concern later members; only `revoked` is asked
/// of the pool as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberAttestation {
    /// By what it proves itself.
    pub mode: AttestationMode,
    /// Who must vouch for its endorsement key.
    pub endorsement: Endorsement,
    /// SHA-256 of the measurements document that it is judged by, lower-case hex. Without one no evidence is accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 64, max = 64), regex(pattern = "^[0-9a-f]{64}$"))]
    pub policy_digest: Option<String>,
    /// Seconds after which its evidence no longer counts.
    #[schemars(range(min = 1, max = 86400))]
    pub max_age_seconds: u32,
}

impl From<&Attestation> for MemberAttestation {
    fn from(pool: &Attestation) -> Self {
        Self {
            mode: pool.mode,
            endorsement: pool.endorsement,
            policy_digest: pool.measurements.as_ref().map(|measurements| measurements.sha256.clone()),
            max_age_seconds: pool.max_age_seconds,
        }
    }
}

impl Default for MemberAttestation {
    fn default() -> Self {
        Self::from(&Attestation::default())
    }
}

/// What everybody who judges a member asks, so that all ask the same.
impl PoolMember {
    /// Whether it was given a seed, so that it may have an identity. The digest is recorded before the instance exists.
    pub fn has_seed(&self) -> bool {
        let enrolment = self.status.as_ref().and_then(|status| status.enrolment.as_ref());
        enrolment.is_some_and(|enrolment| enrolment.seed_digest.is_some())
    }

    /// Whether it must prove itself: it was made to, whatever its pool says now.
    pub fn needs_evidence(&self) -> bool {
        self.spec.attestation.mode == AttestationMode::Vtpm || self.has_seed()
    }

    /// Until when its newest accepted evidence counts; nothing when none was accepted.
    pub fn evidence_until(&self) -> Option<jiff::Timestamp> {
        let verified = self.status.as_ref()?.attestation.as_ref()?.verified_at.as_ref()?.0;
        let age = jiff::SignedDuration::from_secs(i64::from(self.spec.attestation.max_age_seconds));
        Some(verified.checked_add(age).unwrap_or(jiff::Timestamp::MAX))
    }

    /// Whether it counts as attested: the attestor's condition *and* evidence that is not too old, for a dead attestor
    /// takes no condition back.
    pub fn is_attested(&self, now: jiff::Timestamp) -> bool {
        let conditions = self.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions::is_true(conditions, MemberCondition::Attested)
            && self.evidence_until().is_some_and(|until| now < until)
    }
}

/// What is known about a member. Several writers, each with its own fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolMemberStatus {
    /// How far its making went. Not touched once bound: bound is `spec.claimRef`, ending is `metadata.deletionTimestamp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<MemberPhase>,
    /// The one instance it ever has; another uid under that name fails the member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_ref: Option<InstanceRef>,
    /// Node of the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,
    /// Addresses of the instance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<Address>,
    /// The seed that its instance gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enrolment: Option<Enrolment>,
    /// The endorsement key that is pinned to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endorsement: Option<PinnedEndorsement>,
    /// The newest evidence that was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attestation: Option<Evidence>,
    /// When it reached each stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_times: Option<PhaseTimes>,
    /// Provisioned, Attested, Ready, IdentityRevoked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition_list")]
    pub conditions: Vec<Condition>,
}

/// Stages of a member's making.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MemberPhase {
    /// Secret and instance are being made, or wait for a node.
    Provisioning,
    /// The instance runs; no evidence yet.
    Booting,
    /// Evidence is being judged.
    Attesting,
    /// May be lent.
    Ready,
    /// Will never be lent.
    Failed,
    /// Taken out by an operator.
    Quarantined,
}

/// The object that runs a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceRef {
    /// `kubevirt.io/v1` or `v1`.
    #[schemars(length(min = 1, max = 128))]
    pub api_version: String,
    /// `VirtualMachineInstance` or `Pod`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name; the member's own.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// `metadata.uid` of that life of the name.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// The seed of a member's instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Enrolment {
    /// SHA-256 over the seed's sorted, length-prefixed names and values, lower-case hex. Written before the instance exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 64, max = 64), regex(pattern = "^[0-9a-f]{64}$"))]
    pub seed_digest: Option<String>,
    /// When the enrolment secret stops counting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When the enrolment secret was used. It is used once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed_at: Option<Timestamp>,
}

/// The endorsement key of a member's TPM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedEndorsement {
    /// Who vouched for the key.
    pub source: Endorsement,
    /// SHA-256 of the key's SubjectPublicKeyInfo (DER), lower-case hex.
    #[schemars(length(min = 64, max = 64), regex(pattern = "^[0-9a-f]{64}$"))]
    pub ek_digest: String,
    /// When it was pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_at: Option<Timestamp>,
}

/// The newest evidence of a member that was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Evidence {
    /// When it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified_at: Option<Timestamp>,
    /// SHA-256 of the measurements document that it was judged by, lower-case hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 64, max = 64), regex(pattern = "^[0-9a-f]{64}$"))]
    pub policy_digest: Option<String>,
    /// TPM name of the attestation key, lower-case hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 136), regex(pattern = "^[0-9a-f]*$"))]
    pub ak_name: Option<String>,
    /// TPM reset count (TPMS_CLOCK_INFO), the same for the whole life of a member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_count: Option<u32>,
    /// TPM restart count, the same for the whole life of a member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<u32>,
    /// TPM clock in milliseconds; it only grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<u64>,
    /// Whether PCR 15 says that the member was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latched: Option<bool>,
    /// The newest refusal of evidence that was surely the member's own. Gone once evidence is accepted again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<EvidenceRefusal>,
}

/// Why a member's own evidence was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvidenceRefusal {
    /// When it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// One stable word for the check that refused.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Za-z0-9]+$"))]
    pub reason: String,
    /// What differs, for a person: PCR and event, expected and found.
    #[schemars(length(max = 4096))]
    pub message: String,
}

/// When a member reached each stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseTimes {
    /// Member object made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// Instance running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<Timestamp>,
    /// Evidence accepted for the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attested: Option<Timestamp>,
    /// Ready for the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<Timestamp>,
}

/// The rules that the API server checks on every member.
pub const RULES: &[Rule] = &[
    Rule::immutable(
        "spec",
        ".poolRef",
        "poolRef is immutable: a member stays in the pool it was made for; delete it instead",
    ),
    Rule::immutable("spec", ".revision", "revision is immutable: delete the member and let its pool make a new one"),
    Rule::immutable(
        "spec",
        ".attestation",
        "attestation is immutable: a member is judged for its whole life by what its pool demanded when it was made",
    ),
    Rule::write_once(
        "spec",
        ".claimRef",
        "claimRef is set once and never changed or removed: a member serves one claim, delete it to end it",
    ),
    // The rules on status stand on the root: a rule on an optional field sees neither its addition nor its removal.
    Rule::write_once(
        "",
        ".status.instanceRef",
        "status.instanceRef is set once and never changed or removed: a member has one instance, delete the member instead",
    ),
    Rule::write_once(
        "",
        ".status.enrolment.seedDigest",
        "status.enrolment.seedDigest is set once and never changed or removed: a member gets one seed, delete the member instead",
    ),
    Rule::write_once(
        "",
        ".status.enrolment.consumedAt",
        "status.enrolment.consumedAt is set once and never changed or removed: an enrolment is used once",
    ),
    Rule::write_once(
        "",
        ".status.endorsement",
        "status.endorsement is pinned once and never changed or removed: a member has one endorsement key, delete the member instead",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn member(mode: AttestationMode, status: serde_json::Value) -> PoolMember {
        let mut member = PoolMember::new("m", PoolMemberSpec::default());
        member.spec.attestation.mode = mode;
        member.status = Some(serde_json::from_value(status).unwrap());
        member
    }

    #[test]
    fn evidence_counts_by_the_members_own_record() {
        let at = |second: i64| jiff::Timestamp::from_second(second).unwrap();
        let condition = |holds: bool| conditions::condition("Attested", holds, "R", "", None, at(0));
        let mut judged = member(
            AttestationMode::Vtpm,
            serde_json::json!({
                "attestation": { "verifiedAt": "1970-01-01T00:01:40.000000Z" }, "conditions": [condition(true)],
            }),
        );
        judged.spec.attestation.max_age_seconds = 60;
        assert!(judged.is_attested(at(159)) && !judged.is_attested(at(160)), "a dead attestor takes nothing back");
        judged.status.as_mut().unwrap().conditions = vec![condition(false)];
        assert!(!judged.is_attested(at(101)));
        let never = member(AttestationMode::Vtpm, serde_json::json!({ "conditions": [condition(true)] }));
        assert!(!never.is_attested(at(0)), "the word alone is no evidence");
    }

    #[test]
    fn who_was_given_a_seed_must_prove_itself() {
        let seeded = serde_json::json!({ "enrolment": { "seedDigest": "00".repeat(32) } });
        assert!(member(AttestationMode::None, seeded).needs_evidence());
        assert!(member(AttestationMode::Vtpm, serde_json::json!({})).needs_evidence());
        assert!(!member(AttestationMode::None, serde_json::json!({})).needs_evidence());
    }
}
