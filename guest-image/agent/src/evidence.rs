//! A golden recording: what this boot measured, on the serial console, for a person to approve.

use std::{fs::File, io::Read, path::Path};

use banlieue_policy::golden::{self, EvidenceError};
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
    /// The kernel shows something else than a digest.
    #[error("{0} is no SHA-256 value")]
    Value(String),
    /// See [`EvidenceError`].
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
}

/// The line that the golden tool reads.
pub fn line() -> Result<String, Error> {
    let mut pcrs = [[0; 32]; 16];
    for (index, value) in pcrs.iter_mut().enumerate() {
        let path = format!("{PCRS}/{index}");
        match std::fs::read_to_string(&path) {
            Ok(text) => hex::decode_to_slice(text.trim(), value).map_err(|_| Error::Value(path))?,
            Err(e) => return Err(Error::Read(path, e)),
        }
    }
    Ok(golden::line(&pcrs, &read_bounded(Path::new(EVENT_LOG))?)?)
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, Error> {
    let fail = |e| Error::Read(path.display().to_string(), e);
    let mut log = Vec::new();
    File::open(path).and_then(|f| f.take(MAX_LOG).read_to_end(&mut log)).map_err(fail)?;
    Ok(log)
}
