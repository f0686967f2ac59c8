//! The light form of an image: what its golden boot measured, to be replayed into a vTPM without a boot.
//!
//! Real attestation of recorded measurements: the vTPM, the keys and the quote are real, the boot is not.

use std::path::Path;

use banlieue_policy::{
    Digest, DocumentError, Measurements, aggregate,
    document::{MAX_DOCUMENT, Program},
    golden::{self, EvidenceError},
};
use banlieue_tpm::{eventlog::ReplayError, pcr::extend};
use serde::Serialize;
use thiserror::Error;

/// File name of the event log beside `light.json`.
pub const EVENT_LOG: &str = "eventlog.bin";
/// Extended by the kernel's IMA, after the log ends.
const IMA: u8 = 10;

/// `light.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recording {
    /// Name of the event log's file in the same folder.
    pub event_log: String,
    /// Extensions that the log does not have, made after it, in order.
    pub extend: Vec<Extension>,
}

/// One extension of a PCR of the SHA-256 bank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Extension {
    /// The PCR.
    pub pcr: u8,
    /// The digest, lower-case hexadecimal.
    pub digest: String,
}

/// A light image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Light {
    /// `light.json`.
    pub recording: Recording,
    /// The event log.
    pub event_log: Vec<u8>,
    /// `measurements.yaml`: the honest image's, with the host's programs.
    pub measurements: String,
}

/// Why there is no light image.
#[derive(Debug, Error)]
pub enum Error {
    /// The console has no evidence, or cut or malformed evidence.
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
    /// The log does not give the values.
    #[error("the golden boot's event log does not explain its PCRs: {0}")]
    Replay(#[from] ReplayError),
    /// PCR 10 is not what IMA's boot aggregate makes of the others.
    #[error("PCR {IMA} is not the kernel's boot aggregate: this kernel measures more, which a recording cannot repeat")]
    Aggregate,
    /// The measurements document is malformed.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The host's program cannot be read.
    #[error("cannot read {0}: {1}")]
    Program(String, std::io::Error),
}

/// The light image of a golden boot: its console's output, its measurements document, and the host's program that has
/// the node identity of light members.
pub fn light(console: &[u8], measurements: &[u8], node: &Path) -> Result<Light, Error> {
    let golden = golden::read(console)?;
    golden.log.check_replay(&golden.pcrs, 1 << IMA | 1 << 15)?;
    let shown = golden.pcrs.get(usize::from(IMA));
    let mut entries = aggregate::entries(&golden.pcrs).into_iter();
    let entry = entries.find(|entry| shown == Some(&extend(&[0; 32], entry))).ok_or(Error::Aggregate)?;
    let extend = vec![Extension { pcr: IMA, digest: hex::encode(entry) }];

    let mut document = Measurements::parse(measurements, MAX_DOCUMENT)?;
    let unreadable = |e| Error::Program(node.display().to_string(), e);
    let path = std::fs::canonicalize(node).map_err(unreadable)?;
    let program = std::fs::read(&path).map_err(unreadable)?;
    document.programs.node = Program { path: path.display().to_string(), sha256: Digest::of(&program), uid: 0 };
    document.programs.egress = None;
    Ok(Light {
        recording: Recording { event_log: EVENT_LOG.to_owned(), extend },
        event_log: golden.event_log,
        measurements: document.to_yaml()?,
    })
}
