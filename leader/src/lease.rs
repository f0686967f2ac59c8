//! Who leads: one step of the election at a time, without I/O and without a clock of its own.
//!
//! Nobody compares clocks: a follower counts the lease's duration from when *it* saw the lease change, by its own
//! monotonic clock, and a leader stops writing after the renew deadline, counted from when it *sent* the last write that
//! was granted. The deadline is shorter than the duration, so the one has stopped before the other may begin.

use std::time::Duration;

/// Times of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long the others wait for a silent leader.
    pub duration: Duration,
    /// How long after its last granted write a leader goes on.
    pub renew_deadline: Duration,
    /// Pause between two looks of a follower, or two renewals of a leader.
    pub retry: Duration,
}

impl Terms {
    /// A duration, two thirds of it to renew, and five attempts in that time.
    pub fn of_seconds(seconds: u32) -> Self {
        let duration = Duration::from_secs(u64::from(seconds));
        let renew_deadline = duration.saturating_mul(2) / 3;
        Self { duration, renew_deadline, retry: renew_deadline / 5 }
    }
}

/// What the lease says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Who leads; empty when nobody does.
    pub holder: String,
    /// How long it is to be waited for.
    pub duration: Duration,
    /// How often the holder changed.
    pub transitions: i32,
    /// The object's resourceVersion: it changes with every write.
    pub version: String,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Read the lease, and tell [`Election::saw`].
    Read,
    /// Write it, and tell [`Election::wrote`].
    Write {
        /// The record that this replaces, by its version; none: create the lease.
        over: Option<Record>,
        /// How often the holder has changed with this.
        transitions: i32,
    },
    /// Nothing for so long.
    Wait(Duration),
}

/// The answer to a write of the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// Granted: this stands now.
    Granted(Record),
    /// Somebody else wrote before.
    Lost,
    /// It may or may not have been done.
    NoAnswer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Known {
    /// It must be read.
    Nothing,
    /// There is no lease.
    Absent,
    /// This stands since we saw it.
    Record(Record, Duration),
}

/// One process' view of the election. Times are durations on one monotonic clock.
#[derive(Debug)]
pub struct Election {
    me: String,
    terms: Terms,
    known: Known,
    /// The record that stood before an unknown outcome, with when it was seen: the same one does not begin to count anew.
    before: Option<(Record, Duration)>,
    /// When the last granted write was sent, while we lead.
    granted: Option<Duration>,
    /// No step before this.
    next: Duration,
}

impl Election {
    /// A candidate of that name.
    pub fn new(me: impl Into<String>, terms: Terms) -> Self {
        let (known, next) = (Known::Nothing, Duration::ZERO);
        Self { me: me.into(), terms, known, before: None, granted: None, next }
    }

    /// Its times.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// The next step at a moment.
    pub fn step(&mut self, now: Duration) -> Step {
        if self.leads_until().is_some_and(|until| until <= now) {
            self.granted = None;
        }
        if let Some(wait) = self.next.checked_sub(now).filter(|wait| !wait.is_zero()) {
            return Step::Wait(wait);
        }
        match &self.known {
            Known::Nothing => Step::Read,
            Known::Absent => Step::Write { over: None, transitions: 0 },
            Known::Record(record, _) if record.holder == self.me => {
                Step::Write { over: Some(record.clone()), transitions: record.transitions }
            }
            Known::Record(record, since) => {
                let over = record.holder.is_empty() || now.saturating_sub(*since) >= record.duration;
                if over {
                    let transitions = record.transitions.saturating_add(1);
                    Step::Write { over: Some(record.clone()), transitions }
                } else {
                    Step::Read
                }
            }
        }
    }

