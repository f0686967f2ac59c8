//! How people and applications get tokens.

use serde::Deserialize;

use super::browser::{Browser, Landing};
use super::config::{Person, Proof};
use super::http::{LoginError, url};
use super::{Provider, jwt};

const DEVICE_CODE: &str = "urn:ietf:params:oauth:grant-type:device_code";
const ON_BEHALF: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// What the token endpoint answers (RFC 6749, section 5.1).
#[derive(Clone, Debug, Deserialize)]
pub struct Tokens {
    /// The access token. At Dex an opaque one, of no use.
    pub access_token: String,
    /// The ID token, for scope `openid`.
    pub id_token: Option<String>,
    /// The refresh token, for scope `offline_access`.
    pub refresh_token: Option<String>,
    /// Lifetime of the access token in seconds.
    pub expires_in: Option<u64>,
    /// What was granted.
    pub scope: Option<String>,
}

type Fields = Vec<(String, String)>;

fn fields(pairs: &[(&str, &str)]) -> Fields {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

impl Provider {
    /// A person logs in to an application through the provider's pages: code flow with PKCE.
    ///
    /// # Errors
    /// [`LoginError::Refused`] when the provider says no, [`LoginError::Unexpected`] for a wrong or disabled login.
    pub async fn login(&self, client_id: &str, person: &Person, scope: &str) -> Result<Tokens, LoginError> {
        let redirect_uri = self.redirect_uri(client_id)?;
        let (state, verifier) = (jwt::random(), jwt::random());
        let mut start = url(&self.endpoints().await?.authorization_endpoint)?;
        start.query_pairs_mut().extend_pairs([
            ("client_id", client_id),
            ("response_type", "code"),
            ("redirect_uri", redirect_uri.as_str()),
            ("scope", scope),
            ("state", state.as_str()),
            ("code_challenge", jwt::challenge(&verifier).as_str()),
            ("code_challenge_method", "S256"),
        ]);
        if scope.split(' ').any(|it| it == "offline_access") {
            // OpenID Connect Core, section 11.
            start.query_pairs_mut().append_pair("prompt", "consent");
        }
        let back = match Browser::new(&self.http, person).visit(start, Some(&redirect_uri)).await? {
            Landing::Callback(back) => back,
            Landing::Page(text) => return Err(LoginError::Unexpected(format!("the login ended at a page: {text}"))),
        };
        let answer = |name: &str| back.query_pairs().find(|(it, _)| it == name).map(|(_, value)| value.into_owned());
        if let Some(error) = answer("error") {
            let description = answer("error_description").unwrap_or_default();
            return Err(LoginError::Refused { status: 0, error, description });
        }
        if answer("state").as_deref() != Some(state.as_str()) {
            return Err(LoginError::Unexpected(format!("{back} has another state")));
        }
        let code = answer("code").ok_or_else(|| LoginError::Unexpected(format!("{back} has no code")))?;
        let grant = [
            ("grant_type", "authorization_code"),
            ("code", &code),
            ("redirect_uri", &redirect_uri),
            ("code_verifier", &verifier),
        ];
        self.grant(client_id, &grant).await
    }

    /// A person logs in to an application on a device without a browser (RFC 8628), and confirms on another.
    ///
    /// # Errors
    /// As [`Self::login`]; Dex has no such flow.
    pub async fn device(&self, client_id: &str, person: &Person, scope: &str) -> Result<Tokens, LoginError> {
        #[derive(Deserialize)]
        struct Started {
            device_code: String,
            verification_uri_complete: String,
        }
        let endpoint = self.endpoints().await?.device_authorization_endpoint;
        let endpoint = endpoint.ok_or_else(|| LoginError::Unexpected("the provider has no device flow".into()))?;
        let started: Started =
            self.http.post(&url(&endpoint)?, &fields(&[("client_id", client_id), ("scope", scope)])).await?;
        let poll = [("grant_type", DEVICE_CODE), ("device_code", started.device_code.as_str())];
        match self.grant(client_id, &poll).await {
            Err(LoginError::Refused { error, .. }) if error == "authorization_pending" => {}
            other => return Err(LoginError::Unexpected(format!("a code that nobody confirmed: {other:?}"))),
        }
        self.browse(&started.verification_uri_complete, person).await?;
        self.grant(client_id, &poll).await
    }

    /// A person opens an address at a browser, one that a command line printed for example, and logs in there. Redirects
    /// are followed out of the provider too, to the command line that listens. Returns the page at the end.
    ///
    /// # Errors
    /// As [`Self::login`].
    pub async fn browse(&self, address: &str, person: &Person) -> Result<String, LoginError> {
        match Browser::new(&self.http, person).visit(url(address)?, None).await? {
            Landing::Page(text) => Ok(text),
            Landing::Callback(to) => Err(LoginError::Unexpected(format!("nobody named {to} as the end"))),
        }
    }

    /// An application asks as itself.
    ///
    /// # Errors
    /// As [`Self::login`]; Dex has no such grant.
    pub async fn client_credentials(&self, client_id: &str, scope: &str) -> Result<Tokens, LoginError> {
        self.grant(client_id, &[("grant_type", "client_credentials"), ("scope", scope)]).await
    }

    /// An application trades a person's token for its own API for one for the next API. With `offline_access` in the
    /// scope there is a refresh token too.
    ///
    /// # Errors
    /// As [`Self::login`]; only Entra's shape has this grant.
    pub async fn on_behalf_of(&self, client_id: &str, assertion: &str, scope: &str) -> Result<Tokens, LoginError> {
        let grant = [
            ("grant_type", ON_BEHALF),
            ("requested_token_use", "on_behalf_of"),
            ("assertion", assertion),
            ("scope", scope),
        ];
        self.grant(client_id, &grant).await
    }

    /// Uses a refresh token.
    ///
    /// # Errors
    /// As [`Self::login`]; Dex calls the refusal `invalid_request`.
    pub async fn refresh(&self, client_id: &str, refresh_token: &str) -> Result<Tokens, LoginError> {
        self.grant(client_id, &[("grant_type", "refresh_token"), ("refresh_token", refresh_token)]).await
    }

    /// Posts to the token endpoint as a client.
    ///
    /// # Errors
    /// As [`Self::login`].
    pub async fn grant(&self, client_id: &str, grant: &[(&str, &str)]) -> Result<Tokens, LoginError> {
        let endpoint = self.endpoints().await?.token_endpoint;
        let mut form = fields(grant);
        form.push(("client_id".into(), client_id.into()));
        match &self.client(client_id)?.credential {
            Proof::Public => {}
            Proof::Secret(secret) => form.push(("client_secret".into(), secret.clone())),
            Proof::Certificate { cert, key } => {
                let assertion = jwt::client_assertion(client_id, &endpoint, cert, key)?;
                form.push(("client_assertion_type".into(), ASSERTION.into()));
                form.push(("client_assertion".into(), assertion));
            }
        }
        self.http.post(&url(&endpoint)?, &form).await
    }

    /// Where a person is sent back to; nobody listens there, for the browser here stops at it. On the loopback address
    /// with a port of the moment, as for a command line.
    fn redirect_uri(&self, client_id: &str) -> Result<String, LoginError> {
        let mut uri = url(&self.client(client_id)?.redirect_uri)?;
        if uri.scheme() == "http" {
            let port = 40_000 + rand::random::<u16>() % 20_000;
            uri.set_port(Some(port)).map_err(|()| LoginError::Unexpected(format!("{uri} takes no port")))?;
        }
        Ok(uri.into())
    }
}
