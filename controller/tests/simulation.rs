//! The controller's real act and decide code against a deterministic API server: stale caches, conflicts, lost
//! replies, late writes, relists, and a crash at any call. One seed is one run; a failing seed prints itself.
//!
//! `BANLIEUE_SEEDS=N` runs N seeds of each kind, `BANLIEUE_SEED=S` replays one and prints its steps.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

#[path = "simulation/chance.rs"]
mod chance;
#[path = "simulation/changes.rs"]
mod changes;
#[path = "simulation/invariants.rs"]
mod invariants;
#[path = "simulation/network.rs"]
mod network;
#[path = "simulation/rest.rs"]
mod rest;
#[path = "simulation/run.rs"]
mod run;
#[path = "simulation/server.rs"]
mod server;
#[path = "simulation/world.rs"]
mod world;

use run::{Kind, Run};

fn seeds(of_each: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("BANLIEUE_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("BANLIEUE_SEEDS").unwrap_or(of_each)).collect(),
    }
}

fn all(kind: Kind, of_each: u64) {
    let seeds = seeds(of_each);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failed = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    let outcome = std::panic::catch_unwind(|| Run::new(*seed, kind).run());
                    let error = match outcome {
                        Ok(Ok(())) => continue,
                        Ok(Err(error)) => error,
                        Err(_) => "it panicked".to_owned(),
                    };
                    failed.lock().unwrap().push((*seed, error));
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    let told: Vec<String> =
        failed.iter().take(5).map(|(seed, error)| format!("BANLIEUE_SEED={seed} ({kind:?}): {error}")).collect();
    assert!(failed.is_empty(), "{} of {} seeds fail:\n{}", failed.len(), seeds.len(), told.join("\n"));
}

/// Nothing goes wrong: what it costs.
#[test]
fn calm() {
    all(Kind::Calm, 60);
}

/// Stale caches, conflicts, lost replies, crashes; machines and people behave.
#[test]
fn faults() {
    all(Kind::Faults, 120);
}

/// Faults, failing machines, refused attestation, meddling operators.
#[test]
fn trouble() {
    all(Kind::Trouble, 200);
}

/// Two controllers at once, as when a paused leader wakes up: the caps do not hold then, everything else does.
#[test]
fn two_leaders() {
    all(Kind::TwoLeaders, 80);
}
