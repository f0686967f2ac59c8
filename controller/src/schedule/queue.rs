//! The work queue: keys with due times, each worked on by at most one worker at a time.
//!
//! It is also the deadline wheel: a key that has nothing to do now is due at its object's next deadline, which
//! `decide` answers at every pass. So the wheel is rebuilt from the objects and no timer is state of its own.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::Backoff;
use crate::store::ObjectKey;

/// Who works on a key. Binding never waits behind filling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Matching claims with members and acknowledging.
    Bind,
    /// Everything that ends: claims and members that are going.
    End,
    /// Filling pools, making members.
    Fill,
}

/// One thing to reconcile.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// Match waiting claims of a pool with its warm members.
    Bind(ObjectKey),
    /// Commit and acknowledge a claim that has its member.
    Serve(ObjectKey),
    /// A claim's life.
    Claim(ObjectKey),
    /// A member's life.
    Member(ObjectKey),
    /// A pool's population.
    Pool(ObjectKey),
}

impl Key {
    /// The lane that works on it.
    pub fn lane(&self) -> Lane {
        match self {
            Key::Bind(_) | Key::Serve(_) => Lane::Bind,
            Key::Claim(_) | Key::Member(_) => Lane::End,
            Key::Pool(_) => Lane::Fill,
        }
    }

