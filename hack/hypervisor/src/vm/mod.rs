//! The machine behind one instance: starting, watching, stopping, wiping. Its processes belong to the cluster's
//! supervisor and are found again by name, so that they outlive this program.

mod full;
mod home;
mod light;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use banlieue_crds::kubevirt::VirtualMachineInstance;
use banlieue_supervisor::{Client as Supervisor, Signal, State};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use crate::decide::End;
use crate::identity::Identity;
use crate::machine::Accelerator;
use crate::plan::{self, Host};
use crate::report::{self, Reporter};
use crate::weight::Weight;
use crate::{accel, firmware, images, iso, qmp, swtpm, tpm};

pub use home::Home;

/// Programs of light instances.
#[derive(Clone, Debug)]
pub struct Programs {
    /// spire-agent.
    pub spire_agent: PathBuf,
    /// Our attestor plugin for agents.
    pub attestor_guest: PathBuf,
    /// This program.
    pub own: PathBuf,
}

/// What all machines of this host share.
pub struct Shared {
    /// The hypervisor's own client.
    pub client: Client,
    /// Owner of all processes.
    pub supervisor: Supervisor,
    /// State of all machines, and their logs.
    pub state: PathBuf,
    /// Images and reachable endpoints.
    pub host: Host,
    /// Programs of light instances.
    pub programs: Programs,
    /// How long light guests live without an agent, when it is not what their seed says.
    pub light_give_up: Option<Duration>,
    /// Writer of endorsement reports.
    pub reporter: Reporter,
    /// Only one machine at a time may probe KVM; the others take its answer.
    pub probe: tokio::sync::Mutex<()>,
}

