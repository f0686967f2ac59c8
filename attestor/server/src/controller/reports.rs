//! What becomes of endorsement reports: first a tombstone, then gone. Pure.
//!
//! A node's word counts only about what it ran. So a report counts when it names the uid of a member's recorded instance
//! and comes from that instance's node; only such a report is ended, and what it ends is the key that the member proved,
//! whatever else the node listed. Any other report is deleted, once no watch can lag behind any more.

use std::sync::Arc;

use banlieue_crds::{EndorsementReport, PoolMember, received::Received};
use jiff::{SignedDuration, Timestamp};

use crate::unread::{may_be, read};

/// What a report needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Its instance lives, or may.
    Keep,
    /// Its member ended: it becomes the tombstone of this key.
    End(String),
    /// It is about nothing that its node ran, or no SVID that its key could have got is valid any more.
    Delete,
}

/// Decides about one report, given the member that it counts about (see [`member_of`]).
///
/// `missing_long`: it has counted about no member for longer than a watch can lag.
#[must_use]
pub fn fate(
    report: &EndorsementReport,
    member: Option<&PoolMember>,
    missing_long: bool,
    keep_for: SignedDuration,
    now: Timestamp,
) -> Fate {
    if let Some(ended) = report.status.as_ref().and_then(|status| status.ended_at.as_ref()) {
        let over = ended.0.checked_add(keep_for).is_ok_and(|until| now >= until);
        return if over { Fate::Delete } else { Fate::Keep };
    }
    match member {
        Some(member) if member.metadata.deletion_timestamp.is_none() => Fate::Keep,
        Some(member) => match member.status.as_ref().and_then(|status| status.endorsement.as_ref()) {
            Some(pinned) => Fate::End(pinned.ek_digest.clone()),
            // It proved no key, so there is none that must not come back. Another stream may still be pinning one.
            None if missing_long => Fate::Delete,
            None => Fate::Keep,
        },
        None if missing_long => Fate::Delete,
        None => Fate::Keep,
    }
}

/// The member that a report counts about: the one that recorded this very instance, on the node that reports.
#[must_use]
pub fn member_of<'m>(report: &EndorsementReport, members: &'m [Arc<Received<PoolMember>>]) -> Option<&'m PoolMember> {
    members.iter().filter_map(|member| read(member)).find(|member| counts_about(report, member))
}

/// Whether a report counts about this member.
#[must_use]
pub fn counts_about(report: &EndorsementReport, member: &PoolMember) -> bool {
    let status = member.status.as_ref();
    let instance = status.and_then(|status| status.instance_ref.as_ref());
    member.metadata.namespace == report.metadata.namespace
        && instance.is_some_and(|instance| instance.uid == report.spec.instance_uid)
        && status.and_then(|status| status.node_name.as_deref()) == Some(report.spec.node_name.as_str())
}

/// Whether a report may yet count, for what it is compared with is not recorded, its controller being down for long, or
/// cannot be read.
#[must_use]
pub fn may_count_later(report: &EndorsementReport, members: &[Arc<Received<PoolMember>>]) -> bool {
    let (namespace, name) = (report.metadata.namespace.as_deref(), report.spec.instance_ref.name.as_str());
    members.iter().any(|received| {
        let Some(member) = read(received) else { return may_be(received, namespace, name) };
        let status = member.status.as_ref();
        let open = match status.and_then(|status| status.instance_ref.as_ref()) {
            None => member.metadata.name.as_deref() == Some(name),
            Some(instance) => {
                instance.uid == report.spec.instance_uid && status.is_none_or(|status| status.node_name.is_none())
            }
        };
        open && member.metadata.namespace.as_deref() == namespace && member.metadata.deletion_timestamp.is_none()
    })
}

/// Whether a key is one that ended, by this report.
#[must_use]
pub fn is_tombstone_of(report: &EndorsementReport, key: &str) -> bool {
    let status = report.status.as_ref();
    status.is_some_and(|status| status.ended_at.is_some() && status.ek_digest.as_deref() == Some(key))
}
