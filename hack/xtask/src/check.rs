//! What a change must pass before its tests are worth running: formatting, refused dependencies, length of files, lints.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::product::cargo;

/// All checks, cheapest first.
pub fn run(root: &Path) -> anyhow::Result<()> {
    cargo(root, &["fmt", "--all", "--check"]).context("run 'cargo fmt --all'")?;
    dependency_rules(root)?;
    file_lengths(root)?;
    cargo(root, &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])
}

/// `deny.toml` lists crates that must not be in the tree, each with its reason.
///
/// Read here instead of by a separate program: that one takes longer to build than the whole product,
/// and of its rules those on bans are the ones a change can break unseen.
fn dependency_rules(root: &Path) -> anyhow::Result<()> {
    let rules: toml::Table = std::fs::read_to_string(root.join("deny.toml"))?.parse().context("reading deny.toml")?;
    let denied = rules.get("bans").and_then(|bans| bans.get("deny")).and_then(toml::Value::as_array);
    let denied = denied.context("deny.toml has no list bans.deny")?;
    let tree = Command::new("cargo")
        .args(["tree", "--workspace", "--edges", "normal,build", "--prefix", "none", "--format", "{p}", "--locked"])
        .current_dir(root)
        .output()
        .context("starting 'cargo tree'")?;
    if !tree.status.success() {
        bail!("'cargo tree --locked' failed: {}", String::from_utf8_lossy(&tree.stderr).trim());
    }
    let tree = String::from_utf8_lossy(&tree.stdout);
    for rule in denied {
        let name = rule.get("crate").and_then(toml::Value::as_str).context("a rule in deny.toml lacks 'crate'")?;
        let reason = rule.get("reason").and_then(toml::Value::as_str).unwrap_or("no reason given");
        if let Some(line) = tree.lines().find(|line| line.split(' ').next() == Some(name)) {
            bail!(
                "{line} is in the dependency tree, and deny.toml refuses it ({reason}); 'cargo tree -i {name}' shows who brings it"
            );
        }
    }
    Ok(())
}

/// A file is one idea; past this many lines it has become several.
const LONGEST: usize = 600;

fn file_lengths(root: &Path) -> anyhow::Result<()> {
    let listed =
        Command::new("git").args(["ls-files", "*.rs"]).current_dir(root).output().context("starting 'git ls-files'")?;
    for name in String::from_utf8_lossy(&listed.stdout).lines() {
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
        // Tests at the end of a file belong to its idea and may be long tables.
        let code = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
        if code > LONGEST && !name.contains("/tests/") {
            bail!("{name} has {code} lines before its tests, more than {LONGEST}: split it by idea");
        }
    }
    Ok(())
}
