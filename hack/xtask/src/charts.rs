//! The Helm charts: lint, and that Helm installs exactly the plain files which `kubectl apply` and the tests install.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::tools;

/// Chart, the folder of its plain files, and what `helm template` needs to print them.
const CHARTS: &[(&str, &str, &[&str])] =
    &[("charts/banlieue", "files", &[]), ("charts/banlieue-crds", "crds", &["--include-crds"])];

/// Builds helm when it is missing, then checks both charts.
pub fn check(root: &Path) -> anyhow::Result<()> {
    let helm = tools::ensure(root, &["charts"])?.join("helm");
    for (chart, files, flags) in CHARTS {
        let chart = root.join(chart);
        run(Command::new(&helm).args(["lint", "--strict", "--quiet"]).arg(&chart))?;
        let rendered = run(Command::new(&helm).args(["template", "check"]).arg(&chart).args(*flags))?;
        let rendered = objects("helm's output", &rendered)?;
        let mut plain = BTreeMap::new();
        for path in yaml_files(&chart.join(files))? {
            let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            plain.extend(objects(&path.display().to_string(), &text)?);
        }
        let differ = differences(&plain, &rendered);
        if !differ.is_empty() {
            bail!("{} does not install its {files}: {}", chart.display(), differ.join("; "));
        }
        println!("{}: {} objects, as in {files}/", chart.display(), plain.len());
    }
    Ok(())
}

/// What a program prints. A chart is checked without a cluster and without the user's own settings of Helm.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .env("KUBECONFIG", "/dev/null")
        .output()
        .with_context(|| format!("starting {}", command.get_program().display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{command:?} failed ({}): {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

fn yaml_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry.with_context(|| format!("listing {}", folder.display()))?.path();
        if path.extension().is_some_and(|end| end == "yaml") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Objects by kind, namespace and name. A second one under the same name is an error: one of them would be lost.
fn objects(source: &str, text: &str) -> anyhow::Result<BTreeMap<String, Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).with_context(|| format!("parsing {source}"))?;
    let mut objects = BTreeMap::new();
    for document in documents.into_iter().filter(|document| !document.is_null()) {
        let part = |path: &str| document.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let name = format!("{} {}/{}", part("/kind"), part("/metadata/namespace"), part("/metadata/name"));
        if objects.insert(name.clone(), document).is_some() {
            bail!("{source} has {name} twice");
        }
    }
    Ok(objects)
}

fn differences(plain: &BTreeMap<String, Value>, rendered: &BTreeMap<String, Value>) -> Vec<String> {
    let lost = plain.iter().filter_map(|(name, object)| match rendered.get(name) {
        None => Some(format!("{name} is not rendered")),
        Some(other) if other != object => Some(format!("{name} is rendered otherwise")),
        Some(_) => None,
    });
    let more =
        rendered.keys().filter(|name| !plain.contains_key(*name)).map(|name| format!("{name} stands in no file"));
    lost.chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_changed_and_foreign_objects_are_named() {
        let plain =
            objects("a", "kind: A\nmetadata: {name: one}\n---\nkind: B\nmetadata: {name: two}\nx: 1\n").unwrap();
        assert!(differences(&plain, &plain).is_empty());
        let rendered = objects(
            "b",
            "---\n# a comment\n---\nkind: B\nmetadata: {name: two}\nx: 2\n---\nkind: C\nmetadata: {name: three}\n",
        )
        .unwrap();
        let found = differences(&plain, &rendered);
        assert_eq!(found, ["A /one is not rendered", "B /two is rendered otherwise", "C /three stands in no file"]);
    }

    #[test]
    fn two_objects_of_one_name_are_an_error() {
        assert!(objects("a", "kind: A\nmetadata: {name: one}\n---\nkind: A\nmetadata: {name: one}\n").is_err());
    }
}
