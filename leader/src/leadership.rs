//! Whether this process may write: asked before every write, answered by this process' own clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The right to write, and for how long. Cloning shares it.
///
/// A lease cannot fence a process that is paused between this check and its write; preconditions on the objects do.
#[derive(Debug, Clone)]
pub struct Leadership(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    epoch: Instant,
    /// Milliseconds after `epoch` at which writes stop; 0 when they have.
    until: AtomicU64,
    /// What the predecessor wrote last is in the index, so passes may begin.
    works: AtomicBool,
}

impl Leadership {
    /// Of a process that runs alone.
    pub fn always() -> Self {
        Self::new(u64::MAX, true)
    }

    /// Of one that does not lead yet.
    pub fn follower() -> Self {
        Self::new(0, false)
    }

    fn new(until: u64, works: bool) -> Self {
        let until = AtomicU64::new(until);
        Self(Arc::new(Inner { epoch: Instant::now(), until, works: AtomicBool::new(works) }))
    }

    /// The time on the clock that all times of leading are taken from.
    pub fn now(&self) -> Duration {
        self.0.epoch.elapsed()
    }

    /// Writes are allowed until that moment of [`Self::now`]; none: not at all.
    pub fn allow(&self, until: Option<Duration>) {
        let millis = until.map_or(0, |until| u64::try_from(until.as_millis()).unwrap_or(u64::MAX));
        self.0.until.store(millis, Ordering::SeqCst);
    }

    /// How long writes may still be sent; none when they may not.
    pub fn remaining(&self) -> Option<Duration> {
        let until = Duration::from_millis(self.0.until.load(Ordering::SeqCst));
        until.checked_sub(self.now()).filter(|remaining| !remaining.is_zero())
    }

    /// Whether passes may begin.
    pub fn works(&self) -> bool {
        self.0.works.load(Ordering::SeqCst) && self.remaining().is_some()
    }

    /// Passes may begin.
    pub fn begin(&self) {
        self.0.works.store(true, Ordering::SeqCst);
    }

    /// No further pass begins.
    pub fn rest(&self) {
        self.0.works.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_stop_by_the_clock_alone() {
        let follower = Leadership::follower();
        assert!(follower.remaining().is_none() && !follower.works());
        follower.allow(Some(follower.now() + Duration::from_secs(3600)));
        assert!(follower.remaining().is_some() && !follower.works(), "not before it has begun");
        follower.begin();
        assert!(follower.works());
        // Nobody has to say that the time is over.
        follower.allow(Some(Duration::ZERO));
        assert!(follower.remaining().is_none() && !follower.works());
        assert!(Leadership::always().works());
    }
}
