//! The hypervisor itself: registers its nodes and runs instances until it is told to stop. Machines live on after it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use banlieue_hypervisor::hub::Hub;
use banlieue_hypervisor::images::Images;
use banlieue_hypervisor::machine::Endpoint;
use banlieue_hypervisor::node::NodeSpec;
use banlieue_hypervisor::plan::Host;
use banlieue_hypervisor::report::Reporter;
use banlieue_hypervisor::vm::{Programs, Shared};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};

/// Settings of the hypervisor.
#[derive(clap::Args)]
pub struct Arguments {
    /// Kubeconfig of KubeVirt's handler account.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Folder of the cluster's supervisor, which owns all processes of machines.
    #[arg(long)]
    supervisor: PathBuf,
    /// Local store of container disks.
    #[arg(long)]
    images: PathBuf,
    /// Nodes to play: NAME=full|light|weightless[:cpu=N][:memory=MIB][:pods=N], separated by commas.
    #[arg(long, required = true, value_delimiter = ',')]
    nodes: Vec<NodeSpec>,
    /// Folder for the state of machines and their logs.
    #[arg(long)]
    state: PathBuf,
    /// What guests reach: GUEST_IP:PORT=HOST_IP:PORT. May be repeated.
    #[arg(long)]
    allow: Vec<Endpoint>,
    /// spire-agent for light instances; `tools/bin/spire-agent` beside the image store by default, as in target/.
    #[arg(long)]
    spire_agent: Option<PathBuf>,
    /// Agent plugin for light instances; this build's own beside the image store by default.
    #[arg(long)]
    attestor_guest: Option<PathBuf>,
    /// Seconds without an agent that stays after which a light guest powers off; the seed's `agent-ttl` by default, as in
    /// a machine.
    #[arg(long, value_name = "SECONDS")]
    light_give_up: Option<u64>,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// The API server or the supervisor cannot be reached, or state cannot be read.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let config = config(&arguments.kubeconfig).await?;
    let client = Client::try_from(config.clone()).context("cannot make a client")?;
    let supervisor = banlieue_supervisor::Client::connect(&arguments.supervisor).await?;
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let state = std::path::absolute(&arguments.state).context("cannot tell where the state is")?;
    let images = std::path::absolute(&arguments.images).context("cannot tell where the images are")?;
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let beside = |name: &str| images.with_file_name(name);
    let programs = Programs {
        spire_agent: arguments.spire_agent.unwrap_or_else(|| beside("tools").join("bin/spire-agent")),
        attestor_guest: arguments.attestor_guest.unwrap_or_else(|| beside(profile).join("banlieue-attestor-guest")),
        own: own.clone(),
    };
    for node in &arguments.nodes {
        node.register(&client).await.with_context(|| {
            format!("cannot register node {} with the API server of {}", node.name, arguments.kubeconfig.display())
        })?;
        tracing::info!(node = node.name, weight = node.weight.as_str(), "registered");
    }
    let shared = Shared {
        reporter: Reporter::new(config, client.clone()),
        client: client.clone(),
        supervisor,
        state,
        host: Host { images: Images::new(images), allow: arguments.allow, connector: own },
        programs,
        light_give_up: arguments.light_give_up.map(Duration::from_secs),
        probe: tokio::sync::Mutex::default(),
    };
    let weights = arguments.nodes.iter().map(|node| (node.name.clone(), node.weight)).collect();
    for node in arguments.nodes {
        let client = client.clone();
        tokio::spawn(async move { node.keep(&client).await });
    }
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    tokio::select! {
        ended = Hub::new(Arc::new(shared), weights).run() => Ok(ended?),
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted.context("cannot listen for SIGINT"),
    }
}

async fn config(path: &std::path::Path) -> anyhow::Result<Config> {
    let kubeconfig = Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("{} is no usable kubeconfig", path.display()))
}
