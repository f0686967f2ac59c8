//! The node half of KubeVirt for the local cluster: QEMU, swtpm and OVMF for each instance.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use banlieue_hypervisor::golden::{self, Golden};
use banlieue_hypervisor::{accel, light_guest};
use clap::{Parser, Subcommand};

mod run;

/// Plays kubelet, virt-handler and virt-launcher for the nodes of a local cluster.
#[derive(Parser)]
#[command(version, args_override_self = true, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Option<run::Arguments>,
}

#[derive(Subcommand)]
enum Command {
    /// Boots an image once with a seed and waits for its power-off; the console says what it measured.
    Golden {
        /// Raw disk image.
        #[arg(long)]
        image: PathBuf,
        /// Folder whose files go onto the seed volume; a seed that records measurements when absent.
        #[arg(long)]
        seed: Option<PathBuf>,
        /// Memory in MiB.
        #[arg(long, default_value_t = 512)]
        memory: u64,
        /// Virtual processors.
        #[arg(long, default_value_t = 1)]
        vcpus: u32,
        /// File that receives the serial console.
        #[arg(long)]
        console: PathBuf,
        /// Seconds after which the boot is given up.
        #[arg(long, default_value_t = 300)]
        timeout: u64,
    },
    /// Plays the guest of a light instance (started by the hypervisor).
    #[command(hide = true)]
    LightGuest {
        /// Seconds without an agent that stays after which the guest powers off.
        #[arg(long, value_name = "SECONDS")]
        give_up: u64,
        /// The agent's program and arguments.
        #[arg(last = true, required = true)]
        agent: Vec<String>,
    },
    /// Carries one connection of a guest to a host endpoint (started by QEMU).
    #[command(hide = true)]
    Connect {
        /// The endpoint.
        endpoint: SocketAddr,
    },
}

fn main() -> std::process::ExitCode {
    match run(Cli::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("banlieue-hypervisor: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let runtime = match &cli.command {
        Some(Command::Connect { .. }) => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        _ => tokio::runtime::Builder::new_multi_thread().enable_all().build(),
    }
    .context("cannot start the runtime")?;
    let done = runtime.block_on(dispatch(cli));
    // Standard input is read by a thread that nothing can interrupt; waiting for it would outlive the connection.
    runtime.shutdown_background();
    done
}

async fn dispatch(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Some(Command::Connect { endpoint }) => banlieue_hypervisor::connect::carry(endpoint)
            .await
            .with_context(|| format!("cannot carry a guest's connection to {endpoint}")),
        Some(Command::Golden { image, seed, memory, vcpus, console, timeout }) => {
            let seed = match seed {
                Some(folder) => read_seed(&folder)?,
                None => golden::record_measurements(),
            };
            // As instances name it: the answer about KVM is kept beside the image's folder.
            let disk = std::fs::canonicalize(&image).with_context(|| format!("cannot find {}", image.display()))?;
            let accelerator = accel::choose(&disk)
                .await
                .with_context(|| format!("cannot tell how {} is to run here", disk.display()))?;
            let boot = Golden { disk, seed, memory_mib: memory, vcpus, console, accelerator };
            let console = golden::run_to_poweroff(&boot, Duration::from_secs(timeout)).await?;
            println!("{}", console.display());
            Ok(())
        }
        Some(Command::LightGuest { give_up, agent }) => light_guest::run(&agent, Duration::from_secs(give_up))
            .await
            .with_context(|| format!("cannot run the agent {agent:?}")),
        None => {
            run::run(cli.run.context("--kubeconfig, --supervisor, --images, --nodes and --state are needed")?).await
        }
    }
}

fn read_seed(folder: &std::path::Path) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in
        std::fs::read_dir(folder).with_context(|| format!("cannot read the seed folder {}", folder.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        files.insert(name, std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    Ok(files)
}
