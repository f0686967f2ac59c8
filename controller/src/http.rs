//! `/livez`, `/readyz`, `/metrics`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::act::Controller;

/// Serves until `stop`.
pub async fn serve(listener: TcpListener, controller: Arc<Controller>, stop: CancellationToken) -> std::io::Result<()> {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(controller);
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Ready when every watch has listed once.
async fn ready(State(controller): State<Arc<Controller>>) -> impl IntoResponse {
    let unsynced = controller.index().unsynced();
    if unsynced.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("waits for the first list of {}\n", unsynced.join(", ")))
    }
}

async fn metrics(State(controller): State<Arc<Controller>>) -> impl IntoResponse {
    let kind = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    (kind, controller.metrics().text())
}
