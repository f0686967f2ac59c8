//! `docs/operate.md` names metrics, and reasons of conditions, events and refusals. One that the code does not know sends
//! whoever has trouble the wrong way.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::{printed, verdict};

/// The document.
const DOCUMENT: &str = "docs/operate.md";
/// First column of the tables whose rows begin with reasons.
const REASONS: &[&str] = &["| reason |", "| refusal |"];
/// Begins of metrics' names. Programs register them without, or with the first part of it.
const METRICS: &[&str] = &["banlieue_attestor_controller_", "banlieue_attestor_", "banlieue_"];

/// Every reason in a first column, and every `banlieue_…` anywhere.
pub fn check(root: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("reading {DOCUMENT}"))?;
    let files = printed(
        root,
        Command::new("git").args(["ls-files", "crds/src/*.rs", "controller/src/*.rs", "attestor/*.rs", "leader/*.rs"]),
    )?;
    let code: String = files.lines().filter_map(|file| std::fs::read_to_string(root.join(file)).ok()).collect();
    let code = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    verdict(missing(&text, &code))
}

fn missing(text: &str, code: &BTreeSet<&str>) -> Vec<String> {
    let mut found = Vec::new();
    let mut reasons = false;
    for (number, line) in text.lines().enumerate() {
        reasons = REASONS.iter().any(|head| line.starts_with(head)) || reasons && line.starts_with('|');
        let first = line.split('|').nth(1).filter(|_| reasons).unwrap_or_default();
        let words = |text: &'static str| move |c: char| !(c.is_ascii_alphanumeric() || text.contains(c));
        let named = first.split(words("")).filter(|word| is_reason(word) && !code.contains(word));
        let counted = line.split(words("_")).filter(|word| word.starts_with("banlieue_") && !is_registered(word, code));
        for word in named.chain(counted) {
            found.push(format!("{DOCUMENT}:{} names '{word}', which the code does not", number + 1));
        }
    }
    found
}

/// A word of at least two capitals and some small letters: a condition's kind in brackets is one too.
fn is_reason(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase()) && word.contains(|c: char| c.is_ascii_lowercase())
}

/// The library adds `_total` to counters itself.
fn is_registered(word: &str, code: &BTreeSet<&str>) -> bool {
    let word = word.trim_end_matches("_total");
    code.contains(word) || METRICS.iter().filter_map(|begin| word.strip_prefix(begin)).any(|rest| code.contains(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_metrics_that_the_code_does_not_know_are_named() {
        let code = BTreeSet::from(["Filling", "Ready", "bind_hits", "banlieue_members"]);
        let fine = "| reason | what |\n|---|---|\n| Filling (`Ready`) | Nonsense |\n\n| Word | no reason |\n\
                    `banlieue_bind_hits_total`, `banlieue_members{pool}`\n";
        assert_eq!(missing(fine, &code), Vec::<String>::new());
        let wrong = missing("| refusal | cause |\n| Filing | x |\n`banlieue_bind_misses_total`\n", &code);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains(":2 names 'Filing'") && wrong[1].contains("banlieue_bind_misses_total"), "{wrong:?}");
    }
}
