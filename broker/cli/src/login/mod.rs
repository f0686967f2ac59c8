//! From a person to a token for mediatore.

pub mod browser;
pub mod device;
pub mod store;

use std::path::PathBuf;
use std::time::Duration;

use banlieue_identity::discovery::{self, BodyError, Discovery};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use oauth2::basic::{
    BasicErrorResponse, BasicRevocationErrorResponse, BasicTokenIntrospectionResponse, BasicTokenType,
};
use oauth2::{
    ClientId, EndpointNotSet, EndpointSet, HttpRequest, HttpResponse, RequestTokenError, StandardRevocableToken,
    StandardTokenResponse, TokenResponse, TokenUrl,
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::config::{Provider, Wanted};
use crate::fault::{Fault, Kind};

/// Longest time of one request to a provider.
const REQUEST: Duration = Duration::from_secs(20);
/// Largest answer of a token endpoint that is read, in bytes.
const LARGEST: usize = 256 * 1024;

/// The part of an answer that OAuth does not have (OpenID Connect Core 1.0, 3.1.3.3).
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct IdTokenField {
    id_token: Option<String>,
}
impl oauth2::ExtraTokenFields for IdTokenField {}

/// What a token endpoint gives.
pub type Answer = StandardTokenResponse<IdTokenField, BasicTokenType>;

/// An OAuth client that knows its token endpoint.
pub type Client<Auth = EndpointNotSet, Device = EndpointNotSet> = oauth2::Client<
    BasicErrorResponse,
    Answer,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    Auth,
    Device,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
>;

/// What a login brings.
pub struct Session {
    /// The token for mediatore.
    pub token: Zeroizing<String>,
    /// When it ends, as far as that can be known.
    pub expires_at: Option<Timestamp>,
    /// The session itself, when it was asked for.
    pub refresh_token: Option<Zeroizing<String>>,
}

/// A provider, found: its endpoints, and a client to ask them with.
pub struct Found<'a> {
    provider: &'a Provider,
    endpoints: Discovery,
    http: reqwest::Client,
    /// What is asked for, word by word.
    scopes: Vec<oauth2::Scope>,
}

/// Which way a person logs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A browser here is opened.
    Browser,
    /// A browser here is opened by the person.
    Address,
    /// A browser elsewhere.
    Device,
}

/// Logs a person in; `with_session` asks for the session itself too.
///
/// # Errors
/// What the provider, the person or the network did.
pub async fn login(provider: &Provider, way: Way, with_session: bool) -> Result<Session, Fault> {
    let found = Found::find(provider, with_session).await?;
    let answer = match way {
        Way::Browser => found.browser(true, with_session).await?,
        Way::Address => found.browser(false, with_session).await?,
        Way::Device => found.device().await?,
    };
    session(provider, &answer, with_session)
}

fn session(provider: &Provider, answer: &Answer, with_session: bool) -> Result<Session, Fault> {
    let issuer = &provider.issuer;
    let lacks = |what: &str| Fault::new(Kind::Login, format!("{issuer} answered without {what}"));
    let token = match provider.token {
        Wanted::AccessToken => answer.access_token().secret(),
        Wanted::IdToken => answer.extra_fields().id_token.as_ref().ok_or_else(|| lacks("an id_token"))?,
    };
    let of_answer = || {
        let lifetime = answer.expires_in().filter(|_| provider.token == Wanted::AccessToken)?;
        Timestamp::now().checked_add(jiff::SignedDuration::try_from(lifetime).ok()?).ok()
    };
    let refresh_token = match answer.refresh_token() {
        Some(token) if with_session => Some(Zeroizing::new(token.secret().clone())),
        None if with_session => {
            return Err(lacks("a refresh_token; this client may not have offline_access there"));
        }
        _ => None,
    };
    Ok(Session { expires_at: expiry(token).or_else(of_answer), token: Zeroizing::new(token.clone()), refresh_token })
}

/// When a JWT says that it ends. Its signature is for mediatore to judge; this is for asking again in time.
fn expiry(token: &str) -> Option<Timestamp> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    let claims = token.split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    #[allow(clippy::cast_possible_truncation)] // saturates, and is refused by the next step
    Timestamp::from_second(claims.exp as i64).ok()
}

