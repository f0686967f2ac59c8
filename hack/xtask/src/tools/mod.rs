//! The pinned programs: what `hack/tools/tools.toml` names is built into `target/tools/bin` when it is missing.
//!
//! A program is current while `target/tools/stamps/NAME` holds the digest of everything its build reads. A stamp is
//! removed before its program is replaced and written after, so it never vouches for a program that it did not see.
//! Programs are built one after another under a lock: two Go links at once want more memory than a small machine has.
//!
//! - `manifest`: which programs there are
//! - `store`: where they lie
//! - `stamp`: what a build depends on
//! - `build`, `go`: those in Go
//! - `script`: those in JavaScript

mod build;
mod go;
mod manifest;
mod script;
mod stamp;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use build::Build;
use manifest::Manifest;
use script::Install;
use store::Store;

use crate::stages::Kept;

/// Every set of programs.
pub const EVERYTHING: &[&str] = &["control-plane", "kubevirt", "spire", "identity", "charts"];

/// The sets that the demo needs.
pub const DEMO: &[&str] = &["control-plane", "kubevirt", "spire"];

/// Lines of a build's output that a failure shows; the log has all.
const SHOWN: usize = 20;

/// Builds those of the named programs and sets that are missing or stale; returns the folder that holds them.
pub fn ensure(root: &Path, wanted: &[&str]) -> anyhow::Result<PathBuf> {
    build(root, wanted)?;
    Ok(Store::new(root).bin())
}

/// Whether the compilers for these programs and sets are on this machine: to be asked before what takes minutes.
pub fn compilers(root: &Path, wanted: &[&str]) -> anyhow::Result<()> {
    let manifest = Manifest::read(root)?;
    let (programs, _) = manifest.select(wanted)?;
    go::installed(programs.iter().map(|program| root.join("hack/tools").join(&program.module)))
}

/// As [`ensure`]; says what was built.
pub fn build(root: &Path, wanted: &[&str]) -> anyhow::Result<Kept> {
    let manifest = Manifest::read(root)?;
    let (programs, scripts) = manifest.select(wanted)?;
    let store = Store::new(root);
    store.make_folders()?;

    let mut go_versions = BTreeMap::new();
    let mut builds = Vec::new();
    for program in programs {
        if !go_versions.contains_key(program.module.as_str()) {
            let folder = root.join("hack/tools").join(&program.module);
            go_versions.insert(program.module.as_str(), go::go_version(&folder)?);
        }
        let go_version = go_versions.get(program.module.as_str()).map(String::as_str).unwrap_or_default();
        builds.push(Build::plan(root, &manifest, program, go_version)?);
    }
    let scripts = scripts.into_iter().map(|script| Install::plan(root, script)).collect::<anyhow::Result<Vec<_>>>()?;
    if builds.iter().all(|build| store.is_current(&build.program.name, &build.stamp))
        && scripts.iter().all(|script| store.is_current(script.name(), &script.stamp))
    {
        return Ok(Kept::All);
    }

    let _lock = store.lock()?;
    store.sweep();
    // Another caller may have built some of them while this one waited.
    let stale: Vec<&Build<'_>> =
        builds.iter().filter(|build| !store.is_current(&build.program.name, &build.stamp)).collect();
    if stale.iter().any(|build| build.program.cgo) {
        go::c_compiler()?;
    }
    let mut made = Vec::new();
    for build in stale {
        build.run(&store)?;
        made.push(build.program.name.as_str());
    }
    for script in scripts.iter().filter(|script| !store.is_current(script.name(), &script.stamp)) {
        script.run(&store)?;
        made.push(script.name());
    }
    Ok(if made.is_empty() { Kept::All } else { Kept::Made(format!("built {}", made.join(", "))) })
}

/// "40 s", "4 min".
fn rough(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..90 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_to_its_end_and_times_are_rounded() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 20), "a");
        assert_eq!(rough(Duration::from_secs(40)), "40 s");
        assert_eq!(rough(Duration::from_secs(234)), "4 min");
    }
}
