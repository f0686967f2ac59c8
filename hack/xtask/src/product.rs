//! Building the workspace's own binaries.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Builds every program of the workspace with cargo's own progress and returns the folder they land in.
///
/// The whole workspace at once: chosen packages would be compiled with fewer features of their dependencies, and then
/// again with all of them for the tests.
pub fn build(root: &Path) -> anyhow::Result<PathBuf> {
    cargo(root, &["build", "--workspace", "--bins"])?;
    Ok(folder())
}

/// Where cargo put this program, and so its siblings.
pub fn folder() -> PathBuf {
    std::env::current_exe()
        .ok()
        .and_then(|exe| exe.parent().map(Path::to_path_buf))
        .unwrap_or_else(|| "target/debug".into())
}

/// Runs cargo in the workspace, output in view.
pub fn cargo(root: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program)
        .args(arguments)
        .current_dir(root)
        .status()
        .with_context(|| format!("starting 'cargo {}'", arguments.join(" ")))?;
    if !status.success() {
        bail!("'cargo {}' failed ({status}); its output is above", arguments.join(" "));
    }
    Ok(())
}
