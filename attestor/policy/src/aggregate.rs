//! PCR 10 as the kernel's IMA leaves it when it has no policy: one entry, the boot aggregate over PCR 0 to 9.
//!
//! `security/integrity/ima/ima_crypto.c` (ima_calc_boot_aggregate_tfm) and `ima_template_lib.c`: the entry's fields are
//! the digest (`sha256:`, zero byte, 32 bytes), the name `boot_aggregate` with its zero byte and, in the template
//! `ima-sig`, an empty signature; each behind its u32 little-endian length.

use banlieue_tpm::hash::sha256;
use banlieue_tpm::pcr::{PcrValue, QUOTED, extend};

const ALGORITHM: &[u8] = b"sha256:\0";
const NAME: &[u8] = b"boot_aggregate\0";

/// What PCR 10 may be, for these values of the others: one for each of [`entries`].
#[must_use]
pub fn values(pcrs: &[PcrValue; QUOTED]) -> [PcrValue; 2] {
    entries(pcrs).map(|entry| extend(&[0; 32], &entry))
}

/// What the kernel extends into PCR 10, for these values of the others: with the template `ima-sig`, and with `ima-ng`.
#[must_use]
pub fn entries(pcrs: &[PcrValue; QUOTED]) -> [[u8; 32]; 2] {
    let (measured, _) = pcrs.split_at(10);
    let digest = [ALGORITHM, &sha256(&[measured.as_flattened()])].concat();
    let ng = [field(&digest), field(NAME)].concat();
    let sig = [ng.as_slice(), &field(&[])].concat();
    [sig, ng].map(|entry| sha256(&[&entry]))
}

fn field(bytes: &[u8]) -> Vec<u8> {
    // Both fields are constants of a few bytes.
    [&u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes(), bytes].concat()
}
