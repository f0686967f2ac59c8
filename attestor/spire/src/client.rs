//! The connection: TCP, mutual TLS with our SVID, HTTP/2, and a deadline on every call.
//!
//! SPIRE's certificate carries no DNS name. What says that we speak to SPIRE is its URI SAN, which must be exactly
//! `spiffe://<trust domain>/spire/server`, under the trust bundle of the Workload API.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use banlieue_protocol::names::{TrustDomain, spire_server};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use spiffe::X509Source;
use spiffe_rustls::{TrustDomainPolicy, authorizer, mtls_client};
use tokio::{net::TcpStream, task::AbortHandle, time::timeout};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::Error;

/// SPIRE names no deadline of its own, so every call brings one.
const CALL_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const FIRST_SVID_LIMIT: Duration = Duration::from_secs(60);
/// Notices a connection whose other end vanished.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Where SPIRE is and who we are.
#[derive(Debug, Clone)]
pub struct Config {
    /// `host:port` of the SPIRE server's TCP API.
    pub server: String,
    /// The Workload API of the agent beside us: `unix:///…`.
    pub workload_api: String,
    /// The trust domain of both.
    pub trust_domain: TrustDomain,
}

/// A client of one SPIRE server; cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    channel: RwLock<Channel>,
    trust_domain: TrustDomain,
    source: X509Source,
    renewal: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

impl Client {
    /// Waits for an SVID of ours and prepares the connection; SPIRE itself is dialled at the first call.
    ///
    /// # Errors
    /// When the Workload API gives no SVID within a minute, or the addresses are unusable.
    pub async fn connect(config: Config) -> Result<Self, Error> {
        let source = X509Source::builder()
            .endpoint(&config.workload_api)
            .initial_sync_timeout(FIRST_SVID_LIMIT)
            .build()
            .await
            .map_err(|source| Error::Identity { endpoint: config.workload_api.clone(), source: Box::new(source) })?;
        Self::with_source(&config.server, &config.trust_domain, source)
    }

    /// As [`Client::connect`], with a source of SVIDs that the caller has for other uses too.
    ///
    /// # Errors
    /// When the addresses are unusable.
    pub fn with_source(server: &str, trust_domain: &TrustDomain, source: X509Source) -> Result<Self, Error> {
        let only =
            authorizer::exact([spire_server(trust_domain).as_str()]).map_err(|error| Error::Tls(error.to_string()))?;
        let tls = mtls_client(source.clone())
            .authorize(only)
            .trust_domain_policy(TrustDomainPolicy::LocalOnly(
                trust_domain.as_str().try_into().map_err(|error| Error::Config(format!("trust domain: {error}")))?,
            ))
            .with_alpn_protocols([b"h2"])
            .build()
            .map_err(|error| Error::Tls(error.to_string()))?;
        let dial = Dial { server: server.to_owned(), tls: TlsConnector::from(Arc::new(tls)) };
        let channel = dial.channel()?;

        let mut updates = source.updated();
        let inner = Arc::new_cyclic(|weak: &std::sync::Weak<Inner>| {
            let weak = weak.clone();
            let renewal = tokio::spawn(async move {
                // A connection keeps the certificate of its handshake, and SPIRE refuses callers whose certificate
                // has expired since: each new SVID gets a new connection.
                while updates.changed().await.is_ok() {
                    let (Some(inner), Ok(fresh)) = (weak.upgrade(), dial.channel()) else { return };
                    *inner.channel.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                }
            });
            Inner {
                channel: RwLock::new(channel),
                trust_domain: trust_domain.clone(),
                source,
                renewal: renewal.abort_handle(),
            }
        });
        Ok(Self { inner })
    }

    /// The SPIFFE id we call with.
    ///
    /// # Errors
    /// When the identity was withdrawn.
    pub fn own_id(&self) -> Result<String, Error> {
        let svid = self
            .inner
            .source
            .svid()
            .map_err(|source| Error::Identity { endpoint: "its agent".to_owned(), source: Box::new(source) })?;
        Ok(svid.spiffe_id().to_string())
    }

    /// The trust domain of the server.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.inner.trust_domain
    }

    /// The connection itself, for calls that this crate has no words for. Each must bring its own deadline.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.inner.channel.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Bounds a call that streams, where the endpoint's own limit covers the headers only.
pub(crate) async fn limited<T>(
    call: &'static str,
    future: impl Future<Output = Result<T, tonic::Status>>,
) -> Result<T, Error> {
    match timeout(CALL_LIMIT, future).await {
        Ok(result) => result.map_err(Error::call(call)),
        Err(_) => Err(Error::call(call)(tonic::Status::deadline_exceeded("SPIRE did not answer in time"))),
    }
}

struct Dial {
    server: String,
    tls: TlsConnector,
}

impl Dial {
    fn channel(&self) -> Result<Channel, Error> {
        let endpoint = Endpoint::from_shared(format!("https://{}", self.server))
            .map_err(|error| Error::Config(format!("SPIRE server address {:?}: {error}", self.server)))?
            .connect_timeout(CONNECT_LIMIT)
            .timeout(CALL_LIMIT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_while_idle(true);
        let (server, tls) = (self.server.clone(), self.tls.clone());
        Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
            let (server, tls) = (server.clone(), tls.clone());
            async move {
                let stream = TcpStream::connect(&server).await?;
                stream.set_nodelay(true)?;
                // The name is only sent along; the verifier looks at the URI SAN.
                let name = ServerName::try_from("spire-server").map_err(std::io::Error::other)?;
                let stream = tls.connect(name, stream).await?;
                // A server that negotiated something else would be spoken to in the wrong protocol.
                if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                    return Err(std::io::Error::other("SPIRE does not offer HTTP/2"));
                }
                Ok(TokioIo::new(stream))
            }
        })))
    }
}
