//! The light form of an image: what its golden boot measured, to be replayed into a vTPM without a boot.
//!
//! Real attestation of recorded measurements: the vTPM, the keys and the quote are real, the boot is not.

use std::{io::Read, path::Path};

use banlieue_policy::{
    Digest, DocumentError, Measurements,
    document::{MAX_DOCUMENT, Program},
};
use banlieue_tpm::{
    eventlog::{EventLog, LogError, ReplayError},
    hash::sha256,
    pcr::{PcrValue, QUOTED, extend},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// File name of the event log beside `light.json`.
pub const EVENT_LOG: &str = "eventlog.bin";
const MARK: &str = "BANLIEUE-EVIDENCE ";
const MAX_EVIDENCE: u64 = 8 << 20;
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
    #[error("the golden boot's evidence is unreadable: {0}")]
    Evidence(String),
    /// The log is malformed.
    #[error("the golden boot's event log is unreadable: {0}")]
    Log(#[from] LogError),
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

#[derive(Deserialize)]
struct Evidence {
    pcrs: std::collections::BTreeMap<usize, String>,
    eventlog: String,
}

/// The light image of a golden boot: its console's output, its measurements document, and the host's program that has
/// the node identity of light members.
pub fn light(console: &[u8], measurements: &[u8], node: &Path) -> Result<Light, Error> {
    let (pcrs, bytes) = read(console)?;
    let log = EventLog::parse(&bytes)?;
    log.check_replay(&pcrs, 1 << IMA | 1 << 15)?;
    let aggregate = boot_aggregate(&pcrs);
    if pcrs.get(usize::from(IMA)) != Some(&extend(&[0; 32], &aggregate)) {
        return Err(Error::Aggregate);
    }
    let extend = vec![Extension { pcr: IMA, digest: hex::encode(aggregate) }];

    let mut document = Measurements::parse(measurements, MAX_DOCUMENT)?;
    let unreadable = |e| Error::Program(node.display().to_string(), e);
    let path = std::fs::canonicalize(node).map_err(unreadable)?;
    let program = std::fs::read(&path).map_err(unreadable)?;
    document.programs.node = Program { path: path.display().to_string(), sha256: Digest::of(&program), uid: 0 };
    document.programs.egress = None;
    Ok(Light {
        recording: Recording { event_log: EVENT_LOG.to_owned(), extend },
        event_log: bytes,
        measurements: document.to_yaml()?,
    })
}

/// The PCR values and the event log that a golden boot printed on its console.
pub fn read(console: &[u8]) -> Result<([PcrValue; QUOTED], Vec<u8>), Error> {
    let bad = |why: &str| Error::Evidence(why.to_owned());
    let text = String::from_utf8_lossy(console);
    let line = text.lines().find_map(|l| l.split_once(MARK)).ok_or_else(|| bad("there is none"))?.1;
    let packed = STANDARD.decode(line.trim()).map_err(|_| bad("it is no base64"))?;
    let mut json = Vec::new();
    let unpacked = zstd::stream::read::Decoder::new(&*packed).and_then(|d| d.take(MAX_EVIDENCE).read_to_end(&mut json));
    unpacked.map_err(|e| bad(&e.to_string()))?;
    let evidence: Evidence = serde_json::from_slice(&json).map_err(|e| bad(&e.to_string()))?;
    let mut pcrs = [[0; 32]; QUOTED];
    for (number, value) in pcrs.iter_mut().enumerate() {
        let text = evidence.pcrs.get(&number).ok_or_else(|| bad("a PCR is missing"))?;
        hex::decode_to_slice(text, value).map_err(|_| bad("a PCR is no SHA-256 value"))?;
    }
    let log = STANDARD.decode(evidence.eventlog).map_err(|_| bad("its event log is no base64"))?;
    Ok((pcrs, log))
}

/// What IMA extends once at its start, in the SHA-256 bank: the digest of a template entry `ima-sig` for the file
/// "boot_aggregate", whose hash is taken over PCR 0 to 9 (security/integrity/ima/ima_crypto.c, ima_template_lib.c).
fn boot_aggregate(pcrs: &[PcrValue; QUOTED]) -> [u8; 32] {
    let parts: Vec<&[u8]> = pcrs.iter().take(10).map(|p| p.as_slice()).collect();
    let mut digest = b"sha256:\0".to_vec();
    digest.extend_from_slice(&sha256(&parts));
    let mut entry = Vec::new();
    for field in [digest.as_slice(), b"boot_aggregate\0", b""] {
        entry.extend_from_slice(&(field.len() as u32).to_le_bytes());
        entry.extend_from_slice(field);
    }
    sha256(&[&entry])
}
