//! The failure budget: when to stop trying.
//!
//! The count lives in the pool's status, with the uids of the counted members that are still there. So a restart
//! forgets nothing, and a member that failed is counted exactly once, before it may be deleted.

use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::conditions::{self, ClaimReason, MemberCondition};
use banlieue_crds::member::MemberPhase;
use banlieue_crds::pool::FailureRecord;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::attestor;
use super::population::ready_at;
use super::{Tuning, plus};
use crate::schedule::Backoff;
use crate::store::{MemberSnapshot, PoolSnapshot};

/// What the budget says now.
#[derive(Debug, Clone)]
pub struct Budget {
    /// The record as it should stand in the status.
    pub record: FailureRecord,
    /// No new member before this.
    pub pause_until: Option<Timestamp>,
    /// When a member will have lived long enough to end the row.
    pub wake: Option<Timestamp>,
    /// As many failures in a row as the pool allows: from now on one member at a time.
    pub spent: bool,
    /// The record that stands in the status now: what counts for deletion.
    written: Vec<String>,
}

impl Budget {
    /// Whether a failed member may be deleted: its failure is written down, or it was taken out by an operator.
    pub fn is_counted(&self, member: &MemberSnapshot) -> bool {
        phase(member) == Some(MemberPhase::Quarantined) || self.written.contains(&member.uid())
    }
}

/// Counts failures.
pub fn budget(snapshot: &PoolSnapshot, current: &str, now: Timestamp, tuning: &Tuning) -> Budget {
    let standing = snapshot.pool.status.as_ref().and_then(|status| status.failures.clone()).unwrap_or_default();
    let written = standing.counted.clone();
    let mut record = standing;
    if record.revision != current {
        record.revision = current.to_owned();
        record.consecutive = 0;
        record.last_failed_at = None;
        record.last_message = String::new();
    }
    let failed: Vec<&MemberSnapshot> = snapshot
        .members
        .iter()
        .filter(|member| phase(member) == Some(MemberPhase::Failed) || died_unheard(member))
        .collect();
    let last = record.last_failed_at.as_ref().map(|time| time.0);
    let proofs = || snapshot.members.iter().filter_map(|member| proved_at(member, tuning));
    let succeeded = proofs().filter(|at| *at <= now).max();
    if let (Some(last), Some(succeeded)) = (last, succeeded)
        && succeeded > last
    {
        record.consecutive = 0;
        record.last_failed_at = None;
        record.last_message = String::new();
    }
    for member in &failed {
        if record.counted.contains(&member.uid()) {
            continue;
        }
        // A failure of an older revision says nothing about this one, and one while nobody can be attested says nothing
        // about the pool.
        if member.member.spec.revision == current && attestor::silent(&snapshot.pool).is_none() {
            record.consecutive = record.consecutive.saturating_add(1);
            record.last_failed_at = Some(MicroTime(now));
            record.last_message = failure_of(member);
        }
    }
    record.counted = failed.iter().map(|member| member.uid()).collect();
    record.counted.sort();
    let backoff = Backoff {
        first: tuning.failure_pause,
        most: jiff::SignedDuration::from_secs(i64::from(snapshot.pool.spec.failure_budget.backoff_max_seconds)),
    };
    let last = record.last_failed_at.as_ref().map(|time| time.0);
    let pause_until = last.filter(|_| record.consecutive > 0).map(|last| plus(last, backoff.after(record.consecutive)));
    let spent = record.consecutive >= snapshot.pool.spec.failure_budget.consecutive;
    let wake = proofs().filter(|at| *at > now && record.consecutive > 0).min();
    Budget { record, pause_until, wake, spent, written }
}

/// When a member has shown that its kind works. To become Ready is not enough: a guest that never finds its node identity
/// is Ready too, until it powers off, at most an agent TTL later. So it counts once it has lived longer than that, or once
/// the guest of a claim was heard, or its claim ended as claims should.
fn proved_at(member: &MemberSnapshot, tuning: &Tuning) -> Option<Timestamp> {
    if phase(member) == Some(MemberPhase::Failed) {
        return None;
    }
    let lives = !member.any_instance().is_some_and(|instance| instance.is_over());
    let outlived = ready_at(member).filter(|_| lives).map(|ready| plus(ready, tuning.proof_of_life));
    let status = member.claim.as_deref().and_then(|claim| claim.status.clone()).unwrap_or_default();
    let heard = status.workload.and_then(|workload| workload.latched_at).map(|at| at.0);
    let wanted = status.termination_reason.is_some_and(|reason| ClaimPhase::ended_by(reason) == ClaimPhase::Released);
    let ended = status.bound_at.map(|at| at.0).filter(|_| wanted && member.is_bound());
    [outlived, heard, ended].into_iter().flatten().min()
}

/// A bound member whose instance ended by itself before its guest said anything to mediatore: no tenant code ran in it,
/// so it is no tenant's doing.
fn died_unheard(member: &MemberSnapshot) -> bool {
    let status = member.claim.as_deref().and_then(|claim| claim.status.clone()).unwrap_or_default();
    let unheard = status.workload.is_none_or(|workload| workload.latched_at.is_none());
    member.is_bound()
        && member.member.needs_evidence()
        && unheard
        && status.termination_reason == Some(ClaimReason::MemberLost)
        && member.any_instance().is_some_and(|instance| instance.is_over())
}

fn phase(member: &MemberSnapshot) -> Option<MemberPhase> {
    member.member.status.as_ref().and_then(|status| status.phase)
}

/// A failed member's own words, with its name.
fn failure_of(member: &MemberSnapshot) -> String {
    let conditions = member.member.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let text = conditions::find(conditions, MemberCondition::Ready)
        .filter(|condition| condition.status != "True")
        .map(|condition| format!("{}: {}", condition.reason, condition.message))
        .unwrap_or_else(|| "its instance ended by itself before its guest was heard".to_owned());
    let mut message = format!("{}: {text}", member.key.name);
    if message.len() > 2048 {
        message.truncate(message.floor_char_boundary(2048));
    }
    message
}
