//! Which parts a cluster has, and starting them in an order that overlaps.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use banlieue_supervisor::{KEEP_LOGS, Launch, Supervisor};
use kube::Client;

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::identity::Identities;
use crate::process::{Extra, Processes};
use crate::product::{Product, installed};
use crate::programs::binary;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::{control_plane, kubevirt, namespaces, spire};

/// A cluster to be started. Begins as a control plane with our definitions and roles; each call adds a part and what
/// that part needs.
pub struct Builder {
    dir: Option<PathBuf>,
    kubevirt: bool,
    spire: bool,
    attestor: bool,
    controller: bool,
    nodes: Option<String>,
    fsync: bool,
    settings: Settings,
    extra: BTreeMap<String, Extra>,
    progress: Box<dyn Fn(&Progress) + Send + Sync>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            dir: None,
            kubevirt: false,
            spire: false,
            attestor: false,
            controller: false,
            nodes: None,
            fsync: false,
            settings: Settings::default(),
            extra: BTreeMap::new(),
            progress: Box::new(|_| ()),
        }
    }
}

impl Cluster {
    /// A cluster to be described and started.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Only etcd, kube-apiserver, kube-controller-manager and kube-scheduler, which is what a new builder has anyway.
    #[must_use]
    pub fn control_plane(self) -> Self {
        self
    }

    /// KubeVirt's definitions, webhooks and controllers.
    #[must_use]
    pub fn kubevirt(mut self) -> Self {
        self.kubevirt = true;
        self
    }

    /// spire-server, with its bundle in ConfigMap `banlieue-system/spire-bundle`, and the agent beside it.
    #[must_use]
    pub fn spire(mut self) -> Self {
        self.spire = true;
        self
    }

    /// Our plugin in spire-server, and the attestor controller.
    #[must_use]
    pub fn attestor(mut self) -> Self {
        self.spire = true;
        self.attestor = true;
        self
    }

    /// Nodes of the local hypervisor: `full-1=full,light-1=light,w-1=weightless`.
    #[must_use]
    pub fn nodes(mut self, nodes: impl Into<String>) -> Self {
        self.kubevirt = true;
        self.nodes = Some(nodes.into());
        self
    }

    /// Our controller.
    #[must_use]
    pub fn controller(mut self) -> Self {
        self.kubevirt = true;
        self.controller = true;
        self
    }

    /// A directory of the caller's choice, absent or empty, at most 60 bytes long; a fresh one under the temporary
    /// folder by default. It is removed with the cluster.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Lets etcd wait for the disk as a real one does. For benchmarks.
    #[must_use]
    pub fn fsync(mut self) -> Self {
        self.fsync = true;
        self
    }

    /// Lifetime of agent SVIDs, 10 minutes by default.
    #[must_use]
    pub fn agent_ttl(mut self, ttl: Duration) -> Self {
        self.settings.agent_ttl = ttl;
        self
    }

    /// Lifetime of workload SVIDs, 5 minutes by default.
    #[must_use]
    pub fn svid_ttl(mut self, ttl: Duration) -> Self {
        self.settings.svid_ttl = ttl;
        self
    }

    /// More arguments for one component ([`crate::component`]), after those it gets anyway.
    #[must_use]
    pub fn args<S: Into<String>>(mut self, component: &str, args: impl IntoIterator<Item = S>) -> Self {
        let extra = self.extra.entry(component.to_owned()).or_default();
        extra.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// A variable in one component's environment.
    #[must_use]
    pub fn env(mut self, component: &str, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.extra.entry(component.to_owned()).or_default().env.insert(name.into(), value.into());
        self
    }

    /// Called as parts begin and become ready; [`crate::progress::print`] for a person at a terminal.
    #[must_use]
    pub fn progress(mut self, report: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.progress = Box::new(report);
        self
    }

    /// Starts everything and returns when all of it is ready.
    ///
    /// # Errors
    /// The first part that fails, with the path of its log, which then stays. Everything else is ended.
    pub async fn start(self) -> Result<Cluster> {
        let dir = match self.dir {
            Some(dir) => dir,
            None => fresh()?,
        };
        let program = binary("banlieue-supervisor")?;
        let launch = Launch { program, dir: dir.clone(), lifeline: true, keep_logs: false };
        let supervisor = launch.start().await?;
        let processes = Processes::new(dir.clone(), supervisor.client().clone(), self.extra, self.progress);
        let parts = Parts {
            kubevirt: self.kubevirt,
            spire: self.spire,
            attestor: self.attestor,
            controller: self.controller,
            nodes: self.nodes,
            fsync: self.fsync,
            settings: self.settings,
        };
        match parts.start(&processes).await {
            Ok(Started { identities, admin, spire }) => {
                Ok(Cluster::new(dir, supervisor, processes, identities, admin, spire, parts.settings))
            }
            Err(error) => {
                fail(&dir, supervisor);
                Err(error)
            }
        }
    }
}

/// Ends a cluster that did not come up, apart from its logs.
fn fail(dir: &std::path::Path, supervisor: Supervisor) {
    let _ = std::fs::write(dir.join(KEEP_LOGS), "");
    drop(supervisor);
}

/// A new directory, short enough for sockets in it.
pub(crate) fn fresh() -> Result<PathBuf> {
    // Unix sockets allow 107 bytes for their whole path: a long TMPDIR is no place for them.
    let parent = std::env::temp_dir();
    let parent = if parent.as_os_str().len() > 40 { PathBuf::from("/tmp") } else { parent };
    let made = tempfile::Builder::new().prefix("banlieue-").rand_bytes(6).tempdir_in(&parent);
    Ok(made.map_err(Error::write(&parent))?.keep())
}

struct Parts {
    kubevirt: bool,
    spire: bool,
    attestor: bool,
    controller: bool,
    nodes: Option<String>,
    fsync: bool,
    settings: Settings,
}

struct Started {
    identities: Identities,
    admin: Client,
    spire: Option<spire::Spire>,
}

impl Parts {
    async fn start(&self, processes: &Processes) -> Result<Started> {
        let printed = async { if self.kubevirt { kubevirt::Printed::new().await.map(Some) } else { Ok(None) } };
        let ((identities, admin), printed) =
            futures::try_join!(control_plane::api_server(processes, self.fsync), printed)?;
        let plugin = if self.attestor { Some(installed(&processes.dir, "banlieue-attestor")?) } else { None };
        let ((), (), (), spire) = futures::try_join!(
            control_plane::controller_manager(processes, &identities),
            control_plane::scheduler(processes, &identities),
            async {
                match &printed {
                    Some(printed) => kubevirt::start(printed, processes, &identities, &admin).await,
                    None => Ok(()),
                }
            },
            async {
                namespaces::install(processes, &admin).await?;
                if !self.spire {
                    return Ok(None);
                }
                spire::start(processes, &identities, &admin, &self.settings, plugin.as_deref()).await.map(Some)
            },
        )?;
        let product = Product {
            processes,
            identities: &identities,
            admin: &admin,
            settings: &self.settings,
            spire: spire.as_ref(),
        };
        futures::try_join!(
            async { if let Some(nodes) = &self.nodes { product.hypervisor(nodes).await } else { Ok(()) } },
            async { if self.controller { product.controller().await } else { Ok(()) } },
            async { if self.attestor { product.attestor_controller().await } else { Ok(()) } },
        )?;
        Ok(Started { identities, admin, spire })
    }
}
