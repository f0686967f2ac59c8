//! Events for people: sent beside the work, rate limited, never waited for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::api::{ApiError, Kind, Typed};
use crate::decide::plus;
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
    /// The uid whose repeats of the same words are counted on one event: its own, or its pool's when the next attempt is
    /// another member.
    pub group: String,
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

/// How long one object does not repeat itself. Repeats of the same words wait twice as long each time.
const REPEAT: SignedDuration = SignedDuration::from_secs(10);

/// Longest time until a repeat is counted on the event that stands.
const LONGEST: SignedDuration = SignedDuration::from_secs(600);

/// As long as nobody repeats it, an event is forgotten: the API server keeps it no longer either.
const FORGET: SignedDuration = SignedDuration::from_secs(3600);

/// More than this is not remembered.
const MOST: usize = 4096;

/// What to do about one event.
#[derive(Debug, PartialEq, Eq)]
enum Telling {
    /// It is new.
    New,
    /// It was told: count it on the event of that name.
    Again { namespace: String, name: String, count: u32 },
    /// It was told a moment ago.
    Quiet,
}

/// An event that was told, and how often since.
#[derive(Debug)]
struct Series {
    namespace: String,
    name: String,
    count: u32,
    last: Timestamp,
    wait: SignedDuration,
    due: Timestamp,
}

