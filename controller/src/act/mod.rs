//! Intents into API calls: observe from the index, decide, act, report. No decisions here.
//!
//! Every write's reply goes into the index before the pass ends, so the next pass of the same key reads it. A pass
//! that meets an error ends, and its key comes back by the queue's backoff; every step may be repeated.

mod bind;
mod claims;
mod destroy;
mod events;
mod members;
mod pools;
mod provision;
mod unreadable;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use banlieue_leader::Leadership;
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

pub use events::{Event, EventSink, Events, run_events};
pub use world::{Clock, Random, System};

use crate::api::{Api, ApiError, Typed};
use crate::decide::Tuning;
use crate::metrics::Metrics;
use crate::runtime::{Egress, EnrolmentError, Issuer};
use crate::schedule::{Backoff, Key, Queue, Schedule};
use crate::store::{Change, Index, ObjectKey};

/// Why a pass ended early.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ActError {
    /// A call failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A seed could not be made or read.
    #[error(transparent)]
    Enrolment(#[from] EnrolmentError),
    /// Something that must be there first is not, yet.
    #[error("{0}")]
    NotYet(String),
}

impl ActError {
    /// A small fixed set for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            ActError::Api(error) => error.category(),
            ActError::Enrolment(error) => error.category(),
            ActError::NotYet(_) => "not_yet",
        }
    }
}

/// What a pass leaves: when to look again if nothing happens.
pub(crate) type Outcome = Result<Option<Timestamp>, ActError>;

/// Settings of acting that are not the pool's.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What every seed holds.
    pub issuer: Issuer,
    /// What members may reach.
    pub egress: Egress,
    /// Namespace and name of the ConfigMap with SPIRE's trust bundle.
    pub bundle: ObjectKey,
    /// Settings of decisions.
    pub tuning: Tuning,
    /// How soon two status writes of one pool may follow each other.
    pub coalesce: SignedDuration,
    /// New members of one pool at once, and then for each second.
    pub pace: (u32, u32),
}

/// The controller: everything but watches, workers and HTTP.
pub struct Controller {
    /// For filling and ending.
    api: Typed,
    /// For commit and acknowledgement: its own connections, so that binding never waits behind filling.
    binding: Typed,
    index: Mutex<Index>,
    schedule: Arc<Schedule>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    settings: Settings,
    events: Arc<dyn EventSink>,
    metrics: Metrics,
    leadership: Leadership,
}

/// What a controller is made of.
pub struct Parts {
    /// API for filling and ending.
    pub api: Arc<dyn Api>,
    /// API for binding.
    pub binding: Arc<dyn Api>,
    /// Scopes of the watches: 1 for all namespaces, else how many.
    pub scopes: usize,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Names and secrets.
    pub random: Arc<dyn Random>,
    /// Settings.
    pub settings: Settings,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
    /// Metrics.
    pub metrics: Metrics,
    /// Whether it may write.
    pub leadership: Leadership,
}

impl Controller {
    /// Puts it together.
    pub fn new(parts: Parts) -> Self {
        let backoff = Backoff { first: SignedDuration::from_millis(50), most: SignedDuration::from_secs(15) };
        Self {
            api: Typed::new(parts.api),
            binding: Typed::new(parts.binding),
            index: Mutex::new(Index::new(parts.scopes)),
            schedule: Arc::new(Schedule::new(Queue::new(backoff))),
            clock: parts.clock,
            random: parts.random,
            settings: parts.settings,
            events: parts.events,
            metrics: parts.metrics,
            leadership: parts.leadership,
        }
    }

    /// The work queue.
    pub fn schedule(&self) -> Arc<Schedule> {
        Arc::clone(&self.schedule)
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The index. Never held over an await.
    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it leads, so that its passes may begin.
    pub fn works(&self) -> bool {
        self.leadership.works()
    }

    /// It leads from now on: everything is looked at. Until then a follower only kept its index warm.
    pub fn begin(&self) {
        self.metrics.leading(true);
        // Before the index is read: what arrives after that is scheduled by `observe`.
        self.leadership.begin();
        self.tell_all_unreadable();
        let keys = {
            let index = self.index();
            if index.unsynced().is_empty() { index.all_keys() } else { Vec::new() }
        };
        self.wake(keys);
    }

    /// It does not lead any more. Passes that run end by themselves, as their writes are refused; what they picked or
    /// sent stays in the index, for [`Self::begin`] to go on with.
    pub fn rest(&self) {
        self.metrics.leading(false);
        self.leadership.rest();
        self.schedule.queue().clear();
    }

    /// Takes one watch event. Until every watch has listed once, and in a follower, nothing is scheduled.
    pub fn observe(&self, change: Change) {
        let now = self.now();
        if let Some((kind, created)) = change.event.arrival() {
            self.metrics.watch_lag(kind, now.duration_since(created).as_secs_f64());
        }
        self.note_unreadable(&change);
        let (keys, synced) = {
            let mut index = self.index();
            let before = index.unsynced().is_empty();
            let keys = index.apply(change, now);
            let after = index.unsynced().is_empty();
            match (before, after) {
                (true, _) => (keys, true),
                (false, true) => (index.all_keys(), true),
                (false, false) => (Vec::new(), false),
            }
        };
        if synced && self.works() {
            self.schedule.add(keys, now);
        }
    }

    /// One pass over one object, as a worker makes it: reconcile, then tell the queue.
    pub async fn work(&self, key: Key) {
        match self.reconcile(&key).await {
            Ok(next) => {
                self.metrics.reconcile(key.kind(), "ok");
                self.schedule.queue().done(&key, next);
            }
            Err(error) => {
                self.metrics.reconcile(key.kind(), error.category());
                let failures = self.schedule.queue().retry(&key, self.now());
                match &error {
                    ActError::Api(ApiError::Conflict { .. } | ApiError::NotLeading { .. }) | ActError::NotYet(_) => {
                        tracing::debug!(kind = key.kind(), object = %key.object(), %error, "again");
                    }
                    _ if failures > 3 => {
                        tracing::warn!(kind = key.kind(), object = %key.object(), failures, %error, "keeps failing");
                    }
                    _ => tracing::info!(kind = key.kind(), object = %key.object(), %error, "failed, trying again"),
                }
            }
        }
    }

    /// One pass over one object.
    pub async fn reconcile(&self, key: &Key) -> Outcome {
        match key {
            Key::Bind(pool) => Ok(self.match_claims(pool)),
            Key::Serve(claim) => self.serve(claim).await,
            Key::Claim(claim) => self.claim(claim).await,
            Key::Member(member) => self.member(member).await,
            Key::Pool(pool) => self.pool(pool).await,
        }
    }

    fn wake(&self, keys: Vec<Key>) {
        if !keys.is_empty() {
            self.schedule.add(keys, self.now());
        }
    }
}
