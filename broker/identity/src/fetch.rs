//! The issuers with their keys, and the way from a token to a caller.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use crate::cache::{Cache, Plan};
use crate::caller::Caller;
use crate::config::{Issuer, problems};
use crate::discovery::{self, Discovery, Fetched};
use crate::judge::accept;
use crate::refusal::{Refusal, RefusalReason, shown};
use crate::token::Unverified;

pub use crate::cache::Limits;
pub use crate::discovery::Failure;

/// The issuers that are accepted, with their keys. One for a whole process; share it in an [`Arc`].
#[derive(Debug)]
pub struct Issuers {
    sources: Vec<Arc<Source>>,
    reserved: BTreeSet<String>,
}

/// The issuers cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// What is wrong with the entries, one sentence each.
    #[error("the issuers are not usable: {}", .0.join("; "))]
    Problems(Vec<String>),
    /// An entry's authorities cannot be used.
    #[error("issuer {name}: {failure}")]
    Client {
        /// The entry.
        name: String,
        /// Why not.
        failure: Failure,
    },
}

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

/// One issuer, with what is held of it.
#[derive(Debug)]
struct Source {
    issuer: Issuer,
    limits: Limits,
    cache: Mutex<Cache<Fetched>>,
    /// Told whenever a fetch ends.
    ended: watch::Sender<()>,
}

impl Issuers {
    /// Takes these entries with the ordinary limits. Nothing is fetched yet.
    ///
    /// # Errors
    /// When [`problems`] finds any, or a `ca_file` is not usable.
    pub fn new(issuers: Vec<Issuer>) -> Result<Self, SetupError> {
        Self::with_limits(issuers, Limits::default())
    }

    /// The same, with other limits.
    ///
    /// # Errors
    /// As [`Issuers::new`].
    pub fn with_limits(issuers: Vec<Issuer>, limits: Limits) -> Result<Self, SetupError> {
        let problems = problems(&issuers);
        if !problems.is_empty() {
            return Err(SetupError::Problems(problems));
        }
        for issuer in &issuers {
            discovery::client(issuer.ca_file.as_deref(), limits.timeout)
                .map_err(|failure| SetupError::Client { name: issuer.name.clone(), failure })?;
        }
        let source =
            |issuer| Arc::new(Source { issuer, limits, cache: Mutex::default(), ended: watch::Sender::new(()) });
        Ok(Self { sources: issuers.into_iter().map(source).collect(), reserved: BTreeSet::new() })
    }

    /// Refuses tokens of this issuer by name: the broker's own, whose tokens only sandboxes hold.
    ///
    /// # Errors
    /// When an entry has that url.
    pub fn reserve(mut self, own_issuer: &str) -> Result<Self, SetupError> {
        let same = |source: &&Arc<Source>| source.issuer.url.trim_end_matches('/') == own_issuer.trim_end_matches('/');
        if let Some(source) = self.sources.iter().find(same) {
            let name = &source.issuer.name;
            let problem = format!("url: entry {name} is the broker's own issuer, and a sandbox never claims sandboxes");
            return Err(SetupError::Problems(vec![problem]));
        }
        self.reserved.insert(own_issuer.to_owned());
        Ok(self)
    }

    /// Who sends this token, at this time. It waits for the issuer only when the token's key is not held, and at most as
    /// long as a fetch may take; keys that are held and not older than [`Limits::stale`] are used while newer ones come.
    ///
    /// # Errors
    /// The refusal, ready to be answered.
    pub async fn validate(&self, bearer: &str, now: SystemTime) -> Result<Caller, Refusal> {
        let token = Unverified::parse(bearer)?;
        let source = self.source(token.issuer()?)?;
        token.algorithm(&source.issuer)?; // before anything is fetched for it
        let kid = token.kid()?;
        let unavailable = |failure: &Failure| source.unavailable(failure);
        let (held, failure) = source.get(|held| held.keys.knows(kid)).await.map_err(|failure| unavailable(&failure))?;
        // A key that we do not know and could not look for may be a good one.
        if let Some(failure) = failure
            && !held.keys.knows(kid)
        {
            return Err(unavailable(&failure));
        }
        accept(&source.issuer, &held.keys, token, now)
    }

    /// The discovery document of the entry of this name: where the broker gets downstream tokens.
    ///
    /// # Errors
    /// `issuer_unknown` without such an entry; `provider_unreachable` or `provider_invalid`.
    pub async fn discovery(&self, name: &str) -> Result<Discovery, Refusal> {
        let source = self.sources.iter().find(|source| source.issuer.name == name).ok_or_else(|| {
            Refusal::new(RefusalReason::IssuerUnknown, format!("no issuer entry has the name {}", shown(name)))
        })?;
        let (held, _) = source.get(|_| true).await.map_err(|failure| source.unavailable(&failure))?;
        Ok(held.discovery.clone())
    }

    /// Fetches what is not held yet, from all issuers at once, and says how they are doing.
    pub async fn warm(&self) -> Vec<Status> {
        let mut tasks = tokio::task::JoinSet::new();
        for source in &self.sources {
            let source = Arc::clone(source);
            tasks.spawn(async move { source.get(|_| true).await.map(|_| ()) });
        }
        while tasks.join_next().await.is_some() {}
        self.statuses()
    }

    /// How the issuers are doing, in the order of their entries.
    #[must_use]
    pub fn statuses(&self) -> Vec<Status> {
        self.sources.iter().map(|source| source.status()).collect()
    }

    fn source(&self, iss: &str) -> Result<&Arc<Source>, Refusal> {
        if self.reserved.contains(iss) {
            let detail = "the token was issued by the broker, to a sandbox; a sandbox never claims sandboxes";
            return Err(Refusal::new(RefusalReason::IssuerReserved, detail));
        }
        self.sources.iter().find(|source| source.issuer.url == iss).ok_or_else(|| {
            let alike =
                self.sources.iter().any(|source| source.issuer.url.trim_end_matches('/') == iss.trim_end_matches('/'));
            let hint = if alike { "; it differs by a slash from one that is" } else { "" };
            let detail = format!("tokens of issuer {} are not accepted{hint}", shown(iss));
            Refusal::new(RefusalReason::IssuerUnknown, detail)
        })
    }
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
            (
                RefusalReason::ProviderInvalid,
                format!("the identity provider {} is not usable: {failure}", self.issuer.name),
            )
        } else {
            let detail = format!("the identity provider {} cannot be reached; try again", self.issuer.name);
            (RefusalReason::ProviderUnreachable, detail)
        };
        Refusal::new(reason, detail)
    }

    fn status(&self) -> Status {
        let cache = self.cache();
        let held = cache.held(Instant::now());
        Status {
            name: self.issuer.name.clone(),
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
        let (issuer, limits) = (&self.source.issuer, &self.source.limits);
        let (url, discovery_url) = (issuer.url.clone(), issuer.discovery_url());
        let fetch = discovery::fetch(url, discovery_url, issuer.ca_file.clone(), limits.timeout);
        // Each request has its own limit; this one is for whatever else may hang, a file on a dead disk too.
        let result =
            tokio::time::timeout(limits.timeout.saturating_mul(3), fetch).await.unwrap_or(Err(Failure::Interrupted));
        match &result {
            Ok(fetched) => tracing::info!(issuer = issuer.name, keys = fetched.keys.usable(), "fetched keys"),
            Err(failure) => tracing::warn!(issuer = issuer.name, %failure, "fetching keys failed"),
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
