//! Asking a provider's token endpoint (RFC 6749, 4 to 6; RFC 7523, 2.1).
//!
//! HTTPS only, no redirects, bounded in time and size. What is sent and what comes back are secrets: errors name what
//! was asked and the provider's error word, never its text, which may repeat what it was sent.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use banlieue_identity::{Issuers, discovery};
use reqwest::Client;
use serde::Deserialize;

use super::{
    certificate::ClientCertificate,
    material::Material,
    upstream::{Dialect, Meaning, meaning},
};
use crate::http::reload::Reloaded;

/// Longest time of one question, finding the endpoint included.
pub const LONGEST: Duration = Duration::from_secs(8);
/// Largest answer that is read, in bytes.
const LARGEST: usize = 64 * 1024;
/// How long one client is used: authorities in `ca_file` may change.
const CLIENT_AGE: Duration = Duration::from_secs(600);
/// How a client assertion is announced (RFC 7523, 2.2).
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// How mediatore proves to a provider which client it is.
#[derive(Clone)]
pub enum Proof {
    /// Not at all: the client is a public one.
    Public,
    /// By a shared secret.
    Secret(Arc<Reloaded<Material>>),
    /// By a certificate.
    Certificate(Arc<Reloaded<ClientCertificate>>),
}

/// What a provider gave.
#[derive(Debug, Deserialize)]
pub struct Tokens {
    /// The access token.
    pub access_token: Material,
    token_type: String,
    /// Its lifetime in seconds.
    pub expires_in: Option<u64>,
    /// A refresh token, where one was asked for or replaced.
    pub refresh_token: Option<Material>,
    /// An ID token.
    pub id_token: Option<Material>,
}

/// Why a provider gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("issuer {issuer}: {what}")]
pub struct Trouble {
    /// Name of the issuer entry.
    pub issuer: String,
    /// What it means for what was asked with.
    pub meaning: Meaning,
    /// What happened. No secret, nothing of the provider's choice but its error word.
    pub what: String,
}

/// The token endpoint of one issuer, as one client of it.
pub struct Endpoint {
    /// Name of the issuer entry.
    pub issuer: String,
    /// Authorities that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// The client.
    pub client_id: String,
    /// How the provider words refusals.
    pub dialect: Dialect,
    /// How the client proves itself.
    pub proof: Proof,
    /// The HTTP client, and since when.
    pub client: Mutex<Option<(Instant, Client)>>,
}

impl Endpoint {
    /// Asks for tokens; `grant` is the grant's own part of the form.
    ///
    /// # Errors
    /// [`Trouble`]; when the time is over, nobody knows what the provider did.
    pub async fn ask(&self, issuers: &Issuers, grant: &[(&str, &str)]) -> Result<Tokens, Trouble> {
        let answer = match tokio::time::timeout(LONGEST, self.try_ask(issuers, grant)).await {
            Ok(answer) => answer,
            Err(_) => Err((Meaning::Outage, format!("no answer within {LONGEST:?}"))),
        };
        answer.map_err(|(meaning, what)| {
            // New authorities, a new address: the next question begins from nothing.
            self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
            Trouble { issuer: self.issuer.clone(), meaning, what }
        })
    }

