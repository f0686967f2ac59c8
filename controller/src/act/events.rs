//! Events for people: sent beside the work, rate limited, never waited for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::api::{Kind, Typed};
use crate::metrics::Metrics;
use crate::schedule::Pace;
use crate::store::ObjectKey;
use banlieue_crds::names::managers;

/// One thing worth telling.
#[derive(Debug, Clone)]
pub struct Event {
    /// Kind of the object it is about.
    pub kind: Kind,
    /// That object.
    pub object: ObjectKey,
    /// Its uid.
    pub uid: String,
    /// Whether a person should look.
    pub warning: bool,
    /// One stable word.
    pub reason: String,
    /// What was done: one word.
    pub action: &'static str,
    /// A sentence.
    pub message: String,
}

/// Where events go.
pub trait EventSink: Send + Sync {
    /// Takes an event without waiting; may drop it.
    fn send(&self, event: Event);
}

/// The queue to the sender.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Event>,
    metrics: Metrics,
}

impl Events {
    /// A queue of that length, and its other end for [`run_events`].
    pub fn new(length: usize, metrics: Metrics) -> (Arc<Self>, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(length);
        (Arc::new(Self { sender, metrics }), receiver)
    }
}

impl EventSink for Events {
    fn send(&self, event: Event) {
        if self.sender.try_send(event).is_err() {
            self.metrics.event_dropped();
        }
    }
}

/// How long one object does not repeat itself.
const REPEAT: SignedDuration = SignedDuration::from_secs(10);

/// What was told of late, so that a condition that flaps does not fill the namespace with events.
#[derive(Debug, Default)]
struct Told(BTreeMap<(String, String, &'static str), Timestamp>);

impl Told {
    /// Whether this may be told now: the same object has not said the same word of the same act for a while.
    fn is_news(&mut self, event: &Event, now: Timestamp) -> bool {
        if self.0.len() > 4096 {
            self.0.retain(|_, at| now.duration_since(*at) < REPEAT);
        }
        let word = (event.uid.clone(), event.reason.clone(), event.action);
        match self.0.get(&word) {
            Some(at) if now.duration_since(*at) < REPEAT => false,
            _ => {
                self.0.insert(word, now);
                true
            }
        }
    }
}

/// Sends events until the queue closes: at most ten a second with a burst of fifty, and no object repeats itself
/// within ten seconds.
pub async fn run_events(api: Typed, mut events: mpsc::Receiver<Event>, instance: String, metrics: Metrics) {
    let mut pace = Pace::new(50, 10);
    let mut told = Told::default();
    let mut count: u64 = 0;
    while let Some(event) = events.recv().await {
        if !told.is_news(&event, Timestamp::now()) {
            metrics.event_dropped();
            continue;
        }
        while pace.take(1, Timestamp::now()) == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        count = count.wrapping_add(1);
        let body = body(&event, &instance, count, Timestamp::now());
        if let Err(error) = api.create::<Value>(Kind::Event, managers::CONTROLLER, body).await {
            metrics.event_dropped();
            tracing::debug!(%error, reason = event.reason, "event not sent");
        }
    }
}

fn body(event: &Event, instance: &str, count: u64, now: Timestamp) -> Value {
    let (api_version, kind) = event.kind.type_meta();
    let stamp = now.as_microsecond();
    let mut note = event.message.clone();
    note.truncate(note.floor_char_boundary(1000));
    let mut name = event.object.name.clone();
    name.truncate(200);
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": format!("{name}.{stamp:x}.{count:x}"), "namespace": event.object.namespace },
        "eventTime": format!("{now:.6}"),
        "reportingController": "banlieue.io/controller",
        "reportingInstance": instance,
        "action": event.action,
        "reason": event.reason,
        "type": if event.warning { "Warning" } else { "Normal" },
        "note": note,
        "regarding": {
            "apiVersion": api_version, "kind": kind,
            "namespace": event.object.namespace, "name": event.object.name, "uid": event.uid,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_does_not_repeat_itself_within_a_while() {
        let event = |uid: &str, reason: &str| Event {
            kind: Kind::Pool,
            object: ObjectKey::new("ns", "p"),
            uid: uid.into(),
            warning: false,
            reason: reason.into(),
            action: "Reconcile",
            message: String::new(),
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut told = Told::default();
        assert!(told.is_news(&event("a", "Warm"), at(0)));
        assert!(!told.is_news(&event("a", "Warm"), at(9)));
        assert!(told.is_news(&event("a", "Paused"), at(9)));
        assert!(told.is_news(&event("b", "Warm"), at(9)));
        assert!(told.is_news(&event("a", "Warm"), at(10)));
    }
}
