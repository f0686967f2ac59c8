//! PCR values and selections (Part 2, 10.6 and 10.9.7).

use crate::hash::{Hash, sha256};
use crate::wire::{Reader, WireError};

/// A value of the SHA-256 bank.
pub type PcrValue = [u8; 32];

/// How many PCRs a member's quote covers: 0 to 15. PCRs 16 and 23 can be reset by the guest and prove nothing.
pub const QUOTED: usize = 16;
/// How many PCRs a PC client TPM has.
pub const COUNT: usize = 24;

/// Value after `TPM2_PCR_Extend(value, digest)`.
pub fn extend(value: &PcrValue, digest: &[u8; 32]) -> PcrValue {
    sha256(&[value, digest])
}

/// Digest that a quote over these values of the SHA-256 bank carries, for a key that signs with SHA-256.
pub fn quote_digest(values: &[PcrValue]) -> [u8; 32] {
    sha256(&[values.as_flattened()])
}

/// PCRs of one bank (TPMS_PCR_SELECTION).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcrSelection {
    /// Bank.
    pub bank: Hash,
    /// Bit n is PCR n.
    pub mask: u32,
}

impl PcrSelection {
    /// What every quote must cover: PCR 0 to 15 of the SHA-256 bank.
    pub const QUOTED: Self = Self { bank: Hash::Sha256, mask: 0xffff };

    /// The list (TPML_PCR_SELECTION) with this one selection.
    pub fn marshal_list(self) -> Vec<u8> {
        let mut out = 1u32.to_be_bytes().to_vec();
        out.extend_from_slice(&self.bank.id().to_be_bytes());
        out.push(3);
        out.extend(self.mask.to_le_bytes().into_iter().take(3));
        out
    }

    pub(crate) fn read_list(r: &mut Reader<'_>) -> Result<Vec<Self>, WireError> {
        let count = r.u32("PCR selection count")?;
        if count > 16 {
            return Err(WireError::TooLarge { what: "PCR selection", size: count as usize, max: 16 });
        }
        (0..count)
            .map(|_| {
                let bank = Hash::read(r.u16("PCR bank")?, "PCR bank")?;
                let size = r.u8("PCR selection size")?;
                if !(1..=4).contains(&size) {
                    return Err(WireError::Unsupported { what: "PCR selection size", value: u64::from(size) });
                }
                let bits = r.take("PCR selection", usize::from(size))?;
                let mask = bits.iter().rev().fold(0u32, |mask, byte| mask << 8 | u32::from(*byte));
                Ok(Self { bank, mask })
            })
            .collect()
    }
}
