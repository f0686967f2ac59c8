//! Length of files, and the words of the project.

use std::path::Path;
use std::process::Command;

use super::{printed, verdict};

/// A file is one idea; past this many lines it has become several.
const LONGEST: usize = 600;

/// Second words for what has a name already, in lower case, and the name.
const WORDS: &[(&str, &str)] = &[
    ("prewarmed", "warm"),
    ("pre-warmed", "warm"),
    ("standby", "warm"),
    ("hot spare", "warm member"),
    ("worker vm", "member"),
    ("pool vm", "member"),
    ("requester", "subject"),
    ("requestor", "subject"),
    ("lessee", "subject"),
    ("time-to-live", "TTL, or deadline"),
    ("attestation controller", "attestor controller"),
    ("enrollment", "enrolment"),
    ("whitelist", "allow-list"),
    ("allowlist", "allow-list"),
    ("blacklist", "deny-list"),
];

/// Every tracked text of ours.
pub fn check(root: &Path) -> anyhow::Result<()> {
    let listed = printed(root, Command::new("git").args(["ls-files", "*.rs", "*.md", "*.yaml", "*.toml"]))?;
    let mut findings = Vec::new();
    for name in listed.lines() {
        // Listed and not there: removed and not yet committed.
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
        // Tests at the end of a file belong to its idea and may be long tables.
        let code = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
        if name.ends_with(".rs") && code > LONGEST && !name.contains("/tests/") {
            findings.push(format!("{name} has {code} lines before its tests, more than {LONGEST}: split it by idea"));
        }
        // This table is the one place where they stand.
        if !name.ends_with("check/text.rs") {
            findings.extend(
                strangers(&text).into_iter().map(|(line, found, ours)| {
                    format!("{name}:{line} says '{found}'; the word for it here is '{ours}'")
                }),
            );
        }
    }
    verdict(findings)
}

/// Line from 1, the word, and ours for it.
fn strangers(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        for (word, ours) in WORDS {
            if line.contains(word) {
                found.push((number + 1, *word, *ours));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_word_is_found_where_it_stands() {
        let found = strangers("A warm member.\nA Prewarmed one, by enrollment.\n");
        assert_eq!(found, [(2, "prewarmed", "warm"), (2, "enrollment", "enrolment")]);
        assert!(strangers("enrolment, subject, attestor controller").is_empty());
    }
}
