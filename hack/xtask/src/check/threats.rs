//! The threat model names, for each mitigation, the file that makes it and the test that shows it. A name that is not
//! there any more is a promise that nobody keeps.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::{printed, verdict};

/// The document.
const DOCUMENT: &str = "docs/security.md";
/// What the document shortens.
const SHORT: &[(&str, &str)] = &[
    ("checks/", "attestor/server/src/checks/"),
    ("plugin/", "attestor/server/src/plugin/"),
    ("att-ctl/", "attestor/server/src/controller/"),
    ("files/", "charts/banlieue/files/"),
];

/// Every file and every test function that a row of its tables names.
pub fn check(root: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("reading {DOCUMENT}"))?;
    let files = printed(root, Command::new("git").args(["ls-files", "--cached", "--others", "--exclude-standard"]))?;
    let files: Vec<&str> = files.lines().collect();
    let mut functions = String::new();
    for file in files.iter().filter(|file| file.ends_with(".rs")) {
        functions.push_str(&std::fs::read_to_string(root.join(file)).unwrap_or_default());
    }
    verdict(missing(&text, &files, &functions))
}

fn missing(text: &str, files: &[&str], functions: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        // What stands between two backticks is every second part.
        for word in line.split('`').skip(1).step_by(2) {
            let absent = if is_file(word) {
                !files.iter().any(|file| fits(file, word))
            } else if is_function(word) {
                !functions.contains(&format!("fn {word}("))
            } else {
                false
            };
            if absent {
                found.push(format!("{DOCUMENT}:{} names '{word}', which is not there", number + 1));
            }
        }
    }
    found
}

fn is_file(word: &str) -> bool {
    word.ends_with(".rs") || word.ends_with(".yaml") || word.ends_with(".rego")
}

fn is_function(word: &str) -> bool {
    word.contains('_') && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// A path, or its end; '*' stands for a part of the name.
fn fits(file: &str, word: &str) -> bool {
    let long = SHORT.iter().find_map(|(short, long)| word.strip_prefix(short).map(|rest| format!("{long}{rest}")));
    let word = long.as_deref().unwrap_or(word);
    match word.split_once('*') {
        Some((head, tail)) => {
            let name = file.rsplit('/').next().unwrap_or(file);
            (file.starts_with(head) || name.starts_with(head)) && file.ends_with(tail)
        }
        None => file == word || file.ends_with(&format!("/{word}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_tests_that_are_gone_are_named() {
        let files = ["attestor/server/src/checks/admit.rs", "charts/banlieue/files/35-endorsement-reports.yaml"];
        let functions = "fn endorsement_keys() {}";
        let there = "| `35-*.yaml` | b | `checks/admit.rs`, `files/35-*.yaml` | `endorsement_keys` |\n`gone_too` outside of tables\n";
        assert!(missing(there, &files, functions).is_empty());
        let gone = "| `checks/absent.rs` | `files/36-*.yaml` | `endorsement_key`, `Name`, `--svid-ttl-seconds` |\n";
        let found = missing(gone, &files, functions);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("checks/absent.rs"), "{found:?}");
    }
}
