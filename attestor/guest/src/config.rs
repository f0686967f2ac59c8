//! The plugin's configuration.

use std::path::PathBuf;

use serde::Deserialize;

/// `plugin_data` of the node attestor in the SPIRE agent's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The TPM: `device:/dev/tpmrm0`, `swtpm:path=/socket` or another TCTI string of TSS 2.0.
    pub tpm: String,
    /// The firmware's event log, such as `/sys/kernel/security/tpm0/binary_bios_measurements`.
    pub event_log: PathBuf,
    /// A folder with the seed: one file for each key.
    pub seed: PathBuf,
    /// A file with the id of this boot, such as `/proc/sys/kernel/random/boot_id`.
    pub boot_id: PathBuf,
}
