//! How often somebody may ask: a token bucket for each key.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// Keys that are remembered at most; beyond it the fullest buckets, which limit nothing, are forgotten.
const MOST_KEYS: usize = 100_000;

struct Bucket {
    left: f64,
    at: Instant,
}

/// Token buckets, one for each key.
pub struct Rate<K> {
    burst: f64,
    per_second: f64,
    buckets: Mutex<HashMap<K, Bucket>>,
}

impl<K: Eq + Hash> Rate<K> {
    /// `burst` at once, `per_minute` in the long run.
    #[must_use]
    pub fn new(burst: u32, per_minute: u32) -> Self {
        Self { burst: burst.into(), per_second: f64::from(per_minute) / 60.0, buckets: Mutex::default() }
    }

    /// Whether `key` may ask at `now`; if not, the seconds after which it may.
    ///
    /// # Errors
    /// The seconds to wait.
    pub fn take(&self, key: K, now: Instant) -> Result<(), u64> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST_KEYS {
            let (burst, rate) = (self.burst, self.per_second);
            buckets.retain(|_, bucket| {
                bucket.left + now.saturating_duration_since(bucket.at).as_secs_f64() * rate < burst
            });
        }
        let bucket = buckets.entry(key).or_insert(Bucket { left: self.burst, at: now });
        let earned = now.saturating_duration_since(bucket.at).as_secs_f64() * self.per_second;
        bucket.left = (bucket.left + earned).min(self.burst);
        bucket.at = now;
        if bucket.left >= 1.0 {
            bucket.left -= 1.0;
            return Ok(());
        }
        let wait = ((1.0 - bucket.left) / self.per_second).ceil();
        Err(if wait.is_finite() && wait >= 1.0 { wait as u64 } else { 1 })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_then_a_rate_for_each_key() {
        let rate = Rate::new(2, 60);
        let start = Instant::now();
        assert_eq!([rate.take("a", start), rate.take("a", start), rate.take("a", start)], [Ok(()), Ok(()), Err(1)]);
        assert_eq!(rate.take("b", start), Ok(()));
        let later = start + Duration::from_secs(1);
        assert_eq!([rate.take("a", later), rate.take("a", later)], [Ok(()), Err(1)]);
    }
}
