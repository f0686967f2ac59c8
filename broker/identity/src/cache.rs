//! When to fetch an issuer's keys, when to wait, when to use what is held, when to give up.
//!
//! A state machine without a clock and without I/O, driven from outside. It keeps three promises: at any moment at most
//! one fetch is under way for an issuer; one begins at most every [`Limits::floor`], whatever callers send; and nobody
//! whose key is held waits for the issuer, however long that takes to answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::discovery::Failure;

/// How long things are kept, waited for and spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Keys are used without asking again for this long.
    pub fresh: Duration,
    /// Keys are used for this long at most, counted from when their fetch ended. Between `fresh` and this they are used
    /// while they are asked for again: how long a key that the issuer took back survives an outage.
    pub stale: Duration,
    /// From the start of one fetch to the start of the next, when keys are held.
    pub floor: Duration,
    /// From the start of one fetch to the start of the next, when none are: nobody can be served until one succeeds.
    pub retry: Duration,
    /// One request, from connecting to the last byte of the body. A fetch is two of them, and is broken off after three
    /// times this, whatever it hangs in.
    pub timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fresh: Duration::from_secs(600),
            stale: Duration::from_secs(3600),
            floor: Duration::from_secs(10),
            retry: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
        }
    }
}

/// What a caller does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Use what is held, or fail with what is known: [`Cache::settle`].
    Settle,
    /// Begin a fetch (it counts as begun), and settle without waiting for it.
    Refresh,
    /// Wait for the fetch that is under way, then settle.
    Wait,
    /// Begin a fetch (it counts as begun), wait for it, then settle.
    Fetch,
}

/// What is held of one issuer.
#[derive(Debug)]
pub(crate) struct Cache<T> {
    held: Option<(Arc<T>, Instant)>,
    begun: Option<Instant>,
    fetching: bool,
    failure: Option<Failure>,
    /// Fetches begun.
    pub fetches: u64,
    /// Fetches failed.
    pub failures: u64,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { held: None, begun: None, fetching: false, failure: None, fetches: 0, failures: 0 }
    }
}

impl<T> Cache<T> {
    /// What a caller does that needs something which `has` says what is held has.
    pub fn plan(&mut self, now: Instant, limits: &Limits, has: impl FnOnce(&T) -> bool) -> Plan {
        let usable = self.held_within(now, limits.stale);
        let (held, has) = (usable.is_some(), usable.is_some_and(has));
        if has && self.held_within(now, limits.fresh).is_some() {
            return Plan::Settle;
        }
        if self.fetching {
            return if has { Plan::Settle } else { Plan::Wait };
        }
        let floor = if held { limits.floor } else { limits.retry };
        if self.begun.is_some_and(|begun| now.saturating_duration_since(begun) < floor) {
            return Plan::Settle;
        }
        self.begun = Some(now);
        self.fetching = true;
        self.fetches += 1;
        if has { Plan::Refresh } else { Plan::Fetch }
    }

    /// The fetch that [`Plan::Fetch`] or [`Plan::Refresh`] began has ended.
    pub fn ended(&mut self, now: Instant, result: Result<T, Failure>) {
        self.fetching = false;
        match result {
            Ok(got) => {
                self.held = Some((Arc::new(got), now));
                self.failure = None;
            }
            Err(failure) => {
                self.failures += 1;
                self.failure = Some(failure);
            }
        }
    }

    /// What is held, and the failure of the newest fetch, if it failed; the failure alone when nothing usable is held.
    pub fn settle(&self, now: Instant, limits: &Limits) -> Result<(Arc<T>, Option<Failure>), Failure> {
        match &self.held {
            Some((held, since)) if now.saturating_duration_since(*since) < limits.stale => {
                Ok((Arc::clone(held), self.failure.clone()))
            }
            _ => Err(self.failure.clone().unwrap_or(Failure::Interrupted)),
        }
    }

    /// What is held, with its age.
    pub fn held(&self, now: Instant) -> Option<(&T, Duration)> {
        self.held.as_ref().map(|(held, since)| (held.as_ref(), now.saturating_duration_since(*since)))
    }

    fn held_within(&self, now: Instant, age: Duration) -> Option<&T> {
        self.held(now).filter(|(_, held_for)| *held_for < age).map(|(held, _)| held)
    }

