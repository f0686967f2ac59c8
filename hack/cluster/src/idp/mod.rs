//! Identity providers: `oidc-provider` shaped like Entra ID, and Dex, each a supervised process with an address and an
//! authority of its own; and people and applications who get tokens from them over the same pages and endpoints as
//! anybody.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use banlieue_cluster::idp::{Host, OidcConfig, Person, SANDBOX_ACCESS};
//!
//! let host = Host::start().await?; // or a `Cluster`, which has the same two calls
//! let entra = host.start_oidc(OidcConfig::entra()).await?;
//! let tokens = entra.login("mediatore-cli", &Person::ada(), &format!("openid profile {SANDBOX_ACCESS}")).await?;
//! assert_eq!(entra.verified(&tokens.access_token).await?["aud"], "mediatore");
//! # Ok(()) }
//! ```
//! [`config`](OidcConfig) says who is known; `start` starts; `login` has the flows, over `browser` and `http`; `jwt`
//! reads tokens; [`Host`] runs providers without a Kubernetes beside them.

mod browser;
mod config;
mod host;
mod http;
mod jwt;
mod login;
mod start;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

pub use config::{
    Application, CROSS_CLIENT, Credential, DexClient, DexConfig, MEDIATORE, OidcConfig, Person, Resource,
    SANDBOX_ACCESS, SANDBOX_ROLE, Shape,
};
pub use host::Host;
pub use http::LoginError;
pub use jwt::{client_assertion, decode};
pub use login::Tokens;
pub(crate) use start::{dex, oidc};

use config::{Client, Proof};
use http::{Http, url};

/// A running identity provider. Dex and `oidc-provider` alike; what one of them lacks, it refuses.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Its process, for [`crate::Cluster::kill`] and its log.
    pub component: String,
    /// `iss` of its tokens; discovery is below it.
    pub issuer: String,
    /// The authority of its certificate, PEM: the only one to trust.
    pub ca_pem: String,
    /// A file that holds [`Self::ca_pem`].
    pub ca_file: PathBuf,
    admin: String,
    admin_token: String,
    dex: bool,
    clients: BTreeMap<String, Client>,
    http: Http,
}

/// The part of a discovery document that the flows need.
#[derive(Clone, Debug, Deserialize)]
struct Endpoints {
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    device_authorization_endpoint: Option<String>,
}

impl Provider {
    /// The discovery document.
    ///
    /// # Errors
    /// When the provider is not reached.
    pub async fn discovery(&self) -> Result<Value, LoginError> {
        self.http.get(&url(&format!("{}/.well-known/openid-configuration", self.issuer))?).await
    }

    /// The key set.
    ///
    /// # Errors
    /// When the provider is not reached.
    pub async fn jwks(&self) -> Result<Value, LoginError> {
        self.http.get(&url(&self.endpoints().await?.jwks_uri)?).await
    }

    /// Claims of a token, once its signature was checked against the present key set.
    ///
    /// # Errors
    /// When none of its keys signed that.
    pub async fn verified(&self, token: &str) -> Result<Value, LoginError> {
        jwt::verify(token, &self.jwks().await?)
    }

    /// Certificate and key of a client that proves itself by [`Credential::Certificate`], PEM files.
    #[must_use]
    pub fn certificate(&self, client_id: &str) -> Option<(&Path, &Path)> {
        match &self.clients.get(client_id)?.credential {
            Proof::Certificate { cert, key } => Some((cert, key)),
            _ => None,
        }
    }

    /// The secret of a client that proves itself by one.
    #[must_use]
    pub fn secret(&self, client_id: &str) -> Option<&str> {
        match &self.clients.get(client_id)?.credential {
            Proof::Secret(secret) => Some(secret),
            _ => None,
        }
    }

    /// New signing keys. The old ones still verify, until the provider restarts.
    ///
    /// # Errors
    /// When the provider is not reached.
    pub async fn rotate_keys(&self) -> Result<(), LoginError> {
        self.administer("keys", json!({})).await.map(drop)
    }

    /// Adds a person, or gives the one with that id another login, password, groups, or `disabled`.
    ///
    /// # Errors
    /// When the provider is not reached.
    pub async fn put_person(&self, person: &Person) -> Result<(), LoginError> {
        let person = if self.dex { person.for_dex() } else { json!(person) };
        self.administer("people", person).await.map(drop)
    }

    /// Ends all sessions of a person: refresh tokens are refused, and at Entra's shape tokens from before buy no others.
    /// Returns how many refresh tokens ended.
    ///
    /// # Errors
    /// When the provider is not reached.
    pub async fn end_sessions(&self, person: &Person) -> Result<u64, LoginError> {
        let answer = self.administer("revoke", json!({ "id": person.id })).await?;
        Ok(answer.get("ended").and_then(Value::as_u64).unwrap_or_default())
    }

    /// Lets the provider answer 503 to everything, or no longer.
    ///
    /// # Errors
    /// When the provider is not reached.
    pub async fn outage(&self, on: bool) -> Result<(), LoginError> {
        self.administer("outage", json!({ "on": on })).await.map(drop)
    }

    async fn administer(&self, act: &str, body: Value) -> Result<Value, LoginError> {
        self.http.administer(&url(&format!("{}/admin/{act}", self.admin))?, &self.admin_token, &body).await
    }

    async fn endpoints(&self) -> Result<Endpoints, LoginError> {
        serde_json::from_value(self.discovery().await?)
            .map_err(|error| LoginError::Unexpected(format!("discovery of {}: {error}", self.issuer)))
    }

    fn client(&self, id: &str) -> Result<&Client, LoginError> {
        self.clients.get(id).ok_or_else(|| LoginError::Unexpected(format!("{} knows no client {id}", self.component)))
    }
}
