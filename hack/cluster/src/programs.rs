//! Where the programs are: Go tools under `target/tools/bin`, our own beside the running one.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The repository's top folder.
#[must_use]
pub fn repository() -> PathBuf {
    // This crate lies two levels below it.
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// A program that `hack/tools` builds. The folder can be given by `BANLIEUE_TOOLS`.
///
/// # Errors
/// [`Error::Tool`] when it was not built yet.
pub fn tool(name: &str) -> Result<PathBuf> {
    let folder = std::env::var_os("BANLIEUE_TOOLS").map_or_else(|| repository().join("target/tools/bin"), Into::into);
    let program = folder.join(name);
    if program.is_file() { Ok(program) } else { Err(Error::Tool { program }) }
}

/// The store of container disks that `xtask image` fills. The folder can be given by `BANLIEUE_IMAGES`.
pub fn images() -> PathBuf {
    std::env::var_os("BANLIEUE_IMAGES").map_or_else(|| repository().join("target/images"), Into::into)
}

/// A program of this workspace, of the same build profile as the running one. The folder can be given by
/// `BANLIEUE_BIN`.
///
/// # Errors
/// [`Error::Binary`] when it was not built yet.
pub fn binary(name: &str) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("BANLIEUE_BIN") {
        let program = PathBuf::from(folder).join(name);
        return if program.is_file() { Ok(program) } else { Err(Error::Binary { program }) };
    }
    // A test runs as target/<profile>/deps/name-hash, an example as target/<profile>/examples/name.
    let running = std::env::current_exe().unwrap_or_default();
    let found = running.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|it| it.is_file());
    found.ok_or_else(|| Error::Binary { program: running.with_file_name(name) })
}
