//! The audit record: one JSON line for each decision, apart from the log. Never a token, nor any other secret.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use banlieue_crds::claim::Subject;
use banlieue_identity::Caller;
use serde::Serialize;

use crate::metrics::Metrics;

/// Where lines go.
enum Sink {
    Standard,
    File(File),
}

/// Writes lines, whole ones.
pub struct Audit {
    sink: Mutex<Sink>,
    metrics: Arc<Metrics>,
}

/// One decision.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Entry<'a> {
    /// What was asked: `claim`, `release`, `list`, `me`, `status`, `token`, `revoke`, …
    pub action: &'static str,
    /// `allowed` or `denied`.
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
    pub fn open(path: Option<&Path>, metrics: Arc<Metrics>) -> io::Result<Self> {
        let sink = match path {
            None => Sink::Standard,
            Some(path) => Sink::File(OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot open the audit file {}: {error}", path.display()))
            })?),
        };
        Ok(Self { sink: Mutex::new(sink), metrics })
    }

    /// Writes a line.
    pub fn write(&self, entry: &Entry<'_>) {
        self.metrics.decided(entry.action, entry.outcome, entry.reason);
        let line = Line { time: jiff::Timestamp::now().to_string(), entry };
        let Ok(mut text) = serde_json::to_vec(&line) else { return };
        text.push(b'\n');
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        // One call for each line: lines of several processes do not mix in a file that is appended to.
        let written = match &mut *sink {
            Sink::Standard => io::stdout().lock().write_all(&text),
            Sink::File(file) => file.write_all(&text),
        };
        if let Err(error) = written {
            tracing::error!(%error, "an audit line is lost");
        }
    }
}
