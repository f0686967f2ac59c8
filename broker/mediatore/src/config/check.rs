//! What must hold between the parts of a configuration, and which audiences are nobody's to ask for.

use std::collections::BTreeSet;

use super::{Audience, Config};
use crate::tokens::settings;

/// Names under which the Kubernetes API is known as an audience wherever nobody changed it.
const KUBERNETES: [&str; 5] = [
    "https://kubernetes.default.svc",
    "https://kubernetes.default.svc.cluster.local",
    "https://kubernetes.default",
    "kubernetes",
    "api",
];
/// mediatore's own name as an audience.
const OWN: &str = "mediatore";

/// An audience as far as telling two apart goes: Entra writes one resource as `api://id`, `api://id/` and `id`, and
/// compares without case.
#[must_use]
pub fn resource(id: &str) -> String {
    let id = id.trim().trim_end_matches('/').to_lowercase();
    id.strip_prefix("api://").map_or(id.clone(), ToOwned::to_owned)
}

/// Audiences that no claim may ever have: mediatore's own, so that a sandbox never claims sandboxes, and those that
/// rule the cluster.
#[derive(Debug, Clone)]
pub struct Reserved(Vec<(String, String)>);

impl Reserved {
    /// Those of a configuration.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let mut names = vec![(OWN.to_owned(), "mediatore itself".to_owned())];
        for issuer in &config.issuers {
            let own =
                issuer.reserved().map(|name| (resource(name), format!("the client id of issuer {}", issuer.name)));
            names.extend(own);
            names.push((resource(&issuer.url), format!("the url of issuer {}", issuer.name)));
        }
        let kubernetes = KUBERNETES.iter().copied().chain(config.kubernetes_audiences.iter().map(String::as_str));
        names.extend(kubernetes.map(|name| (resource(name), "the Kubernetes API".to_owned())));
        if let Some(sts) = &config.sts {
            names.push((resource(&sts.issuer), "the issuer of mediatore's own tokens".to_owned()));
        }
        names.push((format!("spiffe://{}/mediatore", config.trust_domain), "mediatore itself".to_owned()));
        Self(names)
    }

    /// What an audience is reserved for, if it is.
    #[must_use]
    pub fn reason(&self, audience: &str) -> Option<&str> {
        let wanted = resource(audience);
        self.0.iter().find(|(name, _)| *name == wanted).map(|(_, reason)| reason.as_str())
    }
}

