//! mediatore's routes for callers, as its `/openapi.json` describes them.
//!
//! Answers are read up to a bound. What is safe to repeat is repeated while mediatore does not answer or says so: reading,
//! releasing, and claiming too, since every claim is asked for with its idempotency key.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};
use banlieue_identity::discovery;
use http::{Method, header};
use reqwest::Response;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;
use zeroize::Zeroizing;

use crate::fault::{Fault, Kind};

/// Longest time of one request.
const REQUEST: Duration = Duration::from_secs(45);
/// Longest pause that an answer can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Largest answer that is read, in bytes.
const LARGEST: usize = 4 * 1024 * 1024;

/// What is asked for (`ClaimRequest`).
#[derive(Serialize)]
pub struct Request<'a> {
    /// The pool.
    pub pool_ref: &'a str,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<i64>,
    /// Downstream services.
    pub audiences: &'a [String],
    /// What runs.
    pub workload: Value,
    /// The caller's session, handed over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<&'a str>,
}

/// A claim (`ClaimResponse`). Fields that a later mediatore adds are passed on in JSON, and not read here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// Its phase: `Pending`, `Bound`, `Releasing`, `Released`, `Failed`.
    pub phase: String,
    /// The pool.
    pub pool_ref: String,
    /// Its deadline, RFC 3339.
    pub expires_at: Option<String>,
    /// What the workload does: `pending`, `pulling`, `unpacking`, `running`, `finished`, `failed`.
    pub workload_state: Option<String>,
    /// The workload's exit code.
    pub exit_code: Option<i32>,
    /// Place in the pool's queue.
    pub queue_position: Option<u32>,
    /// Why it ended.
    pub termination_reason: Option<String>,
}

/// A pool (`PoolResponse`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pool {
    /// Its name.
    pub pool_ref: String,
    /// Members that are ready.
    pub warm: u32,
    /// Longest lifetime.
    pub max_ttl_seconds: u32,
    /// Claims at once.
    pub max_claims_per_subject: u32,
    /// Images.
    pub allowed_images: Vec<String>,
    /// Audiences.
    pub allowed_audiences: Vec<String>,
}

/// An answer, read as far as this program needs it and kept whole for `--output json`.
#[derive(Debug, Clone)]
pub struct Read<T> {
    /// What this program reads.
    pub it: T,
    /// All of it.
    pub whole: Value,
}

/// mediatore, as one caller.
pub struct Mediatore {
    http: reqwest::Client,
    base: Url,
    token: Zeroizing<String>,
    patience: Duration,
}

