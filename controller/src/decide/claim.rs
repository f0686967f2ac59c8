//! A claim's life, one step at a time.

use banlieue_crds::VirtualMachineClaim;
use banlieue_crds::claim::{ClaimPhase, WhenEmpty, WorkloadState};
use banlieue_crds::conditions::{self, ClaimCondition, ClaimReason, MemberReason};
use banlieue_crds::names::{annotations, finalizers};
use jiff::Timestamp;
use kube::ResourceExt;

use super::gate::{Attested, attested, quarantine_reason};
use super::policy::{admit, bind_deadline, retention};
use super::{Tuning, after, plus, sooner};
use crate::store::{ClaimSnapshot, MemberSnapshot, ObjectKey};

/// The next step for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimIntent {
    /// End it before it had a member.
    Fail {
        /// The stable word.
        reason: ClaimReason,
        /// A sentence.
        message: String,
    },
    /// Say why it waits.
    Wait {
        /// The stable word.
        reason: ClaimReason,
        /// A sentence.
        message: String,
        /// Place in the queue.
        position: Option<u32>,
    },
    /// A member is committed to it: only the acknowledgement is left.
    Acknowledge,
    /// Add our finalizer.
    AddFinalizer,
    /// The deadline moved, for `ttlSeconds` grew.
    Extend {
        /// The new deadline.
        expires_at: Timestamp,
    },
    /// Begin the end: the durable intent.
    Release {
        /// The stable word.
        reason: ClaimReason,
        /// A sentence.
        message: String,
        /// Ask the API server whether the member or its instance is really gone before it is written.
        verify: bool,
    },
    /// Delete its member.
    DeleteMember {
        /// Which.
        member: ObjectKey,
        /// Which life of it.
        uid: String,
    },
    /// Its member is gone: write the terminal phase.
    Finish {
        /// Why it ended.
        reason: ClaimReason,
        /// The operator's wish not to wait for the member any more.
        forced: bool,
    },
    /// Let it go.
    RemoveFinalizer,
    /// Its retention is over.
    Delete,
}

/// The next step, if any, and when to look again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimPlan {
    /// The step.
    pub intent: Option<ClaimIntent>,
    /// When to look again if nothing happens.
    pub wake: Option<Timestamp>,
}

impl ClaimPlan {
    fn step(intent: ClaimIntent) -> Self {
        Self { intent: Some(intent), wake: None }
    }

    fn wait(wake: Option<Timestamp>) -> Self {
        Self { intent: None, wake }
    }
}

/// Whether a claim is Pending and not being deleted.
pub fn is_waiting(claim: &VirtualMachineClaim) -> bool {
    let status = claim.status.as_ref();
    status.and_then(|status| status.phase).unwrap_or_default() == ClaimPhase::Pending
        && status.is_none_or(|status| status.member_ref.is_none())
        && claim.metadata.deletion_timestamp.is_none()
}

/// Whether a claim counts against its subject's number.
pub fn counts_for_subject(claim: &VirtualMachineClaim) -> bool {
    !claim.status.as_ref().and_then(|status| status.phase).unwrap_or_default().is_terminal()
}

/// Order of one subject's claims: those that have a member first, then by age.
pub fn subject_place(claim: &VirtualMachineClaim) -> (bool, Timestamp, String) {
    let has_member = claim.status.as_ref().is_some_and(|status| status.member_ref.is_some());
    let created = claim.metadata.creation_timestamp.as_ref().map_or(Timestamp::MAX, |time| time.0);
    (!has_member, created, claim.uid().unwrap_or_default())
}

/// Decides the next step of a claim.
pub fn claim(snapshot: &ClaimSnapshot, now: Timestamp, tuning: &Tuning) -> ClaimPlan {
    if snapshot.serving {
        // The binder writes it; it comes back here with the result.
        return ClaimPlan::default();
    }
    match phase(&snapshot.claim) {
        ClaimPhase::Pending => pending(snapshot, now, tuning),
        ClaimPhase::Bound => bound(snapshot, now, tuning),
        ClaimPhase::Releasing => releasing(snapshot),
        ClaimPhase::Released | ClaimPhase::Failed => ended(snapshot, now),
    }
}

