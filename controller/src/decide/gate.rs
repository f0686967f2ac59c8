//! Who may be lent. Invariant 5 of `binding.md`, in one place for the member's phase, the binder and the pool's count.

use banlieue_crds::conditions::{self, MemberCondition, MemberReason};
use banlieue_crds::member::MemberPhase;
use banlieue_crds::pool::UpdateStrategyType;
use banlieue_crds::{PoolMember, VirtualMachinePool};
use jiff::Timestamp;

use crate::store::MemberSnapshot;

/// What a member's evidence is worth at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attested {
    /// Nobody asks for evidence.
    NotRequired,
    /// Good until this moment.
    Until(Timestamp),
    /// None yet, or none that still counts; it may come. The reason and message are the attestor's.
    NotYet {
        /// One word.
        reason: String,
        /// A sentence.
        message: String,
    },
    /// Refused by an authenticated judgement: it never will be attested.
    Refused {
        /// One word.
        reason: String,
        /// A sentence; names the PCR and the event when it is about a measurement.
        message: String,
    },
}

/// Why a member may not be lent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotLendable {
    /// It has a claimRef, or its deletion was asked for.
    Taken,
    /// It is not in phase Ready.
    NotReady,
    /// Its instance is not running as recorded.
    Instance,
    /// Its evidence does not count.
    Attestation,
    /// Its node is cordoned, not ready or gone.
    Node,
    /// An operator's annotation.
    Quarantined,
    /// Its revision is too old for the pool's strategy.
    Revision,
}

/// Reasons of `Attested=False` that mean "not yet" or "not any more, for now". Every other reason is a refusal.
const NOT_YET: [&str; 9] = [
    "Provisioning",
    "Booting",
    "Attesting",
    "Unschedulable",
    "AttestationStale",
    "NotRequired",
    "AgentMissing",
    "EntriesMissing",
    "AttestorUnreachable",
];

/// What the member's evidence is worth. By the member's own record: of its pool only `revoked` is asked.
pub fn attested(member: &PoolMember, pool: Option<&VirtualMachinePool>, now: Timestamp) -> Attested {
    if !member.needs_evidence() {
        return Attested::NotRequired;
    }
    let not_yet = |reason: MemberReason, message: &str| Attested::NotYet {
        reason: reason.as_str().to_owned(),
        message: message.to_owned(),
    };
    let Some(status) = member.status.as_ref() else {
        return not_yet(MemberReason::Provisioning, "no evidence yet");
    };
    let evidence = status.attestation.clone().unwrap_or_default();
    if let (Some(pool), Some(digest)) = (pool, evidence.policy_digest.as_deref())
        && let Some(revoked) = pool.spec.attestation.revoked.iter().find(|revoked| revoked.digest == digest)
    {
        return Attested::Refused {
            reason: MemberReason::PolicyRevoked.as_str().to_owned(),
            message: format!("the policy {digest} is revoked: {}", revoked.reason),
        };
    }
    // The plugin's own word comes before the attestor controller's condition, and before the guest, which powers off
    // when it is refused: whoever looks at the instance first would only see that.
    let verified = evidence.verified_at.as_ref().map(|time| time.0);
    if let Some(refusal) = &evidence.refusal
        && refusal.at.as_ref().is_none_or(|at| verified.is_none_or(|verified| at.0 > verified))
    {
        return Attested::Refused { reason: refusal.reason.clone(), message: refusal.message.clone() };
    }
    // Age before the attestor controller's word, whatever that says: a dead one takes nothing back, and what it said last
    // may be anything.
    let until = member.evidence_until();
    if let Some(verified_at) = verified.filter(|_| until.is_some_and(|until| until <= now)) {
        let text = format!(
            "the newest evidence is of {verified_at:.0} and counts for {} s",
            member.spec.attestation.max_age_seconds
        );
        return not_yet(MemberReason::AttestationStale, &text);
    }
    let Some(condition) = conditions::find(&status.conditions, MemberCondition::Attested) else {
        return not_yet(MemberReason::Attesting, "the attestor has not judged it yet");
    };
    if condition.status != "True" {
        let (reason, message) = (condition.reason.clone(), condition.message.clone());
        return if condition.status == "False" && !NOT_YET.contains(&reason.as_str()) {
            Attested::Refused { reason, message }
        } else {
            Attested::NotYet { reason, message }
        };
    }
    match until {
        Some(until) => Attested::Until(until),
        None => not_yet(MemberReason::Attesting, "the evidence has no time"),
    }
}

/// Whether the member may be lent now, all but its revision.
pub fn lendable(snapshot: &MemberSnapshot, now: Timestamp) -> Result<(), NotLendable> {
    let member = &snapshot.member;
    if snapshot.is_bound() || snapshot.is_deleting() {
        return Err(NotLendable::Taken);
    }
    if member.status.as_ref().and_then(|status| status.phase) != Some(MemberPhase::Ready) {
        return Err(NotLendable::NotReady);
    }
    if quarantine_reason(member).is_some() {
        return Err(NotLendable::Quarantined);
    }
    match snapshot.own_instance() {
        Some(instance) if instance.is_running() && !instance.deleting => {}
        _ => return Err(NotLendable::Instance),
    }
    if snapshot.recorded_instance().is_none() {
        return Err(NotLendable::Instance);
    }
    if node_trouble(snapshot).is_some() {
        return Err(NotLendable::Node);
    }
    match attested(member, snapshot.pool.as_deref(), now) {
        Attested::NotRequired | Attested::Until(_) => Ok(()),
        Attested::NotYet { .. } | Attested::Refused { .. } => Err(NotLendable::Attestation),
    }
}

/// Why nothing on the member's node may be lent.
pub(super) fn node_trouble(snapshot: &MemberSnapshot) -> Option<String> {
    let name = snapshot.node_name()?;
    match snapshot.node.as_deref() {
        None => Some(format!("node {name} is gone")),
        Some(node) => node.unusable.as_ref().map(|why| format!("node {name} {why}")),
    }
}

/// The operator's reason for quarantine.
pub(super) fn quarantine_reason(member: &PoolMember) -> Option<&str> {
    let annotations = member.metadata.annotations.as_ref()?;
    annotations.get(banlieue_crds::names::annotations::QUARANTINE).map(String::as_str)
}

/// Picks the next member to lend from candidates that come oldest Ready first.
///
/// Of the current revision first; with RollingUpdate and OnReplenish else of the newest older one, by when its
/// newest member was made. With Recreate never of an older one.
pub fn pick<'a>(
    pool: &VirtualMachinePool,
    revision: &str,
    candidates: impl Iterator<Item = &'a MemberSnapshot>,
    now: Timestamp,
) -> Option<&'a MemberSnapshot> {
    let mut older: Vec<&MemberSnapshot> = Vec::new();
    for candidate in candidates {
        if lendable(candidate, now).is_err() {
            continue;
        }
        if candidate.member.spec.revision == revision {
            return Some(candidate);
        }
        older.push(candidate);
    }
    if pool.spec.update_strategy.type_ == UpdateStrategyType::Recreate {
        return None;
    }
    let created = |snapshot: &MemberSnapshot| snapshot.member.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let newest = older.iter().max_by_key(|snapshot| created(snapshot))?.member.spec.revision.clone();
    older.into_iter().find(|snapshot| snapshot.member.spec.revision == newest)
}
