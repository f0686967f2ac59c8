//! What strangers and members may cost.
//!
//! SPIRE's own limiter is off, since pools sit behind one address, and SPIRE does not tell a plugin where a stream comes
//! from. So nobody has a place before it said something that not everybody can say: the proof of an enrolment, or a
//! member's pinned key. All else ends at one look into memory and one HMAC ([`super::enrolments`]).
//!
//! A pinned key is no secret, only little known. Who knows one can open streams and never answer; so of the streams of one
//! member the oldest that still waits for evidence gives way to the newest. An honest guest answers at once, and has to be
//! outrun to be kept out. When all places are taken it is the same among all members: of whoever has most streams the oldest
//! that waits gives way, so stolen enrolments that open streams and never answer keep nobody out. Some streams are kept for members whose key is pinned, so that a flood of first attestations never
//! starves a rotation. A budget is spent only by what was surely the member's own.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use banlieue_protocol::reason::Reason;
use tokio_util::sync::CancellationToken;

use crate::checks::Refusal;

/// The bounds.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Streams at once.
    pub streams: usize,
    /// Of these, kept for pinned members.
    pub reserved: usize,
    /// Streams at once of one member.
    pub per_member: usize,
    /// Refusals that count, for one member in one window.
    pub attempts: u32,
    /// The window.
    pub window: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        // An honest member has one or two: SPIRE's agent may open its next before the last is torn down.
        Self { streams: 64, reserved: 16, per_member: 4, attempts: 20, window: Duration::from_secs(600) }
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
    /// Of each member, oldest first.
    members: HashMap<String, Vec<Stream>>,
    last: u64,
    refusals: HashMap<String, (Instant, u32)>,
}

/// One stream that has a place.
#[derive(Debug)]
struct Stream {
    number: u64,
    pinned: bool,
    /// Whether it waits for evidence.
    waits: bool,
    displaced: CancellationToken,
}

impl State {
    fn stream(&mut self, place: &Place) -> Option<&mut Stream> {
        self.members.get_mut(&place.member)?.iter_mut().find(|stream| stream.number == place.number)
    }

    /// The member whose oldest waiting stream gives way when there is no place, and that stream. What was pinned never gives
    /// way to what is not.
    fn crowds(&self, pinned: bool) -> Option<(String, u64)> {
        let waiting = |streams: &[Stream]| {
            let mut found = streams.iter().filter(|stream| stream.waits && (pinned || !stream.pinned));
            found.next().map(|stream| stream.number)
        };
        let candidates =
            self.members.iter().filter_map(|(member, streams)| Some((member, streams.len(), waiting(streams)?)));
        let (member, _, number) = candidates.max_by_key(|(_, count, number)| (*count, Reverse(*number)))?;
        Some((member.clone(), number))
    }

    /// Takes one of the member's streams out, if there is one like that.
    fn remove(&mut self, member: &str, like: impl Fn(&Stream) -> bool) -> Option<Stream> {
        let streams = self.members.get_mut(member)?;
        let at = streams.iter().position(like)?;
        let stream = streams.remove(at);
        if streams.is_empty() {
            self.members.remove(member);
        }
        self.open = self.open.saturating_sub(1);
        Some(stream)
    }
}

/// One stream's place; given back when dropped.
#[derive(Debug)]
pub struct Place {
    limits: Limits,
    member: String,
    number: u64,
    displaced: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        // One that had to give way is out already.
        self.limits.lock().remove(&self.member, |stream| stream.number == self.number);
    }
}

impl Place {
    /// Waits for the guest's answer, or until a newer stream of the member takes this place.
    ///
    /// # Errors
    /// `SourceLimited`, which passes.
    pub async fn waits<T>(&self, answer: impl Future<Output = T>) -> Result<T, Refusal> {
        self.mark(true);
        tokio::select! {
            biased;
            answer = answer => {
                self.mark(false);
                Ok(answer)
            }
            () = self.displaced.cancelled() => {
                let detail = format!("a newer stream took the place of one of member {}", self.member);
                Err(Refusal::stranger(Reason::SourceLimited, detail))
            }
        }
    }

