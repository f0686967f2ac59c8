//! A golden recording: what this boot measured, on the serial console, for a person to approve.

use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;
use thiserror::Error;

/// The firmware's event log, as the kernel shows it.
pub const EVENT_LOG: &str = "/sys/kernel/security/tpm0/binary_bios_measurements";
const PCRS: &str = "/sys/class/tpm/tpm0/pcr-sha256";
/// No log comes near this; a broken driver shall not fill the memory.
const MAX_LOG: u64 = 4 << 20;

/// Why nothing was recorded.
#[derive(Debug, Error)]
pub enum Error {
    /// The kernel shows no TPM, or not this part of it.
    #[error("cannot read {0}: {1}. Is there a vTPM?")]
    Read(String, std::io::Error),
    /// Packing failed.
    #[error("cannot pack the evidence: {0}")]
    Pack(std::io::Error),
}

#[derive(Serialize)]
struct Evidence {
    /// PCR index to lower-case hexadecimal, SHA-256 bank, 0 to 15.
    pcrs: BTreeMap<u8, String>,
    /// Base64 of the event log.
    eventlog: String,
}

/// The line `BANLIEUE-EVIDENCE <base64 of zstd of JSON>`.
pub fn line() -> Result<String, Error> {
    let mut pcrs = BTreeMap::new();
    for index in 0..16 {
        let path = format!("{PCRS}/{index}");
        let value = std::fs::read_to_string(&path).map_err(|e| Error::Read(path, e))?;
        pcrs.insert(index, value.trim().to_ascii_lowercase());
    }
    let eventlog = STANDARD.encode(read_bounded(Path::new(EVENT_LOG))?);
    let json = serde_json::to_vec(&Evidence { pcrs, eventlog }).map_err(|e| Error::Pack(e.into()))?;
    let packed = zstd::bulk::compress(&json, 3).map_err(Error::Pack)?;
    Ok(format!("BANLIEUE-EVIDENCE {}\n", STANDARD.encode(packed)))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, Error> {
    let fail = |e| Error::Read(path.display().to_string(), e);
    let mut log = Vec::new();
    File::open(path).and_then(|f| f.take(MAX_LOG).read_to_end(&mut log)).map_err(fail)?;
    Ok(log)
}
