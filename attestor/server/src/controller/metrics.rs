//! Counters of the attestor controller.

use std::sync::Arc;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::unread::Unread;

/// A thing done, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Act {
    /// `create-entry`, `delete-entry`, `ban`, `delete-agent`, `condition`, `end-report`, `delete-report`.
    pub act: &'static str,
    /// `ok` or the error's category.
    pub outcome: &'static str,
}

/// A kind of SPIRE's records.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Records {
    /// `entries` or `agents`.
    pub records: &'static str,
}

/// All of them.
#[derive(Clone)]
pub struct Metrics {
    /// What was done.
    pub acts: Family<Act, Counter>,
    /// Sweeps that stopped because too much would go.
    pub stopped_sweeps: Counter,
    /// Records that stand for nothing and stay, for there are too many; 0 while the sweep of their kind goes on.
    pub unswept: Family<Records, Gauge>,
    /// Whether the plugin answered the last probe.
    pub plugin_answering: Gauge,
    /// Objects that could not be read.
    pub unread: Unread,
    registry: Arc<Registry>,
}

impl Default for Metrics {
    fn default() -> Self {
        let (acts, stopped_sweeps, unswept, plugin_answering) = Default::default();
        let mut registry = Registry::with_prefix("banlieue_attestor_controller");
        registry.register("acts", "What was done, by outcome", Family::clone(&acts));
        registry.register("stopped_sweeps", "Sweeps that would have removed too much", Counter::clone(&stopped_sweeps));
        registry.register(
            "unswept",
            "Records of SPIRE that stand for nothing and stay, for there are too many to be true",
            Family::clone(&unswept),
        );
        registry.register("plugin_answering", "Whether the plugin answers", Gauge::clone(&plugin_answering));
        let unread = Unread::register(&mut registry);
        Self { acts, stopped_sweeps, unswept, plugin_answering, unread, registry: Arc::new(registry) }
    }
}

impl Metrics {
    /// Counts an act.
    pub fn count(&self, act: &'static str, outcome: &'static str) {
        self.acts.get_or_create(&Act { act, outcome }).inc();
    }

    /// Notes how many records of a kind stay though they stand for nothing. Says whether that is news.
    pub fn stays(&self, records: &'static str, count: usize) -> bool {
        let gauge = self.unswept.get_or_create(&Records { records }).clone();
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX)) == 0 && count > 0
    }

    /// For the listener.
    #[must_use]
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }
}
