//! What strangers and members may cost.
//!
//! SPIRE's own limiter is off, since pools sit behind one address, and SPIRE does not tell a plugin where a stream
//! comes from. So the key of a source is what it claims to be: a member's uid. Strangers who claim nothing that exists
//! never get past the first look, which costs no call. Some streams are kept for members whose key is pinned, so that a
//! flood of first attestations never starves a rotation.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use banlieue_protocol::reason::Reason;

use crate::checks::Refusal;

/// The bounds.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Streams at once.
    pub streams: usize,
    /// Of these, kept for pinned members.
    pub reserved: usize,
    /// Streams at once that claim one member.
    pub per_member: usize,
    /// Refusals that count, for one member in one window.
    pub attempts: u32,
    /// The window.
    pub window: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        // Two streams for one member: SPIRE's agent may open its next before the last is torn down.
        Self { streams: 64, reserved: 16, per_member: 2, attempts: 20, window: Duration::from_secs(600) }
    }
}

/// Counts streams and refusals. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Limits {
    bounds: Arc<Bounds>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    members: HashMap<String, usize>,
    refusals: HashMap<String, (Instant, u32)>,
}

/// One stream's place; given back when dropped.
#[derive(Debug)]
pub struct Place {
    limits: Limits,
    member: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.limits.lock();
        state.open = state.open.saturating_sub(1);
        if let Some(count) = state.members.get_mut(&self.member) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                state.members.remove(&self.member);
            }
        }
    }
}

impl Limits {
    /// With these bounds.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds: Arc::new(bounds), state: Arc::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a stream that claims to be this member. `pinned`: its key is the one pinned to the member.
    ///
    /// # Errors
    /// `Busy` or `SourceLimited`, both of which pass.
    pub fn enter(&self, member: &str, pinned: bool) -> Result<Place, Refusal> {
        let mut state = self.lock();
        let open_to =
            if pinned { self.bounds.streams } else { self.bounds.streams.saturating_sub(self.bounds.reserved) };
        if state.open >= open_to {
            return Err(Refusal::stranger(Reason::Busy, format!("{} streams are open", state.open)));
        }
        let own = state.members.get(member).copied().unwrap_or(0);
        if own >= self.bounds.per_member {
            return Err(Refusal::stranger(Reason::SourceLimited, format!("{own} streams claim member {member}")));
        }
        state.open = state.open.saturating_add(1);
        state.members.insert(member.to_owned(), own.saturating_add(1));
        drop(state);
        Ok(Place { limits: self.clone(), member: member.to_owned() })
    }

    /// Whether the member may still try.
    ///
    /// # Errors
    /// `BudgetSpent`. Whoever gets it is the member itself only if `authenticated`; it never counts again.
    pub fn budget(&self, member: &str, now: Instant) -> Result<(), Refusal> {
        let state = self.lock();
        match state.refusals.get(member) {
            Some((since, count))
                if now.saturating_duration_since(*since) < self.bounds.window && *count >= self.bounds.attempts =>
            {
                Err(Refusal::stranger(Reason::BudgetSpent, format!("{count} refused attempts of member {member}")))
            }
            _ => Ok(()),
        }
    }

    /// Notes a refusal of the member's own evidence.
    pub fn spend(&self, member: &str, now: Instant) {
        let mut state = self.lock();
        let window = self.bounds.window;
        // Only members that exist and proved themselves get here, but they do end.
        state.refusals.retain(|_, (since, _)| now.saturating_duration_since(*since) < window);
        let (_, count) = state.refusals.entry(member.to_owned()).or_insert((now, 0));
        *count = count.saturating_add(1);
    }

    /// Open streams.
    #[must_use]
    pub fn open(&self) -> usize {
        self.lock().open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits::new(Bounds { streams: 4, reserved: 2, per_member: 2, attempts: 3, window: Duration::from_secs(60) })
    }

    #[test]
    fn first_attestations_leave_room_for_rotations() {
        let limits = limits();
        let (_a, _b) = (limits.enter("a", false).unwrap(), limits.enter("b", false).unwrap());
        assert_eq!(limits.enter("c", false).unwrap_err().reason, Reason::Busy);
        let (_c, d) = (limits.enter("c", true).unwrap(), limits.enter("d", true).unwrap());
        assert_eq!(limits.enter("e", true).unwrap_err().reason, Reason::Busy);
        drop(d);
        assert!(limits.enter("e", true).is_ok());
    }

    #[test]
    fn one_member_cannot_take_all() {
        let limits = limits();
        let (_a, b) = (limits.enter("a", true).unwrap(), limits.enter("a", true).unwrap());
        assert_eq!(limits.enter("a", true).unwrap_err().reason, Reason::SourceLimited);
        drop(b);
        assert!(limits.enter("a", true).is_ok());
        assert_eq!(limits.open(), 1);
    }

    #[test]
    fn a_budget_is_spent_and_comes_back() {
        let (limits, start) = (limits(), Instant::now());
        for _ in 0..3 {
            assert!(limits.budget("a", start).is_ok());
            limits.spend("a", start);
        }
        assert_eq!(limits.budget("a", start).unwrap_err().reason, Reason::BudgetSpent);
        assert!(limits.budget("b", start).is_ok());
        assert!(limits.budget("a", start + Duration::from_secs(61)).is_ok());
    }
}
