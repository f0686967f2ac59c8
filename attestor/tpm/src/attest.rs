//! Quotes: TPMS_ATTEST of type TPM_ST_ATTEST_QUOTE (Part 2, 10.12).

use crate::pcr::PcrSelection;
use crate::public::Name;
use crate::wire::{Reader, WireError};

/// Most bytes in an attestation structure we read; a quote over one bank has about 150.
pub const MAX_ATTEST: usize = 512;

const GENERATED: u32 = 0xff54_4347;
const QUOTE: u16 = 0x8018;

/// TPMS_CLOCK_INFO (Part 2, 10.11.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockInfo {
    /// Milliseconds the TPM was powered; never goes back while `safe`.
    pub clock: u64,
    /// TPM resets since the last clear: one for each boot.
    pub reset_count: u32,
    /// Restarts and resumes since the last reset.
    pub restart_count: u32,
    /// Whether `clock` is known never to have shown this value before.
    pub safe: bool,
}

/// A quote, parsed. Nothing in it is verified: see [`crate::Signature::verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attest {
    /// Qualified name of the signing key.
    pub qualified_signer: Name,
    /// What the caller of TPM2_Quote passed in.
    pub extra_data: Vec<u8>,
    /// Clock and counters.
    pub clock: ClockInfo,
    /// Vendor's firmware version.
    pub firmware_version: u64,
    /// The selections, in the quote's order.
    pub selection: Vec<PcrSelection>,
    /// Digest of the selected values, by the hash of the signature.
    pub pcr_digest: Vec<u8>,
}

/// Why bytes are no quote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttestError {
    /// Not made by a TPM: TPM_GENERATED_VALUE is missing.
    #[error("attestation structure does not start with TPM_GENERATED_VALUE")]
    Magic,
    /// Another type than a quote.
    #[error("attestation structure has type {0:#06x}, not a quote")]
    Type(u16),
    /// Otherwise malformed.
    #[error("attestation structure: {0}")]
    Wire(#[from] WireError),
}

impl AttestError {
    /// Fixed word for metrics: `magic`, `type` or `malformed`.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Magic => "magic",
            Self::Type(_) => "type",
            Self::Wire(wire) => wire.category(),
        }
    }
}

impl Attest {
    /// Reads a TPMS_ATTEST (the content of a TPM2B_ATTEST) and nothing after it.
    pub fn parse(bytes: &[u8]) -> Result<Self, AttestError> {
        if bytes.len() > MAX_ATTEST {
            return Err(
                WireError::TooLarge { what: "attestation structure", size: bytes.len(), max: MAX_ATTEST }.into()
            );
        }
        let mut r = Reader::new(bytes);
        if r.u32("magic")? != GENERATED {
            return Err(AttestError::Magic);
        }
        let kind = r.u16("type")?;
        if kind != QUOTE {
            return Err(AttestError::Type(kind));
        }
        let qualified_signer = Name::read(r.sized("qualifiedSigner", 66)?);
        let extra_data = r.sized("extraData", 66)?.to_vec();
        let clock = r.u64("clock")?;
        let reset_count = r.u32("resetCount")?;
        let restart_count = r.u32("restartCount")?;
        let safe = match r.u8("safe")? {
            0 => false,
            1 => true,
            other => return Err(WireError::Unsupported { what: "safe", value: u64::from(other) }.into()),
        };
        let firmware_version = r.u64("firmwareVersion")?;
        let selection = PcrSelection::read_list(&mut r)?;
        let pcr_digest = r.sized("pcrDigest", 64)?.to_vec();
        r.end("attestation structure")?;
        Ok(Self {
            qualified_signer,
            extra_data,
            clock: ClockInfo { clock, reset_count, restart_count, safe },
            firmware_version,
            selection,
            pcr_digest,
        })
    }
}
