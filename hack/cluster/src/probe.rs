//! Readiness over HTTP, through the same client that speaks Kubernetes.

use http::Request;
use kube::{Client, Config};

/// A client for one server: https with `authority` (DER) as the only trust, or plain http.
pub(crate) fn client(url: &str, authority: Option<&[u8]>) -> Option<Client> {
    let mut config = Config::new(url.parse().ok()?);
    config.root_cert = authority.map(|it| vec![it.to_vec()]);
    // A probe that fails is asked again by its caller.
    config.default_retry = false;
    config.read_timeout = Some(std::time::Duration::from_secs(5));
    Client::try_from(config).ok()
}

/// The body that a GET of `path` is answered with.
pub(crate) async fn text(client: &Client, path: &str) -> Option<String> {
    client.request_text(Request::get(path).body(Vec::new()).ok()?).await.ok()
}

/// Whether a GET of `path` is answered with success.
pub(crate) async fn answers(client: &Client, path: &str) -> bool {
    text(client, path).await.is_some()
}