    async fn try_ask(&self, issuers: &Issuers, grant: &[(&str, &str)]) -> Result<Tokens, (Meaning, String)> {
        let outage = |what: String| (Meaning::Outage, what);
        let discovery = issuers.discovery(&self.issuer).await.map_err(|refusal| outage(refusal.detail))?;
        let endpoint = discovery.token_endpoint.ok_or_else(|| outage("it has no token endpoint".to_owned()))?;
        let client = self.client().await.map_err(outage)?;
        let mut form: Vec<(&str, &str)> = vec![("client_id", &self.client_id)];
        form.extend_from_slice(grant);
        let proof = self.proof(&endpoint).map_err(|what| (Meaning::Misconfigured, what))?;
        form.extend(proof.iter().map(|(name, value)| (*name, value.reveal())));
        let unreachable = |error: reqwest::Error| outage(format!("no answer: {}", error.without_url()));
        let mut response = client.post(&endpoint).form(&form).send().await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let mut body = zeroize::Zeroizing::new(Vec::new());
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > LARGEST {
                return Err(outage(format!("its answer has more than {LARGEST} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        read(self.dialect, status, &body)
    }

    async fn client(&self) -> Result<Client, String> {
        let held = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((since, client)) = held
            && since.elapsed() < CLIENT_AGE
        {
            return Ok(client);
        }
        let ca_file = self.ca_file.clone();
        let made = tokio::task::spawn_blocking(move || discovery::client(ca_file.as_deref(), LONGEST)).await;
        let client = made.map_err(|error| error.to_string())?.map_err(|failure| failure.to_string())?;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), client.clone()));
        Ok(client)
    }

    fn proof(&self, endpoint: &str) -> Result<Vec<(&'static str, Material)>, String> {
        match &self.proof {
            Proof::Public => Ok(Vec::new()),
            Proof::Secret(secret) => Ok(vec![("client_secret", Material::clone(&secret.get()))]),
            Proof::Certificate(certificate) => {
                let mut random = [0; 16];
                let assertion = aws_lc_rs::rand::fill(&mut random).ok().and_then(|()| {
                    let now = jiff::Timestamp::now().as_second();
                    certificate.get().assertion(&self.client_id, endpoint, now, random)
                });
                let assertion = assertion.ok_or_else(|| "the client assertion cannot be signed".to_owned())?;
                let kind = Material::from(ASSERTION_TYPE.to_owned());
                Ok(vec![("client_assertion_type", kind), ("client_assertion", assertion)])
            }
        }
    }
}

/// Reads an answer. Pure.
fn read(dialect: Dialect, status: u16, body: &[u8]) -> Result<Tokens, (Meaning, String)> {
    #[derive(Deserialize)]
    struct Refused {
        error: String,
    }
    if status == 200 {
        let tokens = serde_json::from_slice::<Tokens>(body).ok();
        let usable = |tokens: &Tokens| {
            let all = [Some(&tokens.access_token), tokens.refresh_token.as_ref(), tokens.id_token.as_ref()];
            tokens.token_type.eq_ignore_ascii_case("bearer") && all.into_iter().flatten().all(Material::is_plain)
        };
        return tokens
            .filter(usable)
            .ok_or_else(|| (Meaning::Outage, "status 200 without tokens that can be used".to_owned()));
    }
    let error = serde_json::from_slice::<Refused>(body).ok().map(|refused| refused.error);
    let is_word = |word: &&str| {
        word.len() <= 64 && word.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'0'..=b'9'))
    };
    let word = error.as_deref().filter(is_word);
    Err((meaning(dialect, status, word), format!("status {status}, error {}", word.unwrap_or("(none)"))))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GOOD: &str = r#"{"access_token": "a", "token_type": "bearer", "expires_in": 60, "refresh_token": "r"}"#;

    #[rstest]
    #[case::no_json("oops")]
    #[case::another_kind(r#"{"access_token": "a", "token_type": "mac"}"#)]
    #[case::no_token(r#"{"token_type": "Bearer"}"#)]
    #[case::twice(r#"{"access_token": "a", "access_token": "b", "token_type": "Bearer"}"#)]
    #[case::a_line_end(r#"{"access_token": "a\n", "token_type": "Bearer"}"#)]
    #[case::no_refresh_token_at_all(r#"{"access_token": "a", "token_type": "Bearer", "refresh_token": ""}"#)]
    fn nonsense_is_an_outage(#[case] body: &str) {
        assert_eq!(read(Dialect::Standard, 200, body.as_bytes()).unwrap_err().0, Meaning::Outage);
    }

    #[test]
    fn tokens_are_read() {
        let tokens = read(Dialect::Dex, 200, GOOD.as_bytes()).unwrap();
        assert_eq!((tokens.access_token.reveal(), tokens.expires_in), ("a", Some(60)));
        assert!(!format!("{tokens:?}").contains("\"r\""));
        assert_eq!(
            read(Dialect::Dex, 302, GOOD.as_bytes()).unwrap_err().0,
            Meaning::Outage,
            "redirects are not followed"
        );
    }

    #[test]
    fn a_refusal_shows_its_word_and_nothing_else() {
        let body = br#"{"error": "invalid_grant", "error_description": "token s3cret is expired"}"#;
        let (meaning, what) = read(Dialect::Standard, 400, body).unwrap_err();
        assert_eq!((meaning, what.as_str()), (Meaning::Refused, "status 400, error invalid_grant"));
        let (meaning, what) = read(Dialect::Standard, 400, br#"{"error": "your token s3cret"}"#).unwrap_err();
        assert_eq!((meaning, what.as_str()), (Meaning::Outage, "status 400, error (none)"));
    }
}
