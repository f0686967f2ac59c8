//! A golden boot's evidence, as it travels from the guest to the person who approves it: on the serial console.
//!
//! Lines of the form `BANLIEUE-EVIDENCE <text>`; their texts, joined, are base64 of zstd of a JSON object with `pcrs`
//! (number to value of the SHA-256 bank, hexadecimal, 0 to 15) and `eventlog` (the firmware's log, base64). A console adds
//! carriage returns and other output around them. The JSON by itself is taken as well.

use std::{collections::BTreeMap, io::Read};

use banlieue_tpm::{
    eventlog::{EventLog, LogError, MAX_LOG},
    pcr::{PcrValue, QUOTED},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

/// What starts a line of evidence.
pub const MARK: &str = "BANLIEUE-EVIDENCE ";
/// Unpacked evidence holds a log in base64 and little else.
const MOST: u64 = 2 * MAX_LOG as u64;

/// A golden boot's evidence. Not verified: the person who approves the document vouches for the boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoldenEvidence {
    /// Values of PCR 0 to 15.
    pub pcrs: [PcrValue; QUOTED],
    /// The event log, byte for byte.
    pub event_log: Vec<u8>,
    /// The same, parsed.
    pub log: EventLog,
}

/// Why there is no evidence in a text, or none can be written.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// No such line.
    #[error("there is no line that starts with {MARK:?}: did the golden boot end before it printed its evidence?")]
    Missing,
    /// Not what the mark promises.
    #[error("the golden boot's evidence is not readable: {0}")]
    Shape(String),
    /// The log is malformed.
    #[error("the golden boot's event log is not readable: {0}")]
    Log(#[from] LogError),
    /// It cannot be packed.
    #[error("cannot pack the evidence: {0}")]
    Pack(std::io::Error),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    pcrs: BTreeMap<usize, String>,
    eventlog: String,
}

/// The line that a golden boot prints, newline included.
///
/// # Errors
/// Out of memory and the like.
pub fn line(pcrs: &[PcrValue; QUOTED], event_log: &[u8]) -> Result<String, EvidenceError> {
    let pcrs = pcrs.iter().map(hex::encode).enumerate().collect();
    let written = Written { pcrs, eventlog: STANDARD.encode(event_log) };
    let json = serde_json::to_vec(&written).map_err(|e| EvidenceError::Pack(e.into()))?;
    let packed = zstd::bulk::compress(&json, 3).map_err(EvidenceError::Pack)?;
    Ok(format!("{MARK}{}\n", STANDARD.encode(packed)))
}

/// Reads evidence from a console's output.
///
/// # Errors
/// When there is none, or it is cut or malformed.
pub fn read(text: &[u8]) -> Result<GoldenEvidence, EvidenceError> {
    let shape = |why: &str| EvidenceError::Shape(why.to_owned());
    let written: Written = match serde_json::from_slice(text) {
        Ok(written) => written,
        Err(_) => serde_json::from_slice(&unpack(text)?).map_err(|e| shape(&e.to_string()))?,
    };
    let mut pcrs = [[0; 32]; QUOTED];
    for (number, pcr) in pcrs.iter_mut().enumerate() {
        let text = written.pcrs.get(&number).ok_or_else(|| shape(&format!("PCR {number} is missing")))?;
        hex::decode_to_slice(text, pcr).map_err(|_| shape(&format!("PCR {number} is no SHA-256 value")))?;
    }
    let event_log = STANDARD.decode(written.eventlog).map_err(|_| shape("its eventlog is no base64"))?;
    let log = EventLog::parse(&event_log)?;
    Ok(GoldenEvidence { pcrs, event_log, log })
}

fn unpack(text: &[u8]) -> Result<Vec<u8>, EvidenceError> {
    let text = String::from_utf8_lossy(text);
    let mut packed = String::new();
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once(MARK) {
            packed.push_str(rest.trim());
        }
    }
    if packed.is_empty() {
        return Err(EvidenceError::Missing);
    }
    let packed = STANDARD.decode(&packed).map_err(|_| EvidenceError::Shape("it is cut or no base64".to_owned()))?;
    let mut json = Vec::new();
    zstd::Decoder::new(packed.as_slice())
        .and_then(|decoder| decoder.take(MOST).read_to_end(&mut json))
        .map_err(|error| EvidenceError::Shape(format!("it is cut or no zstd: {error}")))?;
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence() -> GoldenEvidence {
        let log = EventLog::default();
        GoldenEvidence { pcrs: [[7; 32]; QUOTED], event_log: log.marshal(), log }
    }

    #[test]
    fn what_was_written_is_read_out_of_a_console_full_of_other_things() {
        let golden = evidence();
        let line = line(&golden.pcrs, &golden.event_log).unwrap();
        assert_eq!(read(line.as_bytes()).unwrap(), golden);
        let packed = line.strip_prefix(MARK).unwrap().trim_end();
        let (first, second) = packed.split_at(packed.len() / 2);
        let console = format!("boot\r\n[ 1.2] x {MARK}{first}\r\nnoise\r\n{MARK}{second}\r\npower down\r\n");
        assert_eq!(read(console.as_bytes()).unwrap(), golden);
        assert_eq!(read(&unpack(line.as_bytes()).unwrap()).unwrap(), golden, "the JSON by itself");
    }

    #[test]
    fn cut_or_missing_evidence_is_refused() {
        assert!(matches!(read(b"boot\npower down\n"), Err(EvidenceError::Missing)));
        let golden = evidence();
        let line = line(&golden.pcrs, &golden.event_log).unwrap();
        let cut = line.trim_end().get(..line.len() - 9).unwrap();
        assert!(matches!(read(cut.as_bytes()), Err(EvidenceError::Shape(_))));
        let json = unpack(line.as_bytes()).unwrap();
        let short = String::from_utf8(json).unwrap().replacen("\"15\"", "\"16\"", 1);
        assert!(read(short.as_bytes()).is_err(), "a PCR is missing");
    }
}