    /// The lease was read; none: there is no lease.
    pub fn saw(&mut self, now: Duration, lease: Option<Record>) {
        let mine = lease.as_ref().is_some_and(|record| record.holder == self.me);
        if !mine {
            self.granted = None;
        }
        let free = lease.as_ref().is_none_or(|record| record.holder.is_empty());
        let since = match (&lease, self.standing()) {
            (Some(new), Some((old, since))) if *new == old => since,
            _ => now,
        };
        let mut pause = Duration::ZERO;
        if let Some(record) = &lease
            && !mine
            && !free
        {
            let left = record.duration.saturating_sub(now.saturating_sub(since));
            pause = left.min(self.terms.retry);
        }
        self.next = now.saturating_add(pause);
        self.before = None;
        self.known = lease.map_or(Known::Absent, |record| Known::Record(record, since));
    }

    /// The read was not answered.
    pub fn saw_nothing(&mut self, now: Duration) {
        self.next = now.saturating_add(self.terms.retry);
    }

    /// The write that was sent at `sent` was answered at `now`.
    pub fn wrote(&mut self, sent: Duration, now: Duration, answer: Written) {
        match answer {
            Written::Granted(record) => {
                self.known = Known::Record(record, now);
                self.before = None;
                self.granted = Some(sent);
                self.next = sent.saturating_add(self.terms.retry);
            }
            Written::Lost | Written::NoAnswer => {
                self.before = self.standing();
                self.known = Known::Nothing;
                let pause = if answer == Written::Lost { Duration::ZERO } else { self.terms.retry };
                self.next = now.saturating_add(pause);
            }
        }
    }

    /// Until when writes may be sent, while we lead.
    pub fn leads_until(&self) -> Option<Duration> {
        self.granted.map(|sent| sent.saturating_add(self.terms.renew_deadline))
    }

    /// The record to give back, when we lead at that moment.
    pub fn resign(&mut self, now: Duration) -> Option<Record> {
        let leads = self.leads_until().is_some_and(|until| until > now);
        self.granted = None;
        match &self.known {
            Known::Record(record, _) if leads && record.holder == self.me => Some(record.clone()),
            _ => None,
        }
    }

