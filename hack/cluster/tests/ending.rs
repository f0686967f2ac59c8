//! kill -9 of the program that started a cluster: nothing is left, neither processes nor files.
//!
//! Without cargo's harness, since this program is also the starter that is killed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use banlieue_cluster::Cluster;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if std::env::args().any(|it| it == "--starter") {
        runtime.block_on(starter());
    }
    killing_the_starter_leaves_nothing();
    println!("test killing_the_starter_leaves_nothing ... ok");
    ExitCode::SUCCESS
}

async fn starter() {
    let cluster = Cluster::builder().spire().start().await.unwrap();
    println!("{}", cluster.dir().display());
    std::future::pending::<()>().await;
}

fn killing_the_starter_leaves_nothing() {
    let mut child =
        Command::new(std::env::current_exe().unwrap()).arg("--starter").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let dir = PathBuf::from(line.trim());
    assert!(dir.is_absolute(), "the starter did not start a cluster");
    let names = ["etcd", "kube-apiserver", "kube-controller", "kube-scheduler", "spire-server", "spire-agent"];
    let before = living(&dir);
    for name in names {
        assert!(before.iter().any(|it| it.contains(name)), "{name} does not run: {before:?}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = Instant::now();
    while !living(&dir).is_empty() || dir.exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "left: {:?} {:?}", living(&dir), dir);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Processes of the whole machine that name this directory in their arguments or environment.
fn living(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let texts = entries.filter_map(|entry| {
        let mut text = std::fs::read(entry.path().join("cmdline")).ok()?;
        text.extend(std::fs::read(entry.path().join("environ")).unwrap_or_default());
        Some(String::from_utf8_lossy(&text).replace('\0', " "))
    });
    texts.filter(|text| text.contains(dir.to_str().unwrap())).collect()
}
