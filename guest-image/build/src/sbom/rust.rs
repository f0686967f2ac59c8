//! Crates that are compiled into our programs, as Cargo resolves them for this target: no build scripts' crates, no
//! procedural macros, no tests'.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::{Error, Part, ask, escape};

/// The crates of some packages of a workspace.
///
/// # Errors
/// The workspace's lock file does not resolve.
pub fn crates(workspace: &Path, packages: &[&str]) -> Result<BTreeSet<Part>, Error> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace).args(["tree", "--locked", "--offline", "--edges", "normal,no-proc-macro"]);
    command.args(["--target", "x86_64-unknown-linux-gnu", "--prefix", "none", "--format", "{p}"]);
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    let act = format!("list the crates of {} in {}", packages.join(" and "), workspace.display());
    Ok(read(&ask(act, &mut command)?))
}

/// Lines such as `anyhow v1.0.100`; a crate of the workspace itself has its folder behind that.
fn read(lines: &str) -> BTreeSet<Part> {
    let parts = lines.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        let own = words.next().is_some_and(|word| word.starts_with("(/"));
        // Ours are in no registry, and no name of this machine enters the document.
        let kind = if own { "generic" } else { "cargo" };
        let purl = format!("pkg:{kind}/{}@{}", escape(name), escape(version));
        Some(Part { purl, name: name.to_owned(), version: version.to_owned() })
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_read_once_each_and_without_folders() {
        let lines =
            "banlieue-guest v0.1.0 (/src/agent)\nanyhow v1.0.100\nanyhow v1.0.100 (*)\n\nring-like v0.1.0+x (*)\n";
        let purls: Vec<_> = read(lines).into_iter().map(|part| part.purl).collect();
        assert_eq!(
            purls,
            ["pkg:cargo/anyhow@1.0.100", "pkg:cargo/ring-like@0.1.0%2Bx", "pkg:generic/banlieue-guest@0.1.0"]
        );
    }

    #[test]
    fn what_our_programs_are_made_of() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let found = crates(&workspace, &["banlieue-guest", "banlieue-attestor-guest"]).unwrap();
        let has = |name: &str| found.iter().any(|part| part.name == name);
        assert!(has("tokio") && has("tss-esapi") && has("banlieue-protocol"), "{found:?}");
        assert!(!has("serde_derive") && !has("protox"), "macros and build scripts run on the builder only");
    }
}
