//! The firmware's event log: the crypto-agile format of the PFP (10.2), as Linux shows it in
//! `/sys/kernel/security/tpm0/binary_bios_measurements`.
//!
//! Only digests of the SHA-256 bank are kept. Event data is unauthenticated: whoever wrote the log chose it. It is
//! shown to people, and decided on only through [`Event::data_if_measured`].

mod explain;
mod kind;
mod parse;
mod replay;
mod variable;

pub use explain::explain;
pub use kind::EventKind;
pub use parse::{LogError, MAX_ALGORITHMS, MAX_EVENT_DATA, MAX_EVENTS, MAX_LOG};
pub use replay::ReplayError;
pub use variable::Variable;

use crate::hash::sha256;
use crate::pcr::{COUNT, PcrValue};

/// One event of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// PCR it was extended into, 0 to 23.
    pub pcr: u8,
    /// Its type.
    pub kind: EventKind,
    /// The digest that was extended.
    pub digest: [u8; 32],
    /// What the writer says about it.
    pub data: Vec<u8>,
}

impl Event {
    /// The data, if it is authenticated: the type's digest is defined as the hash of the data, and it is that hash.
    pub fn data_if_measured(&self) -> Option<&[u8]> {
        (self.kind.digest_is_hash_of_data() && sha256(&[&self.data]) == self.digest).then_some(self.data.as_slice())
    }

    /// The UEFI variable in the data, if it is authenticated as [`Event::data_if_measured`] says.
    pub fn variable_if_measured(&self) -> Option<Variable<'_>> {
        Variable::parse(self.data_if_measured()?)
    }

    /// The data in one line for people: printable, bounded, unauthenticated.
    pub fn describe(&self) -> String {
        explain::describe(self)
    }
}

/// A parsed event log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventLog {
    /// Locality at which the TPM was started: what PCR 0 starts from (PFP, 10.4.5.3).
    pub startup_locality: u8,
    /// Events that extend a PCR, in order. EV_NO_ACTION events are not among them.
    pub events: Vec<Event>,
}

impl EventLog {
    /// Reads a whole log and nothing after it.
    pub fn parse(bytes: &[u8]) -> Result<Self, LogError> {
        parse::parse(bytes)
    }

    /// Writes a log with a SHA-256 bank only.
    pub fn marshal(&self) -> Vec<u8> {
        parse::marshal(self)
    }

    /// Values of all PCRs after the events.
    pub fn replay(&self) -> [PcrValue; COUNT] {
        replay::replay(self)
    }

    /// Compares the replay with values of PCR 0, 1, and so on. A PCR without an event must be zero, except those in
    /// `unlogged`, which something extends that writes no firmware event (bit n stands for PCR n).
    pub fn check_replay(&self, values: &[PcrValue], unlogged: u32) -> Result<(), ReplayError> {
        replay::check(self, values, unlogged)
    }

    /// Events of one PCR, in order.
    pub fn of_pcr(&self, pcr: u8) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.pcr == pcr)
    }
}
