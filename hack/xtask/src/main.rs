//! Developer commands behind the Makefile: build what is missing, run the demo, run every check and test.
//!
//! - `packages`: Debian packages that a stage needs
//! - `tools`: the pinned programs (`hack/tools`), in Go and in JavaScript
//! - `product`: the workspace's own binaries
//! - `image`: the guest image, its golden boot, and the local image store
//! - `demo`: the main job, told as a person would watch it
//! - `check`, `charts`, `test`: what a change must pass
//! - `bench`: lending against a bare baseline
//! - `stages`: progress and the table of times
//! - `interrupt`: what Ctrl-C does

mod bench;
mod charts;
mod check;
mod demo;
mod image;
mod interrupt;
mod packages;
mod product;
mod stages;
mod test;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands of banlieue. `make help` lists the usual ones.
#[derive(Parser)]
#[command(name = "xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the main job on a local cluster of its own.
    Demo {
        /// Leave the cluster up and print how to use it.
        #[arg(long)]
        keep: bool,
    },
    /// End the cluster that `demo --keep` left up.
    DemoDown,
    /// Build the pinned programs; all of them when none is named.
    Tools { names: Vec<String> },
    /// Build the guest image, record its golden values, fill the local image store.
    Image,
    /// Formatting, words, length of files, dependencies, lints.
    Check,
    /// Lint the Helm charts and compare what they install with the plain files.
    Charts,
    /// Everything CI runs, timed by stage.
    Test {
        /// Only what needs no cluster: checks, unit and property tests, the simulation.
        #[arg(long)]
        quick: bool,
    },
    /// Costs and times against a bare baseline of the same run.
    Bench,
}

fn main() -> ExitCode {
    // One provider for the whole process; installing it twice is the only way this fails.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let root = workspace_root();
    if let Err(error) = interrupt::listen() {
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    let done = match Arguments::parse().command {
        Command::Demo { keep } => demo::run(&root, keep),
        Command::DemoDown => demo::down(&root),
        Command::Tools { names } => tools_command(&root, &names),
        Command::Image => image::command(&root),
        Command::Check => check::run(&root).map(drop),
        Command::Charts => charts::check(&root),
        Command::Test { quick: false } => test::run(&root),
        Command::Test { quick: true } => test::quick(&root),
        Command::Bench => bench::run(&root),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // What was interrupted fails in some way of its own, which tells nobody anything.
        Err(error) => interrupt::finish().unwrap_or_else(|| {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }),
    }
}

fn tools_command(root: &Path, names: &[String]) -> anyhow::Result<()> {
    packages::ensure(&[packages::Purpose::Build])?;
    let wanted: Vec<&str> =
        if names.is_empty() { tools::EVERYTHING.to_vec() } else { names.iter().map(String::as_str).collect() };
    let folder = tools::ensure(root, &wanted)?;
    println!("programs are in {}", folder.display());
    Ok(())
}

/// The checkout this program was built from: two folders above its manifest.
fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().and_then(Path::parent).unwrap_or(manifest).to_path_buf()
}
