//! A provider's documents, fetched when needed and kept: the way from a token to one whose signature is its issuer's.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::cache::{Cache, Limits, Plan};
use crate::config::Algorithm;
use crate::discovery::{self, Discovery, Failure, Fetched};
use crate::refusal::{Refusal, RefusalReason};
use crate::token::{Unverified, Verified};

/// How an issuer is doing: for metrics, readiness and `check-config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The entry's name.
    pub name: String,
    /// Keys held that can verify tokens.
    pub keys: usize,
    /// The age of what is held; nothing is held when it is none.
    pub age: Option<Duration>,
    /// Fetches begun since the start.
    pub fetches: u64,
    /// Fetches failed since the start.
    pub failures: u64,
    /// Why the newest fetch failed, if it did.
    pub failure: Option<Failure>,
}

/// One provider, with what is held of it. Cheap to clone; clones share what is held.
#[derive(Debug, Clone)]
pub struct Provider(Arc<Source>);

impl Provider {
    /// The provider of this issuer, `url`, compared byte for byte with `issuer` in discovery. Nothing is fetched yet.
    /// `name` is what messages call it. It reads `ca_file`, so call it where that may block.
    ///
    /// # Errors
    /// When `ca_file` is not usable.
    pub fn new(name: &str, url: &str, ca_file: Option<PathBuf>, limits: Limits) -> Result<Self, Failure> {
        discovery::client(ca_file.as_deref(), limits.timeout)?;
        Ok(Self(Arc::new(Source {
            name: name.to_owned(),
            url: url.to_owned(),
            ca_file,
            limits,
            cache: Mutex::default(),
            ended: watch::Sender::new(()),
        })))
    }

    /// The token, once its signature is known to be made by a key of this issuer with one of these algorithms. Whose
    /// token it says it is, must have been compared before. It waits for the provider only when the key is not held.
    ///
    /// # Errors
    /// The refusal, ready to be answered.
    pub async fn verified(&self, token: Unverified<'_>, algorithms: &[Algorithm]) -> Result<Verified, Refusal> {
        token.algorithm(&self.0.name, algorithms)?; // before anything is fetched for it
        let kid = token.kid()?;
        let held = self.0.get(|held| held.keys.knows(kid)).await;
        let (held, failure) = held.map_err(|failure| self.0.unavailable(&failure))?;
        // A key that we do not know and could not look for may be a good one.
        if let Some(failure) = failure
            && !held.keys.knows(kid)
        {
            return Err(self.0.unavailable(&failure));
        }
        token.verified_by(&held.keys, &self.0.name, algorithms)
    }

    /// Its discovery document.
    ///
    /// # Errors
    /// `provider_unreachable` or `provider_invalid`.
    pub async fn discovery(&self) -> Result<Discovery, Refusal> {
        let (held, _) = self.0.get(|_| true).await.map_err(|failure| self.0.unavailable(&failure))?;
        Ok(held.discovery.clone())
    }

    /// How it is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.status()
    }
}

#[derive(Debug)]
struct Source {
    name: String,
    url: String,
    ca_file: Option<PathBuf>,
    limits: Limits,
    cache: Mutex<Cache<Fetched>>,
    /// Told whenever a fetch ends.
    ended: watch::Sender<()>,
}

impl Source {
    /// What is held, fetched first when need be; with the failure of the newest fetch, if it failed.
    async fn get(self: &Arc<Self>, has: impl Fn(&Fetched) -> bool) -> Result<(Arc<Fetched>, Option<Failure>), Failure> {
        let (plan, mut ended) = {
            let mut cache = self.cache();
            // Subscribed under the lock: a fetch cannot end between planning to wait and waiting.
            (cache.plan(Instant::now(), &self.limits, has), self.ended.subscribe())
        };
        match plan {
            Plan::Settle => {}
            Plan::Wait => drop(ended.changed().await),
            Plan::Refresh => drop(tokio::spawn(Flight::begin(self).run())),
            Plan::Fetch => {
                // A task of its own: a caller that goes away must not take everybody's fetch with it.
                tokio::spawn(Flight::begin(self).run());
                drop(ended.changed().await);
            }
        }
        self.cache().settle(Instant::now(), &self.limits)
    }

    fn cache(&self) -> MutexGuard<'_, Cache<Fetched>> {
        // No code panics while it holds the lock, and the cache is whole between calls.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unavailable(&self, failure: &Failure) -> Refusal {
        // What could not be reached, and how, is for the log: whoever asks here has not shown who they are.
        let (reason, detail) = if failure.is_invalid() {
            (RefusalReason::ProviderInvalid, format!("the identity provider {} is not usable: {failure}", self.name))
        } else {
            let detail = format!("the identity provider {} cannot be reached; try again", self.name);
            (RefusalReason::ProviderUnreachable, detail)
        };
        Refusal::new(reason, detail)
    }

    fn status(&self) -> Status {
        let cache = self.cache();
        let held = cache.held(Instant::now());
        Status {
            name: self.name.clone(),
            keys: held.as_ref().map_or(0, |(held, _)| held.keys.usable()),
            age: held.map(|(_, age)| age),
            fetches: cache.fetches,
            failures: cache.failures,
            failure: cache.failure().cloned(),
        }
    }
}

/// A fetch under way. However it ends, by an answer, a panic or the runtime's end, those who wait are told.
struct Flight {
    source: Arc<Source>,
    result: Option<Result<Fetched, Failure>>,
}

impl Flight {
    fn begin(source: &Arc<Source>) -> Self {
        Self { source: Arc::clone(source), result: None }
    }

    async fn run(mut self) {
        let (source, limits) = (&self.source, &self.source.limits);
        let discovery_url = discovery::url(&source.url);
        let fetch = discovery::fetch(source.url.clone(), discovery_url, source.ca_file.clone(), limits.timeout);
        // Each request has its own limit; this one is for whatever else may hang, a file on a dead disk too.
        let result =
            tokio::time::timeout(limits.timeout.saturating_mul(3), fetch).await.unwrap_or(Err(Failure::Interrupted));
        match &result {
            Ok(fetched) => tracing::info!(issuer = source.name, keys = fetched.keys.usable(), "fetched keys"),
            Err(failure) => tracing::warn!(issuer = source.name, %failure, "fetching keys failed"),
        }
        self.result = Some(result);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let result = self.result.take().unwrap_or(Err(Failure::Interrupted));
        self.source.cache().ended(Instant::now(), result);
        self.source.ended.send_replace(());
    }
}
