//! Waiting for states, never for a time: the ends here only end what hangs.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Waits for a state; ten minutes mean that it never comes.
///
/// # Panics
/// It does not come.
pub async fn eventually(what: &str, holds: impl AsyncFnMut() -> bool) {
    within(Duration::from_secs(600), what, holds).await;
}

/// Waits for a state, for states that a busy host takes longer for.
///
/// # Panics
/// It does not come.
pub async fn within(patience: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + patience;
    while !holds().await {
        assert!(Instant::now() < end, "{what}: not within {patience:?}");
        sleep(LOOK_AGAIN).await;
    }
}
