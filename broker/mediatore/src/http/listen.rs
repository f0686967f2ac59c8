//! Accepting connections, and stopping gracefully. Nothing that one of them does or omits keeps the next from being
//! accepted: who finds no seat is turned away at once, and [each](super::connection) has its time.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use rustls::ServerConfig;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

pub use super::connection::{Peer, Times};
use super::{
    connection::Kind,
    seats::{Full, Seats, neighbour},
};
use crate::metrics::Metrics;

/// Pause after an error of `accept`, which is most often a lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How much a listener takes on.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// Of those, from one address; none behind a proxy, whose address all have.
    pub each_address: Option<usize>,
    /// Of those, of one identity, where there is one.
    pub each_identity: usize,
    /// Bounds in time.
    pub times: Times,
}

/// A listener that has its port and does not serve yet.
pub struct Listener {
    side: &'static str,
    socket: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    bounds: Bounds,
}

impl Listener {
    /// Takes the port.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn bind(
        side: &'static str,
        address: SocketAddr,
        tls: Option<Arc<ServerConfig>>,
        bounds: Bounds,
    ) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await.map_err(|error| {
            // The address makes the message useful.
            io::Error::new(error.kind(), format!("cannot listen on {address} for the {side} side: {error}"))
        })?;
        Ok(Self { side, socket, tls, bounds })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `stop`; then takes no new connection, lets requests end, and returns after `patience` at the latest.
    pub async fn serve(self, router: Router, metrics: Arc<Metrics>, stop: CancellationToken, patience: Duration) {
        let Self { side, socket, tls, bounds } = self;
        let seats = Seats::new(bounds.connections, bounds.each_address.unwrap_or(bounds.connections));
        let identities = Seats::new(bounds.connections, bounds.each_identity);
        let kind = Kind { router, tls, times: bounds.times, identities };
        let mut open = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = open.join_next(), if !open.is_empty() => continue,
                accepted = socket.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(listener = side, %error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let seat = match seats.take(neighbour(address.ip())) {
                Ok(seat) => seat,
                Err(full) => {
                    let why = match full {
                        Full::All => "full",
                        Full::Own => "address",
                    };
                    metrics.connection_ended(side, why);
                    tracing::debug!(listener = side, %address, why, "a connection is turned away");
                    continue;
                }
            };
            let (serving, metrics) = (kind.clone().serve(stream, address, stop.clone()), metrics.clone());
            open.spawn(async move {
                metrics.connection_begun(side);
                let ended = serving.await;
                metrics.connection_ended(side, ended.as_str());
                tracing::debug!(listener = side, %address, %ended, "a connection ended");
                drop(seat);
            });
        }
        // From here on nobody connects in vain: the port is closed.
        drop(socket);
        if tokio::time::timeout(patience, async { while open.join_next().await.is_some() {} }).await.is_err() {
            tracing::warn!(listener = side, connections = open.len(), "requests are cut off at the end");
            open.shutdown().await;
        }
    }
}
