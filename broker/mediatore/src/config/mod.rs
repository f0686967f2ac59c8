//! What an operator writes: one YAML file. Unknown keys are refused, secrets stand in files of their own, and
//! everything that is wrong is said at once.
//!
//! Each top-level key, and each item of a list, is read by itself, so that a mistake in one does not hide the next.

mod check;
mod files;
mod secrets;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use banlieue_identity::config::Issuer;
use banlieue_protocol::names::{Cluster, Namespace, TrustDomain};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::tokens::settings::Upstream;

pub(crate) use check::endpoint_parts;
pub use check::{Reserved, resource};
use files::Files;
pub use secrets::{SecretError, certificate, sealing_key, secret, signing_key};

/// Longest configuration file, in bytes.
const FILE_LIMIT: u64 = 1024 * 1024;

/// Why there is no configuration to work with.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file itself.
    #[error("cannot read the configuration {path}: {what}")]
    File {
        /// Its path.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// Its content, each problem as one sentence that begins with the key.
    #[error("the configuration {path} has {} problem(s):\n{}", problems.len(), problems.iter().map(|p| format!("  - {p}")).collect::<Vec<_>>().join("\n"))]
    Content {
        /// Its path.
        path: String,
        /// What is wrong, all of it.
        problems: Vec<String>,
    },
}

impl ConfigError {
    /// Fixed word for metrics.
    #[must_use]
    pub fn category(&self) -> &'static str {
        "config"
    }
}

/// The whole configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// SPIFFE trust domain.
    pub trust_domain: TrustDomain,
    /// Name of this cluster inside the trust domain.
    pub cluster: Cluster,
    /// Namespaces that mediatore works in. The first is meant by a `pool_ref` without one.
    pub namespaces: Vec<Namespace>,
    /// Where it listens.
    pub listeners: Listeners,
    /// Whose tokens it accepts.
    pub issuers: Vec<Issuer>,
    /// What tokens it gives.
    pub audiences: Vec<Audience>,
    /// How issuers are asked for tokens.
    pub upstreams: Vec<Upstream>,
    /// Keys that grants are sealed with; the first seals, all open.
    pub sealing_keys: Vec<SealingKey>,
    /// The issuer of tokens that mediatore signs itself.
    pub sts: Option<Sts>,
    /// SPIRE. Needed by the sandbox listener.
    pub spire: Option<Spire>,
    /// Who may claim from which pool; a pool that is not listed is open to every accepted caller.
    pub pools: Vec<PoolRule>,
    /// How the guest reaches the registry, passed on to it as it stands.
    pub registry: Option<Registry>,
    /// More names under which the Kubernetes API is known as an audience.
    pub kubernetes_audiences: Vec<String>,
    /// Bounds on everything.
    pub limits: Limits,
    /// Where audit lines go; standard output when absent.
    pub audit_file: Option<PathBuf>,
}

/// Where mediatore listens.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listeners {
    /// For callers.
    pub user: UserListener,
    /// For members and their workloads, by mutual TLS with SVIDs.
    #[serde(default)]
    pub sandbox: Option<SandboxListener>,
    /// Metrics and probes, in plain HTTP; not for the world.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
}

/// The callers' side.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserListener {
    /// Where.
    pub address: SocketAddr,
    /// Certificate and key. Absent only behind a proxy that ends TLS.
    #[serde(default)]
    pub tls: Option<Tls>,
    /// Says that a proxy ends TLS, so that nobody serves bearer tokens in the clear by leaving out a key.
    #[serde(default)]
    pub behind_proxy: bool,
}

/// A certificate chain and its key, both PEM; read again when they change.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The chain, leaf first.
    pub certificate_file: PathBuf,
    /// The key.
    pub key_file: PathBuf,
}

/// The members' side; its certificate is mediatore's SVID.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxListener {
    /// Where.
    pub address: SocketAddr,
}

/// One downstream service.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Audience {
    /// What stands in `aud`, and what a claim asks for.
    pub id: String,
    /// Who makes the tokens.
    #[serde(default)]
    pub backend: Backend,
    /// For the backend entra-obo: what is asked for at the provider, `<resource>/.default` or one scope of a resource.
    #[serde(default)]
    pub scope: Option<String>,
    /// Longest life of its tokens, in seconds.
    #[serde(default = "max_ttl")]
    pub max_ttl: u32,
    /// `host:port` that the workload may reach for it.
    #[serde(default)]
    pub endpoints: Vec<String>,
    /// Services that may have app-only tokens for it.
    #[serde(default)]
    pub apps: Vec<AudienceApps>,
}

/// Services of one issuer: what an id means, only its issuer says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AudienceApps {
    /// Name of the issuer's entry.
    pub issuer: String,
    /// Their client ids there.
    pub ids: Vec<String>,
}

