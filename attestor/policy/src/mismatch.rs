//! What differs between a member and its measurements, in sentences for a person.

use std::fmt;

use banlieue_tpm::eventlog::Event;

use crate::digest::Digest;
use crate::document::ReferenceEvent;

/// One event of a mismatch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventName {
    /// Which event of its PCR, counted from 1.
    pub number: usize,
    /// Its type, and the firmware's unauthenticated word for it.
    pub what: String,
}

/// One PCR that is not as its rule says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Which PCR.
    pub pcr: u8,
    /// The first event that differs, when the document or the rule lets us name it; digests are then of the event, else
    /// of the PCR.
    pub event: Option<EventName>,
    /// What should be there; none for an event that should not be.
    pub expected: Option<Digest>,
    /// What is there; none for an event that is missing.
    pub found: Option<Digest>,
}

impl Mismatch {
    /// Compares a PCR's events with the reference and names the first that differs.
    pub(crate) fn from_reference(pcr: u8, reference: &[&ReferenceEvent], events: &[&Event]) -> Option<Self> {
        let longest = reference.len().max(events.len());
        (0..longest).find_map(|at| {
            let (wanted, got) = (reference.get(at).copied(), events.get(at).copied());
            let same = match (wanted, got) {
                (Some(wanted), Some(got)) => wanted.kind == got.kind.name() && wanted.digest.0 == got.digest,
                _ => false,
            };
            if same {
                return None;
            }
            let what = match (wanted, got) {
                (Some(wanted), _) => label(&wanted.kind, &wanted.about),
                (None, Some(got)) => label(&got.kind.name(), &got.describe()),
                (None, None) => return None,
            };
            Some(Self {
                pcr,
                event: Some(EventName { number: at.saturating_add(1), what }),
                expected: wanted.map(|event| event.digest),
                found: got.map(|event| Digest(event.digest)),
            })
        })
    }

    /// Names an event that no pattern allows, or says that one is missing.
    pub(crate) fn unlisted(pcr: u8, at: usize, events: &[&Event]) -> Self {
        let got = events.get(at);
        let what = match got {
            Some(event) => label(&event.kind.name(), &event.describe()),
            None => "missing".to_owned(),
        };
        Self {
            pcr,
            event: Some(EventName { number: at.saturating_add(1), what }),
            expected: None,
            found: got.map(|event| Digest(event.digest)),
        }
    }
}

pub(crate) fn label(kind: &str, about: &str) -> String {
    if about.is_empty() { kind.to_owned() } else { format!("{kind} {about}") }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCR {}: ", self.pcr)?;
        let what = match &self.event {
            Some(event) => {
                write!(f, "event {} ({}): ", event.number, event.what)?;
                "event"
            }
            None => "value",
        };
        match (self.expected, self.found) {
            (Some(expected), Some(found)) => write!(f, "expected sha256:{expected}, found sha256:{found}"),
            (None, Some(found)) => write!(f, "no such {what} is allowed, found sha256:{found}"),
            (Some(expected), None) => write!(f, "expected sha256:{expected}, found no {what}"),
            (None, None) => write!(f, "the {what} is missing"),
        }
    }
}

/// All PCRs that are not as their rules say; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct Mismatches(pub Vec<Mismatch>);

impl Mismatches {
    /// The first `most` of them in words, and how many more there are: for conditions and events, whose messages have a
    /// limit.
    pub fn summary(&self, most: usize) -> String {
        let shown: Vec<_> = self.0.iter().take(most).map(ToString::to_string).collect();
        let more = self.0.len().saturating_sub(shown.len());
        let tail = if more == 0 { String::new() } else { format!("; and {more} more PCRs") };
        format!("{}{tail}", shown.join("; "))
    }
}