    fn mark(&self, waits: bool) {
        if let Some(stream) = self.limits.lock().stream(self) {
            stream.waits = waits;
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

    /// A place for a stream of this member. `pinned`: it showed the member's pinned key; else it proved the enrolment.
    ///
    /// # Errors
    /// `Busy` or `SourceLimited`, both of which pass.
    pub fn enter(&self, member: &str, pinned: bool) -> Result<Place, Refusal> {
        let mut state = self.lock();
        let own = state.members.get(member).map_or(0, Vec::len);
        if own >= self.bounds.per_member {
            let Some(oldest) = state.remove(member, |stream| stream.waits) else {
                let detail = format!("{own} streams of member {member} are being judged");
                return Err(Refusal::stranger(Reason::SourceLimited, detail));
            };
            oldest.displaced.cancel();
        }
        let open_to =
            if pinned { self.bounds.streams } else { self.bounds.streams.saturating_sub(self.bounds.reserved) };
        if state.open >= open_to {
            let oldest =
                state.crowds(pinned).and_then(|(crowd, number)| state.remove(&crowd, |it| it.number == number));
            let Some(oldest) = oldest else {
                return Err(Refusal::stranger(Reason::Busy, format!("{} streams are open", state.open)));
            };
            oldest.displaced.cancel();
        }
        state.open = state.open.saturating_add(1);
        state.last = state.last.wrapping_add(1);
        let (number, displaced) = (state.last, CancellationToken::new());
        let stream = Stream { number, pinned, waits: false, displaced: displaced.clone() };
        state.members.entry(member.to_owned()).or_default().push(stream);
        drop(state);
        Ok(Place { limits: self.clone(), member: member.to_owned(), number, displaced })
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
        assert_eq!(limits.enter("a", true).unwrap_err().reason, Reason::SourceLimited, "both are being judged");
        drop(b);
        assert!(limits.enter("a", true).is_ok());
        assert_eq!(limits.open(), 1);
    }

    #[tokio::test]
    async fn who_waits_gives_way_to_who_comes() {
        let limits = limits();
        let (first, second) = (limits.enter("a", true).unwrap(), limits.enter("a", true).unwrap());
        let never = || std::future::pending::<()>();
        let wait = async { tokio::join!(first.waits(never()), second.waits(never())) };
        let come = async {
            tokio::task::yield_now().await;
            (limits.enter("a", true).unwrap(), limits.enter("a", true).unwrap())
        };
        let ((one, other), _both) = tokio::join!(wait, come);
        for outcome in [one, other] {
            assert_eq!(outcome.unwrap_err().reason, Reason::SourceLimited);
        }
        assert_eq!(limits.open(), 2);
        drop((first, second));
        assert_eq!(limits.open(), 2, "a place that was taken is not given back twice");
        assert!(limits.enter("b", true).unwrap().waits(async { 7 }).await.is_ok_and(|seven| seven == 7));
    }

    #[tokio::test]
    async fn who_takes_all_places_and_waits_gives_way() {
        let limits = limits();
        let never = || std::future::pending::<()>();
        let (greedy, other) =
            ([limits.enter("a", false).unwrap(), limits.enter("b", true).unwrap()], limits.enter("b", true).unwrap());
        let [a, b] = &greedy;
        let wait = async { tokio::join!(a.waits(never()), b.waits(never())) };
        let come = async {
            tokio::task::yield_now().await;
            // No place is left for what is not pinned: the one like it gives way, and no pinned one does.
            let first = limits.enter("c", false).unwrap();
            assert_eq!(limits.enter("d", false).unwrap_err().reason, Reason::Busy, "who is being judged stays");
            // All are taken: `b` has two, and one of them waits.
            let more = (limits.enter("e", true).unwrap(), limits.enter("f", true).unwrap());
            assert_eq!(limits.enter("g", true).unwrap_err().reason, Reason::Busy);
            (first, more)
        };
        let ((one, two), _kept) = tokio::join!(wait, come);
        assert_eq!(one.unwrap_err().reason, Reason::SourceLimited);
        assert_eq!(two.unwrap_err().reason, Reason::SourceLimited);
        assert_eq!(limits.open(), 4);
        drop((greedy, other));
        assert_eq!(limits.open(), 3);
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
