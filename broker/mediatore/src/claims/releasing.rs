//! Releases that are on their way through this replica.
//!
//! A mark refuses tokens, and nothing else: a token request that read the claim before its release was written finds the
//! mark before it answers. Whether a claim is over is for the claim itself to say, so nothing powers a member off because
//! of a mark.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

/// How long a release that was written is remembered: longer than any request takes. The claim itself says it then.
const REMEMBER: Duration = Duration::from_secs(120);

#[derive(Default)]
struct State {
    /// Releases whose outcome is not known yet.
    running: u32,
    /// When the last one was written.
    done: Option<Instant>,
}

type All = Arc<RwLock<BTreeMap<String, State>>>;

/// Uids of claims that are being released here.
#[derive(Default)]
pub struct Releasing(All);

/// One release on its way. Dropped, it is as if nobody had asked.
pub struct Mark {
    all: All,
    uid: String,
}

impl Releasing {
    /// From now on no token of this claim leaves this replica.
    #[must_use]
    pub fn begin(&self, uid: &str) -> Mark {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, state| lasts(state, Instant::now()));
        all.entry(uid.to_owned()).or_default().running += 1;
        Mark { all: self.0.clone(), uid: uid.to_owned() }
    }

    /// The same, without waiting for what becomes of it.
    pub fn add(&self, uid: &str) {
        self.begin(uid).done();
    }

    /// Whether one is on its way, or was written lately.
    #[must_use]
    pub fn contains(&self, uid: &str) -> bool {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(uid).is_some_and(|state| lasts(state, Instant::now()))
    }
}

impl Mark {
    /// It is written.
    pub fn done(self) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = all.get_mut(&self.uid) {
            state.done = Some(Instant::now());
        }
        // The mark itself ends when `self` is dropped, after the lock.
        drop(all);
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = all.get_mut(&self.uid) {
            state.running = state.running.saturating_sub(1);
            if !lasts(state, Instant::now()) {
                all.remove(&self.uid);
            }
        }
    }
}

fn lasts(state: &State, now: Instant) -> bool {
    state.running > 0 || state.done.is_some_and(|done| now.saturating_duration_since(done) < REMEMBER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_failed_takes_back_its_own_mark_only() {
        let releasing = Releasing::default();
        let (first, second) = (releasing.begin("a"), releasing.begin("a"));
        drop(first);
        assert!(releasing.contains("a"), "the other is still on its way");
        assert!(!releasing.contains("b"));
        drop(second);
        assert!(!releasing.contains("a"), "both failed: the claim lives");
    }

    #[test]
    fn one_that_was_written_stays_for_a_while() {
        let releasing = Releasing::default();
        let failing = releasing.begin("a");
        releasing.begin("a").done();
        drop(failing);
        assert!(releasing.contains("a"));
        let past = State { running: 0, done: Some(Instant::now()) };
        assert!(lasts(&past, Instant::now()));
        assert!(!lasts(&past, Instant::now() + REMEMBER));
    }
}
