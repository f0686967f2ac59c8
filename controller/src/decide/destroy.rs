//! The end of a member: what still stands in the way of its finalizer.

use banlieue_crds::conditions::{self, MemberCondition};
use banlieue_crds::names::finalizers;
use jiff::Timestamp;
use kube::ResourceExt;

use super::member::needs_identity;
use super::{Tuning, plus};
use crate::store::MemberSnapshot;

/// What to do for a member whose deletion was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destroy {
    /// The instance to delete, by uid.
    pub delete_instance: Option<String>,
    /// As far as the index sees, instance and launcher pod are gone: ask the API server.
    pub verify: bool,
    /// The identity is revoked, and when; or no identity was ever possible.
    pub identity: Identity,
    /// What keeps it, when it has taken too long: a sentence for a condition.
    pub stalled: Option<String>,
    /// When to look again if nothing happens.
    pub wake: Timestamp,
}

/// Whether the member's identity still stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// It never had a seed, so it could not have attested.
    Never,
    /// Revoked, and when.
    Revoked(Timestamp),
    /// The attestor controller has not said so yet.
    Standing,
}

/// Decides the end of a member; nothing when our finalizer is off already.
pub fn destroy(snapshot: &MemberSnapshot, now: Timestamp, tuning: &Tuning) -> Option<Destroy> {
    let member = &snapshot.member;
    let asked = member.metadata.deletion_timestamp.as_ref()?.0;
    if !member.finalizers().iter().any(|finalizer| finalizer == finalizers::DESTROY) {
        return None;
    }
    let status = member.status.as_ref();
    let revoked = status.and_then(|status| {
        conditions::find(&status.conditions, MemberCondition::IdentityRevoked)
            .filter(|condition| condition.status == "True")
            .map(|condition| condition.last_transition_time.0)
    });
    let identity = match revoked {
        Some(at) => Identity::Revoked(at),
        None if needs_identity(member) => Identity::Standing,
        None => Identity::Never,
    };
    let instance = snapshot.any_instance();
    let delete_instance = instance.filter(|instance| !instance.deleting).map(|instance| instance.uid.clone());
    let verify = instance.is_none() && snapshot.pods.is_empty();
    let mut waits = Vec::new();
    if instance.is_some() {
        waits.push("its instance is not gone");
    } else if !snapshot.pods.is_empty() {
        waits.push("its launcher pod is not gone");
    }
    if identity == Identity::Standing {
        waits.push("its identity is not revoked");
    }
    let late = plus(asked, tuning.destroy_patience);
    let stalled = (!waits.is_empty() && late <= now).then(|| waits.join(", "));
    // Everything it waits for wakes it; the timer is a fallback, and brings the report when it is late.
    let fallback = plus(now, jiff::SignedDuration::from_secs(30));
    let wake = if late > now { late.min(fallback) } else { fallback };
    Some(Destroy { delete_instance, verify, identity, stalled, wake })
}
