//! Counters of the plugin.

use std::sync::Arc;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::unread::Unread;

/// What ended a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// `Admitted`, or the reason of the refusal.
    pub reason: String,
    /// Whether it was surely the member itself.
    pub authenticated: String,
}

/// All of them.
#[derive(Clone)]
pub struct Metrics {
    /// Streams by outcome.
    pub outcomes: Family<Outcome, Counter>,
    /// Seconds from M3 to the decision.
    pub verification: Histogram,
    /// Seconds of a whole admitted stream.
    pub stream: Histogram,
    /// Objects that could not be read.
    pub unread: Unread,
    registry: Arc<Registry>,
}

impl Default for Metrics {
    fn default() -> Self {
        let outcomes = Family::<Outcome, Counter>::default();
        let verification = Histogram::new(exponential_buckets(0.000_25, 2.0, 14));
        let stream = Histogram::new(exponential_buckets(0.005, 2.0, 14));
        let mut registry = Registry::with_prefix("banlieue_attestor");
        registry.register("attestations", "Attestation streams by outcome", outcomes.clone());
        registry.register("verification_seconds", "From evidence to decision", verification.clone());
        registry.register("stream_seconds", "Whole streams that were admitted", stream.clone());
        let unread = Unread::register(&mut registry);
        Self { outcomes, verification, stream, unread, registry: Arc::new(registry) }
    }
}

impl Metrics {
    /// Counts a stream's end.
    pub fn count(&self, reason: &str, authenticated: bool) {
        let outcome = Outcome { reason: reason.to_owned(), authenticated: authenticated.to_string() };
        self.outcomes.get_or_create(&outcome).inc();
    }

    /// The text that Prometheus reads.
    #[must_use]
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }
}
