//! Accepting connections, in TLS or plain, and stopping gracefully.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use rustls::{ServerConfig, pki_types::CertificateDer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Longest handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Longest time for a request's head.
const HEAD: Duration = Duration::from_secs(10);
/// Notices a connection whose other end vanished.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Largest HTTP/1 head, in bytes: a bearer token of 16 KiB and its company.
const HEAD_BYTES: usize = 64 * 1024;
/// Pause after an error of `accept`, which is most often a lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its certificate, verified, on listeners that ask for one.
    pub certificate: Option<CertificateDer<'static>>,
}

/// A listener that has its port and does not serve yet.
pub struct Listener {
    name: &'static str,
    socket: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    connections: Arc<Semaphore>,
}

impl Listener {
    /// Takes the port.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn bind(
        name: &'static str,
        address: SocketAddr,
        tls: Option<Arc<ServerConfig>>,
        connections: usize,
    ) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await.map_err(|error| {
            // The address makes the message useful.
            io::Error::new(error.kind(), format!("cannot listen on {address} for the {name} side: {error}"))
        })?;
        Ok(Self { name, socket, tls, connections: Arc::new(Semaphore::new(connections)) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `stop`; then takes no new connection, lets requests end, and returns after `patience` at the latest.
    pub async fn serve(self, router: Router, stop: CancellationToken, patience: Duration) {
        let graceful = GracefulShutdown::new();
        while let Some(accepted) = stop.run_until_cancelled(self.accept()).await {
            let Some((stream, address, permit)) = accepted else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let (router, tls, watcher) = (router.clone(), self.tls.clone(), graceful.watcher());
            let name = self.name;
            tokio::spawn(async move {
                if let Err(error) = connection(stream, address, tls, router, watcher).await {
                    tracing::debug!(listener = name, %address, error, "a connection ended");
                }
                drop(permit);
            });
        }
        if tokio::time::timeout(patience, graceful.shutdown()).await.is_err() {
            tracing::warn!(listener = self.name, "requests were cut off at the end");
        }
    }

    async fn accept(&self) -> Option<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
        let permit = self.connections.clone().acquire_owned().await.ok()?;
        match self.socket.accept().await {
            Ok((stream, address)) => Some((stream, address, permit)),
            Err(error) => {
                tracing::warn!(listener = self.name, %error, "cannot accept a connection");
                None
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    router: Router,
    watcher: hyper_util::server::graceful::Watcher,
) -> Result<(), String> {
    let _ = stream.set_nodelay(true);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .max_concurrent_streams(100)
        .max_header_list_size(HEAD_BYTES as u32);
    let serve = |peer: Peer| {
        TowerToHyperService::new(router.map_request(move |mut request: http::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(peer.clone());
            request.map(axum::body::Body::new)
        }))
    };
    let outcome = match tls {
        None => {
            let service = serve(Peer { address, certificate: None });
            watcher.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned()).await
        }
        Some(config) => {
            let stream = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream))
                .await
                .map_err(|_| "the handshake took too long".to_owned())?
                .map_err(|error| format!("handshake: {error}"))?;
            let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first().cloned());
            let service = serve(Peer { address, certificate: certificate.map(CertificateDer::into_owned) });
            watcher.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned()).await
        }
    };
    outcome.map_err(|error| error.to_string())
}
