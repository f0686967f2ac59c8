//! The verdict: quoted PCR values and the event log against a document.

use banlieue_tpm::eventlog::{Event, EventKind, EventLog, ReplayError};
use banlieue_tpm::pcr::{PcrValue, QUOTED};

use crate::aggregate;
use crate::digest::Digest;
use crate::document::{Measurements, ReferenceEvent, UNLOGGED};
use crate::mismatch::{Mismatch, Mismatches};
use crate::rule::{Rule, match_events};

const ZERO: PcrValue = [0; 32];

/// What PCR 15 may hold, from the member's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latch {
    /// The member has no claim: untouched.
    Untouched,
    /// It has a claim, and no latch is recorded yet: untouched or this value.
    Either(PcrValue),
    /// Its latch is recorded: this value, for ever.
    Set(PcrValue),
}

/// What a verified quote and its log say.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Quoted values of PCR 0 to 15.
    pub pcrs: &'a [PcrValue; QUOTED],
    /// The event log.
    pub log: &'a EventLog,
    /// What PCR 15 may hold.
    pub latch: Latch,
}

/// The evidence is as the document says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether PCR 15 holds the claim's latch.
    pub latched: bool,
    /// Whether firmware measured Secure Boot as on.
    pub secure_boot: bool,
}

/// Why the evidence is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The log does not explain the values.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The values or events differ from the document.
    #[error(transparent)]
    Policy(#[from] Mismatches),
    /// PCR 15 is extended, but not with the claim's latch, or without a claim.
    #[error("PCR 15 holds sha256:{0}, which is no latch of the member's claim")]
    LatchUnexpected(Digest),
    /// PCR 15 is untouched, though the latch was recorded.
    #[error("PCR 15 is untouched, though the member was latched before")]
    LatchMissing,
}

impl Refusal {
    /// Fixed word for metrics: `replay`, `policy` or `latch`.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Replay(_) => "replay",
            Self::Policy(_) => "policy",
            Self::LatchUnexpected(_) | Self::LatchMissing => "latch",
        }
    }
}

/// Judges the evidence. The log is replayed first; every PCR is then judged, so that a refusal names all that differs.
pub fn evaluate(measurements: &Measurements, evidence: &Evidence<'_>) -> Result<Verdict, Refusal> {
    evidence.log.check_replay(evidence.pcrs, UNLOGGED)?;
    let mut latched = false;
    let mut mismatches = Vec::new();
    let mut latch_refusal = None;
    for ((pcr, rule), value) in (0u8..).zip(&measurements.rules).zip(evidence.pcrs) {
        let events: Vec<&Event> = evidence.log.of_pcr(pcr).collect();
        match rule {
            Rule::Digest(digest) if digest.0 == *value => {}
            Rule::Digest(digest) => mismatches.push(explain(measurements, pcr, *digest, value, &events)),
            Rule::Zero if *value == ZERO => {}
            Rule::Zero => mismatches.push(match events.is_empty() {
                true => plain(pcr, Digest(ZERO), value),
                false => Mismatch::unlisted(pcr, 0, &events),
            }),
            Rule::BootAggregate if aggregate::values(evidence.pcrs).contains(value) => {}
            Rule::BootAggregate => {
                let [usual, _] = aggregate::values(evidence.pcrs);
                mismatches.push(plain(pcr, Digest(usual), value));
            }
            Rule::Latch => match judge_latch(evidence.latch, value) {
                Ok(set) => latched = set,
                Err(refusal) => latch_refusal = Some(refusal),
            },
            Rule::Events(patterns) => {
                if let Err(at) = match_events(patterns, &events) {
                    mismatches.push(Mismatch::unlisted(pcr, at, &events));
                }
            }
        }
    }
    if !mismatches.is_empty() {
        return Err(Mismatches(mismatches).into());
    }
    match latch_refusal {
        Some(refusal) => Err(refusal),
        None => Ok(Verdict { latched, secure_boot: secure_boot(evidence.log) }),
    }
}

fn judge_latch(latch: Latch, value: &PcrValue) -> Result<bool, Refusal> {
    match latch {
        Latch::Untouched | Latch::Either(_) if *value == ZERO => Ok(false),
        Latch::Either(set) | Latch::Set(set) if *value == set => Ok(true),
        Latch::Set(_) if *value == ZERO => Err(Refusal::LatchMissing),
        _ => Err(Refusal::LatchUnexpected(Digest(*value))),
    }
}

fn plain(pcr: u8, expected: Digest, found: &PcrValue) -> Mismatch {
    Mismatch { pcr, event: None, expected: Some(expected), found: Some(Digest(*found)) }
}

fn explain(measurements: &Measurements, pcr: u8, expected: Digest, found: &PcrValue, events: &[&Event]) -> Mismatch {
    let reference: Vec<&ReferenceEvent> =
        measurements.reference.events.iter().filter(|event| event.pcr == pcr).collect();
    let named = if reference.is_empty() { None } else { Mismatch::from_reference(pcr, &reference, events) };
    named.unwrap_or_else(|| plain(pcr, expected, found))
}

/// From the measured variable in PCR 7; the log was replayed and the data is recomputed, so it is what firmware saw.
fn secure_boot(log: &EventLog) -> bool {
    log.of_pcr(7)
        .filter(|event| event.kind == EventKind::EFI_VARIABLE_DRIVER_CONFIG)
        .filter_map(Event::variable_if_measured)
        .any(|variable| variable.name == "SecureBoot" && variable.value == [1])
}
