//! What is counted. Labels are fixed words only, never what a caller sent.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    side: &'static str,
    route: String,
    status: u16,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    side: &'static str,
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decision {
    action: &'static str,
    outcome: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Side {
    side: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct End {
    side: &'static str,
    why: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Line {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kept {
    what: &'static str,
}

/// Every metric.
pub struct Metrics {
    answers: Family<Answer, Counter>,
    times: Family<Route, Histogram, fn() -> Histogram>,
    decisions: Family<Decision, Counter>,
    kept: Family<Kept, Counter>,
    begun: Family<Side, Counter>,
    ended: Family<End, Counter>,
    lost: Family<Line, Counter>,
}

fn times() -> Histogram {
    Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0])
}

impl Metrics {
    /// All at zero, in this registry.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::bare();
        registry.register("mediatore_answers", "Requests answered", metrics.answers.clone());
        registry.register("mediatore_answer_seconds", "Time to an answer", metrics.times.clone());
        registry.register("mediatore_decisions", "Decisions, as in the audit log", metrics.decisions.clone());
        registry.register("mediatore_kept", "What was tidied up without being asked", metrics.kept.clone());
        registry.register("mediatore_connections_begun", "Connections taken on", metrics.begun.clone());
        registry.register(
            "mediatore_connections_ended",
            "Connections ended or turned away, and why",
            metrics.ended.clone(),
        );
        registry.register("mediatore_audit_lost", "Decisions that are not in the audit record", metrics.lost.clone());
        metrics
    }

    fn bare() -> Self {
        Self {
            answers: Family::default(),
            times: Family::new_with_constructor(times as fn() -> Histogram),
            decisions: Family::default(),
            kept: Family::default(),
            begun: Family::default(),
            ended: Family::default(),
            lost: Family::default(),
        }
    }

    /// A request was answered.
    pub fn answered(&self, side: &'static str, route: &str, status: u16, code: &'static str, took: Duration) {
        let answer = Answer { side, route: route.to_owned(), status, code };
        self.answers.get_or_create(&answer).inc();
        self.times.get_or_create(&Route { side, route: route.to_owned() }).observe(took.as_secs_f64());
    }

    /// Something was decided.
    pub fn decided(&self, action: &'static str, outcome: &'static str, reason: &'static str) {
        self.decisions.get_or_create(&Decision { action, outcome, reason }).inc();
    }

    /// A connection was taken on.
    pub fn connection_begun(&self, side: &'static str) {
        self.begun.get_or_create(&Side { side }).inc();
    }

    /// A connection ended, or was turned away: `full`, `address`, `identity`, `handshake`, `quiet`, …
    pub fn connection_ended(&self, side: &'static str, why: &'static str) {
        self.ended.get_or_create(&End { side, why }).inc();
    }

    /// A decision is not in the audit record.
    pub fn audit_lost(&self, outcome: &'static str) {
        self.lost.get_or_create(&Line { outcome }).inc();
    }

    /// Something was tidied up: `slot_freed`, `slot_swept`, `claim_without_grant`, `entry_deleted`, `entry_made`.
    pub fn kept(&self, what: &'static str) {
        self.kept.get_or_create(&Kept { what }).inc();
    }
}