impl Mediatore {
    /// mediatore at this address, asked again for as long as `patience`. It reads `ca_file`.
    ///
    /// # Errors
    /// When the authorities cannot be read, or the token is no token.
    pub fn new(
        base: Url,
        ca_file: Option<&std::path::Path>,
        token: Zeroizing<String>,
        patience: Duration,
    ) -> Result<Self, Fault> {
        let http =
            discovery::client(ca_file, REQUEST).map_err(|failure| Fault::new(Kind::Usage, failure.to_string()))?;
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Fault::new(Kind::Usage, "what was given as a token is none: it must be one word"));
        }
        Ok(Self { http, base, token, patience })
    }

    /// Asks for a claim.
    ///
    /// # Errors
    /// mediatore's refusal, or that it does not answer.
    pub async fn claim(&self, request: &Request<'_>, key: &str) -> Result<Read<Claim>, Fault> {
        let body = serde_json::to_vec(request).map_err(|error| Fault::new(Kind::Other, error.to_string()))?;
        let whole = self.ask(Method::POST, &["claims"], Some((Zeroizing::new(body), key))).await?;
        read(whole.unwrap_or_default())
    }

    /// One claim.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn status(&self, name: &str) -> Result<Read<Claim>, Fault> {
        read(self.ask(Method::GET, &["claims", name], None).await?.unwrap_or_default())
    }

    /// The caller's claims.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn claims(&self) -> Result<Read<Vec<Claim>>, Fault> {
        #[derive(Deserialize)]
        struct List {
            claims: Vec<Claim>,
        }
        let Read { it: List { claims }, whole } =
            read(self.ask(Method::GET, &["claims"], None).await?.unwrap_or_default())?;
        Ok(Read { it: claims, whole })
    }

    /// The caller's pools.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn pools(&self) -> Result<Read<Vec<Pool>>, Fault> {
        #[derive(Deserialize)]
        struct List {
            pools: Vec<Pool>,
        }
        let Read { it: List { pools }, whole } =
            read(self.ask(Method::GET, &["pools"], None).await?.unwrap_or_default())?;
        Ok(Read { it: pools, whole })
    }

    /// Ends a claim.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn release(&self, name: &str) -> Result<(), Fault> {
        self.ask(Method::DELETE, &["claims", name], None).await.map(drop)
    }

    /// Asks, and asks again while that may help.
    async fn ask(
        &self,
        method: Method,
        path: &[&str],
        body: Option<(Zeroizing<Vec<u8>>, &str)>,
    ) -> Result<Option<Value>, Fault> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| Fault::new(Kind::Usage, "mediatore's address has no path"))?
            .pop_if_empty()
            .push("v1")
            .extend(path);
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(250))
            .with_max_delay(Duration::from_secs(15))
            .with_jitter()
            .without_max_times()
            .build();
        let begun = Instant::now();
        loop {
            let (fault, asked_pause) = match self.once(method.clone(), url.clone(), body.as_ref()).await {
                Ok(answer) => return Ok(answer),
                Err(Refusal { fault, retry: Some(pause) }) => (fault, pause),
                Err(Refusal { fault, retry: None }) => return Err(fault),
            };
            let pause = pauses.next().unwrap_or_default().max(asked_pause);
            if begun.elapsed() + pause > self.patience {
                return Err(fault);
            }
            eprintln!("{fault}; trying again");
            tokio::time::sleep(pause).await;
        }
    }

    async fn once(
        &self,
        method: Method,
        url: Url,
        body: Option<&(Zeroizing<Vec<u8>>, &str)>,
    ) -> Result<Option<Value>, Refusal> {
        let mut asking = self.http.request(method, url).bearer_auth(self.token.as_str());
        if let Some((body, key)) = body {
            let asked = asking.header(header::CONTENT_TYPE, "application/json").header("idempotency-key", *key);
            asking = asked.body(body.to_vec());
        }
        let silent = |what: String| Refusal {
            fault: Fault::new(Kind::Unavailable, format!("mediatore at {} does not answer: {what}", self.base)),
            retry: Some(Duration::ZERO),
        };
        let response = asking.send().await.map_err(|error| {
            let is_builder = error.is_builder();
            let refusal = silent(discovery::chain(&error.without_url()));
            // A request that cannot be written, with a line end in its key for example, gets no better.
            if is_builder { Refusal { retry: None, ..refusal } } else { refusal }
        })?;
        let (status, pause) = (response.status(), pause(&response));
        let body = discovery::body(response, LARGEST).await.map_err(|error| silent(error.to_string()))?;
        if status.is_success() {
            if body.is_empty() {
                return Ok(None);
            }
            let value = serde_json::from_slice(&body);
            return value.map(Some).map_err(|_| not_mediatore(&self.base, status.as_u16()).into());
        }
        #[derive(Deserialize)]
        struct Said {
            error: String,
            detail: String,
        }
        let Ok(Said { error, detail }) = serde_json::from_slice(&body) else {
            // A proxy in front of it, for example.
            let may_change = matches!(status.as_u16(), 502..=504);
            return Err(Refusal {
                fault: not_mediatore(&self.base, status.as_u16()),
                retry: may_change.then_some(Duration::ZERO),
            });
        };
        let may_change = error == "rate_limited" || matches!(status.as_u16(), 408 | 502..=504);
        Err(Refusal { fault: Fault::answered(status.as_u16(), &error, &detail), retry: may_change.then_some(pause) })
    }
}

/// An answer that is no success.
struct Refusal {
    fault: Fault,
    /// Whether asking again may help, and after which time at the earliest.
    retry: Option<Duration>,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self { fault, retry: None }
    }
}

fn not_mediatore(base: &Url, status: u16) -> Fault {
    let kind = if status >= 500 { Kind::Unavailable } else { Kind::Other };
    Fault::new(kind, format!("{base} answered with status {status} and not as mediatore does: is the address right?"))
}

/// `Retry-After`, in seconds only (RFC 9110, 10.2.3).
fn pause(response: &Response) -> Duration {
    let text = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).map_or(Duration::ZERO, Duration::from_secs).min(LONGEST_PAUSE)
}

fn read<T: DeserializeOwned>(whole: Value) -> Result<Read<T>, Fault> {
    let it = T::deserialize(&whole).map_err(|error| {
        Fault::new(Kind::Other, format!("mediatore answered in a way that this version does not understand: {error}"))
    })?;
    Ok(Read { it, whole })
}