/// What was told of late, so that neither a condition that flaps nor an attempt that fails in the same words again and
/// again fills the namespace with events.
#[derive(Debug, Default)]
struct Told {
    /// By uid, reason and action.
    of_late: BTreeMap<(String, String, &'static str), Timestamp>,
    /// By the uid whose repeats are counted together, reason, action and words.
    series: BTreeMap<(String, String, &'static str, String), Series>,
}

impl Told {
    /// Whether this is told now, and how; `name` is the name that a new event gets.
    fn judge(&mut self, event: &Event, name: &str, now: Timestamp) -> Telling {
        self.prune(now);
        // The words of a member name it, and every attempt is another member.
        let words = event.message.replace(&event.object.name, "*");
        let key = (event.group.clone(), event.reason.clone(), event.action, words);
        if let Some(series) = self.series.get_mut(&key).filter(|series| now.duration_since(series.last) < FORGET) {
            series.count = series.count.saturating_add(1);
            series.last = now;
            if now < series.due {
                return Telling::Quiet;
            }
            series.wait = series.wait.saturating_mul(2).min(LONGEST);
            series.due = plus(now, series.wait);
            let (namespace, name) = (series.namespace.clone(), series.name.clone());
            return Telling::Again { namespace, name, count: series.count };
        }
        let word = (event.uid.clone(), event.reason.clone(), event.action);
        if self.of_late.get(&word).is_some_and(|at| now.duration_since(*at) < REPEAT) {
            return Telling::Quiet;
        }
        self.of_late.insert(word, now);
        let (namespace, name) = (event.object.namespace.clone(), name.to_owned());
        let series = Series { namespace, name, count: 1, last: now, wait: REPEAT, due: plus(now, REPEAT) };
        self.series.insert(key, series);
        Telling::New
    }

    /// What is old goes when there is much. Is there still too much, then some are told once more than needed.
    fn prune(&mut self, now: Timestamp) {
        if self.of_late.len() > MOST {
            self.of_late.retain(|_, at| now.duration_since(*at) < REPEAT);
            if self.of_late.len() > MOST / 2 {
                self.of_late.clear();
            }
        }
        if self.series.len() > MOST {
            self.series.retain(|_, series| now.duration_since(series.last) < FORGET);
            if self.series.len() > MOST / 2 {
                self.series.clear();
            }
        }
    }
}

/// Sends events until the queue closes: at most ten a second with a burst of fifty, no object repeats a word within ten
/// seconds, and what is said again in the same words is counted on the event that stands.
pub async fn run_events(api: Typed, mut events: mpsc::Receiver<Event>, instance: String, metrics: Metrics) {
    let mut pace = Pace::new(50, 10);
    let mut told = Told::default();
    let mut count: u64 = 0;
    while let Some(event) = events.recv().await {
        let now = Timestamp::now();
        count = count.wrapping_add(1);
        let name = name(&event, count, now);
        let telling = told.judge(&event, &name, now);
        if telling == Telling::Quiet {
            metrics.event_dropped();
            continue;
        }
        while pace.take(1, Timestamp::now()) == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let mut sent = Err(ApiError::NotFound { what: String::new() });
        if let Telling::Again { namespace, name, count } = &telling {
            let series = json!({ "series": { "count": count, "lastObservedTime": format!("{now:.6}") } });
            sent = api.merge::<Value>(Kind::Event, namespace, name, managers::CONTROLLER, false, series).await;
        }
        // New, or gone meanwhile: the API server forgets events after an hour.
        if sent.as_ref().is_err_and(ApiError::is_not_found) {
            sent = api.create::<Value>(Kind::Event, managers::CONTROLLER, body(&event, &instance, &name, now)).await;
        }
        if let Err(error) = sent {
            metrics.event_dropped();
            tracing::debug!(%error, reason = event.reason, "event not sent");
        }
    }
}

fn name(event: &Event, count: u64, now: Timestamp) -> String {
    let mut name = event.object.name.clone();
    name.truncate(name.floor_char_boundary(200));
    format!("{name}.{:x}.{count:x}", now.as_microsecond())
}

fn body(event: &Event, instance: &str, name: &str, now: Timestamp) -> Value {
    let (api_version, kind) = event.kind.type_meta();
    let mut note = event.message.clone();
    note.truncate(note.floor_char_boundary(1000));
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": event.object.namespace },
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

    fn event(uid: &str, reason: &str, message: &str) -> Event {
        Event {
            kind: Kind::Pool,
            object: ObjectKey::new("ns", uid),
            uid: uid.into(),
            group: uid.into(),
            warning: false,
            reason: reason.into(),
            action: "Reconcile",
            message: message.into(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn an_object_does_not_repeat_a_word_within_a_while() {
        let mut told = Told::default();
        let mut judge = |uid, reason, message, second| told.judge(&event(uid, reason, message), "e", at(second));
        assert_eq!(judge("a", "Filling", "1 of 2", 0), Telling::New);
        assert_eq!(judge("a", "Filling", "0 of 2", 9), Telling::Quiet);
        assert_eq!(judge("a", "Paused", "", 9), Telling::New);
        assert_eq!(judge("b", "Filling", "1 of 2", 9), Telling::New);
        assert_eq!(judge("a", "Filling", "0 of 2", 10), Telling::New);
    }

    #[test]
    fn attempts_that_fail_in_the_same_words_are_one_event_with_a_count() {
        let mut told = Told::default();
        let refused = |member: &str| Event {
            group: "uid-pool".into(),
            ..event(member, "InstanceRefused", &format!("instance {member}: no such bus"))
        };
        assert_eq!(told.judge(&refused("p-aaaaa"), "first", at(0)), Telling::New);
        let mut again = Vec::new();
        for second in 1..2000 {
            match told.judge(&refused(&format!("p-{second:05}")), "other", at(second)) {
                Telling::Again { namespace, name, count } => {
                    assert_eq!((namespace.as_str(), name.as_str(), count), ("ns", "first", second as u32 + 1));
                    again.push(second);
                }
                telling => assert_eq!(telling, Telling::Quiet),
            }
        }
        assert_eq!(again, [10, 30, 70, 150, 310, 630, 1230, 1830], "ever more seldom, but never for good");
        // Other words, another pool, and the same after an hour of silence are news.
        let other = Event { message: "no such disk".into(), ..refused("p-bbbbb") };
        assert_eq!(told.judge(&other, "e", at(2000)), Telling::New);
        let elsewhere = Event { group: "uid-other".into(), ..refused("q-aaaaa") };
        assert_eq!(told.judge(&elsewhere, "e", at(2000)), Telling::New);
        assert_eq!(told.judge(&refused("p-ccccc"), "e", at(1999 + 3600)), Telling::New);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut told = Told::default();
        for n in 0..3 * MOST {
            told.judge(&event(&format!("{n}"), "R", ""), "e", at(0));
        }
        assert!(told.series.len() <= MOST + 1 && told.of_late.len() <= MOST + 1);
    }
}
