//! The code flow with PKCE, with the browser sent back to a port of the moment on this machine (RFC 8252, 7.3; RFC 7636).

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};
use oauth2::{AuthUrl, AuthorizationCode, CsrfToken, PkceCodeChallenge, RedirectUrl};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use url::{Host, Url};

use super::{Answer, Found};
use crate::fault::{Fault, Kind};

/// How long a person may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// What the browser came back with, and where to tell it how that ended.
struct Back {
    answer: Result<String, String>,
    tell: oneshot::Sender<Result<(), String>>,
}

struct Waiting {
    state: CsrfToken,
    issuer: String,
    back: mpsc::Sender<Back>,
}

impl Found<'_> {
    /// Logs in with a browser on this machine.
    pub(super) async fn browser(&self, open: bool, with_session: bool) -> Result<Answer, Fault> {
        let mut redirect = Url::parse(&self.provider.redirect_uri)
            .map_err(|error| Fault::new(Kind::Usage, format!("login.redirect_uri: {error}")))?;
        let (listeners, port) = listen(redirect.host()).await?;
        redirect.set_port(Some(port)).map_err(|()| Fault::new(Kind::Usage, "login.redirect_uri takes no port"))?;
        let back_to =
            RedirectUrl::new(redirect.to_string()).map_err(|error| Fault::new(Kind::Usage, error.to_string()))?;
        let at =
            self.endpoint("authorization_endpoint", self.endpoints.authorization_endpoint.as_ref(), AuthUrl::new)?;
        let client = self.client()?.set_auth_uri(at).set_redirect_uri(back_to);
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let mut start =
            client.authorize_url(CsrfToken::new_random).add_scopes(self.scopes.clone()).set_pkce_challenge(challenge);
        if with_session {
            start = start.add_extra_param("prompt", "consent"); // OpenID Connect Core 1.0, 11
        }
        let (address, state) = start.url();
        let (back, mut came) = mpsc::channel(1);
        let waiting = Arc::new(Waiting { state, issuer: self.provider.issuer.clone(), back });
        let app = Router::new().route(redirect.path(), get(callback)).with_state(waiting);
        for listener in listeners {
            tokio::spawn(axum::serve(listener, app.clone()).into_future());
        }
        eprintln!("Log in here: {address}");
        if open && let Err(error) = open::that_detached(address.as_str()) {
            eprintln!("No browser could be opened ({error}); open the address yourself.");
        }
        let late = || Fault::new(Kind::Login, format!("nobody logged in within {} minutes", PATIENCE.as_secs() / 60));
        let Back { answer, tell } =
            tokio::time::timeout(PATIENCE, came.recv()).await.ok().flatten().ok_or_else(late)?;
        let outcome = match answer {
            Ok(code) => {
                let exchange = client.exchange_code(AuthorizationCode::new(code)).set_pkce_verifier(verifier);
                exchange.request_async(&self.ask()).await.map_err(|error| self.refused(error))
            }
            Err(said) => Err(Fault::new(Kind::Login, format!("{} refuses: {said}", self.provider.issuer))),
        };
        // The browser is told how it ended, if it is still there; a moment later this program ends.
        let _ = tell.send(outcome.as_ref().map(drop).map_err(ToString::to_string));
        tokio::time::sleep(Duration::from_millis(200)).await;
        outcome
    }
}

/// Listens on a port of the moment. `localhost` is both addresses, and whichever the browser tries must be ours.
async fn listen(host: Option<Host<&str>>) -> Result<(Vec<TcpListener>, u16), Fault> {
    let (first, second): (IpAddr, Option<IpAddr>) = match host {
        Some(Host::Ipv4(address)) => (address.into(), None),
        Some(Host::Ipv6(address)) => (address.into(), None),
        _ => (Ipv4Addr::LOCALHOST.into(), Some(Ipv6Addr::LOCALHOST.into())),
    };
    let fail =
        |error: std::io::Error| Fault::new(Kind::Other, format!("listening on {first} for the browser: {error}"));
    let mut taken = None;
    for _ in 0..20 {
        let listener = TcpListener::bind((first, 0)).await.map_err(fail)?;
        let port = listener.local_addr().map_err(fail)?.port();
        let Some(second) = second else { return Ok((vec![listener], port)) };
        match TcpListener::bind((second, port)).await {
            Ok(other) => return Ok((vec![listener, other], port)),
            // Somebody else has it there, so the browser might go to them.
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => taken = Some(error),
            Err(_) => return Ok((vec![listener], port)), // no IPv6 here
        }
    }
    Err(fail(taken.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into())))
}

async fn callback(State(waiting): State<Arc<Waiting>>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let said: BTreeMap<_, _> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let said = |name: &str| said.get(name).map(String::as_str);
    // Whoever does not know the state is not the provider: the login goes on, undisturbed.
    if said("state") != Some(waiting.state.secret()) {
        return page(StatusCode::BAD_REQUEST, "This is not the login that is waited for.");
    }
    // RFC 9207: an answer of another provider's, for those who say whose it is.
    if said("iss").is_some_and(|iss| iss != waiting.issuer) {
        return page(StatusCode::BAD_REQUEST, "This is the answer of another identity provider.");
    }
    let answer = match (said("code"), said("error")) {
        (Some(code), None) => Ok(code.to_owned()),
        (_, Some(error)) => {
            Err([Some(error), said("error_description")].into_iter().flatten().collect::<Vec<_>>().join(": "))
        }
        (None, None) => return page(StatusCode::BAD_REQUEST, "This answer has no code."),
    };
    let (tell, told) = oneshot::channel();
    if waiting.back.try_send(Back { answer, tell }).is_err() {
        return page(StatusCode::CONFLICT, "This login is over.");
    }
    match told.await {
        Ok(Ok(())) => page(StatusCode::OK, "You are logged in. You may close this page."),
        Ok(Err(_)) => page(StatusCode::OK, "The login failed. The terminal says why."),
        Err(_) => page(StatusCode::OK, "The login was ended."),
    }
}

/// A page with one sentence: the provider's words never reach it.
fn page(status: StatusCode, sentence: &str) -> Response {
    let body = format!("<!doctype html><meta charset=utf-8><title>mediatore</title><p>{sentence}</p>");
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONNECTION, "close"),
    ];
    (status, headers, body).into_response()
}
