//! A provider's discovery document and key set, fetched over TLS.
//!
//! The provider is trusted for its keys and for nothing else: it may not redirect us, keep us waiting, or make us read
//! more than a bounded document.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, StatusCode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use url::Url;

use crate::config::check_url;
use crate::keys::{self, KeySet, KeysError};
use crate::refusal::shown;

/// The largest discovery document that is read, in bytes.
pub const MAX_DISCOVERY_BYTES: usize = 64 * 1024;

/// A discovery document (OpenID Connect Discovery 1.0, section 3; RFC 8628, section 4), as far as it is used.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Discovery {
    /// The issuer identifier; byte for byte the one that was asked for.
    pub issuer: String,
    /// Where the keys are.
    pub jwks_uri: String,
    /// Where people log in.
    pub authorization_endpoint: Option<String>,
    /// Where tokens are got.
    pub token_endpoint: Option<String>,
    /// Where the device flow begins.
    pub device_authorization_endpoint: Option<String>,
    /// The PKCE methods it has (RFC 8414, section 2).
    #[serde(default)]
    pub code_challenge_methods_supported: Vec<String>,
}

/// A fetch that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The authorities to trust could not be read, or no client be made of them.
    #[error("no TLS client could be made: {0}")]
    Client(String),
    /// No connection, no trust in its certificate, or no whole answer in time.
    #[error("it did not answer: {0}")]
    Unreachable(String),
    /// An answer without success.
    #[error("it answered {url} with status {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// The status.
        status: u16,
    },
    /// It wants us to ask somewhere else.
    #[error("it redirects {url}, and redirects are not followed")]
    Redirect {
        /// What was asked for.
        url: String,
    },
    /// A longer answer than is read.
    #[error("its answer to {url} has more than {most} bytes")]
    TooLarge {
        /// What was asked for.
        url: String,
        /// The bound.
        most: usize,
    },
    /// The discovery document is not one.
    #[error("its discovery document is malformed: {0}")]
    Discovery(String),
    /// The discovery document is of somebody else.
    #[error("its discovery document is of issuer {found}, not {wanted}")]
    Issuer {
        /// Whose it is, quoted.
        found: String,
        /// Whose it should be, quoted.
        wanted: String,
    },
    /// `jwks_uri` is not an HTTPS URL.
    #[error("its `jwks_uri` is not usable: {0}")]
    KeysUrl(String),
    /// The key set is of no use.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The fetch was broken off by us.
    #[error("it was not asked to the end")]
    Interrupted,
}

impl Failure {
    /// Whether it answered, and with something that is not acceptable; time alone will hardly help.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        match self {
            Self::Client(_) | Self::Unreachable(_) | Self::Status { .. } | Self::Interrupted => false,
            Self::Redirect { .. }
            | Self::TooLarge { .. }
            | Self::Discovery(_)
            | Self::Issuer { .. }
            | Self::KeysUrl(_)
            | Self::Keys(_) => true,
        }
    }
}