impl<'a> Found<'a> {
    async fn find(provider: &'a Provider, with_session: bool) -> Result<Self, Fault> {
        let issuer = &provider.issuer;
        let fail = |failure: &discovery::Failure| {
            let kind = if failure.is_invalid() { Kind::Usage } else { Kind::Unavailable };
            Fault::new(kind, format!("the identity provider {issuer}: {failure}"))
        };
        let ca_file: Option<PathBuf> = provider.ca_file.clone();
        let http = discovery::client(ca_file.as_deref(), REQUEST).map_err(|failure| fail(&failure))?;
        let endpoints = discovery::discover(&http, issuer, &discovery::url(issuer)).await;
        let endpoints = endpoints.map_err(|failure| fail(&failure))?;
        let more = with_session.then_some("offline_access");
        let words = provider.scope.split(' ').filter(|word| !word.is_empty()).chain(more);
        let scopes = words.map(|word| oauth2::Scope::new(word.to_owned())).collect();
        Ok(Self { provider, endpoints, http, scopes })
    }

    /// The OAuth client.
    fn client(&self) -> Result<Client, Fault> {
        let endpoint = self.endpoint("token_endpoint", self.endpoints.token_endpoint.as_ref(), TokenUrl::new)?;
        Ok(oauth2::Client::new(ClientId::new(self.provider.client_id.clone())).set_token_uri(endpoint))
    }

    /// An endpoint that the provider must have.
    fn endpoint<T, E: std::fmt::Display>(
        &self,
        name: &str,
        text: Option<&String>,
        parse: impl Fn(String) -> Result<T, E>,
    ) -> Result<T, Fault> {
        let issuer = &self.provider.issuer;
        let text = text.ok_or_else(|| Fault::new(Kind::Usage, format!("{issuer} has no {name}")))?;
        parse(text.clone()).map_err(|error| Fault::new(Kind::Usage, format!("{issuer}: its {name}: {error}")))
    }

    /// One request of the OAuth client's.
    fn ask<'f>(&'f self) -> impl Fn(HttpRequest) -> Reply<'f> + use<'f, 'a> {
        move |request| {
            Box::pin(async move {
                let broken = |error: reqwest::Error| Broken(discovery::chain(&error.without_url()));
                let request = reqwest::Request::try_from(request).map_err(broken)?;
                let response = self.http.execute(request).await.map_err(broken)?;
                let (status, headers) = (response.status(), response.headers().clone());
                let body =
                    discovery::body(response, LARGEST).await.map_err(|error: BodyError| Broken(error.to_string()))?;
                let mut whole = HttpResponse::new(body);
                *whole.status_mut() = status;
                *whole.headers_mut() = headers;
                Ok(whole)
            })
        }
    }

    /// Why there are no tokens.
    fn refused(&self, error: RequestTokenError<Broken, impl oauth2::ErrorResponse>) -> Fault {
        let issuer = &self.provider.issuer;
        match error {
            RequestTokenError::ServerResponse(said) => Fault::new(Kind::Login, format!("{issuer} refuses: {said}")),
            RequestTokenError::Request(Broken(what)) => {
                Fault::new(Kind::Unavailable, format!("the identity provider {issuer} does not answer: {what}"))
            }
            // What it answered may have a token in it, so it is not shown.
            RequestTokenError::Parse(..) => {
                Fault::new(Kind::Other, format!("{issuer} answered something else than tokens"))
            }
            RequestTokenError::Other(what) => Fault::new(Kind::Login, format!("{issuer}: {what}")),
        }
    }
}

/// An answer under way.
type Reply<'f> = std::pin::Pin<Box<dyn Future<Output = Result<HttpResponse, Broken>> + 'f>>;

/// A request without an answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Broken(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_a_token_ends() {
        let token = |claims: &str| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        assert_eq!(expiry(&token(r#"{"exp":1000}"#)), Some(Timestamp::from_second(1000).unwrap()));
        assert_eq!(expiry(&token(r#"{"exp":1000.5}"#)), Some(Timestamp::from_second(1000).unwrap()));
        for odd in [token("{}"), token(r#"{"exp":1e300}"#), token(r#"{"exp":"1"}"#), "opaque".to_owned(), String::new()]
        {
            assert_eq!(expiry(&odd), None, "{odd}");
        }
    }
}
