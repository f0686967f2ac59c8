//! Creates in flight, by name.
//!
//! A member's name is chosen and registered here before its create call. Until the index has seen the object, the
//! name counts as a living, provisioning member. So a stale store never makes the planner create again, and a create
//! whose reply was lost is repeated *under the same name*: the repetition either makes the object or finds it
//! (AlreadyExists), and in both cases there is at most one.
//!
//! A lost create may even arrive after its object came and went. So its name goes on counting, while no such object is
//! there, until the API server cannot be working on it any more.

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
    /// The object was seen, or surely not made by the last call; only an earlier, lost call is left.
    pub settled: bool,
}

impl Expectation {
    fn may_arrive(&self, now: Timestamp) -> bool {
        self.lost_at.is_some_and(|lost_at| now.duration_since(lost_at) < LATE)
    }
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
        let expectation =
            Expectation { since: now, revision: revision.to_owned(), calling: true, lost_at: None, settled: false };
        self.pools.entry(pool_uid.to_owned()).or_default().insert(name.to_owned(), expectation);
    }

    /// The index has seen the object, or the API server has surely not made it.
    pub fn settle(&mut self, pool_uid: &str, name: &str) {
        if let Some(names) = self.pools.get_mut(pool_uid) {
            match names.get_mut(name) {
                Some(expectation) if expectation.lost_at.is_some() => {
                    expectation.calling = false;
                    expectation.settled = true;
                }
                _ => drop(names.remove(name)),
            }
            if names.is_empty() {
                self.pools.remove(pool_uid);
            }
        }
    }

    /// The call's reply was lost: the name stays, and the same create must be repeated.
    pub fn lost(&mut self, pool_uid: &str, name: &str, now: Timestamp) {
        if let Some(expectation) = self.pools.get_mut(pool_uid).and_then(|names| names.get_mut(name)) {
            expectation.calling = false;
            expectation.settled = false;
            expectation.lost_at = Some(now);
        }
    }

    /// This call surely made nothing. Settles the name, unless an earlier call for it may still arrive: then the create
    /// is repeated until it cannot. Answers whether it is settled.
    pub fn refused(&mut self, pool_uid: &str, name: &str, now: Timestamp) -> bool {
        let expectation = self.pools.get_mut(pool_uid).and_then(|names| names.get_mut(name));
        if let Some(expectation) = expectation
            && expectation.may_arrive(now)
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
            .filter(|(_, expectation)| !expectation.calling && !expectation.settled)
            .map(|(name, expectation)| {
                expectation.calling = true;
                (name.clone(), expectation.revision.clone())
            })
            .collect()
    }

    /// How many creates of a pool are in flight or may still arrive. `exists` says whether the index has an object of
    /// that name, which then counts itself.
    pub fn count(&mut self, pool_uid: &str, now: Timestamp, exists: impl Fn(&str) -> bool) -> usize {
        let Some(names) = self.pools.get_mut(pool_uid) else { return 0 };
        names.retain(|_, expectation| !expectation.settled || expectation.may_arrive(now));
        let count = names.iter().filter(|(name, expectation)| !expectation.settled || !exists(name)).count();
        if names.is_empty() {
            self.pools.remove(pool_uid);
        }
        count
    }

    /// Whether a create of this name is in flight.
    pub fn contains(&self, pool_uid: &str, name: &str) -> bool {
        self.pools.get(pool_uid).is_some_and(|names| names.contains_key(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn a_lost_create_keeps_its_name_and_is_repeated_under_it() {
        let mut expectations = Expectations::default();
        expectations.expect("pool", "p-aaaaa", "r", at(0));
        assert!(expectations.take_lost("pool").is_empty(), "a call in flight is not repeated beside itself");
        expectations.lost("pool", "p-aaaaa", at(0));
        assert_eq!(expectations.count("pool", at(0), |_| false), 1);
        assert_eq!(expectations.take_lost("pool"), [("p-aaaaa".to_owned(), "r".to_owned())]);
        assert!(expectations.take_lost("pool").is_empty());
    }

    #[test]
    fn a_create_that_was_never_lost_is_settled_for_good() {
        let mut expectations = Expectations::default();
        expectations.expect("pool", "p-aaaaa", "r", at(0));
        expectations.settle("pool", "p-aaaaa");
        assert_eq!(expectations.count("pool", at(0), |_| false), 0);
        expectations.expect("pool", "p-bbbbb", "r", at(0));
        assert!(expectations.refused("pool", "p-bbbbb", at(0)));
        assert_eq!(expectations.count("pool", at(0), |_| false), 0);
    }

    #[test]
    fn a_refusal_settles_nothing_that_may_still_arrive() {
        let mut expectations = Expectations::default();
        expectations.expect("pool", "p-aaaaa", "r", at(0));
        expectations.lost("pool", "p-aaaaa", at(0));
        assert!(!expectations.refused("pool", "p-aaaaa", at(10)));
        assert_eq!(expectations.count("pool", at(10), |_| false), 1);
        assert!(expectations.refused("pool", "p-aaaaa", at(91)));
        assert_eq!(expectations.count("pool", at(91), |_| false), 0);
    }

    #[test]
    fn a_lost_create_counts_after_its_object_came_and_went_until_it_cannot_arrive() {
        let mut expectations = Expectations::default();
        expectations.expect("pool", "p-aaaaa", "r", at(0));
        expectations.lost("pool", "p-aaaaa", at(0));
        expectations.take_lost("pool");
        expectations.settle("pool", "p-aaaaa");
        assert_eq!(expectations.count("pool", at(10), |_| true), 0, "the object counts itself");
        assert_eq!(expectations.count("pool", at(20), |_| false), 1, "it went; the first call may make another");
        assert!(expectations.take_lost("pool").is_empty(), "nobody wants it any more");
        assert_eq!(expectations.count("pool", at(91), |_| false), 0);
    }
}