/// Who makes the tokens of an audience.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// mediatore signs.
    #[default]
    Sts,
    /// Entra ID, on behalf of the person.
    EntraObo,
    /// mediatore signs, once Dex refreshed the person's session.
    DexRefresh,
}

impl Backend {
    /// Its word, in the configuration and in the audit record.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sts => "sts",
            Self::EntraObo => "entra-obo",
            Self::DexRefresh => "dex-refresh",
        }
    }
}

/// One key for grants: a file with 32 bytes, or their 64 hexadecimal digits.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealingKey {
    /// Its name, which stands beside what it sealed.
    pub id: String,
    /// The file.
    pub file: PathBuf,
}

/// The issuer of tokens that mediatore signs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sts {
    /// What stands in `iss`; discovery is served below it.
    pub issuer: String,
    /// P-256 keys in PKCS #8 PEM. The first signs, all are published: add a new one last, make it first once every
    /// verifier had time to fetch it, and take the old one away when its last token has expired.
    pub key_files: Vec<PathBuf>,
}

/// SPIRE.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spire {
    /// `host:port` of the server's API.
    pub server: String,
    /// Workload API of the agent beside us, `unix:///…`.
    pub workload_api: String,
}

/// Who may claim from one pool.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolRule {
    /// `namespace/name`.
    pub pool: String,
    /// Names of issuers whose callers may; others do not see the pool.
    pub issuers: Vec<String>,
}

/// How the guest reaches the registry.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    /// PEM of an additional root.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

/// Bounds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Largest request body, in bytes.
    pub body_bytes: usize,
    /// Longest time for a body to arrive, in seconds.
    pub body_seconds: u64,
    /// Longest time for one request as a whole, in seconds; well below the 60 s after which an unused slot is swept.
    pub request_seconds: u64,
    /// Connections at once, for each listener.
    pub connections: usize,
    /// Of those, from one address (of IPv6: one /64). Not counted on a user side that is behind a proxy.
    pub connections_per_address: usize,
    /// Of those, of one SPIFFE id.
    pub connections_per_identity: usize,
    /// Longest TLS handshake, in seconds.
    pub handshake_seconds: u64,
    /// Longest time that a connection is open without a request under way, in seconds: before the first byte, while a
    /// request's head arrives, and between requests.
    pub quiet_seconds: u64,
    /// Longest life of a connection, in seconds; what is under way then may end.
    pub connection_seconds: u64,
    /// Requests without an acceptable token that one address may make in a burst, and per minute in the long run; what is
    /// beyond is answered 429 and not recorded. Not counted behind a proxy.
    pub failures_per_minute: u32,
    /// Requests that a subject may make in a burst.
    pub subject_burst: u32,
    /// Requests per minute that a subject may make in the long run.
    pub subject_per_minute: u32,
    /// Token requests per minute for one claim.
    pub claim_tokens_per_minute: u32,
    /// Requests per minute of one member's guest; a long poll is one, however long it waits.
    pub member_requests_per_minute: u32,
    /// Share of a person's claims that agents may hold, in percent.
    pub agent_share_percent: u32,
    /// Longest wait of a long poll, in seconds.
    pub poll_seconds: u64,
    /// How long a guest may go on without an answer, in seconds.
    pub lease_seconds: u64,
    /// Longest time between asking to stop and stopping, in seconds.
    pub stop_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 256 * 1024,
            body_seconds: 10,
            request_seconds: 20,
            connections: 4096,
            connections_per_address: 256,
            connections_per_identity: 32,
            handshake_seconds: 10,
            quiet_seconds: 30,
            connection_seconds: 3600,
            failures_per_minute: 120,
            subject_burst: 30,
            subject_per_minute: 120,
            claim_tokens_per_minute: 120,
            member_requests_per_minute: 120,
            agent_share_percent: 50,
            poll_seconds: 30,
            lease_seconds: 120,
            stop_seconds: 30,
        }
    }
}

fn max_ttl() -> u32 {
    900
}

impl Config {
    /// Reads and checks a file, and every file that it refers to.
    ///
    /// # Errors
    /// All problems at once.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let shown = path.display().to_string();
        let file = |what: String| ConfigError::File { path: shown.clone(), what };
        let size = std::fs::metadata(path).map_err(|error| file(error.to_string()))?.len();
        if size > FILE_LIMIT {
            return Err(file(format!("it is longer than {FILE_LIMIT} bytes")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| file(error.to_string()))?;
        let (config, mut problems, files) = Self::read(&text);
        problems.extend(files.problems());
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(ConfigError::Content { path: shown, problems }),
        }
    }

