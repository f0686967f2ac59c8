//! KubeVirt's control plane without its operator: definitions, rights, virt-api with its webhooks, virt-controller.

use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::json;

use crate::apply::{self, Manifests};
use crate::error::{Error, Result};
use crate::identity::{Identities, Identity};
use crate::process::{Processes, until};
use crate::programs::tool;
use crate::{component, probe};

/// Where KubeVirt lives.
const NAMESPACE: &str = "kubevirt";
/// What the operator would take from its own images. Nothing is ever pulled: the local hypervisor plays the pod.
const LAUNCHER_IMAGE: &str = "registry.local/kubevirt/virt-launcher:v1.8.0";
const EXPORTER_IMAGE: &str = "registry.local/kubevirt/virt-exportserver:v1.8.0";

/// What KubeVirt's own generators print. Takes a second, so it is asked for while the API server starts.
pub(crate) struct Printed {
    definitions: String,
    rights: String,
}

impl Printed {
    pub async fn new() -> Result<Self> {
        let rights = ["rbac", "apiserver", "controller", "handler"];
        let (definitions, rights) = futures::try_join!(printed(&["crds"]), printed(&rights))?;
        Ok(Self { definitions, rights })
    }
}

/// Installs and starts it; ready when a VirtualMachineInstance would be admitted and acted on.
pub(crate) async fn start(
    printed: &Printed,
    processes: &Processes,
    identities: &Identities,
    admin: &Client,
) -> Result<()> {
    let serving = identities.authority.server(
        &processes.dir.join("pki"),
        "kubevirt",
        &["virt-api.kubevirt.svc", "kubevirt-controller.kubevirt.svc"],
    )?;
    let shared = Shared { processes, identities, admin, serving };
    shared.rights(printed).await?;
    let rest = async {
        shared.definitions(printed).await?;
        shared.virt_controller().await
    };
    // virt-api computes for five seconds before it looks at the cluster: long enough for the definitions to be there.
    futures::try_join!(shared.virt_api(), rest)?;
    shared.webhooks_act().await
}

struct Shared<'a> {
    processes: &'a Processes,
    identities: &'a Identities,
    admin: &'a Client,
    serving: crate::pki::Pair,
}

impl Shared<'_> {
    async fn rights(&self, printed: &Printed) -> Result<()> {
        let base = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        Manifests::parse("namespace", &base.to_string())?.apply(self.admin).await?;
        let authority = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubevirt-ca", "namespace": NAMESPACE},
            "data": {"ca-bundle": self.identities.authority.pem},
        });
        Manifests::parse("kubevirt-ca", &authority.to_string())?
            .and(Manifests::parse("kubevirt-manifests rbac", &printed.rights)?)
            .and(Manifests::parse("manifests/kubelet.yaml", include_str!("../manifests/kubelet.yaml"))?)
            .apply(self.admin)
            .await
    }

    async fn definitions(&self, printed: &Printed) -> Result<()> {
        self.processes
            .step("KubeVirt's definitions", async || {
                apply::create_definitions(self.admin, &printed.definitions).await?;
                let kubevirt = json!({
                    "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
                    "metadata": {"name": "kubevirt", "namespace": NAMESPACE},
                    "spec": {"configuration": {"developerConfiguration": {"useEmulation": true}}},
                });
                Manifests::parse("KubeVirt", &kubevirt.to_string())?.apply(self.admin).await?;
                deployed(self.admin).await
            })
            .await
    }
}

/// What the operator reports when all is in place, which tools look at before they trust an installation.
async fn deployed(admin: &Client) -> Result<()> {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kubevirt.io", "v1", "KubeVirt"), "kubevirts");
    let api: Api<DynamicObject> = Api::namespaced_with(admin.clone(), NAMESPACE, &resource);
    // The names that Go has for them, which KubeVirt uses.
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let status = json!({"status": {
        "phase": "Deployed",
        "observedKubeVirtVersion": "v1.8.0",
        "targetKubeVirtVersion": "v1.8.0",
        // The webhook gives it to instances that name none.
        "defaultArchitecture": architecture,
    }});
    let patched = api.patch_status("kubevirt", &PatchParams::default(), &Patch::Merge(&status)).await;
    patched.map_err(Error::api("write the KubeVirt object's status"))?;
    Ok(())
}

