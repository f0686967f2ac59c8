//! Exponential backoff without randomness: the queue spreads keys by their own times.

use jiff::SignedDuration;

/// Doubling delays between a first and a largest one.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// Delay after the first failure.
    pub first: SignedDuration,
    /// Largest delay.
    pub most: SignedDuration,
}

impl Backoff {
    /// The delay after `failures` failures in a row (1 is the first).
    pub fn after(self, failures: u32) -> SignedDuration {
        let doublings = failures.saturating_sub(1).min(20);
        let millis = self.first.as_millis().saturating_mul(1_i128 << doublings);
        let capped = millis.min(self.most.as_millis());
        SignedDuration::from_millis(i64::try_from(capped).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_largest() {
        let backoff = Backoff { first: SignedDuration::from_millis(100), most: SignedDuration::from_secs(1) };
        let delays: Vec<i128> = (0..7).map(|n| backoff.after(n).as_millis()).collect();
        assert_eq!(delays, [100, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.after(u32::MAX).as_millis(), 1000);
    }
}