impl Config {
    /// Every problem that shows without reading other files.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        self.listener_problems(&mut problems);
        self.issuer_problems(&mut problems);
        problems.extend(settings::problems(self));
        self.audience_problems(&mut problems);
        self.key_problems(&mut problems);
        self.limit_problems(&mut problems);
        unique(&mut problems, "namespaces", self.namespaces.iter().map(|name| name.as_str()));
        for (at, rule) in self.pools.iter().enumerate() {
            let known = rule.pool.split_once('/').is_some_and(|(namespace, name)| {
                !name.is_empty() && self.namespaces.iter().any(|known| known.as_str() == namespace)
            });
            if !known {
                problems.push(format!("pools[{at}].pool: {:?} is not namespace/name in one of namespaces", rule.pool));
            }
            for name in &rule.issuers {
                if !self.issuers.iter().any(|issuer| issuer.name == *name) {
                    problems.push(format!("pools[{at}].issuers: there is no issuer {name:?}"));
                }
            }
        }
        unique(&mut problems, "pools", self.pools.iter().map(|rule| rule.pool.as_str()));
        problems
    }

    fn listener_problems(&self, problems: &mut Vec<String>) {
        match (&self.listeners.user.tls, self.listeners.user.behind_proxy) {
            (None, false) => problems.push(
                "listeners.user: needs tls, or behind_proxy: true when a proxy in front of it ends TLS".to_owned(),
            ),
            (Some(_), true) => {
                problems.push("listeners.user: has tls and behind_proxy; take one of them away".to_owned());
            }
            _ => {}
        }
        if self.listeners.sandbox.is_some() && self.spire.is_none() {
            problems.push("spire: is missing, and listeners.sandbox needs it for its certificate".to_owned());
        }
        let user = Some(("user", self.listeners.user.address));
        let sandbox = self.listeners.sandbox.as_ref().map(|it| ("sandbox", it.address));
        let metrics = self.listeners.metrics.map(|address| ("metrics", address));
        let all: Vec<_> = [user, sandbox, metrics].into_iter().flatten().collect();
        for (at, (name, address)) in all.iter().enumerate() {
            if let Some((other, _)) = all.iter().skip(at + 1).find(|(_, other)| other == address && other.port() != 0) {
                problems.push(format!("listeners.{other}: has the address of listeners.{name}, {address}"));
            }
        }
        if let Some(spire) = &self.spire
            && endpoint_parts(&spire.server).is_none()
        {
            problems.push(format!("spire.server: {:?} is not host:port", spire.server));
        }
        if let Some(spire) = &self.spire
            && !spire.workload_api.starts_with("unix:")
        {
            problems.push("spire.workload_api: must be unix:///path".to_owned());
        }
    }

    fn issuer_problems(&self, problems: &mut Vec<String>) {
        problems.extend(banlieue_identity::config::problems(&self.issuers));
        for issuer in &self.issuers {
            if self.sts.as_ref().is_some_and(|sts| resource(&sts.issuer) == resource(&issuer.url)) {
                problems.push(format!(
                    "issuers ({}): is the issuer of mediatore's own tokens; a sandbox must not claim sandboxes",
                    issuer.name
                ));
            }
        }
    }

    fn audience_problems(&self, problems: &mut Vec<String>) {
        let reserved = Reserved::of(self);
        for audience in &self.audiences {
            let at = format!("audiences ({})", audience.id);
            if audience.id.is_empty() || audience.id.len() > 512 || audience.id.chars().any(char::is_whitespace) {
                problems.push(format!("{at}: id must be 1 to 512 characters without spaces"));
            }
            if let Some(reason) = reserved.reason(&audience.id) {
                problems.push(format!("{at}: is reserved, it is {reason}; no sandbox may have a token for it"));
            }
            let backend = settings::audience_problems(self, audience, &reserved);
            problems.extend(backend.into_iter().map(|problem| format!("{at}: {problem}")));
            if audience.max_ttl == 0 || audience.max_ttl > 900 {
                problems.push(format!("{at}: max_ttl must be 1 to 900 seconds"));
            }
            self.app_problems(audience, &at, problems);
            for endpoint in &audience.endpoints {
                if endpoint_parts(endpoint).is_none() {
                    problems.push(format!("{at}: endpoint {endpoint:?} is not host:port"));
                }
            }
        }
        unique(problems, "audiences", self.audiences.iter().map(|audience| audience.id.as_str()));
        if let Some(sts) = &self.sts
            && (!sts.issuer.starts_with("https://") || sts.issuer.ends_with('/') || sts.issuer.contains(['?', '#']))
        {
            problems.push("sts.issuer: must be an https URL without a slash at its end, query or fragment".to_owned());
        }
    }

    /// An id means an application only at the issuer that gave it.
    fn app_problems(&self, audience: &Audience, at: &str, problems: &mut Vec<String>) {
        for apps in &audience.apps {
            let at = format!("{at}: apps of issuer {:?}", apps.issuer);
            match self.issuers.iter().find(|issuer| issuer.name == apps.issuer) {
                None => problems.push(format!("{at}: there is no such issuer")),
                Some(issuer) if !issuer.apps.allowed => {
                    problems.push(format!("{at}: its services may not claim; set apps.allowed there"));
                }
                Some(issuer) => {
                    let known = &issuer.apps.ids;
                    for id in apps.ids.iter().filter(|id| !known.is_empty() && !known.contains(id)) {
                        problems.push(format!("{at}: {id} is not among its apps.ids, so it cannot claim"));
                    }
                }
            }
            if apps.ids.is_empty() || apps.ids.iter().any(String::is_empty) {
                problems.push(format!("{at}: ids must be client ids of services, at least one"));
            }
            unique(problems, &at, apps.ids.iter().map(String::as_str));
        }
        unique(problems, &format!("{at}: apps"), audience.apps.iter().map(|apps| apps.issuer.as_str()));
    }

    fn key_problems(&self, problems: &mut Vec<String>) {
        unique(problems, "sealing_keys", self.sealing_keys.iter().map(|key| key.id.as_str()));
        for key in &self.sealing_keys {
            if key.id.is_empty() || key.id.len() > 64 {
                problems.push(format!("sealing_keys ({:?}): id must be 1 to 64 characters", key.id));
            }
        }
        if self.sts.as_ref().is_some_and(|sts| sts.key_files.is_empty()) {
            problems.push("sts.key_files: needs at least one key".to_owned());
        }
    }

    fn limit_problems(&self, problems: &mut Vec<String>) {
        let limits = &self.limits;
        let mut range = |name: &str, value: u64, low: u64, high: u64| {
            if !(low..=high).contains(&value) {
                problems.push(format!("limits.{name}: must be {low} to {high}"));
            }
        };
        range("body_bytes", limits.body_bytes as u64, 1024, 16 * 1024 * 1024);
        range("body_seconds", limits.body_seconds, 1, 30);
        // A slot that nobody uses is swept after 60 s: no request may still be on its way to use it then.
        range("request_seconds", limits.request_seconds, 1, 30);
        range("connections", limits.connections as u64, 1, 1_000_000);
        range("connections_per_address", limits.connections_per_address as u64, 1, 1_000_000);
        range("connections_per_identity", limits.connections_per_identity as u64, 1, 1_000_000);
        range("handshake_seconds", limits.handshake_seconds, 1, 60);
        range("quiet_seconds", limits.quiet_seconds, 1, 600);
        range("connection_seconds", limits.connection_seconds, 1, 86_400);
        range("failures_per_minute", limits.failures_per_minute.into(), 1, 1_000_000);
        range("subject_burst", limits.subject_burst.into(), 1, 1_000_000);
        range("subject_per_minute", limits.subject_per_minute.into(), 1, 1_000_000);
        range("claim_tokens_per_minute", limits.claim_tokens_per_minute.into(), 1, 1_000_000);
        range("member_requests_per_minute", limits.member_requests_per_minute.into(), 1, 1_000_000);
        range("agent_share_percent", limits.agent_share_percent.into(), 0, 100);
        range("poll_seconds", limits.poll_seconds, 1, 60);
        range("lease_seconds", limits.lease_seconds, 5, 3600);
        range("stop_seconds", limits.stop_seconds, 1, 600);
    }
}

/// Host and port of `host:port`.
pub(crate) fn endpoint_parts(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    (!host.is_empty() && host.chars().all(plain)).then_some((host, port))
}

fn unique<'a>(problems: &mut Vec<String>, what: &str, names: impl Iterator<Item = &'a str>) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            problems.push(format!("{what}: {name:?} stands there twice"));
        }
    }
}
