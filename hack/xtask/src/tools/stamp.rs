//! What a build depends on, as one digest.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use aws_lc_rs::digest;

/// Digest, in hex, of all that decides what a build makes. Every part is preceded by its length, so that no two
/// different inputs read the same.
pub fn stamp(files: &BTreeMap<String, Vec<u8>>, arguments: &[String], cgo: bool, go_version: &str) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut part = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_le_bytes());
        context.update(bytes);
    };
    part(go_version.as_bytes());
    part(&[u8::from(cgo)]);
    part(&(arguments.len() as u64).to_le_bytes());
    for argument in arguments {
        part(argument.as_bytes());
    }
    for (path, content) in files {
        part(path.as_bytes());
        part(content);
    }
    hex::encode(context.finish())
}

/// Adds go.mod, go.sum and the `.go` files of a module, by path below it.
pub fn collect_sources(module: &Path, below: &Path, files: &mut BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    let folder = module.join(below);
    for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
        let entry = entry.with_context(|| format!("listing {}", folder.display()))?;
        let path = below.join(entry.file_name());
        if entry.file_type().with_context(|| format!("looking at {}", path.display()))?.is_dir() {
            collect_sources(module, &path, files)?;
        } else if path.extension().is_some_and(|e| e == "go" || e == "mod" || e == "sum") {
            let content = fs::read(entry.path()).with_context(|| format!("reading {}", entry.path().display()))?;
            files.insert(path.to_string_lossy().into_owned(), content);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn files(list: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        list.iter().map(|(path, content)| ((*path).to_owned(), content.as_bytes().to_vec())).collect()
    }

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_stamp_depends_on_every_input_and_on_nothing_else() {
        let sources = files(&[("go.mod", "module m"), ("go.sum", "x h1:1"), ("cmd/main.go", "package main")]);
        let arguments = words(&["build", "-trimpath", "./cmd"]);
        let base = stamp(&sources, &arguments, false, "go1.26.8");
        assert_eq!(base, stamp(&sources.clone(), &arguments.clone(), false, "go1.26.8"));
        assert_eq!(base.len(), 64);

        let mut seen = BTreeSet::from([base]);
        let mut differs = |other: String| assert!(seen.insert(other), "a change left the stamp as it was");
        for path in ["go.mod", "go.sum", "cmd/main.go"] {
            let mut changed = sources.clone();
            changed.get_mut(path).unwrap().push(b' ');
            differs(stamp(&changed, &arguments, false, "go1.26.8"));
            let mut missing = sources.clone();
            missing.remove(path);
            differs(stamp(&missing, &arguments, false, "go1.26.8"));
        }
        let mut more = sources.clone();
        more.insert("cmd/more.go".to_owned(), Vec::new());
        differs(stamp(&more, &arguments, false, "go1.26.8"));
        differs(stamp(&sources, &words(&["build", "./cmd"]), false, "go1.26.8"));
        differs(stamp(&sources, &arguments, true, "go1.26.8"));
        differs(stamp(&sources, &arguments, false, "go1.26.9"));
    }

    #[test]
    fn a_byte_that_moves_between_parts_changes_the_stamp() {
        let none = BTreeMap::new();
        assert_ne!(stamp(&none, &words(&["ab", "c"]), false, ""), stamp(&none, &words(&["a", "bc"]), false, ""));
        assert_ne!(stamp(&files(&[("a", "bc")]), &[], false, ""), stamp(&files(&[("ab", "c")]), &[], false, ""));
        // A file must not read as two more arguments.
        assert_ne!(stamp(&files(&[("a", "b")]), &[], false, ""), stamp(&none, &words(&["a", "b"]), false, ""));
    }
}