/// What `kubevirt-manifests` prints.
async fn printed(args: &[&str]) -> Result<String> {
    let program = tool("kubevirt-manifests")?;
    let source = format!("kubevirt-manifests {}", args.join(" "));
    let wrong = |what: String| Error::Manifest { path: source.clone(), what };
    let output = tokio::process::Command::new(&program).args(args).kill_on_drop(true).output().await;
    let output = output.map_err(|error| wrong(error.to_string()))?;
    if !output.status.success() {
        return Err(wrong(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    String::from_utf8(output.stdout).map_err(|error| wrong(error.to_string()))
}

impl Shared<'_> {
    async fn virt_api(&self) -> Result<()> {
        let program = tool(component::VIRT_API)?;
        let kubeconfig = self.identities.kubeconfig(&Identity::VirtApi, Some(self.admin)).await?;
        let authority = &self.identities.authority;
        let port = self
            .processes
            .start_on_port(
                |port| {
                    let args = [
                        format!("--kubeconfig={}", kubeconfig.display()),
                        format!("--port={port}"),
                        "--listen=127.0.0.1".into(),
                        self.serving.cert_flag("tls-cert-file"),
                        self.serving.key_flag("tls-key-file"),
                        self.serving.cert_flag("handler-cert-file"),
                        self.serving.key_flag("handler-key-file"),
                    ];
                    let mut spec = self.processes.spec(component::VIRT_API, &program, args);
                    spec.env.insert("POD_NAMESPACE".into(), NAMESPACE.into());
                    Ok(spec)
                },
                async |port| match probe::client(&format!("https://127.0.0.1:{port}"), Some(&authority.der)) {
                    Some(probe) => probe::answers(&probe, "/apis/subresources.kubevirt.io/v1/healthz").await,
                    None => false,
                },
            )
            .await?;
        let url = format!("https://127.0.0.1:{port}");
        let authority = authority.path.display().to_string();
        let webhooks = printed(&["webhooks", "-url", &url, "-ca", &authority]).await?;
        Manifests::parse("kubevirt-manifests webhooks", &webhooks)?.apply(self.admin).await
    }

    /// The API server learns of webhooks by watch; an instance that slips in before has no finalizer.
    async fn webhooks_act(&self) -> Result<()> {
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstance"),
            "virtualmachineinstances",
        );
        let api: Api<DynamicObject> = Api::namespaced_with(self.admin.clone(), "default", &resource);
        let mut probe = DynamicObject::new("webhook-probe", &resource);
        probe.data = json!({"spec": {
            "domain": {
                "memory": {"guest": "64Mi"},
                "machine": {"type": "q35"},
                "devices": {"interfaces": [{"name": "default", "masquerade": {}}]},
            },
            "networks": [{"name": "default", "pod": {}}],
        }});
        let params = kube::api::PostParams { dry_run: true, field_manager: None };
        let said = Mutex::new(String::new());
        let acted = until("KubeVirt's webhooks act", async || {
            let answer = match api.create(&params, &probe).await {
                Ok(seen) if seen.metadata.finalizers.as_ref().is_some_and(|it| !it.is_empty()) => return true,
                Ok(_) => "an instance got no finalizer".to_owned(),
                Err(error) => error.to_string(),
            };
            *said.lock().unwrap_or_else(PoisonError::into_inner) = answer;
            false
        });
        acted.await.map_err(|_| {
            let said = said.lock().unwrap_or_else(PoisonError::into_inner);
            Error::Waited(format!("KubeVirt's webhooks act; the last answer was: {said}"))
        })
    }

    async fn virt_controller(&self) -> Result<()> {
        let program = tool(component::VIRT_CONTROLLER)?;
        let kubeconfig = self.identities.kubeconfig(&Identity::VirtController, Some(self.admin)).await?;
        let authority = &self.identities.authority;
        self.processes
            .start_on_port(
                |port| {
                    let args = [
                        format!("--kubeconfig={}", kubeconfig.display()),
                        format!("--launcher-image={LAUNCHER_IMAGE}"),
                        format!("--exporter-image={EXPORTER_IMAGE}"),
                        format!("--port={port}"),
                        "--listen=127.0.0.1".into(),
                        self.serving.cert_flag("prom-cert-file"),
                        self.serving.key_flag("prom-key-file"),
                    ];
                    let mut spec = self.processes.spec(component::VIRT_CONTROLLER, &program, args);
                    spec.env.insert("POD_NAMESPACE".into(), NAMESPACE.into());
                    Ok(spec)
                },
                async |port| match probe::client(&format!("https://127.0.0.1:{port}"), Some(&authority.der)) {
                    // Ready before it leads is not enough: only the leader acts.
                    Some(probe) => probe::answers(&probe, "/healthz").await && self.leads().await,
                    None => false,
                },
            )
            .await?;
        Ok(())
    }

    async fn leads(&self) -> bool {
        let leases: Api<Lease> = Api::namespaced(self.admin.clone(), NAMESPACE);
        let Ok(Some(lease)) = leases.get_opt("virt-controller").await else { return false };
        lease.spec.and_then(|it| it.holder_identity).is_some_and(|it| !it.is_empty())
    }
}
