//! Words of the API that no program says are lies of the reference.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use banlieue_crds::conditions::{
    ClaimCondition, ClaimReason, MemberCondition, MemberReason, PoolCondition, PoolReason,
};
use std::path::Path;

/// Written by mediatore, as the reference says.
const MEDIATORE: [&str; 2] = ["IdentityReady", "WorkloadRunning"];

fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            // What only tests say counts for nothing.
            let source = std::fs::read_to_string(&path).unwrap();
            text.push_str(source.split("#[cfg(test)]\nmod tests {").next().unwrap());
        }
    }
}

#[test]
fn every_condition_and_reason_is_said_by_a_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut text = String::new();
    for program in ["controller/src", "attestor/server/src"] {
        sources(&root.join(program), &mut text);
    }
    let mut words: Vec<String> = Vec::new();
    words.extend(PoolCondition::ALL.iter().map(|word| format!("PoolCondition::{word}")));
    words.extend(PoolReason::ALL.iter().map(|word| format!("PoolReason::{word}")));
    words.extend(MemberCondition::ALL.iter().map(|word| format!("MemberCondition::{word}")));
    words.extend(MemberReason::ALL.iter().map(|word| format!("MemberReason::{word}")));
    words.extend(ClaimCondition::ALL.iter().map(|word| format!("ClaimCondition::{word}")));
    words.extend(ClaimReason::ALL.iter().map(|word| format!("ClaimReason::{word}")));
    let dead: Vec<&String> = words
        .iter()
        .filter(|word| !MEDIATORE.iter().any(|theirs| word.ends_with(theirs)))
        .filter(|word| {
            !text.match_indices(word.as_str()).any(|(at, _)| {
                let next = text[at + word.len()..].chars().next();
                next.is_none_or(|next| !next.is_alphanumeric())
            })
        })
        .collect();
    assert!(dead.is_empty(), "nobody says {dead:?}: remove them, or let a program say them");
}
