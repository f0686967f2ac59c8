//! The audit record: one JSON line for each decision, apart from the log. Never a token, nor any other secret.
//!
//! Lines are written by a thread of their own, from a queue of bounded length, so that whoever reads them slowly slows
//! nobody else. What a full queue means depends on the decision:
//!
//! - A decision that grants (a claim, a token, a release) is answered once its line is written, or not at all:
//!   [`Audit::record`]. A line may stand there for an answer that never arrived, never the reverse.
//! - Any other line is dropped and counted: [`Audit::write`]. Those may fill half of the queue, so that a flood of
//!   refusals leaves room for grants.
//! - A decision whose request was cut off, by its deadline or its caller, has a line too, `unknown`: [`Asked`].

use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};

use banlieue_crds::claim::Subject;
use banlieue_identity::Caller;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::{
    http::answer::{Code, Failure},
    metrics::Metrics,
};

/// Lines that may wait.
const QUEUE: usize = 1024;
/// How long a decision waits until its line is written.
const PATIENCE: Duration = Duration::from_secs(5);

struct Waiting {
    text: Vec<u8>,
    outcome: &'static str,
    written: Option<oneshot::Sender<()>>,
}

/// Takes lines.
pub struct Audit {
    queue: mpsc::Sender<Waiting>,
    metrics: Arc<Metrics>,
}

/// The thread that writes them.
pub struct Writer(oneshot::Receiver<()>);

impl Writer {
    /// Waits until everything is written, once the [`Audit`] is dropped; not longer than this.
    pub async fn finish(self, longest: Duration) {
        if tokio::time::timeout(longest, self.0).await.is_err() {
            tracing::error!("the audit record takes no lines any more; the last ones are lost");
        }
    }
}

/// One decision.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Entry<'a> {
    /// What was asked: `claim`, `release`, `list`, `me`, `status`, `token`, `revoke`, …
    pub action: &'static str,
    /// `allowed`, `denied`, or `unknown` when the request was cut off.
    pub outcome: &'static str,
    /// Why, one stable word.
    pub reason: &'static str,
    /// Issuer of the subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer: Option<&'a str>,
    /// Id of the subject there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<&'a str>,
    /// The subject key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject_key: Option<String>,
    /// The agent that asked for the person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub azp: Option<&'a str>,
    /// On which path: `person`, `agent_for_person`, `service`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<&'static str>,
    /// `namespace/name` of the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Its uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_uid: Option<&'a str>,
    /// The member that asked, by uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member_uid: Option<&'a str>,
    /// The audience of a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audience: Option<&'a str>,
    /// `jti` of a token that was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_id: Option<&'a str>,
    /// Address of the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

impl<'a> Entry<'a> {
    /// A decision about a caller.
    #[must_use]
    pub fn about(action: &'static str, caller: Option<&'a Caller>) -> Self {
        let Some(caller) = caller else { return Self { action, ..Self::default() } };
        Self {
            action,
            issuer: Some(&caller.issuer),
            subject: Some(&caller.id),
            subject_key: Some(caller.key.to_string()),
            azp: caller.azp.as_deref(),
            path: Some(caller.path.as_str()),
            ..Self::default()
        }
    }

    /// A decision about a claim's subject.
    #[must_use]
    pub fn of_subject(mut self, subject: &'a Subject) -> Self {
        self.issuer = Some(&subject.issuer);
        self.subject = Some(&subject.id);
        self.azp = Some(subject.azp.as_str()).filter(|azp| !azp.is_empty());
        self
    }
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    entry: &'a Entry<'a>,
}