/// Why a machine could not be started or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The spec.
    #[error(transparent)]
    Plan(#[from] plan::Error),
    /// The image.
    #[error(transparent)]
    Image(#[from] images::Error),
    /// The vTPM.
    #[error(transparent)]
    Swtpm(#[from] swtpm::Error),
    /// The vTPM's commands.
    #[error(transparent)]
    Tpm(#[from] tpm::Error),
    /// Firmware.
    #[error(transparent)]
    Firmware(#[from] firmware::Error),
    /// A Secret's disk.
    #[error(transparent)]
    Iso(#[from] iso::Error),
    /// The host's report.
    #[error(transparent)]
    Report(#[from] report::Error),
    /// The supervisor.
    #[error(transparent)]
    Supervisor(#[from] banlieue_supervisor::Error),
    /// QEMU's control socket.
    #[error(transparent)]
    Qmp(#[from] qmp::Error),
    /// A file of the machine.
    #[error("cannot write, read or remove the machine's {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A Secret that a volume names.
    #[error("Secret {namespace}/{name}: {reason}")]
    Secret {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// A light instance's recording or seed.
    #[error("light instance: {0}")]
    Light(String),
    /// A process ended while it was being started.
    #[error("{name} {state} as soon as it was started; its log is {log}")]
    Stillborn {
        /// The process.
        name: String,
        /// How it ended.
        state: State,
        /// Its log.
        log: PathBuf,
    },
}

/// A process of a machine, by its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// swtpm.
    Tpm,
    /// QEMU.
    Qemu,
    /// The host process that plays the guest of a light instance.
    Guest,
}

impl Part {
    const ALL: [Self; 3] = [Self::Guest, Self::Qemu, Self::Tpm];

    fn as_str(self) -> &'static str {
        match self {
            Self::Tpm => "tpm",
            Self::Qemu => "qemu",
            Self::Guest => "guest",
        }
    }
}

/// What a machine's processes are called: `vm-<instance uid>-<part>`.
const PREFIX: &str = "vm-";

/// uid of the instance that a supervised process belongs to, for names of ours.
pub fn owner_of(process: &str) -> Option<&str> {
    process.strip_prefix(PREFIX)?.rsplit_once('-').map(|(uid, _)| uid)
}

/// One machine.
pub struct Vm {
    id: Identity,
    weight: Weight,
    home: Home,
    shared: Arc<Shared>,
}

/// What is left of a machine when its hypervisor looks again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing was ever started, or all was wiped.
    Nothing,
    /// A start was interrupted before the main process.
    Partial,
    /// Its main process runs.
    Running,
    /// Its main process ended.
    Ended(End),
}

impl Vm {
    /// The machine of an instance, started or not.
    pub fn new(id: Identity, weight: Weight, shared: Arc<Shared>) -> Self {
        let home = Home::new(&shared.state, &id);
        Self { id, weight, home, shared }
    }

    /// How much stands behind the instance.
    pub fn weight(&self) -> Weight {
        self.weight
    }

    /// uid of the instance.
    pub fn uid(&self) -> &str {
        &self.id.uid
    }

    /// Checks that the store has an image for this weight.
    ///
    /// # Errors
    /// It has not.
    pub fn check_image(&self, reference: &str) -> Result<(), images::Error> {
        self.shared.host.images.check(reference, self.weight)
    }

    fn main(&self) -> Option<Part> {
        match self.weight {
            Weight::Full => Some(Part::Qemu),
            Weight::Light => Some(Part::Guest),
            Weight::Weightless => None,
        }
    }

    fn process(&self, part: Part) -> String {
        format!("{PREFIX}{}-{}", self.id.uid, part.as_str())
    }

    /// Looks for what an earlier life of this program left.
    ///
    /// # Errors
    /// The supervisor does not answer.
    pub async fn find(&self) -> Result<Found, Error> {
        let Some(main) = self.main() else { return Ok(Found::Nothing) };
        match self.shared.supervisor.status(&self.process(main)).await {
            Ok(status) if status.state.is_running() => Ok(Found::Running),
            Ok(status) => Ok(Found::Ended(self.end(main, status.state))),
            Err(error) if error.is_not_found() && self.home.folder().exists() => Ok(Found::Partial),
            Err(error) if error.is_not_found() => Ok(Found::Nothing),
            Err(error) => Err(error.into()),
        }
    }

    /// Starts the machine; what an interrupted start left is used again or replaced. The endorsement report is written
    /// before the machine's first instruction.
    ///
    /// # Errors
    /// Anything that is missing or refused; may be tried again.
    pub async fn start(&self, instance: &VirtualMachineInstance) -> Result<(), Error> {
        match self.weight {
            Weight::Full => self.start_full(instance).await,
            Weight::Light => self.start_light(instance).await,
            Weight::Weightless => Ok(()),
        }
    }

    /// Waits for the end of the machine, which may never come.
    pub async fn ended(&self) -> End {
        let Some(main) = self.main() else { return std::future::pending().await };
        loop {
            match self.shared.supervisor.wait(&self.process(main)).await {
                Ok(status) => return self.end(main, status.state),
                Err(error) if error.is_not_found() => return End::Failed(error.to_string()),
                // Not being able to ask says nothing about the machine; it must not be wiped for that.
                Err(error) => tracing::warn!(%error, "cannot watch a machine"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    fn end(&self, main: Part, state: State) -> End {
        match state {
            // QEMU and the light guest end with 0 after the guest's own power-off, and only then.
            State::Exited { code: 0 } => End::PoweredOff,
            other => End::Failed(format!("{} {other}; its log is {}", main.as_str(), self.log(main).display())),
        }
    }

    /// Presses the power button; a guest may ignore it.
    ///
    /// # Errors
    /// The machine cannot be reached, for example because it just ended.
    pub async fn press_power(&self) -> Result<(), Error> {
        match self.weight {
            Weight::Full => {
                let mut qmp = qmp::Qmp::connect(&self.home.qmp()).await?;
                qmp.execute("system_powerdown").await?;
                Ok(())
            }
            Weight::Light => Ok(self.shared.supervisor.signal(&self.process(Part::Guest), Signal::Term).await?),
            Weight::Weightless => Ok(()),
        }
    }

    /// Ends every process of the machine at once, the guest first.
    ///
    /// # Errors
    /// The supervisor does not answer.
    pub async fn kill(&self) -> Result<(), Error> {
        if self.weight == Weight::Weightless {
            return Ok(());
        }
        for part in Part::ALL {
            let name = self.process(part);
            match self.shared.supervisor.stop(&name, Signal::Kill, Duration::ZERO).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Ends what still runs and removes all state, the vTPM's first, then the supervisor's records. Until the last of
    /// these is done a restarted hypervisor finds the machine and wipes again.
    ///
    /// # Errors
    /// The supervisor does not answer, or a file cannot be removed.
    pub async fn wipe(&self) -> Result<(), Error> {
        self.kill().await?;
        if self.weight == Weight::Weightless {
            return Ok(());
        }
        self.home.remove()?;
        for part in Part::ALL {
            match self.shared.supervisor.forget(&self.process(part)).await {
                Ok(()) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn log(&self, part: Part) -> PathBuf {
        self.home.log(part.as_str())
    }

    /// Makes the vTPM's state once, and reports its keys. State that was reported is never made anew: the report is
    /// immutable, and another key would lock the instance out.
    async fn endorse(&self) -> Result<(), Error> {
        let digests = match self.home.endorsement()? {
            Some(digests) => digests,
            None => {
                self.home.clear_tpm()?;
                swtpm::manufacture(&self.home.tpm()).await?;
                let digests = swtpm::endorsement_digests(&self.home.tpm()).await?;
                let digests: Vec<String> = digests.iter().map(hex::encode).collect();
                self.home.record_endorsement(&digests)?;
                digests
            }
        };
        Ok(self.shared.reporter.ensure(&self.id, &digests).await?)
    }

    async fn secret(&self, name: &str) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        let failed =
            |reason: String| Error::Secret { namespace: self.id.namespace.clone(), name: name.to_owned(), reason };
        let secrets: Api<Secret> = Api::namespaced(self.shared.client.clone(), &self.id.namespace);
        let secret = secrets.get(name).await.map_err(|error| failed(error.to_string()))?;
        Ok(secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect())
    }

    /// Fails when a process that was just started is over already.
    async fn check_alive(&self, part: Part) -> Result<(), Error> {
        let name = self.process(part);
        let status = self.shared.supervisor.status(&name).await?;
        if status.state.is_running() {
            return Ok(());
        }
        Err(Error::Stillborn { name, state: status.state, log: status.log })
    }

    /// Ends and forgets a process left by an interrupted start, so that its name is free.
    async fn clear(&self, part: Part) -> Result<(), Error> {
        let name = self.process(part);
        match self.shared.supervisor.stop(&name, Signal::Kill, Duration::ZERO).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn accelerator(&self, disk: &std::path::Path) -> Result<Accelerator, Error> {
        let _alone = self.shared.probe.lock().await;
        accel::choose(disk).await.map_err(|source| Error::File { path: disk.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_lead_back_to_their_instance() {
        assert_eq!(
            owner_of("vm-5d307ca9-b3ef-428c-8861-06e72d69f223-qemu"),
            Some("5d307ca9-b3ef-428c-8861-06e72d69f223")
        );
        assert_eq!(owner_of("kube-apiserver"), None);
    }
}
