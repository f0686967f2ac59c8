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
    route::{Described, fits},
};
use crate::metrics::Metrics;

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
