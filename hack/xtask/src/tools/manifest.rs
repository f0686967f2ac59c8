//! `hack/tools/tools.toml`: which programs there are, and with which flags.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

use super::script::Script;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    ldflags: BTreeMap<String, Vec<String>>,
    /// In Go.
    pub program: Vec<Program>,
    /// In JavaScript.
    pub script: Vec<Script>,
}

/// One `[[program]]`; the file's comment says what each field means.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub name: String,
    pub set: String,
    pub module: String,
    pub package: String,
    pub ldflags: Option<String>,
    pub cgo: bool,
    pub seconds: u64,
}

impl Manifest {
    /// Reads it.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let file = root.join("hack/tools/tools.toml");
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        toml::from_str(&text).with_context(|| format!("parsing {}", file.display()))
    }

    /// The programs and scripts that these names of programs or sets mean, once each, in the file's order.
    pub fn select(&self, wanted: &[&str]) -> anyhow::Result<(Vec<&Program>, Vec<&Script>)> {
        let programs = self.program.iter().map(|p| (&p.name, &p.set));
        let scripts = self.script.iter().map(|s| (&s.name, &s.set));
        let known: BTreeSet<&str> = programs.chain(scripts).flat_map(|(name, set)| [name.as_str(), set]).collect();
        if let Some(stranger) = wanted.iter().find(|name| !known.contains(**name)) {
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            bail!("no pinned program or set is called '{stranger}': name any of {known}");
        }
        let is_wanted = |name: &str, set: &str| wanted.contains(&name) || wanted.contains(&set);
        Ok((
            self.program.iter().filter(|p| is_wanted(&p.name, &p.set)).collect(),
            self.script.iter().filter(|s| is_wanted(&s.name, &s.set)).collect(),
        ))
    }

    /// The whole value of `-ldflags` for a program of this version.
    pub fn linker_flags(&self, program: &Program, version: Option<&str>) -> anyhow::Result<String> {
        let mut flags = vec!["-s -w".to_owned()];
        if let Some(key) = &program.ldflags {
            let templates = self.ldflags.get(key).with_context(|| format!("tools.toml has no ldflags '{key}'"))?;
            let version = version
                .and_then(|v| v.strip_prefix('v'))
                .with_context(|| format!("go.mod requires no module that holds {}", program.package))?;
            let mut numbers = version.split('.');
            let major = numbers.next().unwrap_or_default();
            let minor = numbers.next().unwrap_or_default();
            flags.extend(templates.iter().map(|template| {
                template.replace("{version}", version).replace("{major}", major).replace("{minor}", minor)
            }));
        }
        Ok(flags.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{EVERYTHING, go};
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn the_manifest_agrees_with_the_modules() {
        let manifest = Manifest::read(&root()).unwrap();
        let of_scripts = manifest.script.iter().map(|s| (s.name.as_str(), s.set.as_str()));
        let all: Vec<_> =
            manifest.program.iter().map(|p| (p.name.as_str(), p.set.as_str())).chain(of_scripts).collect();
        let sets: BTreeSet<&str> = all.iter().map(|(_, set)| *set).collect();
        assert_eq!(sets, EVERYTHING.iter().copied().collect());
        let names: BTreeSet<&str> = all.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), all.len(), "names are unique");
        assert!(names.is_disjoint(&sets), "a name means a program or a set, not both");
        for program in &manifest.program {
            let go_mod = go::read_go_mod(&root().join("hack/tools").join(&program.module)).unwrap();
            assert!(go::minimal_go(&go_mod).is_some(), "{}", program.module);
            let version = go::required_version(&go_mod, &program.package);
            let ours = program.package.starts_with("./");
            assert_eq!(version.is_none(), ours, "{}", program.name);
            assert!(
                ours || go_mod.lines().any(|line| line.trim().trim_start_matches("tool ") == program.package),
                "no tool line: {}",
                program.name
            );
            let flags = manifest.linker_flags(program, version).unwrap();
            assert!(!flags.contains('{'), "{flags}");
        }
        let apiserver = manifest.select(&["kube-apiserver"]).unwrap().0.pop().unwrap();
        let flags = manifest.linker_flags(apiserver, Some("v1.37.2")).unwrap();
        for flag in ["version.gitVersion=v1.37.2 ", "version.gitMajor=1 ", "version.gitMinor=37 "] {
            assert!(flags.contains(flag), "{flags}");
        }
    }

    #[test]
    fn names_and_sets_select_each_program_once() {
        let manifest = Manifest::read(&root()).unwrap();
        let names = |wanted: &[&str]| -> Vec<String> {
            let (programs, scripts) = manifest.select(wanted).unwrap();
            programs.iter().map(|p| p.name.clone()).chain(scripts.iter().map(|s| s.name.clone())).collect()
        };
        assert_eq!(names(&["identity"]), ["dex", "oidc"]);
        assert_eq!(names(&["spire-agent", "spire", "etcd"]), ["etcd", "spire-server", "spire-agent"]);
        assert!(names(&[]).is_empty());
        let error = manifest.select(&["kubelet"]).unwrap_err().to_string();
        assert!(error.contains("'kubelet'") && error.contains("kube-apiserver"), "{error}");
    }
}
