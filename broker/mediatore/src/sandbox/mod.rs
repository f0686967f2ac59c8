//! The members' side: mutual TLS with SVIDs. Who is at the other end is what its certificate says, never what it sends.
//!
//! - [`peer`]: from a certificate to a member or a claim; - [`find`]: the live two-way check;
//! - [`me`]: what a guest learns, and [`polls`]: waiting for it; - [`status`]: what it reports;
//! - [`token`]: tokens for its workload.

pub mod find;
pub mod me;
pub mod peer;
pub mod polls;
pub mod status;
pub mod token;

use std::{sync::Arc, time::Duration};

use axum::Router;
use http::{Method, StatusCode};

use crate::{
    broker::Broker,
    http::{
        answer::Code,
        guard::guarded,
        route::{Described, Routes, Success, refuse_the_rest},
    },
    user::discovery,
};

fn described(method: Method, path: &'static str, id: &'static str, summary: &'static str) -> Described {
    Described {
        method,
        path,
        id,
        summary,
        bearer: false,
        request: None,
        parameters: Vec::new(),
        success: Success { status: StatusCode::OK, schema: None, description: "Done" },
        errors: &[Code::Unavailable],
    }
}

/// Every route of the sandbox side.
#[must_use]
pub fn routes() -> Routes<Arc<Broker>> {
    Routes::new()
        .with(described(Method::GET, "/v1/me", "getMe", "What a guest's member is lent for."), me::get)
        .with(described(Method::POST, "/v1/me/status", "postStatus", "What a guest says of itself."), status::post)
        .with(described(Method::POST, "/v1/token", "postToken", "One token for one audience."), token::post)
        .with(described(Method::GET, "/healthz", "getHealth", "Whether mediatore runs."), discovery::healthz)
        .with(described(Method::GET, "/readyz", "getReadiness", "Whether it can do its work."), discovery::readyz)
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
