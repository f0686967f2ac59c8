//! The routes. Each asks first who is at the other end.
//!
//! | route | who | what |
//! |---|---|---|
//! | `POST /v1/reports` | a sandbox | fire-and-forget: one line in the log says what came from whom; 202 |
//! | `GET /v1/whoami` | a sandbox | as whom it is known here |
//! | `GET /v1/relay` | a sandbox, by WebSocket | it waits for its orchestrator |
//! | `GET /v1/relay/{claim}` | an orchestrator, by WebSocket | it meets the sandbox of that claim, if it works for the caller |
//! | `GET /healthz` | anyone | |

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use banlieue_identity::Issuers;
use http::request::Parts;
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::desk::Desk;
use crate::refusal::Refusal;
use crate::relay::{self, Coming};
use crate::sandbox::Sandbox;
use crate::verifier::Verifier;

/// Longest report, in bytes.
pub const LONGEST_REPORT: usize = 64 * 1024;
/// Longest time for one to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// What every route works with.
#[derive(Debug)]
pub struct Service {
    /// Who sandboxes are.
    pub verifier: Verifier,
    /// Who orchestrators are; nobody is one without.
    pub orchestrators: Option<Issuers>,
    /// Sandboxes that wait at the relay.
    pub desk: Desk<Coming>,
    /// Ends what is open.
    pub stop: CancellationToken,
}

/// The router.
pub fn router(service: Arc<Service>) -> Router {
    let nothing = async || Refusal::new(StatusCode::NOT_FOUND, "not_found", "there is no such route");
    let wrong = async || Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "another method is needed");
    Router::new()
        .route("/v1/reports", post(report))
        .route("/v1/whoami", get(whoami))
        .route("/v1/relay", get(relay::sandbox))
        .route("/v1/relay/{claim}", get(relay::orchestrator))
        .route("/healthz", get(async || Json(json!({ "status": "ok" }))))
        .fallback(nothing)
        .method_not_allowed_fallback(wrong)
        .with_state(service)
}

/// The `Authorization` header, once and in ASCII; two of them could be read differently elsewhere.
pub(crate) fn authorization(parts: &Parts) -> Option<&str> {
    let mut all = parts.headers.get_all(header::AUTHORIZATION).iter();
    let only = all.next()?;
    if all.next().is_some() { None } else { only.to_str().ok() }
}

impl FromRequestParts<Arc<Service>> for Sandbox {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, Refusal> {
        let sandbox = service.verifier.sandbox(authorization(parts), SystemTime::now()).await;
        sandbox.inspect_err(|refusal| {
            tracing::warn!(path = parts.uri.path(), reason = refusal.reason, detail = refusal.detail, "refused");
        })
    }
}

/// What is known of a sandbox: for logs, answers and orchestrators.
pub(crate) fn shown(sandbox: &Sandbox) -> Value {
    json!({
        "claim_uid": sandbox.claim.as_str(),
        "subject": sandbox.subject,
        "upstream_iss": sandbox.upstream_issuer,
        "upstream_sub": sandbox.upstream_id,
        "agent": sandbox.agent,
        "expires_at": sandbox.expires_at,
    })
}

async fn whoami(sandbox: Sandbox) -> Response {
    Json(shown(&sandbox)).into_response()
}

async fn report(sandbox: Sandbox, body: Body) -> Result<Response, Refusal> {
    let read = tokio::time::timeout(PATIENCE, axum::body::to_bytes(body, LONGEST_REPORT)).await;
    let body = read
        .map_err(|_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", "the report did not arrive in time"))?
        .map_err(|_| {
            let detail = format!("a report has at most {LONGEST_REPORT} bytes, and all of them arrive");
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail)
        })?;
    tracing::info!(
        claim = %sandbox.claim,
        subject = %sandbox.subject,
        upstream_iss = sandbox.upstream_issuer,
        upstream_sub = sandbox.upstream_id,
        agent = sandbox.agent,
        bytes = body.len(),
        "report of a sandbox"
    );
    Ok((StatusCode::ACCEPTED, Json(shown(&sandbox))).into_response())
}
