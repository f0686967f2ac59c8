//! Enrolment secrets that were read a moment ago. Strangers may name any member: however many of them do, a member's Secret
//! is read once in a while, and a wrong proof costs one HMAC.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use banlieue_protocol::seed::EnrolmentSecret;

use super::store::StoreError;

/// How long a secret is good: a Secret is immutable, and what counts is read again.
const KEPT: Duration = Duration::from_secs(30);
/// How long its absence is: the member may be about to get one.
const ABSENT: Duration = Duration::from_secs(1);

/// One member's, with the lock that lets one of many read.
type Slot = Arc<tokio::sync::Mutex<Option<(Instant, Option<EnrolmentSecret>)>>>;

/// See the module.
#[derive(Default)]
pub struct Enrolments {
    slots: Mutex<HashMap<String, (Instant, Slot)>>,
}

impl Enrolments {
    /// The secret of the member with this uid, read by `read` unless that was done a moment ago.
    ///
    /// # Errors
    /// Those of `read`; they are not kept.
    pub async fn get(
        &self,
        member: &str,
        read: impl AsyncFnOnce() -> Result<Option<EnrolmentSecret>, StoreError>,
    ) -> Result<Option<EnrolmentSecret>, StoreError> {
        let slot = self.slot(member, Instant::now());
        let mut slot = slot.lock().await;
        if let Some((at, secret)) = &*slot
            && at.elapsed() < if secret.is_some() { KEPT } else { ABSENT }
        {
            return Ok(secret.clone());
        }
        let secret = read().await?;
        *slot = Some((Instant::now(), secret.clone()));
        Ok(secret)
    }

    fn slot(&self, member: &str, now: Instant) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // Only members that exist get here, but they do end, and a secret is not kept for longer than it is of use.
        slots.retain(|_, (made, _)| now.saturating_duration_since(*made) < KEPT);
        slots.entry(member.to_owned()).or_insert_with(|| (now, Slot::default())).1.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_thousand_at_once_read_once_and_failures_are_not_kept() {
        let (enrolments, reads) = (Enrolments::default(), AtomicUsize::new(0));
        let down = || StoreError::Unavailable { what: "ask".to_owned(), why: "down".to_owned() };
        assert!(enrolments.get("a", async || Err(down())).await.is_err());
        let secret = EnrolmentSecret::new([1; 32]);
        let read = async || {
            enrolments
                .get("a", async || {
                    reads.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    Ok(Some(secret.clone()))
                })
                .await
        };
        let all = futures::future::join_all((0..1000).map(|_| read())).await;
        assert!(all.into_iter().all(|found| found.unwrap().as_ref() == Some(&secret)));
        assert_eq!(reads.load(Ordering::SeqCst), 1);
        assert_eq!(enrolments.get("b", async || Ok(None)).await.unwrap(), None, "each member has its own");
    }
}
