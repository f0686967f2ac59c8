//! The operators' side, in plain HTTP and on a port of its own: probes and metrics. Callers and sandboxes have no part in
//! it, so however many of them there are, whoever asks whether mediatore lives is answered.

use std::{sync::Arc, time::Duration};

use axum::{Router, response::IntoResponse, response::Response};
use http::{HeaderValue, Method, header};
use prometheus_client::registry::Registry;

use crate::{
    broker::Broker,
    http::{
        answer::{Code, Failure},
        guard::guarded,
        route::{Described, Routes, refuse_the_rest},
    },
    user::discovery,
};

/// Longest time of one request.
const LONGEST: Duration = Duration::from_secs(10);
/// The text format of Prometheus, as OpenMetrics has it.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn described(path: &'static str, id: &'static str, summary: &'static str) -> Described {
    Described { errors: &[Code::Unavailable], ..Described::new(Method::GET, path, id, summary) }
}

/// The router of the operators' side.
pub fn router(broker: Arc<Broker>, registry: Arc<Registry>) -> Router {
    let metrics = broker.metrics.clone();
    let text = async move || text(&registry);
    let (router, described) = Routes::new()
        .with(described("/metrics", "getMetrics", "What was counted."), text)
        .with(described("/healthz", "getHealth", "Whether mediatore runs."), discovery::healthz)
        .with(described("/readyz", "getReadiness", "Whether it can do its work."), discovery::readyz)
        .split();
    guarded(refuse_the_rest(router.with_state(broker), &described), "operators", &described, LONGEST, metrics)
}

fn text(registry: &Registry) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => {
            let mut response = text.into_response();
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(FORMAT));
            response
        }
        Err(_) => Failure::new(Code::Internal, "the metrics cannot be written").into_response(),
    }
}
