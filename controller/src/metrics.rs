//! Metrics of the controller, in Prometheus' text format. Labels are small fixed sets; nothing a person typed is one.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Write {
    verb: &'static str,
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolState {
    namespace: String,
    pool: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Stage {
    stage: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

fn short() -> Histogram {
    Histogram::new([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0])
}

fn long() -> Histogram {
    Histogram::new([0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0])
}

/// Every metric. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    writes: Family<Write, Counter>,
    reconciles: Family<Outcome, Counter>,
    queue_wait: Family<Kind, Histogram>,
    queue_depth: Family<Kind, Gauge>,
    bind_time: Histogram,
    bind_conflicts: Counter,
    bind_surplus: Counter,
    hits: Counter,
    misses: Counter,
    members: Family<PoolState, Gauge>,
    stages: Family<Stage, Histogram>,
    claims_ended: Family<Reason, Counter>,
    ttl_overrun: Histogram,
    destroy_time: Histogram,
    orphans: Counter,
    leader_changes: Counter,
    leading: Gauge,
    watch_lag: Family<Kind, Histogram>,
    events_dropped: Counter,
    unreadable: Family<Kind, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("banlieue");
        let metrics = Self {
            registry: Arc::default(),
            writes: Family::default(),
            reconciles: Family::default(),
            queue_wait: Family::new_with_constructor(short),
            queue_depth: Family::default(),
            bind_time: short(),
            bind_conflicts: Counter::default(),
            bind_surplus: Counter::default(),
            hits: Counter::default(),
            misses: Counter::default(),
            members: Family::default(),
            stages: Family::new_with_constructor(long),
            claims_ended: Family::default(),
            ttl_overrun: short(),
            destroy_time: long(),
            orphans: Counter::default(),
            leader_changes: Counter::default(),
            leading: Gauge::default(),
            watch_lag: Family::new_with_constructor(short),
            events_dropped: Counter::default(),
            unreadable: Family::default(),
        };
        let r = &mut registry;
        r.register("api_writes", "Writes to the API server, by verb, kind and outcome", metrics.writes.clone());
        r.register("reconciles", "Passes over one object, by kind and outcome", metrics.reconciles.clone());
        r.register("queue_wait_seconds", "From due to taken by a worker", metrics.queue_wait.clone());
        r.register("queue_depth", "Keys that are due and not taken", metrics.queue_depth.clone());
        r.register("bind_seconds", "From a claim's creation to its acknowledgement", metrics.bind_time.clone());
        r.register("bind_conflicts", "Commits that lost against another write", metrics.bind_conflicts.clone());
        r.register(
            "bind_surplus",
            "Committed members whose claim could not be acknowledged",
            metrics.bind_surplus.clone(),
        );
        r.register("bind_hits", "Claims that found a warm member at once", metrics.hits.clone());
        r.register("bind_misses", "Claims that had to wait", metrics.misses.clone());
        r.register("members", "Members by pool and state", metrics.members.clone());
        r.register("member_stage_seconds", "From creation to running, attested and ready", metrics.stages.clone());
        r.register("claims_ended", "Claims that reached a terminal phase, by reason", metrics.claims_ended.clone());
        r.register("ttl_overrun_seconds", "From a claim's deadline to Releasing", metrics.ttl_overrun.clone());
        r.register("destroy_seconds", "From a member's deletion to its finalizer off", metrics.destroy_time.clone());
        r.register("orphans", "Members found spent without a claim that counts", metrics.orphans.clone());
        r.register("leader_changes", "Times that this process became leader", metrics.leader_changes.clone());
        r.register("leading", "1 while this process leads", metrics.leading.clone());
        r.register("watch_lag_seconds", "From an object's creation to its arrival here", metrics.watch_lag.clone());
        r.register("events_dropped", "Events not sent, for the rate limit", metrics.events_dropped.clone());
        r.register(
            "unreadable_objects",
            "Objects that cannot be read and are left as they are",
            metrics.unreadable.clone(),
        );
        Self { registry: Arc::new(registry), ..metrics }
    }
}

impl Metrics {
    /// The text for a scraper.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// A write was answered.
    pub fn api_write(&self, verb: &'static str, kind: &'static str, outcome: &'static str) {
        self.writes.get_or_create(&Write { verb, kind, outcome }).inc();
    }

