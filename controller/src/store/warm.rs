//! Who could be lent: unbound members in phase Ready, oldest Ready first, by pool.
//!
//! Membership here is only the part that does not depend on time or on other objects; whether a candidate may really
//! be lent is decided by `decide::gate` when it is picked.

use std::collections::{BTreeMap, BTreeSet};

use banlieue_crds::PoolMember;
use banlieue_crds::member::MemberPhase;
use jiff::Timestamp;

use super::ObjectKey;

/// Candidates by pool.
#[derive(Debug, Default)]
pub struct Candidates {
    pools: BTreeMap<ObjectKey, BTreeSet<(Timestamp, String)>>,
}

impl Candidates {
    /// A member was stored.
    pub fn insert(&mut self, key: &ObjectKey, member: &PoolMember) {
        if let Some(place) = place(member) {
            self.pools.entry(key.sibling(&member.spec.pool_ref.name)).or_default().insert((place, key.name.clone()));
        }
    }

    /// A version of a member is no longer the newest.
    pub fn remove(&mut self, key: &ObjectKey, member: &PoolMember) {
        if let Some(place) = place(member) {
            let pool = key.sibling(&member.spec.pool_ref.name);
            if let Some(set) = self.pools.get_mut(&pool) {
                set.remove(&(place, key.name.clone()));
                if set.is_empty() {
                    self.pools.remove(&pool);
                }
            }
        }
    }

    /// The names of a pool's candidates, oldest Ready first.
    pub fn of(&self, pool: &ObjectKey) -> impl Iterator<Item = &str> {
        self.pools.get(pool).into_iter().flatten().map(|(_, name)| name.as_str())
    }
}

fn place(member: &PoolMember) -> Option<Timestamp> {
    let status = member.status.as_ref()?;
    if member.spec.claim_ref.is_some()
        || member.metadata.deletion_timestamp.is_some()
        || status.phase != Some(MemberPhase::Ready)
    {
        return None;
    }
    let ready = status.phase_times.as_ref().and_then(|times| times.ready.as_ref()).map(|time| time.0);
    Some(ready.unwrap_or(Timestamp::UNIX_EPOCH))
}
