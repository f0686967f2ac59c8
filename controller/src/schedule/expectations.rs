//! Creates in flight, by name.
//!
//! A member's name is chosen and registered here before its create call. Until the index has seen the object, the
//! name counts as a living, provisioning member. So a stale store never makes the planner create again, and a create
//! whose reply was lost is repeated *under the same name*: the repetition either makes the object or finds it
//! (AlreadyExists), and in both cases there is at most one.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// One create in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expectation {
    /// When it was registered.
    pub since: Timestamp,
    /// The revision that the member was to have.
    pub revision: String,
    /// A call for it is being made right now.
    pub calling: bool,
    /// When the last call went out whose outcome is not known.
    pub lost_at: Option<Timestamp>,
}

/// Longer than an API server works on a request (60 s by default): what has not arrived by then never will.
const LATE: SignedDuration = SignedDuration::from_secs(90);

/// The creates in flight of every pool, by pool uid and member name.
#[derive(Debug, Default)]
pub struct Expectations {
    pools: BTreeMap<String, BTreeMap<String, Expectation>>,
}

impl Expectations {
    /// Registers a create before its call.
    pub fn expect(&mut self, pool_uid: &str, name: &str, revision: &str, now: Timestamp) {
        let expectation = Expectation { since: now, revision: revision.to_owned(), calling: true, lost_at: None };
        self.pools.entry(pool_uid.to_owned()).or_default().insert(name.to_owned(), expectation);
    }

    /// The index has seen the object, or the API server has surely not made it.
    pub fn settle(&mut self, pool_uid: &str, name: &str) {
        if let Some(names) = self.pools.get_mut(pool_uid) {
            names.remove(name);
            if names.is_empty() {
                self.pools.remove(pool_uid);
            }
        }
    }

    /// The call's reply was lost: the name stays, and the same create must be repeated.
    pub fn lost(&mut self, pool_uid: &str, name: &str, now: Timestamp) {
        if let Some(expectation) = self.pools.get_mut(pool_uid).and_then(|names| names.get_mut(name)) {
            expectation.calling = false;
            expectation.lost_at = Some(now);
        }
    }

    /// This call surely made nothing. Settles the name, unless an earlier call for it may still arrive: then the create
    /// is repeated until it cannot. Answers whether it is settled.
    pub fn refused(&mut self, pool_uid: &str, name: &str, now: Timestamp) -> bool {
        let expectation = self.pools.get_mut(pool_uid).and_then(|names| names.get_mut(name));
        if let Some(expectation) = expectation
            && let Some(lost_at) = expectation.lost_at
            && now.duration_since(lost_at) < LATE
        {
            expectation.calling = false;
            return false;
        }
        self.settle(pool_uid, name);
        true
    }

    /// Takes the names whose create must be repeated, marking them as being called.
    pub fn take_lost(&mut self, pool_uid: &str) -> Vec<(String, String)> {
        let Some(names) = self.pools.get_mut(pool_uid) else { return Vec::new() };
        names
            .iter_mut()
            .filter(|(_, expectation)| !expectation.calling)
            .map(|(name, expectation)| {
                expectation.calling = true;
                (name.clone(), expectation.revision.clone())
            })
            .collect()
    }

    /// How many creates of a pool are in flight.
    pub fn count(&self, pool_uid: &str) -> usize {
        self.pools.get(pool_uid).map_or(0, BTreeMap::len)
    }

    /// Whether a create of this name is in flight.
    pub fn contains(&self, pool_uid: &str, name: &str) -> bool {
        self.pools.get(pool_uid).is_some_and(|names| names.contains_key(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_create_keeps_its_name_until_it_is_settled() {
        let now: Timestamp = "2026-11-30T20:00:00Z".parse().unwrap();
        let mut expectations = Expectations::default();
        expectations.expect("pool", "p-aaaaa", "r", now);
        assert!(expectations.take_lost("pool").is_empty(), "a call in flight is not repeated beside itself");
        expectations.lost("pool", "p-aaaaa", now);
        assert_eq!(expectations.count("pool"), 1);
        assert_eq!(expectations.take_lost("pool"), [("p-aaaaa".to_owned(), "r".to_owned())]);
        assert!(expectations.take_lost("pool").is_empty());
        expectations.settle("pool", "p-aaaaa");
        assert_eq!(expectations.count("pool"), 0);
    }

    #[test]
    fn a_refusal_settles_nothing_that_may_still_arrive() {
        let now: Timestamp = "2026-11-30T20:00:00Z".parse().unwrap();
        let mut expectations = Expectations::default();
        expectations.expect("pool", "p-aaaaa", "r", now);
        expectations.lost("pool", "p-aaaaa", now);
        assert!(!expectations.refused("pool", "p-aaaaa", now + SignedDuration::from_secs(10)));
        assert_eq!(expectations.count("pool"), 1);
        assert!(expectations.refused("pool", "p-aaaaa", now + SignedDuration::from_secs(91)));
        assert_eq!(expectations.count("pool"), 0);
        expectations.expect("pool", "p-bbbbb", "r", now);
        assert!(expectations.refused("pool", "p-bbbbb", now), "never lost");
    }
}
