//! `banlieue-attestor`: the server half of attestation.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context, Result};
use banlieue_attestor::{plugin::service::Plugin, tools};
use banlieue_goplugin::{
    Kind, plugin_config::config_server::ConfigServer, server::node_attestor_server::NodeAttestorServer,
};
use clap::{Parser, Subcommand};
use tonic::service::Routes;

#[derive(Parser)]
#[command(name = "banlieue-attestor", version, about = "The server half of attestation")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Decide about members, as a plugin of spire-server (which starts this).
    Plugin {
        /// Set by the plugin's own parent process.
        #[arg(long = "plugin-worker", hide = true)]
        worker: bool,
    },
    /// Write measurements.yaml from an image's predictions and a golden boot's console output.
    Golden {
        /// The console's output, or the evidence in it.
        #[arg(long)]
        evidence: PathBuf,
        /// The predictions that the image build wrote.
        #[arg(long)]
        predictions: PathBuf,
        /// Write here and not to standard output.
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Print an event log for people.
    Explain {
        /// The log, or a golden boot's evidence.
        log: PathBuf,
    },
}

fn main() -> ExitCode {
    // Kubernetes and SPIRE are spoken to with the one provider there is.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("banlieue-attestor: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Plugin { .. } => Ok(banlieue_goplugin::serve(Kind::Server, || {
            let plugin = Arc::new(Plugin::default());
            Routes::new(NodeAttestorServer::from_arc(plugin.clone())).add_service(ConfigServer::from_arc(plugin))
        })?),
        Command::Golden { evidence, predictions, output } => {
            let document = tools::golden::golden(&read(&evidence)?, &read(&predictions)?)?;
            match output {
                Some(path) => std::fs::write(&path, document).with_context(|| format!("writing {}", path.display())),
                None => {
                    print!("{document}");
                    Ok(())
                }
            }
        }
        Command::Explain { log } => {
            print!("{}", tools::explain::explain(&read(&log)?)?);
            Ok(())
        }
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}
