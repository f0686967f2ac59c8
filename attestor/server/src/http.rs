//! `/livez`, `/readyz` and `/metrics`.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc};

use axum::{Router, http::StatusCode, routing::get};
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, task::JoinHandle};

/// Says whether the program can do its work now, or why not.
pub type Ready = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync>;

/// A listener; ends when dropped.
pub struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Listens on `address`.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub async fn start(address: SocketAddr, registry: Arc<Registry>, ready: Ready) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(move || answer(ready.clone())))
            .route("/metrics", get(move || text(registry.clone())));
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the metrics listener ended");
            }
        });
        Ok(Self { address, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn answer(ready: Ready) -> (StatusCode, String) {
    match ready().await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn text(registry: Arc<Registry>) -> (StatusCode, String) {
    let mut body = String::new();
    match prometheus_client::encoding::text::encode(&mut body, &registry) {
        Ok(()) => (StatusCode::OK, body),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
    }
}
