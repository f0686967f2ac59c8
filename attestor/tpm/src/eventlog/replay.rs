//! Replaying a log: what the PCRs must hold if the log is true.

use super::EventLog;
use crate::pcr::{COUNT, PcrValue, extend};
use crate::wire::Hex;

/// A PCR that the log does not explain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("PCR {pcr}: the event log replays to {}, the TPM says {}", Hex(.replayed), Hex(.quoted))]
pub struct ReplayError {
    /// Which PCR.
    pub pcr: usize,
    /// What the log replays to.
    pub replayed: PcrValue,
    /// What the TPM says.
    pub quoted: PcrValue,
}

impl ReplayError {
    /// Fixed word for metrics.
    pub fn category(&self) -> &'static str {
        "replay"
    }
}

/// Values before the first event. PCRs 17 to 22 start as all ones (PFP, 3.3.2).
fn initial(log: &EventLog) -> [PcrValue; COUNT] {
    let mut values = [[0u8; 32]; COUNT];
    for (pcr, value) in values.iter_mut().enumerate() {
        match pcr {
            0 => *value.last_mut().unwrap_or(&mut 0) = log.startup_locality,
            17..=22 => *value = [0xff; 32],
            _ => {}
        }
    }
    values
}

pub(super) fn replay(log: &EventLog) -> [PcrValue; COUNT] {
    let mut values = initial(log);
    for event in &log.events {
        if let Some(value) = values.get_mut(usize::from(event.pcr)) {
            *value = extend(value, &event.digest);
        }
    }
    values
}

pub(super) fn check(log: &EventLog, values: &[PcrValue], unlogged: u32) -> Result<(), ReplayError> {
    for (pcr, (replayed, quoted)) in replay(log).into_iter().zip(values).enumerate() {
        if replayed != *quoted && unlogged & (1 << pcr) == 0 {
            return Err(ReplayError { pcr, replayed, quoted: *quoted });
        }
    }
    Ok(())
}
