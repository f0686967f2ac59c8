//! Why a request is refused: one shape for every answer.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

/// A refusal. `detail` is for the caller: it never contains the token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Refusal {
    /// The HTTP status.
    pub status: StatusCode,
    /// The `error` of the answer.
    pub code: &'static str,
    /// The reason, stable: logs carry it.
    pub reason: &'static str,
    /// What is wrong, and what to do.
    pub detail: String,
    /// `WWW-Authenticate` (RFC 6750, section 3).
    pub challenge: Option<&'static str>,
}

impl Refusal {
    /// 401: this is no token of a sandbox for us.
    pub fn token(reason: &'static str, detail: impl Into<String>) -> Self {
        let challenge = Some(r#"Bearer error="invalid_token""#);
        Self { status: StatusCode::UNAUTHORIZED, code: "unauthorized", reason, detail: detail.into(), challenge }
    }

    /// Any other.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, reason: code, detail: detail.into(), challenge: None }
    }
}

impl From<banlieue_identity::Refusal> for Refusal {
    fn from(refusal: banlieue_identity::Refusal) -> Self {
        Self {
            status: StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::UNAUTHORIZED),
            code: refusal.code.as_str(),
            reason: refusal.reason.as_str(),
            // The realm in the identity crate's challenge is mediatore's.
            challenge: (refusal.status == 401).then_some(r#"Bearer error="invalid_token""#),
            detail: refusal.detail,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({ "error": self.code, "detail": self.detail }))).into_response();
        if let Some(challenge) = self.challenge {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}