    /// Kind for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Key::Bind(_) => "bind",
            Key::Serve(_) => "serve",
            Key::Claim(_) => "claim",
            Key::Member(_) => "member",
            Key::Pool(_) => "pool",
        }
    }

    /// The object behind it.
    pub fn object(&self) -> &ObjectKey {
        match self {
            Key::Bind(object) | Key::Serve(object) | Key::Claim(object) | Key::Member(object) | Key::Pool(object) => {
                object
            }
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    /// When it is due; none while nothing is asked for.
    due: Option<Timestamp>,
    /// A worker has it.
    working: bool,
    /// Failures in a row.
    failures: u32,
    /// After a failure nothing earlier than this, whatever events say.
    not_before: Option<Timestamp>,
}

/// A set of keys ordered by due time. Adding a key that is there keeps the earlier time.
#[derive(Debug)]
pub struct Queue {
    entries: BTreeMap<Key, Entry>,
    order: BTreeMap<Lane, BTreeSet<(Timestamp, Key)>>,
    backoff: Backoff,
}

impl Queue {
    /// An empty queue; a key that fails comes back by `backoff`.
    pub fn new(backoff: Backoff) -> Self {
        Self { entries: BTreeMap::new(), order: BTreeMap::new(), backoff }
    }

    /// Asks for a key at `when` or earlier.
    pub fn add(&mut self, key: Key, when: Timestamp) {
        let entry = self.entries.entry(key.clone()).or_default();
        let when = entry.not_before.map_or(when, |bound| bound.max(when));
        if let Some(due) = entry.due {
            if due <= when {
                return;
            }
            if !entry.working {
                self.order.entry(key.lane()).or_default().remove(&(due, key.clone()));
            }
        }
        entry.due = Some(when);
        if !entry.working {
            self.order.entry(key.lane()).or_default().insert((when, key));
        }
    }

    /// Takes the key of `lane` that is due longest, if any is due.
    pub fn pop(&mut self, lane: Lane, now: Timestamp) -> Option<Key> {
        let order = self.order.get_mut(&lane)?;
        let (when, key) = order.first().cloned()?;
        if when > now {
            return None;
        }
        order.remove(&(when, key.clone()));
        let entry = self.entries.entry(key.clone()).or_default();
        entry.due = None;
        entry.working = true;
        Some(key)
    }

    /// The worker is done and saw no error; `next` is the object's next deadline.
    pub fn done(&mut self, key: &Key, next: Option<Timestamp>) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.working = false;
        entry.failures = 0;
        entry.not_before = None;
        let due = match (entry.due, next) {
            (Some(asked), Some(next)) => Some(asked.min(next)),
            (asked, next) => asked.or(next),
        };
        entry.due = due;
        match due {
            Some(due) => {
                self.order.entry(key.lane()).or_default().insert((due, key.clone()));
            }
            None => {
                self.entries.remove(key);
            }
        }
    }

    /// The worker is done and must try again later. Answers how often in a row it failed.
    pub fn retry(&mut self, key: &Key, now: Timestamp) -> u32 {
        let Some(entry) = self.entries.get_mut(key) else { return 0 };
        entry.working = false;
        entry.failures = entry.failures.saturating_add(1);
        let when = now.checked_add(self.backoff.after(entry.failures)).unwrap_or(now);
        entry.not_before = Some(when);
        entry.due = Some(when);
        self.order.entry(key.lane()).or_default().insert((when, key.clone()));
        entry.failures
    }

    /// Forgets everything that waits. Keys that a worker has stay with it.
    pub fn clear(&mut self) {
        self.order.clear();
        self.entries.retain(|_, entry| entry.working);
        for entry in self.entries.values_mut() {
            entry.due = None;
        }
    }

    /// When the next key of a lane is due.
    pub fn next_due(&self, lane: Lane) -> Option<Timestamp> {
        self.order.get(&lane)?.first().map(|(when, _)| *when)
    }

    /// Keys that are due now, for the depth metric.
    pub fn depth(&self, lane: Lane, now: Timestamp) -> usize {
        self.order.get(&lane).map_or(0, |order| order.iter().take_while(|(when, _)| *when <= now).count())
    }

    /// How long the first key of a lane has been due.
    pub fn lag(&self, lane: Lane, now: Timestamp) -> SignedDuration {
        match self.next_due(lane) {
            Some(due) if due < now => now.duration_since(due),
            _ => SignedDuration::ZERO,
        }
    }

    /// Whether a worker has any key.
    pub fn is_working(&self) -> bool {
        self.entries.values().any(|entry| entry.working)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn queue() -> Queue {
        Queue::new(Backoff { first: SignedDuration::from_secs(1), most: SignedDuration::from_secs(8) })
    }

    #[test]
    fn clearing_leaves_what_is_being_worked_on_to_its_worker() {
        let mut queue = queue();
        queue.add(key("a"), at(0));
        queue.add(key("b"), at(1));
        let a = queue.pop(Lane::End, at(0)).unwrap();
        queue.add(a.clone(), at(2));
        queue.clear();
        assert_eq!(queue.pop(Lane::End, at(9)), None);
        assert!(queue.is_working());
        queue.done(&a, Some(at(5)));
        assert_eq!(queue.pop(Lane::End, at(9)), Some(a));
    }

    fn key(name: &str) -> Key {
        Key::Claim(ObjectKey::new("ns", name))
    }

    #[test]
    fn a_key_is_worked_on_by_one_worker_at_a_time_and_no_event_is_lost() {
        let mut queue = queue();
        queue.add(key("a"), at(0));
        assert_eq!(queue.pop(Lane::End, at(0)), Some(key("a")));
        queue.add(key("a"), at(0));
        assert_eq!(queue.pop(Lane::End, at(1)), None, "still with its worker");
        queue.done(&key("a"), None);
        assert_eq!(queue.pop(Lane::End, at(1)), Some(key("a")), "the event that came meanwhile");
        queue.done(&key("a"), None);
        assert_eq!(queue.pop(Lane::End, at(9)), None);
    }

    #[test]
    fn a_deadline_is_kept_and_an_earlier_event_wins() {
        let mut queue = queue();
        queue.add(key("a"), at(0));
        queue.pop(Lane::End, at(0)).unwrap();
        queue.done(&key("a"), Some(at(30)));
        assert_eq!(queue.pop(Lane::End, at(29)), None);
        assert_eq!(queue.next_due(Lane::End), Some(at(30)));
        queue.add(key("a"), at(10));
        assert_eq!(queue.pop(Lane::End, at(10)), Some(key("a")));
        queue.done(&key("a"), Some(at(30)));
        assert_eq!(queue.pop(Lane::End, at(30)), Some(key("a")));
    }

    #[test]
    fn a_failing_key_backs_off_whatever_events_say() {
        let mut queue = queue();
        queue.add(key("a"), at(0));
        queue.pop(Lane::End, at(0)).unwrap();
        queue.retry(&key("a"), at(0));
        queue.add(key("a"), at(0));
        assert_eq!(queue.pop(Lane::End, at(0)), None);
        assert_eq!(queue.pop(Lane::End, at(1)), Some(key("a")));
        queue.retry(&key("a"), at(1));
        assert_eq!(queue.pop(Lane::End, at(2)), None);
        assert_eq!(queue.pop(Lane::End, at(3)), Some(key("a")));
        queue.done(&key("a"), None);
        queue.add(key("a"), at(3));
        assert_eq!(queue.pop(Lane::End, at(3)), Some(key("a")), "success clears the backoff");
    }

    #[test]
    fn lanes_do_not_wait_for_each_other() {
        let mut queue = queue();
        queue.add(Key::Pool(ObjectKey::new("ns", "p")), at(0));
        queue.add(Key::Bind(ObjectKey::new("ns", "p")), at(5));
        assert_eq!(queue.pop(Lane::Bind, at(5)), Some(Key::Bind(ObjectKey::new("ns", "p"))));
    }
}
