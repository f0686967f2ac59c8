//! A listener of mediatore's on a real port, and clients that speak to it as badly as a test asks, over real TLS.
#![allow(dead_code)] // each test file takes what it needs

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use banlieue_mediatore::http::guard::guarded;
use banlieue_mediatore::http::listen::{Bounds, Listener, Times};
use banlieue_mediatore::http::route::refuse_the_rest;
use banlieue_mediatore::metrics::Metrics;
use prometheus_client::registry::Registry;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// For waits: far more than an overloaded machine needs.
pub const LONG: Duration = Duration::from_secs(300);
/// A bound that a test waits for, and long enough for what must come before.
pub const SOON: Duration = Duration::from_secs(2);

/// Nothing is bounded in time, as far as a test can tell.
pub const PATIENT: Times = Times { handshake: LONG, quiet: LONG, age: LONG };

pub fn bounds(times: Times) -> Bounds {
    Bounds { connections: 100, each_address: Some(100), each_identity: 100, times }
}

/// An authority, and certificates of it.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Authority {
    pub fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: SanType) -> Identity {
        let mut parameters = CertificateParams::default();
        parameters.subject_alt_names = vec![name];
        let key = KeyPair::generate().unwrap();
        let leaf = parameters.signed_by(&key, &self.0).unwrap();
        (vec![leaf.der().clone()], PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())))
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        Arc::new(roots)
    }

    pub fn server(&self, mutual: bool) -> Arc<ServerConfig> {
        let (chain, key) = self.issue(SanType::DnsName("localhost".try_into().unwrap()));
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if mutual {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(self.roots(), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// TLS of a client, with this identity and this protocol.
    pub fn client(&self, spiffe_id: Option<&str>, alpn: &str) -> TlsConnector {
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots());
        let mut config = match spiffe_id {
            None => builder.with_no_client_auth(),
            Some(id) => {
                let (chain, key) = self.issue(SanType::URI(id.try_into().unwrap()));
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        TlsConnector::from(Arc::new(config))
    }
}

/// A listener that serves.
pub struct Side {
    pub address: SocketAddr,
    pub stop: CancellationToken,
    pub served: JoinHandle<()>,
    registry: Registry,
}

impl Side {
    pub async fn start(router: Router, tls: Option<Arc<ServerConfig>>, bounds: Bounds, patience: Duration) -> Self {
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry));
        let listener = Listener::bind("user", SocketAddr::from(([127, 0, 0, 1], 0)), tls, bounds).await.unwrap();
        let (address, stop) = (listener.address().unwrap(), CancellationToken::new());
        let router = guarded(refuse_the_rest(router, &[]), "user", &[], LONG, metrics.clone());
        let served = tokio::spawn(listener.serve(router, metrics, stop.clone(), patience));
        Self { address, stop, served, registry }
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// From another of this machine's addresses.
    pub async fn connect_from(&self, address: [u8; 4]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((address, 0))).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    pub async fn connect_tls(&self, tls: &TlsConnector) -> TlsStream<TcpStream> {
        tls.connect(ServerName::try_from("localhost").unwrap(), self.connect().await).await.unwrap()
    }

    /// How many connections ended for this reason.
    pub fn ended(&self, why: &str) -> usize {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let name = format!("mediatore_connections_ended_total{{side=\"user\",why=\"{why}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
    }
}

/// What comes until the other end closes.
pub async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    let read = async {
        let mut buffer = [0; 4096];
        // A reset is an end too.
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            bytes.extend_from_slice(&buffer[..length]);
        }
    };
    let closed = tokio::time::timeout(LONG, read).await.is_ok();
    assert!(closed, "never closed after {:?}", String::from_utf8_lossy(&bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends, and gives what comes until the other end closes.
pub async fn talk<S: AsyncRead + tokio::io::AsyncWrite + Unpin>(mut stream: S, text: &[u8]) -> String {
    let _ = stream.write_all(text).await;
    let _ = stream.flush().await;
    rest(&mut stream).await
}

/// Waits for a state.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let come = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, come).await.unwrap_or_else(|_| panic!("never: {what}"));
}
