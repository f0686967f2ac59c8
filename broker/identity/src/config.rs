//! What an operator says of an issuer. Read from YAML or JSON; unknown keys are refused.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use url::Url;

/// Claims that change when a person is renamed, or that pass to another person: no identity rests on them.
const UNSTABLE_CLAIMS: &[&str] = &["email", "preferred_username", "name", "nickname", "upn", "unique_name", "login"];

/// One issuer of tokens, and which of its tokens are accepted.
///
/// ```yaml
/// name: entra
/// url: https://login.microsoftonline.com/<tenant>/v2.0
/// client_id: 9f0c…                # the broker's own client
/// accepts: access_token
/// subject_claim: oid
/// clients: [04b07795-8ddb-461a-bbee-02f9e1bf7b46]   # az: people log in with it
/// require: {scope: sandbox.access}
/// peers: [6d2e…]                  # agents that may act for people
/// apps: {allowed: true, role: Sandbox.Access}
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Issuer {
    /// A short name for audit, metrics and messages; unique.
    pub name: String,
    /// The issuer identifier, compared byte for byte with `issuer` in discovery and `iss` in tokens. HTTPS; unique.
    pub url: String,
    /// The broker's own client at this issuer. A token that this client asked for is refused.
    pub client_id: String,
    /// The audience that tokens must have. Default: `client_id`. Differs where an issuer names APIs by a URI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    /// Which kind of token is accepted; never both.
    pub accepts: Accepts,
    /// Signature algorithms that are accepted. Default: RS256 and ES256.
    #[serde(default = "default_algorithms")]
    pub algorithms: Vec<Algorithm>,
    /// The claim that identifies the subject, for ever and for one person only. Default: `sub`.
    #[serde(default = "default_subject_claim")]
    pub subject_claim: String,
    /// The claim that names the subject for people to read. Default: `preferred_username`.
    #[serde(default = "default_display_claim")]
    pub display_claim: String,
    /// A PEM file with certificates of authorities trusted for this issuer besides the system's. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Clients that people log in with, path A: the broker's CLI, `az`. Default: none.
    #[serde(default)]
    pub clients: Vec<String>,
    /// What the token of a person must carry, on paths A and B. Default: nothing.
    #[serde(default)]
    pub require: Require,
    /// Clients whose tokens for a person are accepted, path B. Default: none.
    #[serde(default)]
    pub peers: Vec<String>,
    /// Services as themselves, path C. Default: not allowed.
    #[serde(default)]
    pub apps: Apps,
}

/// Which kind of token an issuer entry accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accepts {
    /// JWT access tokens: RFC 9068 (`typ: at+jwt`) or Entra's (`typ: JWT` with `scp` or `roles`).
    AccessToken,
    /// OpenID Connect ID tokens, for providers such as Dex whose access tokens are opaque.
    IdToken,
}

/// A signature algorithm (RFC 7518, section 3.1, and RFC 8037). There is no symmetric one and no `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the specification's
pub enum Algorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    EdDSA,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: &'static [Self] = &[
        Self::RS256,
        Self::RS384,
        Self::RS512,
        Self::PS256,
        Self::PS384,
        Self::PS512,
        Self::ES256,
        Self::ES384,
        Self::EdDSA,
    ];

    /// The `alg` value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RS256 => "RS256",
            Self::RS384 => "RS384",
            Self::RS512 => "RS512",
            Self::PS256 => "PS256",
            Self::PS384 => "PS384",
            Self::PS512 => "PS512",
            Self::ES256 => "ES256",
            Self::ES384 => "ES384",
            Self::EdDSA => "EdDSA",
        }
    }

    /// The algorithm of this `alg` value; case matters.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|algorithm| algorithm.as_str() == name)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the token of a person must carry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Require {
    /// A word of `scp`, or of `scope` where there is no `scp`. Must be set where access tokens are accepted.
    #[serde(default)]
    pub scope: Option<String>,
    /// An element of `groups`.
    #[serde(default)]
    pub group: Option<String>,
    /// An element of `roles`.
    #[serde(default)]
    pub role: Option<String>,
}

/// Services as themselves. `require` is for people and is not asked of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apps {
    /// Whether services may claim at all.
    #[serde(default)]
    pub allowed: bool,
    /// An element of `roles`. Must be set when `allowed`.
    #[serde(default)]
    pub role: Option<String>,
    /// Client ids of the services that may claim. Empty: each that was given the role.
    #[serde(default)]
    pub ids: Vec<String>,
}

fn default_algorithms() -> Vec<Algorithm> {
    vec![Algorithm::RS256, Algorithm::ES256]
}

fn default_subject_claim() -> String {
    "sub".to_owned()
}

fn default_display_claim() -> String {
    "preferred_username".to_owned()
}

impl Issuer {
    /// The audience that tokens must have.
    #[must_use]
    pub fn audience(&self) -> &str {
        self.audience.as_deref().unwrap_or(&self.client_id)
    }

