//! Counters of the attestor controller.

use std::sync::Arc;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// A thing done, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Act {
    /// `create-entry`, `delete-entry`, `ban`, `delete-agent`, `condition`, `end-report`, `delete-report`.
    pub act: &'static str,
    /// `ok` or the error's category.
    pub outcome: &'static str,
}

/// All of them.
#[derive(Clone)]
pub struct Metrics {
    /// What was done.
    pub acts: Family<Act, Counter>,
    /// Sweeps that stopped because too much would go.
    pub stopped_sweeps: Counter,
    /// Whether the plugin answered the last probe.
    pub plugin_answering: Gauge,
    registry: Arc<Registry>,
}

impl Default for Metrics {
    fn default() -> Self {
        let (acts, stopped_sweeps, plugin_answering) = Default::default();
        let mut registry = Registry::with_prefix("banlieue_attestor_controller");
        registry.register("acts", "What was done, by outcome", Family::clone(&acts));
        registry.register("stopped_sweeps", "Sweeps that would have removed too much", Counter::clone(&stopped_sweeps));
        registry.register("plugin_answering", "Whether the plugin answers", Gauge::clone(&plugin_answering));
        Self { acts, stopped_sweeps, plugin_answering, registry: Arc::new(registry) }
    }
}

impl Metrics {
    /// Counts an act.
    pub fn count(&self, act: &'static str, outcome: &'static str) {
        self.acts.get_or_create(&Act { act, outcome }).inc();
    }

    /// For the listener.
    #[must_use]
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }
}
