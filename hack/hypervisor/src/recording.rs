//! From a golden boot's console to what light instances replay: `light.json` and the event log beside it.

use std::io::Read;
use std::path::{Path, PathBuf};

use banlieue_tpm::eventlog::{EventLog, MAX_LOG};
use banlieue_tpm::hash::sha256;
use banlieue_tpm::pcr::{PcrValue, QUOTED, extend};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;

/// What starts a line of evidence on the console of a golden boot.
const MARK: &str = "BANLIEUE-EVIDENCE ";
/// PCR that the kernel's IMA extends with a boot aggregate, which no firmware event shows.
const IMA: usize = 10;

/// Why a console is no recording.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no evidence on it.
    #[error("the console has no line with {MARK:?}")]
    Missing,
    /// The evidence cannot be read.
    #[error("the evidence on the console: {0}")]
    Malformed(String),
    /// The log does not explain a PCR, so that replaying it would not lead to the recorded state.
    #[error("the recorded log does not lead to the recorded value of PCR {0}")]
    Unexplained(usize),
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

#[derive(Deserialize)]
struct Evidence {
    pcrs: std::collections::BTreeMap<usize, String>,
    eventlog: String,
}

/// Writes `light.json` and `eventlog.bin` into `folder`, which is made if need be.
///
/// # Errors
/// The console has no evidence, or one whose log and values do not agree.
pub fn write(console: &[u8], folder: &Path) -> Result<(), Error> {
    let evidence = unpack(&String::from_utf8_lossy(console))?;
    let malformed = |error: &dyn std::fmt::Display| Error::Malformed(error.to_string());
    let bytes = STANDARD.decode(&evidence.eventlog).map_err(|error| malformed(&error))?;
    let log = EventLog::parse(&bytes).map_err(|error| malformed(&error))?;
    let mut values = [[0; 32]; QUOTED];
    for (index, value) in values.iter_mut().enumerate() {
        let text = evidence.pcrs.get(&index).ok_or_else(|| Error::Malformed(format!("PCR {index} is missing")))?;
        hex::decode_to_slice(text, value).map_err(|error| malformed(&error))?;
    }
    let extensions = unlogged(&log, &values)?;
    let extensions: Vec<_> =
        extensions.iter().map(|(pcr, digest)| json!({ "pcr": pcr, "digest": hex::encode(digest) })).collect();
    let document = json!({ "eventLog": "eventlog.bin", "extend": extensions }).to_string();
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Write { path, source }
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    for (name, content) in [("eventlog.bin", bytes.as_slice()), ("light.json", document.as_bytes())] {
        let path = folder.join(name);
        std::fs::write(&path, content).map_err(failed(&path))?;
    }
    Ok(())
}

fn unpack(console: &str) -> Result<Evidence, Error> {
    let packed: String =
        console.lines().filter_map(|line| line.split_once(MARK)).map(|(_, text)| text.trim()).collect();
    if packed.is_empty() {
        return Err(Error::Missing);
    }
    let malformed = |error: &dyn std::fmt::Display| Error::Malformed(error.to_string());
    let packed = STANDARD.decode(packed).map_err(|error| malformed(&error))?;
    let mut text = Vec::new();
    let limit = u64::try_from(MAX_LOG).unwrap_or(u64::MAX).saturating_mul(2);
    zstd::Decoder::new(packed.as_slice())
        .and_then(|decoder| decoder.take(limit).read_to_end(&mut text))
        .map_err(|error| malformed(&error))?;
    serde_json::from_slice(&text).map_err(|error| malformed(&error))
}

/// Extensions that the values have and the log has not.
fn unlogged(log: &EventLog, values: &[PcrValue; QUOTED]) -> Result<Vec<(usize, [u8; 32])>, Error> {
    let mut extensions = Vec::new();
    for (index, (replayed, value)) in log.replay().iter().zip(values).enumerate() {
        if replayed == value {
            continue;
        }
        let candidates = if index == IMA { boot_aggregates(values).to_vec() } else { Vec::new() };
        let found = candidates.into_iter().find(|digest| extend(replayed, digest) == *value);
        extensions.push((index, found.ok_or(Error::Unexplained(index))?));
    }
    Ok(extensions)
}

/// What the kernel extends PCR 10 with: the digest of IMA's first entry, in the templates `ima-ng` and `ima-sig`
/// (`security/integrity/ima/ima_template_lib.c`).
fn boot_aggregates(values: &[PcrValue; QUOTED]) -> [[u8; 32]; 2] {
    let field = |bytes: &[u8]| [&u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes(), bytes].concat();
    let (measured, _) = values.split_at(IMA);
    let digest = [b"sha256:\0".as_slice(), &sha256(&[measured.as_flattened()])].concat();
    let plain = [field(&digest), field(b"boot_aggregate\0")].concat();
    let signed = [plain.as_slice(), &field(&[])].concat();
    [plain, signed].map(|entry| sha256(&[&entry]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::Images;
    use crate::weight::Weight;

    fn console(values: &[PcrValue; QUOTED]) -> Vec<u8> {
        let pcrs: std::collections::BTreeMap<String, String> =
            values.iter().enumerate().map(|(index, value)| (index.to_string(), hex::encode(value))).collect();
        let log = STANDARD.encode(EventLog::default().marshal());
        let text = json!({ "pcrs": pcrs, "eventlog": log }).to_string();
        let packed = STANDARD.encode(zstd::encode_all(text.as_bytes(), 3).unwrap());
        format!("noise\r\n{MARK}{packed}\r\npower down\r\n").into_bytes()
    }

    #[test]
    fn a_recording_that_light_instances_can_replay() {
        let root = tempfile::tempdir().unwrap();
        let mut values = [[0; 32]; QUOTED];
        let aggregate = boot_aggregates(&values)[1];
        values[IMA] = extend(&[0; 32], &aggregate);
        write(&console(&values), &root.path().join("r_x")).unwrap();
        let images = Images::new(root.path().to_owned());
        images.check("r:x", Weight::Light).unwrap();
        let recording = images.recording("r:x").unwrap();
        assert_eq!((recording.extend[0].pcr, recording.extend[0].digest), (10, aggregate));
        assert!(recording.event_log.exists());
    }

    #[test]
    fn values_that_the_log_does_not_explain_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let mut values = [[0; 32]; QUOTED];
        values[4] = [1; 32];
        assert!(matches!(write(&console(&values), root.path()), Err(Error::Unexplained(4))));
        assert!(matches!(write(b"power down", root.path()), Err(Error::Missing)));
    }
}