    /// Names that stand for the broker at this issuer; no downstream audience may have one of them as id or resource.
    pub fn reserved(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.client_id.as_str()).chain(self.audience.as_deref())
    }

    /// Everything that is wrong with this entry, each as a sentence that starts with its key.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut problem = |text: String| problems.push(text);

        if self.name.is_empty() || self.name.len() > 63 || !self.name.bytes().all(is_name_byte) {
            problem(format!("name: {:?} is not 1 to 63 lower-case letters, digits and hyphens", self.name));
        }
        if let Err(why) = check_url(&self.url) {
            problem(format!("url: {why}"));
        }
        for (key, value) in [
            ("client_id", Some(&self.client_id)),
            ("audience", self.audience.as_ref()),
            ("subject_claim", Some(&self.subject_claim)),
            ("display_claim", Some(&self.display_claim)),
            ("require.scope", self.require.scope.as_ref()),
            ("require.group", self.require.group.as_ref()),
            ("require.role", self.require.role.as_ref()),
            ("apps.role", self.apps.role.as_ref()),
        ] {
            if let Some(value) = value
                && let Err(why) = check_word(value)
            {
                problem(format!("{key}: {why}"));
            }
        }
        if self.require.scope.as_ref().is_some_and(|scope| scope.contains(' ')) {
            problem("require.scope: is one scope, so it has no space".to_owned());
        }

        if self.algorithms.is_empty() {
            problem("algorithms: is empty, so no token could be accepted; leave it out for RS256 and ES256".to_owned());
        }
        if let Some(twice) = first_duplicate(&self.algorithms) {
            problem(format!("algorithms: {twice} is listed twice"));
        }
        if UNSTABLE_CLAIMS.contains(&self.subject_claim.as_str()) {
            problem(format!(
                "subject_claim: {} can change or pass to another person, who would then own the sandboxes; use sub or oid",
                self.subject_claim
            ));
        }

        for (key, list) in [("clients", &self.clients), ("peers", &self.peers), ("apps.ids", &self.apps.ids)] {
            for id in list {
                if let Err(why) = check_word(id) {
                    problem(format!("{key}: {why}"));
                }
                if self.reserved().any(|reserved| reserved == id) {
                    problem(format!("{key}: {id} is the broker itself, and a sandbox never claims sandboxes"));
                }
            }
            if let Some(twice) = first_duplicate(list) {
                problem(format!("{key}: {twice} is listed twice"));
            }
        }
        if let Some(both) = self.clients.iter().find(|client| self.peers.contains(client)) {
            problem(format!("peers: {both} is in clients too; it is either what people log in with or an agent"));
        }

        match self.accepts {
            Accepts::AccessToken if self.people() && self.require.scope.is_none() => problem(
                "require.scope: must be set where access tokens are accepted, for only the scope shows that a person \
                 agreed to this use"
                    .to_owned(),
            ),
            Accepts::IdToken if self.require.scope.is_some() => {
                problem("require.scope: an ID token carries no scope; use require.group or require.role".to_owned());
            }
            _ => {}
        }
        if self.apps.allowed {
            if self.accepts == Accepts::IdToken {
                problem(
                    "apps.allowed: an ID token is about a person, so services need an issuer with access tokens"
                        .to_owned(),
                );
            }
            if self.apps.role.is_none() {
                problem(
                    "apps.role: must be set when apps.allowed, or every application of this issuer could claim"
                        .to_owned(),
                );
            }
        } else if self.apps.role.is_some() || !self.apps.ids.is_empty() {
            problem("apps: has a role or ids but allowed is not true, so no service can claim".to_owned());
        }
        if !self.people() && !self.apps.allowed {
            problem("clients: is empty, and so are peers and apps; nobody could claim with this issuer".to_owned());
        }
        problems
    }

    /// Whether any person's token can be accepted.
    fn people(&self) -> bool {
        !self.clients.is_empty() || !self.peers.is_empty()
    }
}

/// Everything that is wrong with these entries, each alone and all together; a sentence starts with `issuers[n].key`.
#[must_use]
pub fn problems(issuers: &[Issuer]) -> Vec<String> {
    let mut problems = Vec::new();
    if issuers.is_empty() {
        problems.push("issuers: is empty, so nobody could claim".to_owned());
    }
    let (mut names, mut urls) = (BTreeSet::new(), BTreeSet::new());
    for (index, issuer) in issuers.iter().enumerate() {
        problems.extend(issuer.problems().into_iter().map(|problem| format!("issuers[{index}].{problem}")));
        if !names.insert(&issuer.name) {
            problems.push(format!("issuers[{index}].name: {} is the name of an earlier entry", issuer.name));
        }
        // A slash more or less would make two subjects of one person.
        if !urls.insert(issuer.url.trim_end_matches('/')) {
            problems.push(format!("issuers[{index}].url: {} is the url of an earlier entry", issuer.url));
        }
    }
    problems
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

fn check_word(word: &str) -> Result<(), String> {
    if word.is_empty() {
        return Err("is empty".to_owned());
    }
    if word.len() > 255 || word.trim() != word || word.chars().any(char::is_control) {
        return Err(format!("{word:?} is longer than 255 bytes, has space around it or a control character in it"));
    }
    Ok(())
}

/// An HTTPS URL that nothing normalises: no credentials, no query, no fragment.
pub(crate) fn check_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("{text:?} is no URL: {error}"))?;
    if url.scheme() != "https" {
        return Err(format!("{text:?} does not begin with https://"));
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err(format!("{text:?} has credentials, a query or a fragment"));
    }
    if text.chars().any(|character| character.is_control() || character.is_whitespace()) {
        return Err(format!("{text:?} has white space in it"));
    }
    Ok(url)
}

fn first_duplicate<T: Ord>(list: &[T]) -> Option<&T> {
    let mut seen = BTreeSet::new();
    list.iter().find(|item| !seen.insert(*item))
}