/// A client for talking to one provider: HTTPS only, no redirects, the system's authorities and those of `ca_file`.
/// It reads files: call it where that may block. The broker's token requests and the CLI use it too.
///
/// # Errors
/// [`Failure::Client`].
pub fn client(ca_file: Option<&Path>, timeout: Duration) -> Result<Client, Failure> {
    let fail = |error: &dyn std::fmt::Display| Failure::Client(error.to_string());
    let mut roots = rustls::RootCertStore::empty();
    // Certificates of the system that make no sense are no reason to trust less than the rest.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let unreadable =
            |error: &dyn std::fmt::Display| Failure::Client(format!("reading {}: {error}", path.display()));
        let mut any = false;
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))? {
            roots.add(certificate.map_err(|error| unreadable(&error))?).map_err(|error| unreadable(&error))?;
            any = true;
        }
        if !any {
            return Err(unreadable(&"it has no certificate in it"));
        }
    }
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| fail(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Client::builder()
        .tls_backend_preconfigured(tls)
        .https_only(true)
        .redirect(reqwest::redirect::Policy::none())
        .timeout(timeout)
        .user_agent(concat!("mediatore/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| fail(&chain(&error)))
}

/// Where the discovery document is (OpenID Connect Discovery 1.0, section 4): a slash at the end of the issuer goes before
/// the well-known path is appended.
#[must_use]
pub fn url(issuer: &str) -> String {
    format!("{}/.well-known/openid-configuration", issuer.strip_suffix('/').unwrap_or(issuer))
}

/// The discovery document of an issuer.
///
/// # Errors
/// [`Failure`]; [`Failure::Issuer`] when the document names another issuer.
pub async fn discover(client: &Client, issuer: &str, discovery_url: &str) -> Result<Discovery, Failure> {
    let bytes = get(client, discovery_url, MAX_DISCOVERY_BYTES).await?;
    let discovery: Discovery =
        serde_json::from_slice(&bytes).map_err(|error| Failure::Discovery(shown(&error.to_string())))?;
    if discovery.issuer != issuer {
        return Err(Failure::Issuer { found: shown(&discovery.issuer), wanted: shown(issuer) });
    }
    Ok(discovery)
}

/// The keys that a discovery document points to.
///
/// # Errors
/// [`Failure`].
pub async fn keys(client: &Client, discovery: &Discovery) -> Result<KeySet, Failure> {
    check_keys_url(&discovery.jwks_uri).map_err(Failure::KeysUrl)?;
    let bytes = get(client, &discovery.jwks_uri, keys::MAX_BYTES).await?;
    Ok(KeySet::parse(&bytes)?)
}

/// Some providers have a query here (Entra's `?appid=`), so it is allowed, unlike in an issuer.
fn check_keys_url(text: &str) -> Result<(), String> {
    let without_query = text.split_once('?').map_or(text, |(path, _)| path);
    check_url(without_query)?;
    if text.contains('#') {
        return Err(format!("{} has a fragment", shown(text)));
    }
    Ok(())
}

/// The body of a GET, at most this long.
async fn get(client: &Client, url: &str, most: usize) -> Result<Vec<u8>, Failure> {
    let unreachable = |error: reqwest::Error| Failure::Unreachable(chain(&error.without_url()));
    let parsed = Url::parse(url).map_err(|error| Failure::Discovery(format!("{}: {error}", shown(url))))?;
    let response = client.get(parsed).header("accept", "application/json").send().await.map_err(unreachable)?;
    let status = response.status();
    if status.is_redirection() {
        return Err(Failure::Redirect { url: url.to_owned() });
    }
    if status != StatusCode::OK {
        return Err(Failure::Status { url: url.to_owned(), status: status.as_u16() });
    }
    body(response, most).await.map_err(|error| match error {
        BodyError::Broken(what) => Failure::Unreachable(what),
        BodyError::TooLarge => Failure::TooLarge { url: url.to_owned(), most },
    })
}

/// Why there is no whole body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The connection ended, or the time did.
    #[error("the answer did not arrive: {0}")]
    Broken(String),
    /// More bytes than are read.
    #[error("the answer is too long")]
    TooLarge,
}

/// The body of an answer, at most this long; read no further than that, whatever its length is said to be.
///
/// # Errors
/// [`BodyError`].
pub async fn body(mut response: reqwest::Response, most: usize) -> Result<Vec<u8>, BodyError> {
    if response.content_length().is_some_and(|length| length > most as u64) {
        return Err(BodyError::TooLarge);
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| BodyError::Broken(chain(&error.without_url())))? {
        if body.len() + chunk.len() > most {
            return Err(BodyError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// An error with its sources: reqwest says only "error sending request" by itself.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// What a fetch brings.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub discovery: Discovery,
    pub keys: KeySet,
}

/// Both documents. The client is made anew, so that changed authorities count without a restart.
pub(crate) async fn fetch(
    issuer: String,
    discovery_url: String,
    ca_file: Option<PathBuf>,
    timeout: Duration,
) -> Result<Fetched, Failure> {
    let client = tokio::task::spawn_blocking(move || client(ca_file.as_deref(), timeout))
        .await
        .map_err(|_| Failure::Interrupted)??;
    let discovery = discover(&client, &issuer, &discovery_url).await?;
    let keys = keys(&client, &discovery).await?;
    Ok(Fetched { discovery, keys })
}
