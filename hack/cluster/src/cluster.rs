//! A running cluster.

use std::path::{Path, PathBuf};

use banlieue_supervisor::{Client as SupervisorClient, KEEP_LOGS, Signal, State, Status, Supervisor};
use kube::Client;

use crate::audit::Audit;
use crate::error::{Error, Result};
use crate::identity::{self, Identities, Identity};
use crate::idp::{self, DexConfig, OidcConfig, Provider};
use crate::probe;
use crate::process::{Processes, until};
use crate::product::Product;
use crate::settings::Settings;
use crate::spire::Spire;

/// A running cluster. It ends when this is dropped or the process ends, however it ends, unless it is [kept](Self::keep).
/// When a test panics, its logs stay.
pub struct Cluster {
    dir: PathBuf,
    // None only once it was stopped or kept.
    supervisor: Option<Supervisor>,
    processes: Processes,
    identities: Identities,
    admin: Client,
    spire: Option<Spire>,
    settings: Settings,
}

impl Cluster {
    pub(crate) fn new(
        dir: PathBuf,
        supervisor: Supervisor,
        processes: Processes,
        identities: Identities,
        admin: Client,
        spire: Option<Spire>,
        settings: Settings,
    ) -> Self {
        Self { dir, supervisor: Some(supervisor), processes, identities, admin, spire, settings }
    }

