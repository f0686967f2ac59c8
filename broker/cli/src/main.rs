//! `mediatore-cli`: log in, claim a sandbox, look at it, release it.

use std::process::ExitCode;

use banlieue_mediatore_cli::args::{Arguments, Output};
use banlieue_mediatore_cli::commands;
use banlieue_mediatore_cli::fault::{Fault, Kind};
use clap::Parser;

fn main() -> ExitCode {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let arguments = Arguments::parse();
    let output = arguments.output;
    let runtime = tokio::runtime::Runtime::new().map_err(Fault::from);
    match runtime.and_then(|runtime| runtime.block_on(commands::run(arguments))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Fault { kind, code, detail }) => {
            match output {
                Output::Json => eprintln!("{}", serde_json::json!({ "error": code, "detail": detail })),
                Output::Table | Output::Name if kind == Kind::Interrupted => eprintln!("{detail}"),
                Output::Table | Output::Name => eprintln!("mediatore-cli: {detail}"),
            }
            ExitCode::from(kind as u8)
        }
    }
}
