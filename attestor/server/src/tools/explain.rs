//! `banlieue-attestor explain`: an event log as people read it.

use anyhow::{Context, Result};
use banlieue_policy::golden::read;
use banlieue_tpm::eventlog::{EventLog, explain as print};

/// Prints a log: as the firmware wrote it, or inside a golden boot's evidence.
///
/// # Errors
/// When it is neither.
pub fn explain(bytes: &[u8]) -> Result<String> {
    let log = match EventLog::parse(bytes) {
        Ok(log) => log,
        Err(error) => match read(bytes) {
            Ok(evidence) => evidence.log,
            Err(_) => return Err(error).context("this is neither an event log nor the evidence of a golden boot"),
        },
    };
    Ok(print(&log))
}
