//! Endorsement reports of instances that ended: first a tombstone, then gone. Pure.

use std::sync::Arc;

use banlieue_crds::{EndorsementReport, PoolMember};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

/// What a report needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its instance lives, or may.
    Keep,
    /// Its member ended: it becomes the tombstone of its key.
    End,
    /// No SVID that its key could have got is valid any more.
    Delete,
}

/// Decides about one report, given its member: whatever living member has the name of its instance.
///
/// `missing_long`: the member has not been seen for longer than a watch can lag.
#[must_use]
pub fn fate(
    report: &EndorsementReport,
    member: Option<&Arc<PoolMember>>,
    missing_long: bool,
    keep_for: SignedDuration,
    now: Timestamp,
) -> Fate {
    if let Some(ended) = report.status.as_ref().and_then(|status| status.ended_at.as_ref()) {
        let over = ended.0.checked_add(keep_for).is_ok_and(|until| now >= until);
        return if over { Fate::Delete } else { Fate::Keep };
    }
    match member {
        Some(member) => {
            let instance = member.status.as_ref().and_then(|status| status.instance_ref.as_ref());
            let own = instance.is_none_or(|instance| instance.uid == report.spec.instance_uid);
            // `endedAt` never comes back, so an instance that is not recorded yet counts as living.
            if own && member.metadata.deletion_timestamp.is_none() { Fate::Keep } else { Fate::End }
        }
        None if missing_long => Fate::End,
        None => Fate::Keep,
    }
}

/// The member that a report may be about: an instance has its member's name.
#[must_use]
pub fn member_of<'m>(report: &EndorsementReport, members: &'m [Arc<PoolMember>]) -> Option<&'m Arc<PoolMember>> {
    let namespace = report.namespace();
    members.iter().find(|member| {
        member.metadata.namespace == namespace
            && member.metadata.name.as_deref() == Some(report.spec.instance_ref.name.as_str())
    })
}