    /// A pass over one object ended.
    pub fn reconcile(&self, kind: &'static str, outcome: &'static str) {
        self.reconciles.get_or_create(&Outcome { kind, outcome }).inc();
    }

    /// A worker took a key that had been due for so long.
    pub fn queue_wait(&self, kind: &'static str, seconds: f64) {
        self.queue_wait.get_or_create(&Kind { kind }).observe(seconds.max(0.0));
    }

    /// So many keys of a lane are due.
    pub fn queue_depth(&self, kind: &'static str, depth: usize) {
        self.queue_depth.get_or_create(&Kind { kind }).set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    /// A claim was acknowledged so long after its creation; at once when it never had to wait.
    pub fn bound(&self, seconds: f64, at_once: bool) {
        self.bind_time.observe(seconds.max(0.0));
        if at_once {
            self.hits.inc()
        } else {
            self.misses.inc()
        };
    }

    /// A commit lost its race.
    pub fn bind_conflict(&self) {
        self.bind_conflicts.inc();
    }

    /// A committed member is surplus.
    pub fn bind_surplus(&self) {
        self.bind_surplus.inc();
    }

    /// Members of a pool by state.
    pub fn members(&self, namespace: &str, pool: &str, states: &[(&'static str, u32)]) {
        for (state, count) in states {
            let labels = PoolState { namespace: namespace.to_owned(), pool: pool.to_owned(), state };
            self.members.get_or_create(&labels).set(i64::from(*count));
        }
    }

    /// A pool is gone.
    pub fn forget_pool(&self, namespace: &str, pool: &str, states: &[&'static str]) {
        for state in states {
            let labels = PoolState { namespace: namespace.to_owned(), pool: pool.to_owned(), state };
            self.members.remove(&labels);
        }
    }

    /// A member reached a stage so long after its creation.
    pub fn stage(&self, stage: &'static str, seconds: f64) {
        self.stages.get_or_create(&Stage { stage }).observe(seconds.max(0.0));
    }

    /// A claim ended.
    pub fn claim_ended(&self, reason: &'static str) {
        self.claims_ended.get_or_create(&Reason { reason }).inc();
    }

    /// Releasing was written so long after the deadline.
    pub fn ttl_overrun(&self, seconds: f64) {
        self.ttl_overrun.observe(seconds.max(0.0));
    }

    /// A member's finalizer went so long after its deletion was asked for.
    pub fn destroyed(&self, seconds: f64) {
        self.destroy_time.observe(seconds.max(0.0));
    }

    /// A spent member without a claim that counts was found.
    pub fn orphan(&self) {
        self.orphans.inc();
    }

    /// This process became leader, or is it no more.
    pub fn leading(&self, leads: bool) {
        if leads {
            self.leader_changes.inc();
        }
        self.leading.set(i64::from(leads));
    }

    /// A new object arrived so long after its creation.
    pub fn watch_lag(&self, kind: &'static str, seconds: f64) {
        self.watch_lag.get_or_create(&Kind { kind }).observe(seconds.max(0.0));
    }

    /// So many objects of a kind cannot be read.
    pub fn unreadable(&self, kind: &'static str, count: usize) {
        self.unreadable.get_or_create(&Kind { kind }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// An event was dropped.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_that_the_design_asks_for_is_there() {
        let metrics = Metrics::default();
        metrics.api_write("patch", "poolmembers", "ok");
        metrics.bound(0.004, true);
        metrics.watch_lag("poolmembers", 0.1);
        metrics.stage("ready", 1.0);
        metrics.unreadable("virtualmachineclaims", 2);
        let text = metrics.text();
        for name in [
            "banlieue_api_writes_total{verb=\"patch\",kind=\"poolmembers\",outcome=\"ok\"} 1",
            "banlieue_bind_seconds_bucket{le=\"0.001\"}",
            "banlieue_bind_hits_total 1",
            "banlieue_ttl_overrun_seconds",
            "banlieue_destroy_seconds",
            "banlieue_orphans",
            "banlieue_leader_changes",
            "banlieue_watch_lag_seconds",
            "banlieue_unreadable_objects{kind=\"virtualmachineclaims\"} 2",
        ] {
            assert!(text.contains(name), "{name} is not in\n{text}");
        }
    }
}