fn pending(snapshot: &ClaimSnapshot, now: Timestamp, tuning: &Tuning) -> ClaimPlan {
    let claim = &snapshot.claim;
    if claim.metadata.deletion_timestamp.is_some() {
        // Never acknowledged. Whoever was committed to it is spent, deletes itself, and goes before the claim does.
        if !snapshot.committed.is_empty() && !is_forced(claim) {
            return ClaimPlan::default();
        }
        return if has_finalizer(claim) {
            fail(ClaimReason::Released, "deleted before it was bound".into())
        } else {
            ClaimPlan::default()
        };
    }
    if !snapshot.committed.is_empty() {
        // Never another member while one is committed; one that goes is waited for.
        let living = snapshot.committed.iter().any(|member| !member.is_deleting());
        return if living { ClaimPlan::step(ClaimIntent::Acknowledge) } else { ClaimPlan::default() };
    }
    let deadline = bind_deadline(claim, snapshot.pool.as_deref());
    let overdue = deadline.is_some_and(|deadline| deadline <= now);
    let Some(pool) = snapshot.pool.as_deref() else {
        let namespace = &snapshot.key.namespace;
        let missing = format!("there is no VirtualMachinePool {} in namespace {namespace}", claim.spec.pool_ref.name);
        if overdue {
            let seconds = claim.spec.bind_deadline_seconds;
            return fail(ClaimReason::BindDeadlineExceeded, format!("not bound within {seconds} s: {missing}"));
        }
        let until = deadline.map(|deadline| format!(" until {deadline:.0}")).unwrap_or_default();
        let message = format!(
            "{missing}: create it, and the claim is served as soon as it is warm, or delete the claim and name another \
             (`kubectl -n {namespace} get bpool`); it waits{until}"
        );
        return report(snapshot, ClaimReason::PoolNotFound, message, None, deadline);
    };
    if pool.metadata.deletion_timestamp.is_some() {
        return fail(ClaimReason::PoolDeleted, "the pool is being deleted".into());
    }
    if let Err(denial) = admit(claim, pool, snapshot.subject_before) {
        return fail(denial.reason, denial.message);
    }
    if overdue {
        return fail(
            ClaimReason::BindDeadlineExceeded,
            format!(
                "no member of pool {} became free within {} s",
                claim.spec.pool_ref.name, claim.spec.bind_deadline_seconds
            ),
        );
    }
    let Some((position, behind)) = snapshot.unserved else { return ClaimPlan::wait(deadline) };
    if claim.spec.when_empty == WhenEmpty::Fail {
        return fail(ClaimReason::NoMemberAvailable, "no member is warm and whenEmpty is Fail".into());
    }
    // A claim that is served within a moment costs two writes, so its place is written only after a while.
    let created = claim.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let due = plus(created, tuning.queue_report);
    if now < due {
        return ClaimPlan::wait(sooner(Some(due), deadline));
    }
    let (reason, message) = if behind {
        (ClaimReason::QueuedBehindSubject, format!("place {position}: other claims of the subject are before it"))
    } else {
        (ClaimReason::NoMemberAvailable, format!("place {position}: no member is warm"))
    };
    report(snapshot, reason, message, Some(position), deadline)
}

/// Says why it waits, unless that was said. A place alone is written again when it has halved.
fn report(
    snapshot: &ClaimSnapshot,
    reason: ClaimReason,
    message: String,
    position: Option<u32>,
    deadline: Option<Timestamp>,
) -> ClaimPlan {
    let status = snapshot.claim.status.clone().unwrap_or_default();
    let said = conditions::find(&status.conditions, ClaimCondition::Bound)
        .is_some_and(|condition| condition.reason == reason.as_str());
    let place_moved = match (status.queue_position, position) {
        (Some(old), Some(new)) => new <= old / 2 || new > old.saturating_mul(2),
        (None, None) => false,
        _ => true,
    };
    if said && !place_moved {
        return ClaimPlan::wait(deadline);
    }
    ClaimPlan { intent: Some(ClaimIntent::Wait { reason, message, position }), wake: deadline }
}

