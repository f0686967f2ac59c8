//! Owns every process of a local cluster; all of them end with its lifeline.

use std::fs::File;
use std::io::{Read, stdin};
use std::path::PathBuf;
use std::process::ExitCode;

use banlieue_supervisor::{Spec, init, keeper, shim};
use clap::{Parser, Subcommand};

/// Owns every process of a local cluster; all of them end with its lifeline.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Start a supervisor. It ends, with everything it owns, when its standard input does.
    Run {
        /// Directory of the cluster: absolute, absent or empty; removed at the end.
        #[arg(long)]
        dir: PathBuf,
        /// Do not end with standard input; only when told to on the control socket.
        #[arg(long)]
        no_lifeline: bool,
        /// Leave log files when the rest of the directory is removed.
        #[arg(long)]
        keep_logs: bool,
    },
    #[command(hide = true)]
    Init {
        #[arg(long)]
        dir: PathBuf,
    },
    #[command(hide = true)]
    Exec,
}

fn main() -> ExitCode {
    // No runtime and no second thread here: the keeper and the shim need to be alone in their process.
    let result = match Arguments::parse().command {
        Role::Run { dir, no_lifeline, keep_logs } => {
            match keeper::run(&keeper::Options { dir, lifeline: !no_lifeline, keep_logs }) {
                Ok(code) => return ExitCode::from(u8::try_from(code).unwrap_or(1)),
                Err(error) => Err(error),
            }
        }
        Role::Init { dir } => {
            tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
            init::run(&dir)
        }
        Role::Exec => Err(become_program()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("banlieue-supervisor: {error}");
            ExitCode::from(127)
        }
    }
}

/// Reads from standard input what to become, becomes it with an empty standard input.
fn become_program() -> std::io::Error {
    let mut text = Vec::new();
    let prepared = stdin().read_to_end(&mut text).and_then(|_| {
        let spec: Spec = serde_json::from_slice(&text)?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(spec)
    });
    match prepared {
        Ok(spec) => shim::exec(&spec),
        Err(error) => error,
    }
}