    /// Reads and checks a document, without the files it refers to.
    ///
    /// # Errors
    /// All problems.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        match Self::read(text) {
            (Some(config), problems, _) if problems.is_empty() => Ok(config),
            (_, problems, _) => Err(problems),
        }
    }

    /// What can be made of a document, everything that is wrong with it, and the files it refers to.
    fn read(text: &str) -> (Option<Self>, Vec<String>, Files) {
        let document: Map<String, Value> = match serde_saphyr::from_str(text) {
            Ok(document) => document,
            Err(error) => {
                let what = error.to_string().lines().next().unwrap_or("no YAML").to_owned();
                return (None, vec![what], Files::default());
            }
        };
        let mut read = Reader { document, problems: Vec::new() };
        let trust_domain = read.word("trust_domain", TrustDomain::parse);
        let cluster = read.word("cluster", Cluster::parse);
        let namespaces: Vec<Option<Namespace>> = read
            .list::<String>("namespaces", true)
            .into_iter()
            .enumerate()
            .map(|(at, text)| read.checked(&format!("namespaces[{at}]"), Namespace::parse(&text)))
            .collect();
        let listeners: Option<Listeners> = read.section("listeners", true);
        let issuers: Vec<Issuer> = read.list("issuers", true);
        let audiences = read.list("audiences", false);
        let upstreams: Vec<Upstream> = read.list("upstreams", false);
        let sealing_keys: Vec<SealingKey> = read.list("sealing_keys", true);
        let sts: Option<Sts> = read.section("sts", false);
        let spire = read.section("spire", false);
        let pools = read.list("pools", false);
        let registry: Option<Registry> = read.section("registry", false);
        let kubernetes_audiences = read.list("kubernetes_audiences", false);
        let limits = read.section("limits", false).unwrap_or_default();
        let audit_file: Option<PathBuf> = read.section("audit_file", false);
        read.nothing_left();
        let mut problems = read.problems;
        let tls = listeners.as_ref().and_then(|listeners| listeners.user.tls.as_ref());
        let mut files = Files::of(tls, &sealing_keys, sts.as_ref(), &issuers, registry.as_ref(), audit_file.as_ref());
        files.upstreams.clone_from(&upstreams);
        // Further checks need a whole; what is missing was said already.
        let (Some(trust_domain), Some(cluster), Some(listeners)) = (trust_domain, cluster, listeners) else {
            return (None, problems, files);
        };
        let config = Self {
            trust_domain,
            cluster,
            namespaces: namespaces.into_iter().flatten().collect(),
            listeners,
            issuers,
            audiences,
            upstreams,
            sealing_keys,
            sts,
            spire,
            pools,
            registry,
            kubernetes_audiences,
            limits,
            audit_file,
        };
        problems.extend(config.problems());
        (Some(config), problems, files)
    }

    /// Whether a service, by its client id at this issuer, may have tokens for an audience.
    #[must_use]
    pub fn is_listed(&self, audience: &Audience, issuer_url: &str, client: &str) -> bool {
        let Some(issuer) = self.issuers.iter().find(|issuer| issuer.url == issuer_url) else { return false };
        audience.apps.iter().any(|apps| apps.issuer == issuer.name && apps.ids.iter().any(|id| id == client))
    }

    /// The audience of this id.
    #[must_use]
    pub fn audience(&self, id: &str) -> Option<&Audience> {
        self.audiences.iter().find(|audience| audience.id == id)
    }
}

/// Takes a document apart, key by key.
struct Reader {
    document: Map<String, Value>,
    problems: Vec<String>,
}

impl Reader {
    fn take(&mut self, key: &str, needed: bool) -> Option<Value> {
        let value = self.document.remove(key).filter(|value| !value.is_null());
        if value.is_none() && needed {
            self.problems.push(format!("{key}: is missing"));
        }
        value
    }

    fn checked<T, E: std::fmt::Display>(&mut self, at: &str, outcome: Result<T, E>) -> Option<T> {
        outcome.map_err(|error| self.problems.push(format!("{at}: {error}"))).ok()
    }

    fn section<T: DeserializeOwned>(&mut self, key: &str, needed: bool) -> Option<T> {
        let value = self.take(key, needed)?;
        self.checked(key, serde_json::from_value(value))
    }

    fn list<T: DeserializeOwned>(&mut self, key: &str, needed: bool) -> Vec<T> {
        match self.take(key, needed) {
            None => Vec::new(),
            Some(Value::Array(items)) => {
                if needed && items.is_empty() {
                    self.problems.push(format!("{key}: needs at least one item"));
                }
                let read = |(at, item)| self.checked(&format!("{key}[{at}]"), serde_json::from_value(item));
                items.into_iter().enumerate().filter_map(read).collect()
            }
            Some(_) => {
                self.problems.push(format!("{key}: is no list"));
                Vec::new()
            }
        }
    }

    fn word<T, E: std::fmt::Display>(&mut self, key: &str, parse: impl Fn(&str) -> Result<T, E>) -> Option<T> {
        let text: String = self.section(key, true)?;
        self.checked(key, parse(&text))
    }

    fn nothing_left(&mut self) {
        let unknown = self.document.keys().map(|key| format!("{key}: there is no such key"));
        self.problems.extend(unknown);
    }
}

#[cfg(test)]
mod tests;
