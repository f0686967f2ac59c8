//! `banlieue-attestor`: the server half of attestation.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context, Result};
use banlieue_attestor::{
    controller::run::{Candidate, Options},
    plugin::service::Plugin,
    tools,
};
use banlieue_crds::names::accounts;
use banlieue_goplugin::{
    Kind, plugin_config::config_server::ConfigServer, server::node_attestor_server::NodeAttestorServer,
};
use banlieue_leader::{Terms, made_up_name};
use banlieue_protocol::names::{Cluster, TrustDomain};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tracing_subscriber::EnvFilter;

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
    /// Keep SPIRE and members in step: entries, Attested, bans, sweeps.
    Controller(ControllerArguments),
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

#[derive(clap::Args)]
struct ControllerArguments {
    /// TCP API of the SPIRE server, host:port.
    #[arg(long, env = "BANLIEUE_SPIRE_SERVER")]
    spire_server: String,
    /// Workload API of the agent beside us, unix:///path.
    #[arg(long, env = "SPIFFE_ENDPOINT_SOCKET")]
    workload_api: String,
    /// SPIFFE trust domain.
    #[arg(long, env = "BANLIEUE_TRUST_DOMAIN")]
    trust_domain: TrustDomain,
    /// Name of this cluster inside the trust domain.
    #[arg(long, env = "BANLIEUE_CLUSTER")]
    cluster: Cluster,
    /// Where liveness, readiness and metrics are served.
    #[arg(long, env = "BANLIEUE_METRICS", default_value = "127.0.0.1:0")]
    metrics: std::net::SocketAddr,
    /// Life of the SVIDs of members' programs, in seconds.
    #[arg(long, env = "BANLIEUE_SVID_TTL_SECONDS", default_value_t = 300)]
    svid_ttl_seconds: u64,
    /// Life of agents' SVIDs in seconds, as SPIRE is configured.
    #[arg(long, env = "BANLIEUE_AGENT_TTL_SECONDS", default_value_t = 600)]
    agent_ttl_seconds: u64,
    /// Seconds between sweeps.
    #[arg(long, env = "BANLIEUE_SWEEP_SECONDS", default_value_t = 30)]
    sweep_seconds: u64,
    /// Seconds between probes of the plugin.
    #[arg(long, env = "BANLIEUE_PROBE_SECONDS", default_value_t = 15)]
    probe_seconds: u64,
    /// Namespace of banlieue's own programs, where the Lease is.
    #[arg(long, env = "BANLIEUE_SYSTEM_NAMESPACE", default_value = accounts::SYSTEM_NAMESPACE)]
    system_namespace: String,
    /// Write only while holding the Lease `banlieue-attestor-controller` of the system namespace, so that several may run.
    #[arg(long, env = "BANLIEUE_LEADER_ELECT", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    leader_elect: bool,
    /// How long the others wait for a leader that is silent. It stops writing after two thirds of that.
    #[arg(long, env = "BANLIEUE_LEASE_SECONDS", default_value_t = 15,
        value_parser = clap::value_parser!(u32).range(3..=3600))]
    lease_seconds: u32,
    /// Name in the Lease; made up anew at every start when none is given. A process that starts under the name that is in
    /// the Lease takes it at once: give a name (a pod's) that two processes never have at a time.
    #[arg(long, env = "BANLIEUE_IDENTITY")]
    identity: Option<String>,
    /// Log as JSON lines.
    #[arg(long, env = "BANLIEUE_LOG_JSON")]
    log_json: bool,
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
        Command::Controller(arguments) => controller(arguments),
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

fn controller(arguments: ControllerArguments) -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr);
    if arguments.log_json {
        log.json().init()
    } else {
        log.init()
    }
    let seconds = std::time::Duration::from_secs;
    let options = Options {
        spire_server: arguments.spire_server,
        workload_api: arguments.workload_api,
        trust_domain: arguments.trust_domain,
        cluster: arguments.cluster,
        metrics: arguments.metrics,
        svid_ttl: seconds(arguments.svid_ttl_seconds),
        agent_ttl: seconds(arguments.agent_ttl_seconds),
        sweep_every: seconds(arguments.sweep_seconds.max(1)),
        probe_every: seconds(arguments.probe_seconds.max(1)),
        candidate: arguments.leader_elect.then(|| Candidate {
            namespace: arguments.system_namespace,
            name: arguments.identity.unwrap_or_else(|| made_up_name(accounts::ATTESTOR_CONTROLLER)),
            terms: Terms::of_seconds(arguments.lease_seconds),
        }),
    };
    tokio::runtime::Runtime::new()?.block_on(async {
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
        banlieue_attestor::controller::run::run(options, stop).await
    })
}

fn read(path: &PathBuf) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}
