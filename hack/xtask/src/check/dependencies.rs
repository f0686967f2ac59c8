//! What `deny.toml` says: which crates, licences and sources may be in the dependency tree.
//!
//! The file has cargo-deny's form, so that who has that program can run it. It takes longer to build than everything of
//! ours together, so the part that we use is judged here, from `cargo tree`; a key that is not judged is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

use super::{printed, verdict};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    graph: Graph,
    bans: Bans,
    licenses: Licenses,
    sources: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    multiple_versions: Verdict,
    deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    /// Only a second version is refused.
    #[serde(default)]
    deny_multiple_versions: bool,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Verdict,
    unknown_git: Verdict,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Allow,
    Deny,
}

/// One package of the tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    origin: Origin,
    /// SPDX expression of its manifest; empty without one.
    licence: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    CratesIo,
    /// A folder of this machine.
    Path(String),
    /// Another registry, or git.
    Other(String),
}

/// Everything that is compiled, tests included, for every target that the file names.
pub fn check(root: &Path) -> anyhow::Result<()> {
    let rules = rules(&std::fs::read_to_string(root.join("deny.toml")).context("reading deny.toml")?)?;
    let mut packages = BTreeSet::new();
    for target in &rules.graph.targets {
        let tree = printed(
            root,
            Command::new("cargo")
                .args(["tree", "--workspace", "--locked", "--edges", "normal,build,dev"])
                .args(["--target", target, "--prefix", "none", "--format", "{p}\t{l}"]),
        )?;
        packages.extend(tree.lines().filter_map(package));
    }
    if packages.is_empty() {
        bail!("'cargo tree' lists no package: its format changed, see {}", file!());
    }
    verdict(judge(&rules, &packages, root)?)
}

fn rules(text: &str) -> anyhow::Result<Rules> {
    toml::from_str(text).context("deny.toml says what is not judged here")
}

