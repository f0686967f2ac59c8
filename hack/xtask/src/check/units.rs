//! Tests and programs compile the same.
//!
//! A test may bring a dependency that asks for one more feature of a crate which the programs use too. Cargo then
//! compiles that crate, and all that stands on it, once for programs and once for tests; our programs get other bytes
//! each time build and test alternate, and the measured image is built and booted again. Nothing fails, it only takes
//! longer, so nobody notices. Cargo's plan of both says it at once.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde::Deserialize;

use super::{printed, verdict};

#[derive(Debug, Deserialize)]
struct Plan {
    units: Vec<Unit>,
}

/// One call of the compiler.
#[derive(Debug, Deserialize)]
struct Unit {
    pkg_id: String,
    target: Target,
    profile: serde_json::Map<String, serde_json::Value>,
    platform: Option<String>,
    mode: String,
    features: BTreeSet<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    index: usize,
}

/// Package, target, kind and mode: what is compiled, whatever it is compiled with.
type What = (String, String, String, String);

/// What is compiled, with which features of its own, as which digest of all that decides its bytes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Compiled {
    what: What,
    features: BTreeSet<String>,
    digest: u64,
}

/// Compares the plans of `cargo build` and `cargo test` as `make test` calls them.
pub fn check(root: &Path) -> anyhow::Result<()> {
    let programs = plan(root, &["build", "--workspace", "--bins"])?;
    let tests = plan(root, &["test", "--workspace", "--no-run"])?;
    verdict(twice(&programs, &tests))
}

fn plan(root: &Path, arguments: &[&str]) -> anyhow::Result<Vec<Unit>> {
    // Unstable, and the toolchain is pinned. It plans and compiles nothing.
    let mut command = Command::new("cargo");
    command.args(arguments).args(["--locked", "--unit-graph", "-Zunstable-options"]).env("RUSTC_BOOTSTRAP", "1");
    let text = printed(root, &mut command)?;
    let plan: Plan = serde_json::from_str(&text).context("cargo's plan (--unit-graph) has another form")?;
    Ok(plan.units)
}

/// What tests compile otherwise than programs, and which features make the difference.
fn twice(programs: &[Unit], tests: &[Unit]) -> Vec<String> {
    let (programs, tests) = (compiled(programs), compiled(tests));
    let digests: BTreeSet<u64> = tests.iter().map(|unit| unit.digest).collect();
    let mut others = BTreeMap::<&What, BTreeSet<&str>>::new();
    for unit in &tests {
        others.entry(&unit.what).or_default().extend(unit.features.iter().map(String::as_str));
    }
    let (mut findings, mut carried) = (BTreeSet::new(), BTreeSet::new());
    for unit in programs.iter().filter(|unit| !digests.contains(&unit.digest)) {
        // A program that no test asks for is compiled once.
        let Some(features) = others.get(&unit.what) else { continue };
        let (package, ..) = &unit.what;
        let more: Vec<&str> = features.iter().filter(|name| !unit.features.contains(**name)).copied().collect();
        let package = package.rsplit('/').next().unwrap_or(package);
        if more.is_empty() {
            carried.insert(package.to_owned());
        } else {
            findings.insert(format!("tests compile {package} again, with {}", more.join(", ")));
        }
    }
    if !carried.is_empty() {
        findings.insert(format!(
            "so these are compiled twice: {}. 'cargo tree -e features -i NAME' says who asks; ask for the same outside \
             of tests, as hack/xtask/Cargo.toml does for regex",
            carried.into_iter().collect::<Vec<_>>().join(", ")
        ));
    }
    findings.into_iter().collect()
}

fn compiled(units: &[Unit]) -> BTreeSet<Compiled> {
    let mut digests = vec![None; units.len()];
    for index in 0..units.len() {
        digest(units, index, &mut digests);
    }
    let digests = digests.into_iter().map(Option::unwrap_or_default);
    let what =
        |unit: &Unit| (unit.pkg_id.clone(), unit.target.name.clone(), unit.target.kind.join(","), unit.mode.clone());
    units
        .iter()
        .zip(digests)
        .map(|(unit, digest)| Compiled { what: what(unit), features: unit.features.clone(), digest })
        .collect()
}

/// Depth first: a unit is compiled anew when anything below it is.
fn digest(units: &[Unit], index: usize, known: &mut Vec<Option<u64>>) -> u64 {
    if let Some(Some(digest)) = known.get(index) {
        return *digest;
    }
    let mut hasher = DefaultHasher::new();
    if let Some(unit) = units.get(index) {
        (&unit.pkg_id, &unit.target.name, &unit.target.kind, &unit.mode).hash(&mut hasher);
        (&unit.platform, &unit.features).hash(&mut hasher);
        for (key, value) in &unit.profile {
            // 'dev' and 'test' are names for the same settings.
            if key != "name" {
                (key, value.to_string()).hash(&mut hasher);
            }
        }
        let mut below: Vec<u64> = unit.dependencies.iter().map(|it| digest(units, it.index, known)).collect();
        below.sort_unstable();
        below.hash(&mut hasher);
    }
    let digest = hasher.finish();
    if let Some(place) = known.get_mut(index) {
        *place = Some(digest);
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(profile: &str, features: &str) -> Vec<Unit> {
        let text = format!(
            r#"{{"version": 1, "roots": [0], "units": [
              {{"pkg_id": "path+file:///h/guest#0.1.0", "target": {{"kind": ["bin"], "name": "guest"}}, "mode": "build",
                "profile": {{"name": "{profile}", "opt_level": "0"}}, "platform": null, "features": [],
                "dependencies": [{{"index": 1, "extern_crate_name": "leaf"}}]}},
              {{"pkg_id": "registry+x#leaf@1.0.0", "target": {{"kind": ["lib"], "name": "leaf"}}, "mode": "build",
                "profile": {{"name": "{profile}", "opt_level": "0"}}, "platform": null, "features": [{features}],
                "dependencies": []}}]}}"#
        );
        serde_json::from_str::<Plan>(&text).unwrap().units
    }

    #[test]
    fn the_name_of_a_profile_makes_no_difference() {
        assert!(twice(&units("dev", r#""std""#), &units("test", r#""std""#)).is_empty());
    }

    #[test]
    fn one_more_feature_is_named_with_all_that_stands_on_it() {
        let found = twice(&units("dev", r#""std""#), &units("test", r#""std", "more""#));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("guest#0.1.0"), "{found:?}");
        assert!(found[1].contains("leaf@1.0.0 again, with more"), "{found:?}");
    }
}