    fn standing(&self) -> Option<(Record, Duration)> {
        match &self.known {
            Known::Record(record, since) => Some((record.clone(), *since)),
            Known::Nothing => self.before.clone(),
            Known::Absent => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry: Duration::from_secs(2),
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn record(holder: &str, version: u64) -> Record {
        Record { holder: holder.into(), duration: TERMS.duration, transitions: 3, version: version.to_string() }
    }

    fn candidate() -> Election {
        Election::new("me", TERMS)
    }

    fn leader() -> Election {
        let mut election = candidate();
        election.saw(at(0), None);
        assert_eq!(election.step(at(0)), Step::Write { over: None, transitions: 0 });
        election.wrote(at(0), at(1), Written::Granted(record("me", 1)));
        election
    }

    #[test]
    fn a_lease_that_is_free_is_taken_at_once() {
        let mut fresh = candidate();
        assert_eq!(fresh.step(at(0)), Step::Read);
        for (lease, transitions) in [(None, 0), (Some(record("", 7)), 4), (Some(record("me", 7)), 3)] {
            let mut election = candidate();
            election.saw(at(0), lease.clone());
            assert_eq!(election.step(at(0)), Step::Write { over: lease, transitions });
            assert_eq!(election.leads_until(), None, "not before it is granted");
        }
    }

    #[test]
    fn another_holder_is_waited_for_from_when_its_last_change_was_seen() {
        let mut election = candidate();
        election.saw(at(100), Some(record("other", 1)));
        assert_eq!(election.step(at(100)), Step::Wait(at(2)));
        assert_eq!(election.step(at(102)), Step::Read);
        election.saw(at(102), Some(record("other", 2)));
        for second in (104..=116).step_by(2) {
            assert_eq!(election.step(at(second)), Step::Read, "{second}");
            election.saw(at(second), Some(record("other", 2)));
        }
        // 15 s after 102, not after 100 and not by whatever the holder's clock said.
        assert_eq!(election.step(at(116)), Step::Wait(at(1)));
        assert_eq!(election.step(at(117)), Step::Write { over: Some(record("other", 2)), transitions: 4 });
        election.wrote(at(117), at(118), Written::Lost);
        assert_eq!(election.step(at(118)), Step::Read);
        election.saw(at(118), Some(record("third", 3)));
        assert_eq!(election.leads_until(), None);
        assert_eq!(election.step(at(131)), Step::Read, "the third one's time counts from 118");
    }

    #[test]
    fn a_leader_renews_and_its_time_counts_from_the_sending() {
        let mut election = leader();
        assert_eq!(election.leads_until(), Some(at(10)), "sent at 0, answered at 1");
        assert_eq!(election.step(at(1)), Step::Wait(at(1)));
        assert_eq!(election.step(at(2)), Step::Write { over: Some(record("me", 1)), transitions: 3 });
        election.wrote(at(2), at(5), Written::Granted(record("me", 2)));
        assert_eq!(election.leads_until(), Some(at(12)));
    }

    #[test]
    fn a_leader_without_an_answer_stops_before_anybody_may_follow() {
        let mut election = leader();
        let mut follower = Election::new("other", TERMS);
        // The follower sees the leader's write the moment that it is sent, which is the earliest possible.
        follower.saw(at(0), Some(record("me", 1)));
        for second in 2..10 {
            while let Step::Write { .. } | Step::Read = election.step(at(second)) {
                election.wrote(at(second), at(second), Written::NoAnswer);
            }
            assert_eq!(election.leads_until(), Some(at(10)));
        }
        election.step(at(10));
        assert_eq!(election.leads_until(), None);
        for second in 10..15 {
            assert!(!matches!(follower.step(at(second)), Step::Write { .. }), "{second}");
            follower.saw(at(second), Some(record("me", 1)));
        }
        assert!(matches!(follower.step(at(15)), Step::Write { .. }));
        // It finds its own record, which nobody has taken: it leads again.
        election.saw(at(14), Some(record("me", 1)));
        assert!(matches!(election.step(at(14)), Step::Write { .. }));
        election.wrote(at(14), at(14), Written::Granted(record("me", 2)));
        assert_eq!(election.leads_until(), Some(at(24)));
    }

    #[test]
    fn a_leader_that_reads_another_holder_stops_at_once() {
        for lease in [None, Some(record("other", 2)), Some(record("", 2))] {
            let mut election = leader();
            election.wrote(at(2), at(2), Written::Lost);
            assert_eq!(election.leads_until(), Some(at(10)), "nobody may follow before that");
            election.saw(at(3), lease);
            assert_eq!(election.leads_until(), None);
        }
    }

    #[test]
    fn a_lost_answer_does_not_begin_another_holders_time_anew() {
        let mut election = candidate();
        election.saw(at(0), Some(record("other", 1)));
        assert!(matches!(election.step(at(15)), Step::Write { .. }));
        election.wrote(at(15), at(16), Written::NoAnswer);
        assert_eq!(election.step(at(18)), Step::Read);
        election.saw(at(18), Some(record("other", 1)));
        assert!(matches!(election.step(at(18)), Step::Write { .. }));
    }

    #[test]
    fn only_a_leader_has_something_to_give_back() {
        assert_eq!(leader().resign(at(5)), Some(record("me", 1)));
        assert_eq!(leader().resign(at(10)), None, "its time is over");
        assert_eq!(candidate().resign(at(0)), None);
        let mut election = leader();
        election.resign(at(5));
        assert_eq!(election.leads_until(), None);
    }

    #[test]
    fn terms_leave_room_between_the_last_write_and_the_next_leader() {
        for seconds in [3, 15, 3600] {
            let terms = Terms::of_seconds(seconds);
            assert!(terms.renew_deadline < terms.duration && terms.retry * 4 < terms.renew_deadline, "{terms:?}");
        }
    }
}
