//! Test programs side by side.
//!
//! `cargo test` runs one program at a time, and most of ours wait for a cluster to start, a machine to boot or a deadline
//! to pass. Each brings a cluster of its own and minds nobody, so as many run at once as there are processors, those first
//! that took longest last time. The output of each is shown whole when it ends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::interrupt;
use crate::stages::seconds;

/// More at once would fight for memory: a test may bring several machines.
const MOST: usize = 4;
/// How many of the longest are listed at the end.
const LISTED: usize = 10;

/// A line of `cargo test --message-format=json`. Lines of other kinds lack the fields.
#[derive(Debug, Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

/// One test program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    /// Folder of its package and its own name.
    name: String,
    /// Where cargo would start it.
    folder: PathBuf,
    path: PathBuf,
}

/// How a program ended.
struct Ended {
    name: String,
    took: Duration,
    well: bool,
}

/// Runs every test program of every package's `tests/`, all of them even when some fail.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let times = root.join("target/test-times.json");
    let programs = longest_first(programs(root)?, &recorded(&times));
    if programs.is_empty() {
        bail!("cargo names no test program: the form of its messages changed, see {}", file!());
    }
    let lanes = std::thread::available_parallelism().map_or(1, usize::from).min(MOST);
    println!("{} test programs, {lanes} at a time", programs.len());
    let waiting = Mutex::new(VecDeque::from(programs));
    let ended = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while !interrupt::asked() {
                    let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(program) = next else { break };
                    let outcome = one(&program, &ended);
                    ended.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                }
            });
        }
    });
    let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    if interrupt::asked() {
        bail!("interrupted");
    }
    record(&times, &ended)?;
    report(ended)
}

/// Milliseconds of each program when it last ran here. They order a run, so a file that cannot be read is none.
fn recorded(file: &Path) -> BTreeMap<String, u64> {
    std::fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn record(file: &Path, ended: &[Ended]) -> anyhow::Result<()> {
    let mut times = recorded(file);
    for it in ended {
        times.insert(it.name.clone(), u64::try_from(it.took.as_millis()).unwrap_or(u64::MAX));
    }
    let text = serde_json::to_vec_pretty(&times).context("writing down how long tests took")?;
    std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

/// One that was never seen may be the longest.
fn longest_first(mut programs: Vec<Program>, times: &BTreeMap<String, u64>) -> Vec<Program> {
    programs.sort_by_key(|it| Reverse(times.get(&it.name).copied().unwrap_or(u64::MAX)));
    programs
}

fn programs(root: &Path) -> anyhow::Result<Vec<Program>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--workspace", "--test", "*", "--no-run", "--message-format=json"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("starting 'cargo test --no-run'")?;
    if !output.status.success() {
        bail!("'cargo test --no-run' failed ({}); its output is above", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| program(root, line)).collect())
}

fn program(root: &Path, line: &str) -> Option<Program> {
    let message: Message = serde_json::from_str(line).ok()?;
    let (target, path) = (message.target?, message.executable?);
    if !target.kind.iter().any(|kind| kind == "test") {
        return None;
    }
    let folder = message.manifest_path?.parent()?.to_path_buf();
    let package = folder.strip_prefix(root).unwrap_or(&folder).display().to_string();
    Some(Program { name: format!("{package}: {}", target.name), folder, path })
}

fn one(program: &Program, shown: &Mutex<Vec<Ended>>) -> Ended {
    let begun = Instant::now();
    let output = Command::new(&program.path)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null())
        .output();
    let took = begun.elapsed();
    if interrupt::asked() {
        return Ended { name: program.name.clone(), took, well: false };
    }
    // The lock keeps two outputs apart.
    let _shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
    println!("\n-- {} ({})", program.name, seconds(took));
    let well = match output {
        Ok(output) => {
            print!("{}", String::from_utf8_lossy(&output.stdout));
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            output.status.success()
        }
        Err(error) => {
            eprintln!("starting {}: {error}", program.path.display());
            false
        }
    };
    Ended { name: program.name.clone(), took, well }
}

fn report(mut ended: Vec<Ended>) -> anyhow::Result<()> {
    ended.sort_by_key(|it| Reverse(it.took));
    println!("\nthe longest");
    for it in ended.iter().take(LISTED) {
        println!("  {:>9}  {}", seconds(it.took), it.name);
    }
    let failed: Vec<&str> = ended.iter().filter(|it| !it.well).map(|it| it.name.as_str()).collect();
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("{} of {} test programs failed: {}", failed.len(), ended.len(), failed.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_read_from_cargos_messages() {
        let root = Path::new("/h");
        let line = r#"{"reason":"compiler-artifact","package_id":"x","manifest_path":"/h/hack/cluster/Cargo.toml",
            "target":{"kind":["test"],"crate_types":["bin"],"name":"spire"},"executable":"/h/target/debug/deps/spire-1"}"#;
        let found = program(root, line).unwrap();
        assert_eq!(found.name, "hack/cluster: spire");
        assert_eq!(found.folder, Path::new("/h/hack/cluster"));
        for other in [
            r#"{"reason":"build-finished","success":true}"#,
            r#"{"manifest_path":"/h/Cargo.toml","target":{"kind":["lib"],"name":"a"},"executable":null}"#,
            r#"{"manifest_path":"/h/Cargo.toml","target":{"kind":["bin"],"name":"a"},"executable":"/h/a"}"#,
            "warning: not JSON",
        ] {
            assert_eq!(program(root, other), None, "{other}");
        }
    }

    #[test]
    fn the_longest_and_the_unknown_start_first() {
        let program = |name: &str| Program { name: name.into(), folder: "/".into(), path: "/bin/true".into() };
        let times = BTreeMap::from([("short".to_owned(), 10), ("long".to_owned(), 500)]);
        let order = longest_first(["short", "long", "new"].map(program).into(), &times);
        assert_eq!(order.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["new", "long", "short"]);
    }

    #[test]
    fn all_run_and_those_that_fail_are_named() {
        let shown = Mutex::default();
        let program = |path: &str| Program { name: path.into(), folder: "/".into(), path: path.into() };
        let ended: Vec<Ended> = ["/bin/true", "/bin/false", "/absent"].map(|path| one(&program(path), &shown)).into();
        let error = report(ended).unwrap_err().to_string();
        assert!(error.starts_with("2 of 3 test programs failed"), "{error}");
        assert!(error.contains("/bin/false") && error.contains("/absent"), "{error}");
    }
}