fn bound(snapshot: &ClaimSnapshot, now: Timestamp, tuning: &Tuning) -> ClaimPlan {
    let claim = &snapshot.claim;
    let status = claim.status.clone().unwrap_or_default();
    let release = |reason, message: String| ClaimPlan::step(ClaimIntent::Release { reason, message, verify: false });
    let verified = |message: String| {
        ClaimPlan::step(ClaimIntent::Release { reason: ClaimReason::MemberLost, message, verify: true })
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return release(ClaimReason::Released, "the claim was deleted".into());
    }
    let expires_at = status.expires_at.as_ref().map(|time| time.0);
    if expires_at.is_none_or(|deadline| deadline <= now) {
        return release(ClaimReason::Expired, "the deadline passed".into());
    }
    let expired_by_itself = expires_at.is_some_and(|deadline| plus(now, tuning.expiry_slack) >= deadline);
    if let Some(state) = status.workload.as_ref().and_then(|workload| workload.state)
        && matches!(state, WorkloadState::Finished | WorkloadState::Failed)
    {
        return release(ClaimReason::WorkloadFinished, "the workload finished".into());
    }
    let pool = snapshot.pool.as_deref();
    let pool_goes = pool.is_some_and(|pool| pool.metadata.deletion_timestamp.is_some());
    if pool_goes && pool.is_some_and(super::pool::drains_now) {
        return release(ClaimReason::PoolDeleted, "the pool is deleted and drains now".into());
    }
    let Some(member) = &snapshot.acknowledged else {
        return verified("the member is gone".into());
    };
    if let Some(why) = quarantine_reason(&member.member) {
        return release(ClaimReason::AttestationLost, format!("the member is quarantined: {why}"));
    }
    if member.is_deleting() {
        return if pool_goes {
            release(ClaimReason::PoolDeleted, "the member is deleted with its pool".into())
        } else {
            release(ClaimReason::MemberLost, "the member was deleted".into())
        };
    }
    let evidence = attested(&member.member, member.pool.as_deref(), now);
    if let Attested::Refused { reason, message } = &evidence {
        return release(ClaimReason::AttestationLost, format!("{reason}: {message}"));
    }
    match member.own_instance() {
        None => return verified("the member's instance is gone".into()),
        Some(instance) if instance.is_over() && expired_by_itself => {
            return release(ClaimReason::Expired, "the guest powered off at its deadline".into());
        }
        Some(instance) if instance.is_over() => {
            let how = if instance.phase == Some(banlieue_crds::kubevirt::InstancePhase::Succeeded) {
                "powered off"
            } else {
                "failed"
            };
            return release(ClaimReason::MemberLost, format!("the member's instance {how}"));
        }
        Some(instance) if instance.deleting => {
            return release(ClaimReason::MemberLost, "the member's instance was deleted".into());
        }
        Some(_) => {}
    }
    let mut wake = expires_at;
    match evidence {
        Attested::NotRequired | Attested::Refused { .. } => {}
        Attested::Until(until) => wake = sooner(wake, Some(until)),
        // Old evidence ends a claim; an attestor that cannot see for a moment does not, until the evidence is old.
        Attested::NotYet { reason, message } if reason == MemberReason::AttestationStale.as_str() => {
            return release(ClaimReason::AttestationLost, message);
        }
        Attested::NotYet { .. } => match member.member.evidence_until() {
            Some(until) => wake = sooner(wake, Some(until)),
            // It was lent, so there was evidence: it cannot be judged any more.
            None => return release(ClaimReason::AttestationLost, "the member's evidence has no time".into()),
        },
    }
    if !has_finalizer(claim) {
        return ClaimPlan::step(ClaimIntent::AddFinalizer);
    }
    if let (Some(bound_at), Some(old)) = (status.bound_at.as_ref().map(|time| time.0), expires_at) {
        let most = pool.map_or(u32::MAX, |pool| pool.spec.claim_policy.max_ttl_seconds);
        let wanted = after(bound_at, claim.spec.ttl_seconds.min(most));
        // Growth only: a pool that lowers its maximum ends nobody's claim.
        if wanted > old {
            return ClaimPlan::step(ClaimIntent::Extend { expires_at: wanted });
        }
    }
    ClaimPlan::wait(wake)
}

fn releasing(snapshot: &ClaimSnapshot) -> ClaimPlan {
    let claim = &snapshot.claim;
    let reason = claim.status.as_ref().and_then(|status| status.termination_reason).unwrap_or(ClaimReason::Released);
    // Its own member is deleted here, and only here; a surplus one sees that it is surplus and deletes itself.
    let uid = claim.metadata.uid.as_deref();
    let names_us =
        |member: &MemberSnapshot| member.member.spec.claim_ref.as_ref().map(|claim_ref| claim_ref.uid.as_str()) == uid;
    if let Some(member) = &snapshot.acknowledged
        && !member.is_deleting()
        && names_us(member)
    {
        return ClaimPlan::step(ClaimIntent::DeleteMember { member: member.key.clone(), uid: member.uid() });
    }
    if snapshot.committed.is_empty() && snapshot.acknowledged.is_none() {
        return ClaimPlan::step(ClaimIntent::Finish { reason, forced: false });
    }
    if is_forced(claim) {
        return ClaimPlan::step(ClaimIntent::Finish { reason, forced: true });
    }
    ClaimPlan::default()
}

fn ended(snapshot: &ClaimSnapshot, now: Timestamp) -> ClaimPlan {
    let claim = &snapshot.claim;
    let clear = snapshot.committed.is_empty() && snapshot.acknowledged.is_none();
    if has_finalizer(claim) {
        return if clear || is_forced(claim) {
            ClaimPlan::step(ClaimIntent::RemoveFinalizer)
        } else {
            ClaimPlan::default()
        };
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return ClaimPlan::default();
    }
    let conditions = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ended = conditions::find(conditions, ClaimCondition::Destroyed)
        .map(|condition| condition.last_transition_time.0)
        .or_else(|| claim.metadata.creation_timestamp.as_ref().map(|time| time.0))
        .unwrap_or(now);
    let over = after(ended, retention(claim, snapshot.pool.as_deref()));
    if over <= now { ClaimPlan::step(ClaimIntent::Delete) } else { ClaimPlan::wait(Some(over)) }
}

fn fail(reason: ClaimReason, message: String) -> ClaimPlan {
    ClaimPlan::step(ClaimIntent::Fail { reason, message })
}

fn phase(claim: &VirtualMachineClaim) -> ClaimPhase {
    claim.status.as_ref().and_then(|status| status.phase).unwrap_or_default()
}

fn has_finalizer(claim: &VirtualMachineClaim) -> bool {
    claim.finalizers().iter().any(|finalizer| finalizer == finalizers::CLAIM_PROTECTION)
}

fn is_forced(claim: &VirtualMachineClaim) -> bool {
    claim.annotations().contains_key(annotations::FORCE_RELEASE)
}
