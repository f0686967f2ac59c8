//! `downstream`: an example of a service that sandboxes call.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum_server::tls_rustls::RustlsConfig;
use banlieue_downstream::config::Config;
use banlieue_downstream::desk::Desk;
use banlieue_downstream::service::{Service, router};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Longest time for requests to end at the end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time from a connection to its first request.
const FIRST: Duration = Duration::from_secs(20);

#[derive(Parser)]
#[command(
    name = "downstream",
    version,
    about = "An example: a service that sandboxes call, and a relay that they dial"
)]
struct Arguments {
    /// The configuration.
    #[arg(long)]
    config: PathBuf,
}

fn main() -> ExitCode {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // One line of JSON for each event: who called is read by programs too.
    tracing_subscriber::fmt().json().flatten_event(true).with_env_filter(filter).with_writer(std::io::stdout).init();
    let outcome = Config::load(&Arguments::parse().config).and_then(|config| {
        let runtime = tokio::runtime::Runtime::new().context("starting the async runtime")?;
        runtime.block_on(serve(config))
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("downstream: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(config: Config) -> Result<()> {
    let tls = RustlsConfig::from_pem_file(&config.certificate_file, &config.key_file)
        .await
        .with_context(|| format!("certificate_file {} and key_file", config.certificate_file.display()))?;
    // A WebSocket begins in HTTP/1.1. The server is told by ALPN alone: its own setting for it allows no upgrades.
    let mut only = tls.get_inner().as_ref().clone();
    only.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stop = CancellationToken::new();
    let service = Arc::new(Service {
        verifier: config.verifier()?,
        orchestrators: config.orchestrators()?,
        desk: Desk::default(),
        stop: stop.clone(),
    });
    let handle = axum_server::Handle::new();
    let server = axum_server::bind_rustls(config.address, RustlsConfig::from_config(Arc::new(only)))
        .first_request_timeout(FIRST)
        .handle(handle.clone());
    tokio::spawn(async move {
        if let Some(address) = handle.listening().await {
            tracing::info!(%address, "downstream listens");
        }
        let mut terminate = match signal(SignalKind::terminate()) {
            Ok(terminate) => terminate,
            Err(error) => return tracing::warn!(%error, "SIGTERM ends it at once"),
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        stop.cancel();
        handle.graceful_shutdown(Some(PATIENCE));
    });
    server.serve(router(service).into_make_service()).await.with_context(|| format!("serving on {}", config.address))
}
