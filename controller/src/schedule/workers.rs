//! Workers: one dispatcher for each lane takes due keys and reconciles them side by side, up to a limit.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Key, Lane, Queue};

/// The queue behind a lock, with a bell for each lane.
#[derive(Debug)]
pub struct Schedule {
    queue: Mutex<Queue>,
    bind: Notify,
    end: Notify,
    fill: Notify,
}

impl Schedule {
    /// Wraps a queue.
    pub fn new(queue: Queue) -> Self {
        Self { queue: Mutex::new(queue), bind: Notify::new(), end: Notify::new(), fill: Notify::new() }
    }

    /// The queue. Never held over an await.
    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for keys at once.
    pub fn add(&self, keys: impl IntoIterator<Item = Key>, now: Timestamp) {
        let mut lanes = (false, false, false);
        {
            let mut queue = self.queue();
            for key in keys {
                match key.lane() {
                    Lane::Bind => lanes.0 = true,
                    Lane::End => lanes.1 = true,
                    Lane::Fill => lanes.2 = true,
                }
                queue.add(key, now);
            }
        }
        for (rung, lane) in [(lanes.0, Lane::Bind), (lanes.1, Lane::End), (lanes.2, Lane::Fill)] {
            if rung {
                self.bell(lane).notify_one();
            }
        }
    }

    fn bell(&self, lane: Lane) -> &Notify {
        match lane {
            Lane::Bind => &self.bind,
            Lane::End => &self.end,
            Lane::Fill => &self.fill,
        }
    }
}

/// The clock may step; so no sleep is longer than this.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);

/// What the workers of one lane ask and tell while they take keys.
pub struct Lookout<N, G, T> {
    /// The time.
    pub now: N,
    /// Whether keys may be taken at all. Its change to yes rings the bell by adding keys.
    pub may: G,
    /// Told for each key how long the lane's first key had been due and how many were.
    pub taken: T,
}

/// Takes keys of one lane until `stop`, at most so many at once, then waits for the passes that are running.
pub async fn run_workers<N, G, T, W, F>(
    schedule: Arc<Schedule>,
    lane: Lane,
    most: usize,
    lookout: Lookout<N, G, T>,
    work: W,
    stop: CancellationToken,
) where
    N: Fn() -> Timestamp,
    G: Fn() -> bool,
    T: Fn(&Key, SignedDuration, usize),
    W: Fn(Key) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let Lookout { now, may, taken } = lookout;
    let permits = Arc::new(Semaphore::new(most));
    let mut passes = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
        let key = loop {
            if stop.is_cancelled() {
                break None;
            }
            let (key, next, lag, depth) = {
                let mut queue = schedule.queue();
                let at = now();
                let (lag, depth) = (queue.lag(lane, at), queue.depth(lane, at));
                // What is due may stay due: then only the bell helps, or the longest sleep.
                let key = if may() { queue.pop(lane, at) } else { None };
                let next = if key.is_none() && lag > SignedDuration::ZERO { None } else { queue.next_due(lane) };
                (key, next, lag, depth)
            };
            if let Some(key) = key {
                taken(&key, lag, depth);
                break Some(key);
            }
            let sleep = next.map_or(LONGEST_SLEEP, |due| until(due, now()));
            tokio::select! {
                () = schedule.bell(lane).notified() => {}
                () = tokio::time::sleep(sleep) => {}
                () = stop.cancelled() => {}
                Some(_) = passes.join_next() => {}
            }
        };
        let Some(key) = key else { break };
        let pass = work(key);
        passes.spawn(async move {
            pass.await;
            drop(permit);
        });
    }
    while passes.join_next().await.is_some() {}
}

fn until(due: Timestamp, now: Timestamp) -> Duration {
    let millis = u64::try_from(due.duration_since(now).as_millis()).unwrap_or(0);
    Duration::from_millis(millis + 1).min(LONGEST_SLEEP)
}
