//! `mediatore`: the broker.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use banlieue_identity::SubjectKey;
use banlieue_mediatore::{
    config::Config,
    revoke::{self, Target},
    serve,
};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

#[derive(Parser)]
#[command(name = "mediatore", version, about = "The broker: claims sandboxes for people, agents and services")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve callers and sandboxes.
    Serve {
        /// The configuration.
        #[arg(long, env = "MEDIATORE_CONFIG")]
        config: PathBuf,
    },
    /// Say everything that is wrong with a configuration.
    CheckConfig {
        /// The configuration.
        file: PathBuf,
    },
    /// Take rights away: release a claim, deny a subject, quarantine a member.
    Revoke {
        /// The configuration.
        #[arg(long, env = "MEDIATORE_CONFIG")]
        config: PathBuf,
        /// Release this claim, namespace/name.
        #[arg(long, group = "target")]
        claim: Option<String>,
        /// Deny this subject, by its key of 64 hexadecimal digits, and release its claims.
        #[arg(long, group = "target")]
        subject: Option<SubjectKey>,
        /// Quarantine this member, namespace/name.
        #[arg(long, group = "target")]
        member: Option<String>,
        /// Why, for whoever asks later.
        #[arg(long, default_value = "revoked by an operator")]
        reason: String,
    },
    /// Serve the egress gateway alone.
    Egress,
}

/// Exit code when the configuration is at fault.
const CONFIG_FAULT: u8 = 2;

fn main() -> ExitCode {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let outcome = match Arguments::parse().command {
        Command::CheckConfig { file } => config(&file).map(|config| {
            println!(
                "{} is good: {} issuer(s), {} audience(s), {} namespace(s)",
                file.display(),
                config.issuers.len(),
                config.audiences.len(),
                config.namespaces.len()
            );
        }),
        Command::Serve { config: file } => config(&file).and_then(|config| run(start(config))),
        Command::Revoke { config: file, claim, subject, member, reason } => config(&file).and_then(|config| {
            let target = match (claim, subject, member) {
                (Some(claim), ..) => Target::Claim(claim),
                (_, Some(subject), _) => Target::Subject(subject),
                (_, _, Some(member)) => Target::Member(member),
                _ => return Err((CONFIG_FAULT, "say what to revoke: --claim, --subject or --member".to_owned())),
            };
            run(async move {
                let say = |line| println!("{line}");
                revoke::revoke(&config, &serve::cluster().await?, &target, &reason, say).await
            })
        }),
        Command::Egress => Err((CONFIG_FAULT, "the egress gateway is not built into this version".to_owned())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            eprintln!("mediatore: {message}");
            ExitCode::from(code)
        }
    }
}

type Outcome<T> = Result<T, (u8, String)>;

fn config(file: &std::path::Path) -> Outcome<Config> {
    Config::load(file).map_err(|error| (CONFIG_FAULT, error.to_string()))
}

fn run(work: impl Future<Output = Result<()>>) -> Outcome<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Standard output is for the audit record.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Runtime::new().map_err(|error| (1, error.to_string()))?;
    let outcome = runtime.block_on(work).map_err(|error| (1, format!("{error:#}")));
    // A call that blocks in a thread, on a dead disk say, does not keep the program.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

async fn start(config: Config) -> Result<()> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let asked = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        asked.cancel();
    });
    serve::serve(config, stop).await
}