    /// The cluster's directory: `log/`, `kubeconfig/`, `audit.log`, `supervisor.sock`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// URL of the API server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.identities.endpoint.url
    }

    /// A port on 127.0.0.1 that no other cluster is given, for a program of a test that has to say beforehand where it
    /// will listen.
    ///
    /// # Errors
    /// When none is free.
    pub fn port(&self) -> Result<u16> {
        self.processes.ports.take()
    }

    /// The log of a component.
    #[must_use]
    pub fn log(&self, component: &str) -> PathBuf {
        self.processes.log(component)
    }

    /// Names that components agreed on.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where SPIRE answers.
    ///
    /// # Errors
    /// When the cluster has none.
    pub fn spire(&self) -> Result<&Spire> {
        self.spire
            .as_ref()
            .ok_or_else(|| Error::Missing("this cluster has no SPIRE: add .spire() to its builder".into()))
    }

    /// The kubeconfig of an identity, made when it is first asked for.
    ///
    /// # Errors
    /// When the service account or node does not exist.
    pub async fn kubeconfig(&self, who: &Identity) -> Result<PathBuf> {
        self.identities.kubeconfig(who, Some(&self.admin)).await
    }

    /// A new client that acts as `who`.
    ///
    /// # Errors
    /// As [`Self::kubeconfig`].
    pub async fn kube(&self, who: &Identity) -> Result<Client> {
        identity::client(&self.kubeconfig(who).await?).await
    }

    /// The harness's own client, a cluster admin. No part of the product uses it.
    #[must_use]
    pub fn admin(&self) -> Client {
        self.admin.clone()
    }

    /// Applies YAML documents as cluster admin.
    ///
    /// # Errors
    /// When a document is broken or refused.
    pub async fn apply(&self, text: &str) -> Result<()> {
        crate::apply::Manifests::parse("manifest", text)?.apply(&self.admin).await
    }

    /// Makes another namespace that may hold pools, like `sandboxes`.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn pool_namespace(&self, name: &str) -> Result<()> {
        crate::namespaces::pool_namespace(&self.admin, name).await
    }

    /// The audit log up to now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn audit(&self) -> Result<Audit> {
        Audit::read(&self.dir.join("audit.log"))
    }

    /// The metrics of one of our programs ([`crate::component`]), as a scraper gets them.
    ///
    /// # Errors
    /// When it was not started here, or does not answer.
    pub async fn metrics(&self, component: &str) -> Result<String> {
        let missing = || Error::Missing(format!("{component} serves no metrics in this cluster"));
        let client = probe::client(&self.health_url(component)?, None).ok_or_else(missing)?;
        probe::text(&client, "/metrics").await.ok_or_else(missing)
    }

    /// Where one of our programs serves `/livez`, `/readyz` and `/metrics`, without a slash at the end.
    ///
    /// # Errors
    /// When it was not started here.
    pub fn health_url(&self, component: &str) -> Result<String> {
        let missing = || Error::Missing(format!("{component} serves no metrics in this cluster"));
        Ok(format!("http://{}", self.processes.flag(component, "--metrics").ok_or_else(missing)?))
    }

    /// Talks to the supervisor, for processes of a test's own.
    #[must_use]
    pub fn supervisor(&self) -> &SupervisorClient {
        &self.processes.supervisor
    }

    /// Every process of the cluster, ended ones included.
    ///
    /// # Errors
    /// When the cluster is gone.
    pub async fn components(&self) -> Result<Vec<Status>> {
        Ok(self.processes.supervisor.list().await?)
    }

    /// Sends a signal to a component ([`crate::component`]). With [`Signal::Kill`], returns when it is gone.
    ///
    /// # Errors
    /// When no such component runs.
    pub async fn kill(&self, component: &str, signal: Signal) -> Result<()> {
        self.processes.kill(component, signal).await
    }

    /// Starts a component again as it was, after ending it if it runs. Returns once it is started; what it must have
    /// done before a test goes on is for the test to wait for.
    ///
    /// # Errors
    /// When it was never started in this cluster.
    pub async fn restart(&self, component: &str) -> Result<()> {
        self.processes.restart(component).await
    }

    /// Starts nodes of the local hypervisor, in a cluster built without any.
    ///
    /// # Errors
    /// When the hypervisor does not become ready.
    pub async fn start_nodes(&self, nodes: &str) -> Result<()> {
        self.product().hypervisor(nodes).await
    }

    /// Starts the controller, in a cluster built without it.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_controller(&self) -> Result<()> {
        self.product().controller().await
    }

    /// Starts the attestor controller, in a cluster built without it.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_attestor_controller(&self) -> Result<()> {
        self.product().attestor_controller().await
    }

    /// Starts an OpenID provider. Give another `name` to start several.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_oidc(&self, config: OidcConfig) -> Result<Provider> {
        idp::oidc(&self.processes, config).await
    }

    /// Starts Dex. Give another `name` to start several.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_dex(&self, config: DexConfig) -> Result<Provider> {
        idp::dex(&self.processes, config).await
    }

    fn product(&self) -> Product<'_> {
        Product {
            processes: &self.processes,
            identities: &self.identities,
            admin: &self.admin,
            settings: &self.settings,
            spire: self.spire.as_ref(),
        }
    }

    /// Ends the cluster and returns when nothing of it is left.
    ///
    /// # Errors
    /// When a component had ended by itself: nobody should have to find that in a log.
    pub async fn stop(mut self) -> Result<()> {
        let ended = self.components().await.unwrap_or_default();
        // Processes that others started, those of machines for example, may end as they like.
        let crashed = ended.iter().find(|it| {
            matches!(it.state, State::Exited { code } if code != 0) && self.processes.is_component(&it.name)
        });
        let error = crashed.map(|it| Error::component(&it.name, it.state.to_string(), &it.log));
        if error.is_some() {
            let _ = std::fs::write(self.dir.join(KEEP_LOGS), "");
        }
        drop(self.supervisor.take());
        error.map_or(Ok(()), Err)
    }

    /// Ends the cluster and leaves its logs, for a person to read after a failure.
    pub fn abandon(mut self) -> PathBuf {
        let _ = std::fs::write(self.dir.join(KEEP_LOGS), "");
        drop(self.supervisor.take());
        self.dir.clone()
    }

    /// Lets the cluster outlive this process. [`down`] ends it.
    ///
    /// # Errors
    /// When the supervisor could not be told; then the cluster ends.
    pub async fn keep(mut self) -> Result<PathBuf> {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.detach().await?;
        }
        Ok(self.dir.clone())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.supervisor.is_some() && std::thread::panicking() {
            let _ = std::fs::write(self.dir.join(KEEP_LOGS), "");
            eprintln!("the cluster's logs stay in {}", self.dir.display());
        }
    }
}

/// Ends a cluster that was kept, and returns when nothing of it is left.
///
/// # Errors
/// When no cluster runs in that directory.
pub async fn down(dir: &Path) -> Result<()> {
    SupervisorClient::connect(dir).await?.shutdown().await?;
    // The socket goes when everything else has, and after it the directory, unless the supervisor's log is kept in it.
    let left = [banlieue_supervisor::SOCKET, banlieue_supervisor::LOG].map(|name| dir.join(name));
    until(&format!("the cluster in {} has ended", dir.display()), async || {
        let [socket, log] = &left;
        !socket.exists() && (log.exists() || !dir.exists())
    })
    .await
}
