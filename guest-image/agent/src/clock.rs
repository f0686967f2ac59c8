//! The clock, checked against the time the seed was made: certificates mean nothing under a wrong one.

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, Timespec, clock_settime};
use thiserror::Error;

use crate::console;

/// Why the clock cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The enrolment's time is over.
    #[error("the enrolment expired at {expires_at}, and the clock shows {now}")]
    Expired {
        /// What the clock shows.
        now: Timestamp,
        /// When the enrolment ended.
        expires_at: Timestamp,
    },
    /// The kernel refused another time.
    #[error("cannot set the clock: {0}")]
    Set(String),
}

/// Clocks of guest, node and controller may differ by this much without anybody being wrong.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(2);

/// What to do about a clock.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Keep,
    Forward,
}

fn judge(now: Timestamp, issued_at: Timestamp, expires_at: Timestamp) -> Result<Verdict, Error> {
    if now > expires_at {
        return Err(Error::Expired { now, expires_at });
    }
    // The seed was made before this boot: a clock that shows less is slow, and by at least that much.
    let slow = now.duration_since(issued_at) < -TOLERANCE;
    Ok(if slow { Verdict::Forward } else { Verdict::Keep })
}

/// Checks the clock, which the kernel took from the RTC, and sets it forward when it shows a time before the seed's.
pub fn check(issued_at: Timestamp, expires_at: Timestamp) -> Result<(), Error> {
    let now = Timestamp::now();
    if judge(now, issued_at, expires_at)? == Verdict::Forward {
        console::say(format_args!("the clock shows {now}, before the seed was made: set to {issued_at}"));
        let time = Timespec { tv_sec: issued_at.as_second(), tv_nsec: 0 };
        clock_settime(ClockId::Realtime, time).map_err(|e| Error::Set(e.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn slow_clocks_go_forward_late_boots_end() {
        assert_eq!(judge(at(5), at(0), at(900)), Ok(Verdict::Keep));
        assert_eq!(judge(at(-2), at(0), at(900)), Ok(Verdict::Keep), "within tolerance");
        assert_eq!(judge(at(-3), at(0), at(900)), Ok(Verdict::Forward));
        assert_eq!(judge(at(-1_000_000), at(0), at(900)), Ok(Verdict::Forward));
        assert_eq!(judge(at(900), at(0), at(900)), Ok(Verdict::Keep));
        assert!(matches!(judge(at(901), at(0), at(900)), Err(Error::Expired { .. })));
    }
}
