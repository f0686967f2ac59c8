//! HTTPS to one provider, whose authority is the only trust.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, Url};
use rustls::pki_types::CertificateDer;
use serde::de::DeserializeOwned;

/// Why somebody did not get a token.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The provider said no, as OAuth 2 says it.
    #[error("the provider refused with {status}: {error}: {description}")]
    Refused {
        /// HTTP status; 0 when it came by the redirect.
        status: u16,
        /// `error`, such as `invalid_grant`.
        error: String,
        /// `error_description`, or empty.
        description: String,
    },
    /// It was not reached.
    #[error("{url} was not reached: {source}")]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        source: reqwest::Error,
    },
    /// It answered something that fits no flow.
    #[error("{0}")]
    Unexpected(String),
}

impl LoginError {
    /// The `error` of a refusal.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// A client of one provider; follows no redirect by itself.
#[derive(Clone, Debug)]
pub(crate) struct Http(reqwest::Client);

impl Http {
    /// One that trusts this authority (DER) alone.
    pub fn new(authority: &[u8]) -> Result<Self, LoginError> {
        let wrong = |what: &str| LoginError::Unexpected(format!("no TLS client with the provider's authority: {what}"));
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from(authority.to_vec())).map_err(|error| wrong(&error.to_string()))?;
        // The provider is named here, for a program need not have installed one as its default.
        let config =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|error| wrong(&error.to_string()))?
                .with_root_certificates(roots)
                .with_no_client_auth();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(config)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .timeout(Duration::from_secs(120)) // a full machine is no error
            .build()
            .map_err(|error| wrong(&error.to_string()))?;
        Ok(Self(client))
    }

    /// Sends one request: a form as a POST, else a GET.
    pub async fn send(
        &self,
        url: &Url,
        form: Option<&[(String, String)]>,
        cookies: &str,
    ) -> Result<reqwest::Response, LoginError> {
        let mut request = self.0.request(if form.is_some() { Method::POST } else { Method::GET }, url.clone());
        if let Some(form) = form {
            request = request.form(form);
        }
        if !cookies.is_empty() {
            request = request.header(reqwest::header::COOKIE, cookies);
        }
        request.send().await.map_err(|source| unreachable(url, source))
    }

    /// A JSON document.
    pub async fn get<T: DeserializeOwned>(&self, url: &Url) -> Result<T, LoginError> {
        read(url, self.send(url, None, "").await?).await
    }

    /// What a form is answered with, in JSON; an OAuth 2 error is a refusal.
    pub async fn post<T: DeserializeOwned>(&self, url: &Url, form: &[(String, String)]) -> Result<T, LoginError> {
        read(url, self.send(url, Some(form), "").await?).await
    }

    /// Posts JSON with a bearer token.
    pub async fn administer<T: DeserializeOwned>(
        &self,
        url: &Url,
        token: &str,
        body: &serde_json::Value,
    ) -> Result<T, LoginError> {
        let sent = self.0.post(url.clone()).bearer_auth(token).json(body).send().await;
        read(url, sent.map_err(|source| unreachable(url, source))?).await
    }
}

async fn read<T: DeserializeOwned>(url: &Url, response: reqwest::Response) -> Result<T, LoginError> {
    let status = response.status();
    let text = response.text().await.map_err(|source| unreachable(url, source))?;
    if status.is_success() {
        return serde_json::from_str(&text).map_err(|error| {
            LoginError::Unexpected(format!("{url} answered with what is no such JSON ({error}): {text}"))
        });
    }
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let field = |name: &str| value.get(name).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    match field("error") {
        error if error.is_empty() => Err(LoginError::Unexpected(format!("{url} answered {status}: {text}"))),
        error => Err(LoginError::Refused { status: status.as_u16(), error, description: field("error_description") }),
    }
}

pub(crate) fn unreachable(url: &Url, source: reqwest::Error) -> LoginError {
    LoginError::Unreachable { url: url.to_string(), source: source.without_url() }
}

/// A URL from text that we or the provider made.
pub(crate) fn url(text: &str) -> Result<Url, LoginError> {
    Url::parse(text).map_err(|error| LoginError::Unexpected(format!("'{text}' is no URL: {error}")))
}
