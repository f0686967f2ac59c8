//! Entries of claims that are over or overdue. Pure.
//!
//! mediatore deletes them when a claim ends. When it is down they go all the same: SPIRE's own expiry of entries
//! enforces nothing.

use std::collections::BTreeSet;

use banlieue_crds::{VirtualMachineClaim, claim::ClaimPhase};
use banlieue_protocol::names::Uid;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::plugin::read::deadline;

/// Whether a claim grants nothing any more.
#[must_use]
pub fn is_over(claim: &VirtualMachineClaim, now: Timestamp) -> bool {
    if claim.metadata.deletion_timestamp.is_some() {
        return true;
    }
    match claim.status.as_ref().and_then(|status| status.phase).unwrap_or_default() {
        ClaimPhase::Releasing | ClaimPhase::Released | ClaimPhase::Failed => true,
        ClaimPhase::Pending => false,
        ClaimPhase::Bound => deadline(claim).is_some_and(|deadline| now >= deadline),
    }
}

/// What a look at all claims found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Over {
    /// Claims that are over and were not dealt with.
    pub claims: Vec<Uid>,
    /// When the next one will be.
    pub next: Option<Timestamp>,
}

/// Looks at all claims.
#[must_use]
pub fn over<'c>(
    claims: impl IntoIterator<Item = &'c VirtualMachineClaim>,
    dealt_with: &BTreeSet<Uid>,
    now: Timestamp,
) -> Over {
    let mut found = Over::default();
    for claim in claims {
        let Some(uid) = claim.uid().and_then(|uid| Uid::parse(&uid).ok()) else { continue };
        if is_over(claim, now) {
            // One that never was bound has no entry.
            let bound = claim.status.as_ref().is_some_and(|status| status.member_ref.is_some());
            if bound && !dealt_with.contains(&uid) {
                found.claims.push(uid);
            }
        } else if let Some(at) = deadline(claim) {
            found.next = Some(found.next.map_or(at, |next| next.min(at)));
        }
    }
    found
}
