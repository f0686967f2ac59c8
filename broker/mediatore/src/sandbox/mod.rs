//! The members' side: mutual TLS with SVIDs. Who is at the other end is what its certificate says, never what it sends.
//!
//! - [`peer`]: from a certificate to a member or a claim; - [`find`]: the live two-way check;
//! - [`me`]: what a guest learns, and [`polls`]: waiting for it; - [`status`]: what it reports;
//! - [`token`]: tokens for its workload; - [`openapi`]: the document, from the same table as the router (pure).

pub mod find;
pub mod me;
pub mod openapi;
pub mod peer;
pub mod polls;
pub mod status;
pub mod token;

use std::{sync::Arc, time::Duration};

use axum::Router;
use http::Method;
use serde_json::{Value, json};

use crate::{
    broker::Broker,
    http::{
        answer::Code,
        guard::guarded,
        route::{Described, Routes, Success, Who, refuse_the_rest},
    },
    user::discovery,
};

/// Errors of every route that asks for an SVID.
macro_rules! with_svid {
    ($($code:ident),* $(,)?) => {
        &[
            Code::Unauthorized,
            Code::Forbidden,
            Code::NoClaim,
            Code::Released,
            Code::MemberRevoked,
            Code::RateLimited,
            Code::Unavailable,
            $(Code::$code),*
        ]
    };
}

fn described(method: Method, path: &'static str, id: &'static str, summary: &'static str) -> Described {
    Described { who: Who::Svid, ..Described::new(method, path, id, summary) }
}

/// Every route of the sandbox side. A connection needs an SVID of the trust domain, whichever route is asked.
#[must_use]
pub fn routes() -> Routes<Arc<Broker>> {
    let query = |name: &str, description: &str, schema: Value| json!({ "name": name, "in": "query", "required": false, "description": description, "schema": schema });
    let probe = |path, id, summary| Described { who: Who::Svid, ..Described::new(Method::GET, path, id, summary) };
    Routes::new()
        .with(
            Described {
                parameters: vec![
                    query(
                        "wait",
                        "Seconds to wait for news: for a claim, or, with `claim`, for that claim's end.",
                        json!({ "type": "integer", "minimum": 0 }),
                    ),
                    query(
                        "claim",
                        "Uid of the claim that the guest knows already.",
                        json!({ "type": "string", "format": "uuid" }),
                    ),
                ],
                success: Success::ok("Me", "What the member is lent for"),
                errors: with_svid![InvalidRequest],
                ..described(Method::GET, "/v1/me", "getMe", "What a guest's member is lent for. With its node SVID.")
            },
            me::get,
        )
        .with(
            Described {
                request: Some("Report"),
                success: Success::empty("It is written on the claim"),
                errors: with_svid![InvalidRequest, RequestTimeout, PayloadTooLarge],
                ..described(
                    Method::POST,
                    "/v1/me/status",
                    "postStatus",
                    "What a guest says of itself. With its node SVID.",
                )
            },
            status::post,
        )
        .with(
            Described {
                request: Some("TokenRequest"),
                success: Success::ok("TokenResponse", "The token"),
                errors: with_svid![InvalidRequest, UnknownAudience, RequestTimeout, PayloadTooLarge],
                ..described(Method::POST, "/v1/token", "postToken", "One token for one audience. With a claim SVID.")
            },
            token::post,
        )
        .with(
            Described {
                success: Success::ok("OpenApi", "This document"),
                ..probe("/openapi.json", "getOpenApi", "This document.")
            },
            openapi::get,
        )
        .with(
            Described {
                success: Success::ok("Health", "It runs"),
                ..probe("/healthz", "getHealth", "Whether mediatore runs.")
            },
            discovery::healthz,
        )
        .with(
            Described {
                success: Success::ok("Health", "It can do its work"),
                errors: &[Code::Unavailable],
                ..probe("/readyz", "getReadiness", "Whether it can do its work.")
            },
            discovery::readyz,
        )
}

/// The router of the sandbox side.
pub fn router(broker: Arc<Broker>) -> Router {
    let (router, described) = routes().split();
    let limits = &broker.config.limits;
    // A long poll may wait as long as it asked for.
    let longest = Duration::from_secs(limits.request_seconds.saturating_add(limits.poll_seconds));
    let metrics = broker.metrics.clone();
    let router = refuse_the_rest(router.with_state(broker), &described);
    guarded(router, "sandbox", &described, longest, metrics)
}
