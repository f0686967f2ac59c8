//! Building the workspace's own binaries.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::stages::Kept;

/// A line of cargo's messages; those of other kinds lack `fresh`.
#[derive(Deserialize)]
struct Message {
    fresh: Option<bool>,
}

/// Builds every program of the workspace with cargo's own progress.
///
/// The whole workspace at once: chosen packages would be compiled with fewer features of their dependencies, and then
/// again with all of them for the tests.
pub fn build(root: &Path) -> anyhow::Result<Kept> {
    compile(root, &["build", "--workspace", "--bins"])
}

/// Compiles, progress and warnings in view, and says how much was not there yet.
pub fn compile(root: &Path, arguments: &[&str]) -> anyhow::Result<Kept> {
    let said = arguments.join(" ");
    let mut command = program(root);
    let (ours, theirs) = arguments.split_at(arguments.iter().position(|it| *it == "--").unwrap_or(arguments.len()));
    command.args(ours).arg("--message-format=json-render-diagnostics").args(theirs).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting 'cargo {said}'"))?;
    let (mut units, mut compiled) = (0_usize, 0_usize);
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let line = line.with_context(|| format!("reading what 'cargo {said}' prints"))?;
        if let Ok(Message { fresh: Some(fresh) }) = serde_json::from_str(&line) {
            units += 1;
            compiled += usize::from(!fresh);
        }
    }
    let status = child.wait().with_context(|| format!("waiting for 'cargo {said}'"))?;
    if !status.success() {
        bail!("'cargo {said}' failed ({status}); its output is above");
    }
    Ok(if compiled == 0 { Kept::All } else { Kept::Made(format!("compiled {compiled} of {units} units")) })
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
    let said = arguments.join(" ");
    let status = program(root).args(arguments).status().with_context(|| format!("starting 'cargo {said}'"))?;
    if !status.success() {
        bail!("'cargo {said}' failed ({status}); its output is above");
    }
    Ok(())
}

fn program(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}
