//! An identity provider on real TLS, which behaves as badly as a test asks.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use banlieue_identity::Issuer;
use futures::{StreamExt, stream};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// How a document is answered.
#[derive(Clone)]
pub enum Answer {
    Document(Value),
    Text(&'static str),
    Status(u16),
    Redirect(String),
    /// Nothing ever comes.
    Silence,
    /// The headers and a first byte, then nothing ever comes.
    Drip,
    /// White space without end, and no length said.
    Endless,
    /// Little, after a header that says how long it will be.
    Boast(u64),
}

/// Which certificate it shows.
pub enum Certificate {
    Good,
    Expired,
    NotYetValid,
    ForAnotherName,
}

pub struct Provider {
    pub url: String,
    pub ca_file: PathBuf,
    inner: Arc<Inner>,
    server: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

struct Inner {
    discovery: Mutex<Answer>,
    keys: Mutex<Answer>,
    discovery_asked: AtomicUsize,
    keys_asked: AtomicUsize,
    /// Nothing is answered while it is shut.
    gate: watch::Sender<bool>,
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Provider {
    /// A good one with these keys.
    pub async fn start(keys: Value) -> Self {
        Self::start_with(keys, Certificate::Good).await
    }

    pub async fn start_with(keys: Value, certificate: Certificate) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (acceptor, authority) = tls(&certificate);
        let ca_file = folder.path().join("ca.pem");
        std::fs::write(&ca_file, authority).unwrap();

        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let url = format!("https://localhost:{}/idp", listener.local_addr().unwrap().port());
        let document = json!({
            "issuer": url, "jwks_uri": format!("{url}/keys"), "token_endpoint": format!("{url}/token"),
            "response_types_supported": ["code"]
        });
        let inner = Arc::new(Inner {
            discovery: Mutex::new(Answer::Document(document)),
            keys: Mutex::new(Answer::Document(keys)),
            discovery_asked: AtomicUsize::new(0),
            keys_asked: AtomicUsize::new(0),
            gate: watch::Sender::new(true),
        });
        let routes = Router::new()
            .route("/idp/.well-known/openid-configuration", get(discovery))
            .route("/idp/keys", get(key_set))
            .with_state(Arc::clone(&inner));
        let server = tokio::spawn(serve(listener, acceptor, routes));
        Self { url, ca_file, inner, server, _folder: folder }
    }

    /// An issuer entry for it, of Dex's kind.
    pub fn issuer(&self) -> Issuer {
        let yaml = format!(
            "{{name: idp, url: '{}', client_id: mediatore, accepts: id_token, clients: [cli], ca_file: '{}'}}",
            self.url,
            self.ca_file.display()
        );
        serde_saphyr::from_str(&yaml).unwrap()
    }

    pub fn answer_discovery(&self, answer: Answer) {
        *self.inner.discovery.lock().unwrap() = answer;
    }

    /// The discovery document with changes.
    pub fn change_discovery(&self, name: &str, value: Value) {
        let mut answer = self.inner.discovery.lock().unwrap();
        let Answer::Document(document) = &mut *answer else { panic!("it has no document now") };
        document[name] = value;
    }

    pub fn answer_keys(&self, answer: Answer) {
        *self.inner.keys.lock().unwrap() = answer;
    }

    /// How often each document was asked for.
    pub fn asked(&self) -> (usize, usize) {
        (self.inner.discovery_asked.load(Ordering::SeqCst), self.inner.keys_asked.load(Ordering::SeqCst))
    }

    pub fn shut(&self) {
        self.inner.gate.send_replace(false);
    }

    pub fn open(&self) {
        self.inner.gate.send_replace(true);
    }

    /// No more connections, no more answers.
    pub fn stop(&self) {
        self.server.abort();
    }
}

async fn discovery(State(inner): State<Arc<Inner>>) -> Response {
    inner.discovery_asked.fetch_add(1, Ordering::SeqCst);
    let answer = inner.discovery.lock().unwrap().clone();
    respond(&inner, answer).await
}

async fn key_set(State(inner): State<Arc<Inner>>) -> Response {
    inner.keys_asked.fetch_add(1, Ordering::SeqCst);
    let answer = inner.keys.lock().unwrap().clone();
    respond(&inner, answer).await
}

async fn respond(inner: &Inner, answer: Answer) -> Response {
    let _ = inner.gate.subscribe().wait_for(|open| *open).await;
    let response = Response::builder();
    match answer {
        Answer::Document(document) => response.body(Body::from(document.to_string())),
        Answer::Text(text) => response.body(Body::from(text)),
        Answer::Status(status) => response.status(status).body(Body::from("{}")),
        Answer::Redirect(to) => response.status(302).header("location", to).body(Body::empty()),
        Answer::Silence => std::future::pending().await,
        Answer::Drip => response.body(Body::from_stream(stream::iter([piece("{", 1)]).chain(stream::pending()))),
        Answer::Endless => response.body(Body::from_stream(stream::repeat_with(|| piece(" ", 8192)))),
        Answer::Boast(length) => {
            let body = Body::from_stream(stream::iter([piece("{}", 1)]).chain(stream::pending()));
            response.header("content-length", length).body(body)
        }
    }
    .unwrap()
}

fn piece(text: &str, times: usize) -> Result<Bytes, Infallible> {
    Ok(Bytes::from(text.repeat(times)))
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, routes: Router) {
    // Connections end with the server.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, routes) = (acceptor.clone(), routes.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = TowerToHyperService::new(routes);
            let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// A server's TLS, and the authority to trust for it, in PEM.
fn tls(certificate: &Certificate) -> (TlsAcceptor, String) {
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "test authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();

    let name = if matches!(certificate, Certificate::ForAnotherName) { "else.example" } else { "localhost" };
    let mut leaf = CertificateParams::new(vec![name.to_owned()]).unwrap();
    match certificate {
        Certificate::Expired => {
            leaf.not_before = rcgen::date_time_ymd(2020, 1, 1);
            leaf.not_after = rcgen::date_time_ymd(2021, 1, 1);
        }
        Certificate::NotYetValid => {
            leaf.not_before = rcgen::date_time_ymd(2090, 1, 1);
            leaf.not_after = rcgen::date_time_ymd(2091, 1, 1);
        }
        Certificate::Good | Certificate::ForAnotherName => {}
    }
    let key = KeyPair::generate().unwrap();
    let leaf = leaf.signed_by(&key, &authority).unwrap();
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], private)
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), authority.pem())
}

/// For waits: far more than an overloaded machine needs.
pub const LONG: Duration = Duration::from_secs(300);
