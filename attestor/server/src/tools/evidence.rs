//! Evidence as a golden boot prints it on the serial console.
//!
//! Lines of the form `BANLIEUE-EVIDENCE <text>`; their texts, joined, are base64 of zstd of a JSON object with `pcrs`
//! (16 values of the SHA-256 bank, hexadecimal) and `eventlog` (the firmware's log, base64). A console adds carriage
//! returns and other output around them. The JSON by itself is taken as well.

use std::io::Read;

use banlieue_tpm::{
    eventlog::{EventLog, MAX_LOG},
    pcr::{PcrValue, QUOTED},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

/// What starts a line of evidence.
pub const MARK: &str = "BANLIEUE-EVIDENCE ";
/// Unpacked evidence holds a log in base64 and little else.
const MOST: u64 = 2 * MAX_LOG as u64;

/// A golden boot's evidence. Not verified: the person who approves the document vouches for the boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoldenEvidence {
    /// Values of PCR 0 to 15.
    pub pcrs: [PcrValue; QUOTED],
    /// The event log.
    pub log: EventLog,
}

/// Why there is no evidence in the text.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// No such line.
    #[error("there is no line that starts with {MARK:?}: did the golden boot end before it printed its evidence?")]
    Missing,
    /// Not what the mark promises.
    #[error("the evidence is not readable: {0}")]
    Shape(String),
}

/// Reads evidence from a console's output.
///
/// # Errors
/// When there is none, or it is cut or malformed.
pub fn read(text: &[u8]) -> Result<GoldenEvidence, EvidenceError> {
    let shape = |why: &str| EvidenceError::Shape(why.to_owned());
    let json: Value = match serde_json::from_slice(text) {
        Ok(value @ Value::Object(_)) => value,
        _ => serde_json::from_slice(&unpack(text)?).map_err(|error| EvidenceError::Shape(error.to_string()))?,
    };
    let values = json.get("pcrs").ok_or_else(|| shape("it has no pcrs"))?;
    let mut pcrs = [[0; 32]; QUOTED];
    for (number, pcr) in pcrs.iter_mut().enumerate() {
        // As a list, or as an object keyed by number.
        let value = values.get(number).or_else(|| values.get(number.to_string()));
        let text =
            value.and_then(Value::as_str).ok_or_else(|| EvidenceError::Shape(format!("PCR {number} is missing")))?;
        hex::decode_to_slice(text, pcr)
            .map_err(|_| EvidenceError::Shape(format!("PCR {number} is no SHA-256 value")))?;
    }
    let log = json.get("eventlog").or_else(|| json.get("eventLog")).and_then(Value::as_str);
    let log = STANDARD
        .decode(log.ok_or_else(|| shape("it has no eventlog"))?)
        .map_err(|_| shape("its eventlog is no base64"))?;
    let log = EventLog::parse(&log).map_err(|error| EvidenceError::Shape(error.to_string()))?;
    Ok(GoldenEvidence { pcrs, log })
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

    fn evidence() -> (GoldenEvidence, Vec<u8>) {
        let log = EventLog::default();
        let golden = GoldenEvidence { pcrs: [[7; 32]; QUOTED], log: log.clone() };
        let json = serde_json::json!({
            "pcrs": vec![hex::encode([7; 32]); QUOTED],
            "eventlog": STANDARD.encode(log.marshal()),
        });
        (golden, json.to_string().into_bytes())
    }

    #[test]
    fn a_console_full_of_other_things_is_read() {
        let (golden, json) = evidence();
        let packed = STANDARD.encode(zstd::encode_all(json.as_slice(), 3).unwrap());
        let (first, second) = packed.split_at(packed.len() / 2);
        let console = format!("boot\r\n[ 1.2] x {MARK}{first}\r\nnoise\r\n{MARK}{second}\r\npower down\r\n");
        assert_eq!(read(console.as_bytes()).unwrap(), golden);
        assert_eq!(read(&json).unwrap(), golden);
    }

    #[test]
    fn cut_or_missing_evidence_is_refused() {
        let (_, json) = evidence();
        assert!(matches!(read(b"boot\npower down\n"), Err(EvidenceError::Missing)));
        let packed = STANDARD.encode(zstd::encode_all(json.as_slice(), 3).unwrap());
        let cut = packed.get(..packed.len() - 8).unwrap();
        assert!(matches!(read(format!("{MARK}{cut}").as_bytes()), Err(EvidenceError::Shape(_))));
        assert!(read(br#"{"pcrs":[]}"#).is_err());
    }
}
