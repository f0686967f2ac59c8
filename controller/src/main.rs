//! `banlieue-controller run|doctor`.

use std::io::IsTerminal;
use std::process::ExitCode;

use banlieue_controller::config::{Cli, Command};
use banlieue_controller::{doctor, run};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = matches!(&cli.command, Command::Run(args) if args.log_json);
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Colours are for people who look on, not for files.
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    if json {
        log.json().init()
    } else {
        log.init()
    }
    // One provider for all of TLS; it is only refused when one is set already, which is as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("banlieue-controller: cannot start: {error}");
            return ExitCode::from(2);
        }
    };
    runtime.block_on(async {
        let stop = CancellationToken::new();
        tokio::spawn(stop_on_signal(stop.clone()));
        let done = match cli.command {
            Command::Run(args) => run::run(*args, stop).await.map(|()| true),
            Command::Doctor(args) => doctor::doctor(args).await,
        };
        match done {
            Ok(true) => ExitCode::SUCCESS,
            // What is wrong was printed.
            Ok(false) => ExitCode::from(1),
            Err(error) => {
                eprintln!("banlieue-controller: {error}");
                ExitCode::from(error.exit_code())
            }
        }
    })
}

async fn stop_on_signal(stop: CancellationToken) {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    stop.cancel();
}
