//! What a change must pass before its tests are worth running, cheapest first.
//!
//! - `dependencies`: what `deny.toml` says may enter the tree
//! - `names`: metrics and reasons that the documents name are in the code
//! - `units`: tests and programs compile the same, so nothing is compiled twice
//! - `text`: length of files, words
//! - `threats`: the threat model names files and tests that are there

mod dependencies;
mod names;
mod text;
mod threats;
mod units;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::product::{cargo, compile};
use crate::stages::Kept;

/// All checks; those that compile say how much.
pub fn run(root: &Path) -> anyhow::Result<Kept> {
    cargo(root, &["fmt", "--all", "--check"]).context("run 'cargo fmt --all'")?;
    text::check(root)?;
    threats::check(root)?;
    names::check(root)?;
    dependencies::check(root)?;
    units::check(root)?;
    compile(root, &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])
}

/// What a program prints. Its own words are in the error when it fails.
fn printed(root: &Path, command: &mut Command) -> anyhow::Result<String> {
    let output = command.current_dir(root).output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// All findings of one check as its error.
fn verdict(findings: Vec<String>) -> anyhow::Result<()> {
    if findings.is_empty() { Ok(()) } else { bail!("{}", findings.join("\n       ")) }
}
