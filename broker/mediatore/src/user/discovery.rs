//! Keys and issuer of mediatore's own tokens, and the probes.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use crate::{
    broker::Broker,
    http::{
        answer::{self, Code, Failure},
        openapi::Health,
    },
};

/// How long a verifier may keep the keys, in seconds: well below the time that a new key is published before it signs.
const KEEP: &str = "public, max-age=300";

fn public(value: &Value) -> Response {
    let mut response = answer::json(StatusCode::OK, value);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(KEEP));
    response
}

fn none() -> Failure {
    Failure::new(Code::NotFound, "this mediatore signs no tokens itself")
}

/// `GET /.well-known/jwks.json`.
///
/// # Errors
/// When mediatore has no keys.
pub async fn jwks(State(broker): State<Arc<Broker>>) -> Result<Response, Failure> {
    broker.signing.as_ref().map(|keys| public(&keys.get().jwks())).ok_or_else(none)
}

/// `GET /.well-known/openid-configuration` (OpenID Connect Discovery 1.0, 3; RFC 8414, 2): what a verifier needs.
/// There is no authorization endpoint: tokens are given to sandboxes only.
///
/// # Errors
/// When mediatore has no keys.
pub async fn issuer(State(broker): State<Arc<Broker>>) -> Result<Response, Failure> {
    let sts = broker.config.sts.as_ref().ok_or_else(none)?;
    Ok(public(&json!({
        "issuer": sts.issuer,
        "jwks_uri": format!("{}/.well-known/jwks.json", sts.issuer),
        "id_token_signing_alg_values_supported": ["ES256"],
        "response_types_supported": ["token"],
        "subject_types_supported": ["public"],
        "claims_supported": [
            "iss", "sub", "aud", "exp", "iat", "nbf", "jti", "client_id", "act", "claim_uid", "upstream_iss", "upstream_sub",
        ],
    })))
}

/// `GET /healthz`.
pub async fn healthz() -> Response {
    answer::json(StatusCode::OK, &Health { status: "ok".to_owned() })
}

/// `GET /readyz`.
///
/// # Errors
/// While something that it works with is not there yet.
pub async fn readyz(State(broker): State<Arc<Broker>>) -> Result<Response, Failure> {
    match broker.store.unfilled() {
        Some(why) => Err(Failure::new(Code::Unavailable, why)),
        None => Ok(healthz().await),
    }
}