    /// The failure of the newest fetch, if it failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        fresh: Duration::from_secs(600),
        stale: Duration::from_secs(3600),
        floor: Duration::from_secs(10),
        retry: Duration::from_secs(1),
        timeout: Duration::from_secs(5),
    };

    struct Clock(Instant);

    impl Clock {
        fn at(&self, seconds: u64) -> Instant {
            self.0 + Duration::from_secs(seconds)
        }
    }

    fn filled() -> (Cache<&'static str>, Clock) {
        let clock = Clock(Instant::now());
        let mut cache = Cache::default();
        assert_eq!(cache.plan(clock.at(0), &LIMITS, |_| true), Plan::Fetch);
        cache.ended(clock.at(0), Ok("a"));
        (cache, clock)
    }

    fn down() -> Failure {
        Failure::Unreachable("no route".to_owned())
    }

    #[test]
    fn one_fetch_serves_everybody_who_asks_meanwhile() {
        let clock = Clock(Instant::now());
        let mut cache = Cache::default();
        assert_eq!(cache.plan(clock.at(0), &LIMITS, |_| true), Plan::Fetch);
        for _ in 0..100 {
            assert_eq!(cache.plan(clock.at(3), &LIMITS, |_| true), Plan::Wait);
        }
        cache.ended(clock.at(4), Ok("a"));
        assert_eq!(cache.plan(clock.at(4), &LIMITS, |held| *held == "a"), Plan::Settle);
        assert_eq!(*cache.settle(clock.at(4), &LIMITS).unwrap().0, "a");
        assert_eq!(cache.fetches, 1);
    }

    #[test]
    fn what_is_held_is_used_until_it_is_no_longer_fresh() {
        let (mut cache, clock) = filled();
        assert_eq!(cache.plan(clock.at(599), &LIMITS, |_| true), Plan::Settle);
        assert_eq!(cache.plan(clock.at(600), &LIMITS, |_| true), Plan::Refresh);
    }

    #[test]
    fn nobody_whose_key_is_held_waits() {
        let (mut cache, clock) = filled();
        assert_eq!(cache.plan(clock.at(600), &LIMITS, |_| true), Plan::Refresh);
        for second in 600..3600 {
            assert_eq!(cache.plan(clock.at(second), &LIMITS, |_| true), Plan::Settle, "one refresh, and it hangs");
            assert_eq!(*cache.settle(clock.at(second), &LIMITS).unwrap().0, "a");
        }
        assert_eq!(cache.plan(clock.at(601), &LIMITS, |_| false), Plan::Wait, "an unknown key may be in what comes");
        assert_eq!(cache.plan(clock.at(3600), &LIMITS, |_| true), Plan::Wait, "too old to be used");
        cache.ended(clock.at(3601), Ok("b"));
        assert_eq!(*cache.settle(clock.at(3601), &LIMITS).unwrap().0, "b");
    }

    #[test]
    fn an_unknown_key_is_looked_for_once_per_floor() {
        let (mut cache, clock) = filled();
        assert_eq!(cache.plan(clock.at(9), &LIMITS, |_| false), Plan::Settle);
        assert_eq!(cache.plan(clock.at(10), &LIMITS, |_| false), Plan::Fetch);
        assert_eq!(cache.plan(clock.at(12), &LIMITS, |_| false), Plan::Wait);
        assert_eq!(cache.plan(clock.at(12), &LIMITS, |_| true), Plan::Settle, "a known key waits for nobody");
        cache.ended(clock.at(15), Ok("b"));
        assert_eq!(cache.plan(clock.at(19), &LIMITS, |_| false), Plan::Settle, "the floor counts from the start");
        assert_eq!(cache.plan(clock.at(20), &LIMITS, |_| false), Plan::Fetch);
    }

    #[test]
    fn an_outage_is_outlived_for_an_hour() {
        let (mut cache, clock) = filled();
        assert_eq!(cache.plan(clock.at(600), &LIMITS, |_| true), Plan::Refresh);
        cache.ended(clock.at(605), Err(down()));
        assert_eq!(cache.plan(clock.at(606), &LIMITS, |_| true), Plan::Settle);
        let (held, failure) = cache.settle(clock.at(606), &LIMITS).unwrap();
        assert_eq!((*held, failure), ("a", Some(down())));
        assert_eq!(*cache.settle(clock.at(3599), &LIMITS).unwrap().0, "a");
        assert_eq!(cache.settle(clock.at(3600), &LIMITS).unwrap_err(), down());
        assert_eq!(cache.plan(clock.at(3600), &LIMITS, |_| true), Plan::Fetch);
        cache.ended(clock.at(3601), Ok("b"));
        assert_eq!(cache.settle(clock.at(3601), &LIMITS).unwrap(), (Arc::new("b"), None));
    }

    #[test]
    fn with_nothing_held_it_is_tried_again_sooner() {
        let clock = Clock(Instant::now());
        let mut cache = Cache::<&str>::default();
        assert_eq!(cache.plan(clock.at(0), &LIMITS, |_| true), Plan::Fetch);
        cache.ended(clock.at(0), Err(down()));
        assert_eq!(cache.plan(clock.at(0), &LIMITS, |_| true), Plan::Settle);
        assert_eq!(cache.settle(clock.at(0), &LIMITS).unwrap_err(), down());
        assert_eq!(cache.plan(clock.at(1), &LIMITS, |_| true), Plan::Fetch);
    }

    proptest! {
        /// Whatever is asked, whenever fetches end and however: never two at once, never two within the shorter floor,
        /// and nobody waits for a fetch that is not under way, or with a key in hand.
        #[test]
        fn fetches_are_single_and_spaced(steps in prop::collection::vec((0_u64..4, any::<bool>(), 0_u8..4), 1..200)) {
            let clock = Clock(Instant::now());
            let (mut cache, mut now, mut open, mut last) = (Cache::<()>::default(), 0, false, None);
            for (pause, known, act) in steps {
                now += pause;
                match act {
                    0 if open => { cache.ended(clock.at(now), Ok(())); open = false; }
                    1 if open => { cache.ended(clock.at(now), Err(down())); open = false; }
                    _ => match cache.plan(clock.at(now), &LIMITS, |()| known) {
                        plan @ (Plan::Fetch | Plan::Refresh) => {
                            prop_assert!(!open);
                            let usable = cache.settle(clock.at(now), &LIMITS).is_ok();
                            prop_assert_eq!(plan == Plan::Refresh, known && usable);
                            let floor = if cache.held(clock.at(now)).is_some() { 10 } else { 1 };
                            prop_assert!(last.is_none_or(|last| now - last >= floor));
                            (open, last) = (true, Some(now));
                        }
                        Plan::Wait => {
                            prop_assert!(open && !(known && cache.settle(clock.at(now), &LIMITS).is_ok()));
                        }
                        Plan::Settle => {}
                    },
                }
            }
        }
    }
}
