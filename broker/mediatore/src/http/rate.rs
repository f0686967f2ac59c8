//! How often somebody may ask: a token bucket for each key, in a table of bounded size.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Keys that are remembered at most.
const MOST_KEYS: usize = 16_384;
/// Looking for what can be forgotten costs time for all keys, so it is done this often at most.
const SWEEP: Duration = Duration::from_secs(1);

struct Bucket {
    left: f64,
    at: Instant,
}

/// Token buckets, one for each key.
///
/// A full bucket limits nothing and is forgotten when room is needed. When there is none, for more keys than fit asked a
/// moment ago, newcomers share one bucket: they cannot push out anybody who is known, nor get more by being many.
pub struct Rate<K> {
    burst: f64,
    per_second: f64,
    table: Mutex<Table<K>>,
}

struct Table<K> {
    buckets: HashMap<K, Bucket>,
    newcomers: Option<Bucket>,
    swept: Option<Instant>,
}

impl<K: Eq + Hash> Rate<K> {
    /// `burst` at once, `per_minute` in the long run.
    #[must_use]
    pub fn new(burst: u32, per_minute: u32) -> Self {
        let table = Table { buckets: HashMap::new(), newcomers: None, swept: None };
        Self { burst: burst.into(), per_second: f64::from(per_minute) / 60.0, table: Mutex::new(table) }
    }

    /// Whether `key` may ask at `now`; if not, the seconds after which it may.
    ///
    /// # Errors
    /// The seconds to wait.
    pub fn take(&self, key: K, now: Instant) -> Result<(), u64> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let Table { buckets, newcomers, swept } = &mut *table;
        let full = Bucket { left: self.burst, at: now };
        if buckets.len() >= MOST_KEYS && !buckets.contains_key(&key) {
            if swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP) {
                buckets.retain(|_, bucket| self.left(bucket, now) < self.burst);
                *swept = Some(now);
            }
            if buckets.len() >= MOST_KEYS {
                return self.draw(newcomers.get_or_insert(full), now);
            }
        }
        self.draw(buckets.entry(key).or_insert(full), now)
    }

    fn left(&self, bucket: &Bucket, now: Instant) -> f64 {
        let earned = now.saturating_duration_since(bucket.at).as_secs_f64() * self.per_second;
        (bucket.left + earned).min(self.burst)
    }

    fn draw(&self, bucket: &mut Bucket, now: Instant) -> Result<(), u64> {
        bucket.left = self.left(bucket, now);
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

    #[test]
    fn many_keys_take_bounded_room_and_nobodys_limit_away() {
        let rate = Rate::new(2, 60);
        let start = Instant::now();
        assert_eq!([rate.take(0, start), rate.take(0, start)], [Ok(()), Ok(())]);
        let served = (1..100_000).filter(|key| rate.take(*key, start).is_ok()).count();
        assert_eq!(rate.table.lock().unwrap().buckets.len(), MOST_KEYS);
        assert_eq!(served, MOST_KEYS - 1 + 2, "those who are known, and two of all others together");
        assert_eq!(rate.take(0, start), Err(1), "what was known is not forgotten");
        let later = start + Duration::from_secs(10);
        assert_eq!(rate.take(200_000, later), Ok(()));
        assert_eq!(rate.table.lock().unwrap().buckets.len(), 1, "full buckets are forgotten");
    }
}
