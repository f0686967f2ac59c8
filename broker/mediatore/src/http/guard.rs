//! What stands around every route: a deadline, panics turned into an answer, a metric.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::Request,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use futures::FutureExt;

use super::{
    answer::{Code, Failure, Outcome},
    connection::HEAD_BYTES,
    route::{Described, fits},
};
use crate::metrics::Metrics;

/// A head's length as HTTP/2 counts it (RFC 9113, 6.5.2).
fn head_bytes(request: &Request) -> usize {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum::<usize>();
    request.uri().path_and_query().map_or(0, |target| target.as_str().len()) + fields
}

/// Guards every route of a router. `longest` is for a request as a whole.
pub fn guarded(
    router: Router,
    side: &'static str,
    described: &[Described],
    longest: Duration,
    metrics: Arc<Metrics>,
) -> Router {
    let patterns: Arc<[&'static str]> = described.iter().map(|route| route.path).collect();
    router.layer(from_fn(move |request: Request, next: Next| {
        let (metrics, patterns) = (metrics.clone(), patterns.clone());
        async move {
            // A label is a route's pattern, never the path that somebody sent.
            let route = patterns.iter().find(|pattern| fits(pattern, request.uri().path())).copied().unwrap_or("none");
            let begun = std::time::Instant::now();
            if head_bytes(&request) > HEAD_BYTES {
                // HTTP/1.1 has it from hyper; HTTP/2 would have an answer without a body.
                let failure =
                    Failure::new(Code::HeadersTooLarge, format!("a request's head has at most {HEAD_BYTES} bytes"));
                metrics.answered(side, route, failure.code.status().as_u16(), failure.code.as_str(), begun.elapsed());
                return failure.into_response();
            }
            let answering = AssertUnwindSafe(next.run(request)).catch_unwind();
            let response: Response = match tokio::time::timeout(longest, answering).await {
                Ok(Ok(response)) => response,
                // The panic itself is in the log.
                Ok(Err(_)) => Failure::new(Code::Internal, "mediatore has a defect here; see its log").into_response(),
                Err(_) => {
                    Failure::new(Code::Unavailable, "this took too long; try again").because("deadline").into_response()
                }
            };
            let code = response.extensions().get::<Outcome>().map_or("ok", |outcome| outcome.code);
            metrics.answered(side, route, response.status().as_u16(), code, begun.elapsed());
            response
        }
    }))
}
