//! One boot of an image from firmware to power-off, without any cluster: the golden boot that records what an honest
//! machine of this shape measures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::machine::{Accelerator, Bus, DEFAULT_MAC, Disk, Machine, Network, Topology, Writes};
use crate::qmp::{Event, Qmp};
use crate::{firmware, iso, swtpm};

/// A boot to be made. The machine has what every member has: image disk first, seed disk last, one network interface that
/// reaches nothing, entropy, vTPM.
#[derive(Clone, Debug)]
pub struct Golden {
    /// The image, raw.
    pub disk: PathBuf,
    /// Files of the seed volume.
    pub seed: BTreeMap<String, Vec<u8>>,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Virtual processors, as cores of one socket.
    pub vcpus: u32,
    /// File that receives the serial console.
    pub console: PathBuf,
    /// How to run: as instances of this host do ([`crate::accel::choose`]), or to find out whether that works.
    pub accelerator: Accelerator,
}

/// The seed of a boot that records measurements.
pub fn record_measurements() -> BTreeMap<String, Vec<u8>> {
    [(banlieue_protocol::seed::RECORD_MEASUREMENTS.to_owned(), Vec::new())].into()
}

/// Why a boot did not end as it should.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is missing or cannot be written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The vTPM.
    #[error(transparent)]
    Swtpm(#[from] swtpm::Error),
    /// The seed's disk.
    #[error(transparent)]
    Seed(#[from] iso::Error),
    /// Firmware.
    #[error(transparent)]
    Firmware(#[from] firmware::Error),
    /// A program is missing.
    #[error("cannot run {program}: {source}. It comes with: apt-get install qemu-system-x86 swtpm util-linux")]
    Missing {
        /// The program.
        program: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// QEMU ended by itself with an error.
    #[error("QEMU ended with {status}: {output}")]
    Crashed {
        /// Its exit status.
        status: std::process::ExitStatus,
        /// Its last words.
        output: String,
    },
    /// The machine stopped without a power-off.
    #[error("the machine stopped with {0} instead of powering off")]
    Stopped(String),
    /// Too slow.
    #[error("the machine did not power off within {0:?}; its console says: {1}")]
    Slow(Duration, String),
}

/// Boots, waits for the guest's own power-off and returns the console's path.
///
/// Nothing of the boot is left but the console: the vTPM, the variable store and the overlay go.
///
/// # Errors
/// The machine could not be started, crashed, or did not power off in time.
pub async fn run_to_poweroff(boot: &Golden, timeout: Duration) -> Result<PathBuf, Error> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    let disk = std::fs::canonicalize(&boot.disk).map_err(at(&boot.disk))?;
    let console = std::path::absolute(&boot.console).map_err(at(&boot.console))?;
    let folder = tempfile::Builder::new().prefix("banlieue-golden-").tempdir().map_err(at(&std::env::temp_dir()))?;
    let folder = folder.path();
    firmware::copy_variables(&folder.join("vars.fd"))?;
    iso::make(&folder.join("seed.iso"), iso::DEFAULT_LABEL, &boot.seed).await?;
    swtpm::manufacture(&folder.join("tpm")).await?;
    let machine = machine(boot, disk, console.clone());
    let run = async {
        let _swtpm = serve_tpm(folder).await?;
        let mut qemu = tethered("qemu-system-x86_64", folder)
            .args(machine.arguments())
            .stderr(Stdio::piped())
            .env("TMPDIR", folder)
            .spawn()
            .map_err(|source| Error::Missing { program: "qemu-system-x86_64", source })?;
        watch(&mut qemu, &folder.join("qmp.sock")).await
    };
    match tokio::time::timeout(timeout, run).await {
        Ok(result) => result.map(|()| console),
        Err(_) => {
            let said = std::fs::read(&console).unwrap_or_default();
            let said = String::from_utf8_lossy(&said).into_owned();
            let tail = said.lines().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" / ");
            Err(Error::Slow(timeout, tail))
        }
    }
}

fn machine(boot: &Golden, disk: PathBuf, console: PathBuf) -> Machine {
    Machine {
        accelerator: boot.accelerator,
        memory_mib: boot.memory_mib,
        topology: Topology::cores(boot.vcpus),
        uuid: None,
        firmware: firmware::CODE.into(),
        variables: "vars.fd".into(),
        disks: vec![
            Disk {
                name: "image".into(),
                file: disk,
                bus: Bus::Virtio,
                writes: Writes::Forgotten,
                serial: None,
                boot_index: Some(1),
            },
            Disk {
                name: banlieue_crds::names::ENROLMENT_VOLUME.into(),
                file: "seed.iso".into(),
                bus: Bus::Virtio,
                writes: Writes::Refused,
                serial: Some(banlieue_protocol::seed::DISK_SERIAL.into()),
                boot_index: None,
            },
        ],
        network: Some(Network { mac: DEFAULT_MAC.into(), allow: Vec::new(), connector: PathBuf::new() }),
        rng: true,
        tpm: Some("tpm.sock".into()),
        console,
        qmp: "qmp.sock".into(),
        ends_on_reset: true,
    }
}

async fn serve_tpm(folder: &Path) -> Result<Child, Error> {
    let child = tethered("swtpm", folder)
        .args(swtpm::machine_arguments(Path::new("tpm"), Path::new("tpm.sock")))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|source| Error::Missing { program: "swtpm", source })?;
    while !folder.join("tpm.sock").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(child)
}

/// A child that the kernel kills when this program dies, however it dies.
fn tethered(program: &str, folder: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]).current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn watch(qemu: &mut Child, control: &Path) -> Result<(), Error> {
    let events = async {
        let mut qmp = loop {
            match Qmp::connect(control).await {
                Ok(qmp) => break qmp,
                // Not there yet; when QEMU ends instead, the other branch sees it.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        loop {
            // A KVM that cannot go on pauses the machine; nothing else would ever end it. Asked first, because it may
            // have happened before the connection was made.
            let state = qmp.state().await.unwrap_or_default();
            if !matches!(state.as_str(), "running" | "prelaunch" | "shutdown" | "") {
                return state;
            }
            match qmp.event().await {
                Ok(Event::Shutdown { by_guest, reason }) if !by_guest || reason != "guest-shutdown" => return reason,
                Ok(_) => {}
                Err(_) => std::future::pending().await,
            }
        }
    };
    tokio::select! {
        status = qemu.wait() => {
            let status = status.map_err(|source| Error::Missing { program: "qemu-system-x86_64", source })?;
            if status.success() {
                return Ok(());
            }
            let mut output = String::new();
            if let Some(mut stderr) = qemu.stderr.take() {
                // Best effort: the status already says that it failed.
                let _ = tokio::io::AsyncReadExt::read_to_string(&mut stderr, &mut output).await;
            }
            Err(Error::Crashed { status, output: output.trim().to_owned() })
        }
        reason = events => Err(Error::Stopped(reason)),
    }
}
