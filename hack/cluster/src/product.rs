//! Our own programs, each under its own service account.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};

use crate::error::{Error, Result};
use crate::identity::{Identities, Identity};
use crate::process::Processes;
use crate::programs::{binary, images, tool};
use crate::settings::Settings;
use crate::spire::Spire;
use crate::{component, probe};

/// Where a guest finds spire-server: an address in QEMU's user-mode network that the hypervisor forwards.
const GUEST_SPIRE: &str = "10.0.2.100:8081";

pub(crate) struct Product<'a> {
    pub processes: &'a Processes,
    pub identities: &'a Identities,
    pub admin: &'a Client,
    pub settings: &'a Settings,
    pub spire: Option<&'a Spire>,
}

/// A copy of one of our programs inside the cluster's directory. It stays what it was when somebody builds again while
/// the cluster runs, and its path is what SPIRE's selectors name.
pub(crate) fn installed(dir: &Path, name: &str) -> Result<PathBuf> {
    let source = binary(name)?;
    let target = dir.join("bin").join(name);
    if target.exists() {
        return Ok(target);
    }
    let folder = dir.join("bin");
    std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
    if std::fs::hard_link(&source, &target).is_err() {
        std::fs::copy(&source, &target).map_err(Error::write(&target))?;
    }
    Ok(target)
}

impl Product<'_> {
    /// Starts the hypervisor and waits until its nodes are Ready. `nodes` as its flag: `full-1=full,w-1=weightless`.
    pub async fn hypervisor(&self, nodes: &str) -> Result<()> {
        let dir = &self.processes.dir;
        // Not a copy: measurements of light members name this program by path.
        let program = binary(component::HYPERVISOR)?;
        let kubeconfig = self.identities.kubeconfig(&Identity::Hypervisor, Some(self.admin)).await?;
        let mut args = vec![
            "--kubeconfig".to_owned(),
            kubeconfig.display().to_string(),
            "--supervisor".into(),
            dir.display().to_string(),
            "--images".into(),
            images().display().to_string(),
            "--nodes".into(),
            nodes.to_owned(),
            "--state".into(),
            dir.join("vm").display().to_string(),
        ];
        if let Some(spire) = self.spire {
            args.extend(["--allow".into(), format!("{GUEST_SPIRE}=127.0.0.1:{}", spire.port)]);
        }
        // Both for light instances only; the hypervisor says what is missing when one is started.
        for (flag, program) in
            [("--spire-agent", tool("spire-agent")), ("--attestor-guest", binary("banlieue-attestor-guest"))]
        {
            if let Ok(program) = program {
                args.extend([flag.into(), program.display().to_string()]);
            }
        }
        let names: Vec<String> = nodes.split(',').filter_map(|it| Some(it.split('=').next()?.to_owned())).collect();
        let api: Api<Node> = Api::all(self.admin.clone());
        self.processes
            .start(self.processes.spec(component::HYPERVISOR, &program, args), async || {
                for name in &names {
                    let Ok(node) = api.get(name).await else { return false };
                    let conditions = node.status.and_then(|it| it.conditions).unwrap_or_default();
                    if !conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True") {
                        return false;
                    }
                }
                true
            })
            .await
    }

    /// Starts the controller; ready when its caches are.
    pub async fn controller(&self) -> Result<()> {
        let program = installed(&self.processes.dir, component::CONTROLLER)?;
        let mut args = vec!["run".to_owned()];
        args.extend(["--trust-domain".into(), self.settings.trust_domain.clone()]);
        args.extend(["--cluster".into(), self.settings.cluster.clone()]);
        args.extend(["--system-namespace".into(), "banlieue-system".into()]);
        args.extend(["--bundle-configmap".into(), "spire-bundle".into()]);
        args.extend(["--spire-server".into(), GUEST_SPIRE.into()]);
        // The supervisor never runs two of one name, so one that starts again takes its own lease at once.
        args.extend(["--identity".into(), component::CONTROLLER.into()]);
        args.extend(["--agent-ttl-seconds".into(), self.settings.agent_ttl.as_secs().to_string()]);
        self.serve(component::CONTROLLER, &program, &Identity::Controller, args).await
    }

    /// Starts the attestor controller.
    pub async fn attestor_controller(&self) -> Result<()> {
        let Some(spire) = self.spire else {
            return Err(Error::Missing("the attestor controller needs SPIRE: add .spire() to the builder".into()));
        };
        let program = installed(&self.processes.dir, "banlieue-attestor")?;
        let mut args = vec!["controller".to_owned()];
        args.extend(["--spire-server".into(), format!("127.0.0.1:{}", spire.port)]);
        args.extend(["--workload-api".into(), format!("unix://{}", spire.workload_api.display())]);
        args.extend(["--trust-domain".into(), self.settings.trust_domain.clone()]);
        args.extend(["--cluster".into(), self.settings.cluster.clone()]);
        // As for the controller: one that starts again takes its own lease at once.
        args.extend(["--identity".into(), component::ATTESTOR_CONTROLLER.into()]);
        self.serve(component::ATTESTOR_CONTROLLER, &program, &Identity::AttestorController, args).await
    }

    async fn serve(&self, name: &str, program: &Path, who: &Identity, args: Vec<String>) -> Result<()> {
        let kubeconfig = self.identities.kubeconfig(who, Some(self.admin)).await?;
        self.processes
            .start_on_port(
                |port| {
                    let mut args = args.clone();
                    args.extend(["--metrics".into(), format!("127.0.0.1:{port}")]);
                    let mut spec = self.processes.spec(name, program, args);
                    spec.env.insert("KUBECONFIG".into(), kubeconfig.display().to_string());
                    spec.env.entry("RUST_LOG".into()).or_insert_with(|| "info".into());
                    Ok(spec)
                },
                async |port| match probe::client(&format!("http://127.0.0.1:{port}"), None) {
                    Some(client) => probe::answers(&client, "/readyz").await,
                    None => false,
                },
            )
            .await?;
        Ok(())
    }
}
