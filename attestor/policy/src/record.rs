//! Making a document from the image's predictions and the evidence of a golden boot, for a person to approve.

use std::collections::BTreeMap;

use banlieue_tpm::eventlog::{EventLog, ReplayError};
use banlieue_tpm::pcr::{PcrValue, QUOTED};
use serde::{Deserialize, Serialize};

use crate::aggregate;
use crate::digest::Digest;
use crate::document::{
    API_VERSION, DocumentError, Image, Measurements, Programs, RULED, Reference, ReferenceEvent, UNLOGGED, read,
};
use crate::rule::Rule;

/// PCRs that nothing honest extends: the stub measures foreign command lines, credentials and extensions there.
const ZERO_PCRS: [u8; 4] = [8, 12, 13, 14];
/// The aggregate of the kernel's IMA.
const AGGREGATE_PCR: u8 = 10;
/// The latch.
const LATCH_PCR: u8 = 15;

/// What the image build writes: the part of a document that follows from the image alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Predictions {
    /// Always [`API_VERSION`].
    pub api_version: String,
    /// The image.
    pub image: Image,
    /// PCR to its predicted value.
    pub pcrs: BTreeMap<u8, Predicted>,
    /// Programs that get identities.
    pub programs: Programs,
}

/// A predicted value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// SHA-256 bank.
    pub digest: Digest,
}

impl Predictions {
    /// Reads predictions of at most `limit` bytes.
    pub fn parse(bytes: &[u8], limit: usize) -> Result<Self, DocumentError> {
        let predictions: Self = read(bytes, limit)?;
        if predictions.api_version != API_VERSION {
            return Err(DocumentError::Version(predictions.api_version.chars().take(64).collect()));
        }
        Ok(predictions)
    }
}

/// Why a golden boot makes no document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The log does not explain the values.
    #[error("golden boot: {0}")]
    Replay(#[from] ReplayError),
    /// Prediction and boot disagree.
    #[error(
        "golden boot, PCR {pcr}: the image predicts sha256:{predicted}, the boot shows sha256:{shown}; this is another image, or the boot was not honest"
    )]
    Prediction {
        /// Which PCR.
        pcr: u8,
        /// What the image says.
        predicted: Digest,
        /// What the boot shows.
        shown: Digest,
    },
    /// A PCR is extended that must stay zero.
    #[error("golden boot, PCR {pcr}: sha256:{shown}, but nothing may extend it{first}")]
    NotZero {
        /// Which PCR.
        pcr: u8,
        /// What the boot shows.
        shown: Digest,
        /// The first event in it, in words.
        first: String,
    },
    /// A PCR that must be zero or the latch is predicted.
    #[error("predictions must not name PCR {0}")]
    Predicted(u8),
    /// What came out is no document.
    #[error("golden boot: {0}")]
    Document(#[from] DocumentError),
}

impl RecordError {
    /// Fixed word for metrics.
    pub fn category(&self) -> &'static str {
        "record"
    }
}

/// Makes a document: predicted values where the image predicts, recorded ones elsewhere, zero and latch where nothing
/// else is allowed, and the boot's events as reference.
pub fn record(
    predictions: &Predictions,
    pcrs: &[PcrValue; QUOTED],
    log: &EventLog,
) -> Result<Measurements, RecordError> {
    log.check_replay(pcrs, UNLOGGED)?;
    if let Some(pcr) = predictions.pcrs.keys().find(|pcr| ZERO_PCRS.contains(pcr) || **pcr >= LATCH_PCR) {
        return Err(RecordError::Predicted(*pcr));
    }
    let mut rules = Vec::with_capacity(usize::from(RULED));
    for (pcr, value) in (0..RULED).zip(pcrs) {
        let shown = Digest(*value);
        rules.push(if ZERO_PCRS.contains(&pcr) || pcr == LATCH_PCR {
            if *value != [0; 32] {
                let first =
                    log.of_pcr(pcr).next().map(|e| format!(": {} {}", e.kind, e.describe())).unwrap_or_default();
                return Err(RecordError::NotZero { pcr, shown, first });
            }
            if pcr == LATCH_PCR { Rule::Latch } else { Rule::Zero }
        } else {
            if let Some(Predicted { digest: predicted }) = predictions.pcrs.get(&pcr).cloned()
                && predicted != shown
            {
                return Err(RecordError::Prediction { pcr, predicted, shown });
            }
            // The computed rule is the better one: it follows the other PCRs and needs no golden value.
            let computed = pcr == AGGREGATE_PCR && aggregate::values(pcrs).contains(value);
            if computed { Rule::BootAggregate } else { Rule::Digest(shown) }
        });
    }
    let events = log
        .events
        .iter()
        .filter(|event| event.pcr < RULED)
        .map(|event| ReferenceEvent {
            pcr: event.pcr,
            kind: event.kind.name(),
            digest: Digest(event.digest),
            about: event.describe(),
        })
        .collect();
    let measurements = Measurements {
        image: predictions.image.clone(),
        rules: rules
            .try_into()
            .map_err(|_| DocumentError::Field { field: "pcrs", why: "each of 0 to 15 needs one rule" })?,
        reference: Reference { startup_locality: log.startup_locality, events },
        programs: predictions.programs.clone(),
    };
    // What we hand to a person must be what the verifier will accept, byte for byte.
    let yaml = measurements.to_yaml()?;
    Ok(Measurements::parse(yaml.as_bytes(), crate::document::MAX_DOCUMENT)?)
}
