//! A token bucket: how fast a pool may refill.

use jiff::{SignedDuration, Timestamp};

/// Tokens that come back at a steady rate, up to a burst.
#[derive(Debug, Clone)]
pub struct Pace {
    burst: u32,
    per_second: u32,
    /// Tokens in thousandths.
    milli_tokens: i64,
    last: Option<Timestamp>,
}

impl Pace {
    /// A full bucket.
    pub fn new(burst: u32, per_second: u32) -> Self {
        Self { burst, per_second: per_second.max(1), milli_tokens: i64::from(burst) * 1000, last: None }
    }

    /// Takes up to `wanted` tokens; answers how many there were.
    pub fn take(&mut self, wanted: u32, now: Timestamp) -> u32 {
        if let Some(last) = self.last {
            let elapsed = now.duration_since(last).as_millis().clamp(0, 3_600_000);
            let gained = i64::try_from(elapsed).unwrap_or(0).saturating_mul(i64::from(self.per_second));
            self.milli_tokens = (self.milli_tokens + gained).min(i64::from(self.burst) * 1000);
        }
        self.last = Some(now);
        let there = u32::try_from(self.milli_tokens / 1000).unwrap_or(0);
        let taken = wanted.min(there);
        self.milli_tokens -= i64::from(taken) * 1000;
        taken
    }

    /// When the next token is there, counted from `now`.
    pub fn next(&self, now: Timestamp) -> Timestamp {
        let missing = (1000 - self.milli_tokens).max(0);
        let millis = missing / i64::from(self.per_second) + 1;
        now.checked_add(SignedDuration::from_millis(millis)).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_then_its_rate() {
        let start: Timestamp = "2026-11-30T20:00:00Z".parse().unwrap();
        let mut pace = Pace::new(3, 10);
        assert_eq!(pace.take(5, start), 3);
        assert_eq!(pace.take(5, start), 0);
        let next = pace.next(start);
        assert!(next > start);
        assert_eq!(pace.take(5, next), 1);
        assert_eq!(pace.take(50, start + SignedDuration::from_secs(60)), 3, "never more than the burst");
    }
}
