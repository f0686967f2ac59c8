//! The callers' side.
//!
//! - [`wire`]: what is sent and answered, and the checks that need nothing else (pure);
//! - [`auth`]: who calls; - [`claims`]: make, see, release; - [`create`]: making one, step by step;
//! - [`pools`]: what a caller may claim from; - [`discovery`]: keys and issuer of mediatore's own tokens;
//! - [`openapi`]: the document, from the same table as the router (pure).

pub mod auth;
pub mod claims;
pub mod create;
pub mod discovery;
pub mod openapi;
pub mod pools;
pub mod wire;

use std::{sync::Arc, time::Duration};

use axum::Router;
use http::{Method, StatusCode};
use serde_json::json;

use crate::{
    broker::Broker,
    http::{
        answer::Code,
        guard::guarded,
        route::{Described, Routes, Success, Who, refuse_the_rest},
    },
};

/// Errors of every route that asks for a bearer token.
macro_rules! with_bearer {
    ($($code:ident),* $(,)?) => {
        &[Code::Unauthorized, Code::Forbidden, Code::RateLimited, Code::Unavailable, $(Code::$code),*]
    };
}

fn described(method: Method, path: &'static str, id: &'static str, summary: &'static str) -> Described {
    Described { who: Who::Bearer, ..Described::new(method, path, id, summary) }
}

/// Every route of the user side.
#[must_use]
pub fn routes() -> Routes<Arc<Broker>> {
    let claim_name = || {
        vec![json!({
            "name": "name", "in": "path", "required": true, "description": "Name of the claim.",
            "schema": { "type": "string", "maxLength": 253 },
        })]
    };
    let open = |path, id, summary| Described::new(Method::GET, path, id, summary);
    Routes::new()
        .with(
            Described {
                request: Some("ClaimRequest"),
                parameters: vec![json!({
                    "name": "Idempotency-Key", "in": "header", "required": false,
                    "description": "Makes a retry safe: the same key with the same body is the same claim.",
                    "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" },
                })],
                success: Success {
                    status: StatusCode::CREATED,
                    schema: Some("ClaimResponse"),
                    description: "The claim, new or as an earlier request with this key made it",
                },
                errors: with_bearer![
                    InvalidRequest,
                    UnknownAudience,
                    InvalidTtl,
                    ImageDenied,
                    PoolNotFound,
                    RequestTimeout,
                    IdempotencyConflict,
                    PayloadTooLarge,
                    TooManyClaims,
                ],
                ..described(
                    Method::POST,
                    "/v1/claims",
                    "createClaim",
                    "Claims a member of a pool and says what runs in it.",
                )
            },
            create::post,
        )
        .with(
            Described {
                success: Success::ok("ClaimList", "The caller's claims"),
                errors: with_bearer![],
                ..described(Method::GET, "/v1/claims", "listClaims", "Lists the caller's claims.")
            },
            claims::list,
        )
        .with(
            Described {
                parameters: claim_name(),
                success: Success::ok("ClaimResponse", "The claim"),
                errors: with_bearer![NotFound],
                ..described(Method::GET, "/v1/claims/{name}", "getClaim", "Shows how far a claim is. Never its output.")
            },
            claims::get,
        )
        .with(
            Described {
                parameters: claim_name(),
                success: Success::empty("It is being released; 404 once it is gone"),
                errors: with_bearer![NotFound],
                ..described(Method::DELETE, "/v1/claims/{name}", "releaseClaim", "Releases a claim.")
            },
            claims::delete,
        )
        .with(
            Described {
                success: Success::ok("PoolList", "Pools that the caller may claim from"),
                errors: with_bearer![],
                ..described(Method::GET, "/v1/pools", "listPools", "Lists pools, with their warm members.")
            },
            pools::list,
        )
        .with(
            Described {
                success: Success::ok("JsonWebKeySet", "The keys"),
                errors: &[Code::NotFound],
                ..open("/.well-known/jwks.json", "getKeys", "Keys of the tokens that mediatore signs.")
            },
            discovery::jwks,
        )
        .with(
            Described {
                success: Success::ok("IssuerMetadata", "The issuer"),
                errors: &[Code::NotFound],
                ..open("/.well-known/openid-configuration", "getIssuer", "Issuer of the tokens that mediatore signs.")
            },
            discovery::issuer,
        )
        .with(
            Described {
                success: Success::ok("OpenApi", "This document"),
                ..open("/openapi.json", "getOpenApi", "This document.")
            },
            openapi::get,
        )
        .with(
            Described {
                success: Success::ok("Health", "It runs"),
                ..open("/healthz", "getHealth", "Whether mediatore runs.")
            },
            discovery::healthz,
        )
        .with(
            Described {
                success: Success::ok("Health", "It can do its work"),
                errors: &[Code::Unavailable],
                ..open("/readyz", "getReadiness", "Whether mediatore can do its work.")
            },
            discovery::readyz,
        )
}

/// The router of the user side.
pub fn router(broker: Arc<Broker>) -> Router {
    let (router, described) = routes().split();
    let (longest, metrics) = (Duration::from_secs(broker.config.limits.request_seconds), broker.metrics.clone());
    let router = refuse_the_rest(router.with_state(broker), &described);
    guarded(router, "user", &described, longest, metrics)
}