impl Audit {
    /// To a file, which is appended to, or to standard output.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: Option<&Path>, metrics: Arc<Metrics>) -> io::Result<(Self, Writer)> {
        let sink: Box<dyn Write + Send> = match path {
            None => Box::new(io::stdout()),
            Some(path) => Box::new(OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot open the audit file {}: {error}", path.display()))
            })?),
        };
        Self::to(sink, metrics)
    }

    fn to(sink: Box<dyn Write + Send>, metrics: Arc<Metrics>) -> io::Result<(Self, Writer)> {
        let (queue, lines) = mpsc::channel(QUEUE);
        let (done, finished) = oneshot::channel();
        let counted = metrics.clone();
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            write_all(sink, lines, &counted);
            let _ = done.send(());
        })?;
        Ok((Self { queue, metrics }, Writer(finished)))
    }

    /// Notes a decision that grants nothing new. Never waits; when the record is slow, the line is dropped and counted.
    pub fn write(&self, entry: &Entry<'_>) {
        let Some(waiting) = self.waiting(entry, None) else { return };
        if self.queue.capacity() <= QUEUE / 2 || self.queue.try_send(waiting).is_err() {
            self.metrics.audit_lost(entry.outcome);
        }
    }

    /// Records a decision that grants something: returns once the line is written.
    ///
    /// # Errors
    /// `unavailable`, when that is not known in time. What was decided must not be answered then.
    pub async fn record(&self, entry: &Entry<'_>) -> Result<(), Failure> {
        self.record_and(entry, || ()).await
    }

    /// The same; `sent` is told once the line is on its way for good.
    async fn record_and(&self, entry: &Entry<'_>, sent: impl FnOnce()) -> Result<(), Failure> {
        let (written, known) = oneshot::channel();
        let recorded = async {
            let room = self.queue.reserve().await.ok()?;
            room.send(self.waiting(entry, Some(written))?);
            sent();
            known.await.ok()
        };
        match tokio::time::timeout(PATIENCE, recorded).await {
            Ok(Some(())) => Ok(()),
            // Counted where it was lost; it may still be written, too late to count on it.
            Ok(None) | Err(_) => {
                let detail = "what is decided cannot be recorded now; try again";
                Err(Failure::new(Code::Unavailable, detail).because("audit"))
            }
        }
    }

    /// A decision that is about to be made; see [`Asked`].
    #[must_use]
    pub fn ask<'a>(&'a self, entry: Entry<'a>) -> Asked<'a> {
        Asked { audit: self, entry: Some(entry) }
    }

    fn waiting(&self, entry: &Entry<'_>, written: Option<oneshot::Sender<()>>) -> Option<Waiting> {
        self.metrics.decided(entry.action, entry.outcome, entry.reason);
        let line = Line { time: jiff::Timestamp::now().to_string(), entry };
        // Words and texts always serialise.
        let mut text = serde_json::to_vec(&line).ok()?;
        text.push(b'\n');
        Some(Waiting { text, outcome: entry.outcome, written })
    }
}

/// A decision that is being made. It has exactly one line in the end: the one of its outcome, or, when the request was
/// cut off before, one that says so.
pub struct Asked<'a> {
    audit: &'a Audit,
    entry: Option<Entry<'a>>,
}

impl<'a> Asked<'a> {
    /// What is known of it so far.
    #[must_use]
    pub fn entry(&self) -> Entry<'a> {
        self.entry.clone().unwrap_or_default()
    }

    /// Granted; see [`Audit::record`].
    ///
    /// # Errors
    /// As there.
    pub async fn allowed(mut self, entry: Entry<'_>) -> Result<(), Failure> {
        let audit = self.audit;
        audit.record_and(&Entry { outcome: "allowed", ..entry }, || self.entry = None).await
    }

    /// Refused.
    pub fn denied(mut self, reason: &'static str) {
        if let Some(entry) = self.entry.take() {
            self.audit.write(&Entry { outcome: "denied", reason, ..entry });
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.audit.write(&Entry { outcome: "unknown", reason: "cut_off", ..entry });
        }
    }
}