/// A line of `cargo tree`: "name v1.2.3 (proc-macro) (*)", "name v1.2.3 (/folder)", then a tab and the licence.
fn package(line: &str) -> Option<Package> {
    let (what, licence) = line.split_once('\t')?;
    let mut words = what.splitn(3, ' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let origin = words
        .next()
        .into_iter()
        .flat_map(|rest| rest.split_inclusive(')'))
        .map(|word| word.trim().trim_start_matches('(').trim_end_matches(')'))
        .find(|word| !matches!(*word, "proc-macro" | "*" | ""));
    let origin = match origin {
        None => Origin::CratesIo,
        Some(folder) if folder.starts_with('/') => Origin::Path(folder.to_owned()),
        Some(other) => Origin::Other(other.to_owned()),
    };
    let licence = licence.trim_end().trim_end_matches("(*)").trim_end();
    Some(Package { name: name.to_owned(), version: version.to_owned(), origin, licence: licence.to_owned() })
}

/// What the rules refuse, one sentence each.
fn judge(rules: &Rules, packages: &BTreeSet<Package>, root: &Path) -> anyhow::Result<Vec<String>> {
    let allowed = rules
        .licenses
        .allow
        .iter()
        .map(|licence| Licensee::parse(licence).with_context(|| format!("deny.toml allows '{licence}'")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut versions = BTreeMap::<&str, BTreeSet<&str>>::new();
    let mut refused = Vec::new();
    for package in packages {
        let Package { name, version, origin, licence } = package;
        versions.entry(name).or_default().insert(version);
        // 'MIT/Apache-2.0' is how old manifests write 'or'.
        match Expression::parse_mode(licence, ParseMode::LAX) {
            Ok(terms) if terms.evaluate(|term| allowed.iter().any(|licence| licence.satisfies(term))) => {}
            Ok(_) => refused.push(format!("{name} {version} is under '{licence}', which deny.toml does not allow")),
            Err(_) if licence.is_empty() => refused.push(format!("{name} {version} names no licence")),
            Err(error) => {
                refused.push(format!("{name} {version} is under '{licence}', no SPDX expression: {}", error.reason));
            }
        }
        match origin {
            Origin::CratesIo => {}
            Origin::Path(folder) if Path::new(folder).starts_with(root) => {}
            Origin::Path(folder) => {
                refused.push(format!("{name} {version} comes from {folder}, outside the repository"));
            }
            Origin::Other(place) => {
                let rule = if place.starts_with("registry") {
                    &rules.sources.unknown_registry
                } else {
                    &rules.sources.unknown_git
                };
                if *rule == Verdict::Deny {
                    refused.push(format!("{name} {version} comes from {place}: deny.toml allows crates.io alone"));
                }
            }
        }
    }
    for ban in &rules.bans.deny {
        let Some(found) = versions.get(ban.name.as_str()) else { continue };
        if !ban.deny_multiple_versions || found.len() > 1 {
            let found = found.iter().copied().collect::<Vec<_>>().join(" and ");
            let Ban { name, reason, .. } = ban;
            refused.push(format!(
                "{name} {found}: deny.toml refuses it ({reason}); 'cargo tree -i {name}' says who brings it"
            ));
        }
    }
    if rules.bans.multiple_versions == Verdict::Deny {
        for (name, found) in versions.iter().filter(|(_, found)| found.len() > 1) {
            let found = found.iter().copied().collect::<Vec<_>>().join(" and ");
            refused.push(format!("{name} is there twice, {found}"));
        }
    }
    Ok(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        [graph]
        targets = ["x86_64-unknown-linux-gnu"]
        [bans]
        multiple-versions = "allow"
        deny = [
          { crate = "ring", reason = "one provider" },
          { crate = "rustls", deny-multiple-versions = true, reason = "one TLS stack" },
        ]
        [licenses]
        allow = ["Apache-2.0", "MIT", "Apache-2.0 WITH LLVM-exception"]
        [sources]
        unknown-registry = "deny"
        unknown-git = "deny"
    "#;

    fn refused(lines: &[&str]) -> Vec<String> {
        let packages = lines.iter().map(|line| package(line).unwrap()).collect();
        judge(&rules(RULES).unwrap(), &packages, Path::new("/house")).unwrap()
    }

    #[test]
    fn the_tree_as_it_should_be_is_let_through() {
        let none = refused(&[
            "serde v1.0.0\tMIT OR Apache-2.0",
            "serde_derive v1.0.0 (proc-macro)\tMIT/Apache-2.0 (*)",
            "rustls v0.23.0\tApache-2.0 OR ISC OR MIT",
            "mine v0.1.0 (/house/crds)\tApache-2.0",
            "wasi v1.0.0 (*)\tGPL-3.0-only OR Apache-2.0 WITH LLVM-exception",
        ]);
        assert!(none.is_empty(), "{none:?}");
    }

    #[test]
    fn a_forbidden_licence_is_refused() {
        for line in [
            "copyleft v1.0.0\tGPL-3.0-only",
            "both v1.0.0\tMIT AND GPL-3.0-only",
            "close v1.0.0\tApache-2.0 WITH GCC-exception-3.1",
        ] {
            assert!(refused(&[line])[0].contains("does not allow"), "{line}");
        }
        assert!(refused(&["bare v1.0.0\t"])[0].contains("names no licence"));
        assert!(refused(&["odd v1.0.0\tAsk me"])[0].contains("no SPDX expression"));
    }

    #[test]
    fn refused_crates_and_second_stacks_are_named_with_the_reason() {
        assert!(refused(&["ring v0.17.0\tMIT"])[0].contains("one provider"));
        assert!(refused(&["rustls v0.23.0\tMIT"]).is_empty());
        let two = refused(&["rustls v0.23.0\tMIT", "rustls v0.24.0\tMIT"]);
        assert!(two[0].contains("rustls 0.23.0 and 0.24.0") && two[0].contains("one TLS stack"), "{two:?}");
    }

    #[test]
    fn other_sources_are_refused() {
        assert!(refused(&["a v1.0.0 (https://example.org/a?rev=1#12345678)\tMIT"])[0].contains("crates.io alone"));
        assert!(refused(&["a v1.0.0 (registry `mine`)\tMIT"])[0].contains("crates.io alone"));
        assert!(refused(&["a v1.0.0 (/elsewhere/a)\tMIT"])[0].contains("outside the repository"));
    }

    #[test]
    fn a_rule_that_is_not_judged_is_an_error() {
        assert!(rules(&format!("{RULES}\nallow-git = []")).is_err());
    }
}
