//! The issuers with their keys, and the way from a token to a caller.

use std::collections::BTreeSet;
use std::time::SystemTime;

use crate::cache::Limits;
use crate::caller::Caller;
use crate::config::{Issuer, problems};
use crate::discovery::{Discovery, Failure};
use crate::judge::judge;
use crate::provider::{Provider, Status};
use crate::refusal::{Refusal, RefusalReason, shown};
use crate::token::Unverified;

/// The issuers that are accepted, with their keys. One for a whole process; share it in an [`Arc`].
#[derive(Debug)]
pub struct Issuers {
    sources: Vec<Source>,
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

/// One issuer, and its keys.
#[derive(Debug)]
struct Source {
    issuer: Issuer,
    provider: Provider,
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
        let mut sources = Vec::new();
        for issuer in issuers {
            let provider = Provider::new(&issuer.name, &issuer.url, issuer.ca_file.clone(), limits)
                .map_err(|failure| SetupError::Client { name: issuer.name.clone(), failure })?;
            sources.push(Source { issuer, provider });
        }
        Ok(Self { sources, reserved: BTreeSet::new() })
    }

    /// Refuses tokens of this issuer by name: the broker's own, whose tokens only sandboxes hold.
    ///
    /// # Errors
    /// When an entry has that url.
    pub fn reserve(mut self, own_issuer: &str) -> Result<Self, SetupError> {
        let same = |source: &&Source| source.issuer.url.trim_end_matches('/') == own_issuer.trim_end_matches('/');
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
        let verified = source.provider.verified(token, &source.issuer.algorithms).await?;
        judge(&source.issuer, &verified, now)
    }

    /// The discovery document of the entry of this name: where the broker gets downstream tokens.
    ///
    /// # Errors
    /// `issuer_unknown` without such an entry; `provider_unreachable` or `provider_invalid`.
    pub async fn discovery(&self, name: &str) -> Result<Discovery, Refusal> {
        let source = self.sources.iter().find(|source| source.issuer.name == name).ok_or_else(|| {
            Refusal::new(RefusalReason::IssuerUnknown, format!("no issuer entry has the name {}", shown(name)))
        })?;
        source.provider.discovery().await
    }

    /// Fetches what is not held yet, from all issuers at once, and says how they are doing.
    pub async fn warm(&self) -> Vec<Status> {
        let mut tasks = tokio::task::JoinSet::new();
        for source in &self.sources {
            let provider = source.provider.clone();
            tasks.spawn(async move { provider.discovery().await.map(drop) });
        }
        while tasks.join_next().await.is_some() {}
        self.statuses()
    }

    /// How the issuers are doing, in the order of their entries.
    #[must_use]
    pub fn statuses(&self) -> Vec<Status> {
        self.sources.iter().map(|source| source.provider.status()).collect()
    }

    fn source(&self, iss: &str) -> Result<&Source, Refusal> {
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
