//! Identity providers alone, for tests that need no Kubernetes.

use std::collections::BTreeMap;
use std::path::Path;

use banlieue_supervisor::{KEEP_LOGS, Launch, Signal, Supervisor};

use super::{DexConfig, OidcConfig, Provider};
use crate::builder::fresh;
use crate::error::Result;
use crate::process::Processes;
use crate::programs::binary;

/// Runs identity providers under a supervisor of its own. They end when this is dropped; when a test panics, their logs
/// stay.
pub struct Host {
    processes: Processes,
    _supervisor: Supervisor,
}

impl Host {
    /// Starts the supervisor, in a fresh directory.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start() -> Result<Self> {
        let dir = fresh()?;
        let launch =
            Launch { program: binary("banlieue-supervisor")?, dir: dir.clone(), lifeline: true, keep_logs: false };
        let supervisor = launch.start().await?;
        let processes = Processes::new(dir, supervisor.client().clone(), BTreeMap::new(), Box::new(|_| ()));
        Ok(Self { processes, _supervisor: supervisor })
    }

    /// As [`crate::Cluster::start_oidc`].
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_oidc(&self, config: OidcConfig) -> Result<Provider> {
        super::oidc(&self.processes, config).await
    }

    /// As [`crate::Cluster::start_dex`].
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_dex(&self, config: DexConfig) -> Result<Provider> {
        super::dex(&self.processes, config).await
    }

    /// The directory with configurations, certificates and `log/`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.processes.dir
    }

    /// Sends a signal to a provider's process. With [`Signal::Kill`], returns when it is gone.
    ///
    /// # Errors
    /// When no such process runs.
    pub async fn kill(&self, component: &str, signal: Signal) -> Result<()> {
        self.processes.kill(component, signal).await
    }

    /// Starts a provider again, on its port and with what its configuration says; its keys and sessions are new.
    ///
    /// # Errors
    /// When it was never started here.
    pub async fn restart(&self, component: &str) -> Result<()> {
        self.processes.restart(component).await
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = std::fs::write(self.processes.dir.join(KEEP_LOGS), "");
            eprintln!("the providers' logs stay in {}", self.processes.dir.display());
        }
    }
}
