//! OVMF as Debian packages it.

use std::path::{Path, PathBuf};

/// Firmware code without secure boot.
pub const CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
/// The variable store that each machine gets a copy of.
pub const VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";

/// Why there is no firmware.
#[derive(Debug, thiserror::Error)]
#[error("cannot copy the firmware's variable store {VARIABLES} to {path}: {source}{}", hint(source))]
pub struct Error {
    path: PathBuf,
    source: std::io::Error,
}

/// The package, where the file is what is missing: a full disk is no matter of packages.
fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => ". It comes with: apt-get install ovmf",
        _ => "",
    }
}

/// Gives a machine its private variable store.
///
/// # Errors
/// OVMF is not installed, or the target cannot be written.
pub fn copy_variables(to: &Path) -> Result<(), Error> {
    std::fs::copy(VARIABLES, to).map(drop).map_err(|source| Error { path: to.to_owned(), source })
}