/// Writes lines until nobody can send any more. One call for each: lines of several processes do not mix in a file that
/// is appended to.
fn write_all(mut sink: Box<dyn Write + Send>, mut lines: mpsc::Receiver<Waiting>, metrics: &Metrics) {
    let mut broken = false;
    while let Some(Waiting { mut text, outcome, written }) = lines.blocking_recv() {
        if broken {
            // Part of an earlier line may stand there.
            text.insert(0, b'\n');
        }
        match sink.write_all(&text).and_then(|()| sink.flush()) {
            Ok(()) => {
                broken = false;
                if let Some(written) = written {
                    let _ = written.send(());
                }
            }
            Err(error) => {
                broken = true;
                metrics.audit_lost(outcome);
                tracing::error!(%error, "an audit line is lost");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        io::{BufRead, BufReader, Read},
        sync::Mutex,
    };

    use prometheus_client::registry::Registry;
    use serde_json::Value;

    use super::*;

    fn metrics() -> (Arc<Metrics>, Registry) {
        let mut registry = Registry::default();
        (Arc::new(Metrics::new(&mut registry)), registry)
    }

    fn lost(registry: &Registry, outcome: &str) -> usize {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        let name = format!("mediatore_audit_lost_total{{outcome=\"{outcome}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
    }

    fn entry(outcome: &'static str) -> Entry<'static> {
        Entry { outcome, reason: "r", ..Entry::about("claim", None) }
    }

    #[tokio::test]
    async fn whoever_reads_slowly_stops_no_refusal_and_loses_no_grant() {
        let (metrics, registry) = metrics();
        let (reader, writer) = io::pipe().unwrap();
        let (audit, rest) = Audit::to(Box::new(writer), metrics).unwrap();
        // Nobody reads: the pipe fills, then the queue.
        let mut sent = 0;
        while lost(&registry, "denied") < 100 {
            audit.write(&entry("denied"));
            sent += 1;
        }
        let granted = entry("allowed");
        let mut grant = Box::pin(audit.record(&granted));
        assert!(futures::poll!(&mut grant).is_pending(), "not answered before it is written");
        let lines = std::thread::spawn(move || BufReader::new(reader).lines().collect::<Result<Vec<_>, _>>().unwrap());
        grant.await.unwrap();
        drop(audit);
        rest.finish(Duration::from_secs(300)).await;
        let lines = lines.join().unwrap();
        assert_eq!(lines.len(), sent + 1 - lost(&registry, "denied"), "each decision is there once, or counted");
        let outcomes: Vec<Value> =
            lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()["outcome"].clone()).collect();
        assert_eq!(outcomes.iter().filter(|outcome| *outcome == "allowed").count(), 1);
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_not_granted() {
        let (metrics, registry) = metrics();
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let (audit, _rest) = Audit::to(Box::new(writer), metrics).unwrap();
        let failure = audit.record(&entry("allowed")).await.unwrap_err();
        assert_eq!((failure.code, failure.reason), (Code::Unavailable, "audit"));
        assert_eq!(lost(&registry, "allowed"), 1);
    }

    #[tokio::test]
    async fn every_decision_has_one_line() {
        let (metrics, _registry) = metrics();
        let (mut reader, writer) = io::pipe().unwrap();
        let (audit, rest) = Audit::to(Box::new(writer), metrics).unwrap();
        audit.ask(entry("")).denied("forbidden");
        let asked = audit.ask(entry(""));
        let known = asked.entry();
        asked.allowed(Entry { reason: "made", ..known }).await.unwrap();
        drop(audit.ask(entry("")));
        drop(audit);
        rest.finish(Duration::from_secs(300)).await;
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let said: Vec<_> =
            lines.iter().map(|line| (line["outcome"].as_str().unwrap(), line["reason"].as_str().unwrap())).collect();
        assert_eq!(said, [("denied", "forbidden"), ("allowed", "made"), ("unknown", "cut_off")]);
    }

    /// Takes so many bytes with each call, or fails.
    struct Moody(VecDeque<Option<usize>>, Arc<Mutex<Vec<u8>>>);

    impl Write for Moody {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let most = self.0.pop_front().unwrap_or(Some(usize::MAX)).ok_or(io::ErrorKind::StorageFull)?;
            let taken = bytes.get(..most).unwrap_or(bytes);
            self.1.lock().unwrap().extend_from_slice(taken);
            Ok(taken.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_line_that_broke_off_spoils_no_other() {
        let (metrics, _registry) = metrics();
        let written = Arc::new(Mutex::new(Vec::new()));
        let sink = Moody([Some(5), None].into(), written.clone());
        let (audit, _rest) = Audit::to(Box::new(sink), metrics).unwrap();
        assert!(audit.record(&entry("allowed")).await.is_err());
        audit.record(&entry("allowed")).await.unwrap();
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let whole = text.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
        assert_eq!((text.lines().count(), whole), (2, 1), "{text}");
    }
}
