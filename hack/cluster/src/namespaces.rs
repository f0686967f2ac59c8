//! Our namespaces, and what the charts install.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::apply::{self, Manifests};
use crate::error::{Error, Result};
use crate::process::Processes;
use crate::programs::repository;

/// Issuer of people who claim without a broker: the API server's own token file. Their subject's id is their user name.
pub const ISSUER: &str = "https://kubernetes.default.svc";

/// Installs both charts, and makes `sandboxes` a pool namespace.
pub(crate) async fn install(processes: &Processes, admin: &Client) -> Result<()> {
    processes
        .step("definitions, roles and policies", async || {
            Manifests::parse("manifests/base.yaml", include_str!("../manifests/base.yaml"))?.apply(admin).await?;
            for folder in ["charts/banlieue-crds/crds", "charts/banlieue/files"] {
                let manifests = apply::folder(&repository().join(folder))?;
                futures::future::try_join_all(manifests.into_iter().map(|it| it.apply(admin))).await?;
            }
            futures::try_join!(pool_namespace(admin, "sandboxes"), know_people(admin))?;
            Ok(())
        })
        .await
}

/// Makes a namespace one that may hold pools: roles of our programs and of people.
pub(crate) async fn pool_namespace(admin: &Client, name: &str) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    Manifests::parse("namespace", &namespace.to_string())?.apply(admin).await?;
    let mut manifests = apply::folder(&repository().join("charts/banlieue/pool-namespace"))?;
    manifests.push(Manifests::parse("manifests/people.yaml", include_str!("../manifests/people.yaml"))?);
    for manifest in manifests {
        manifest.within(name).apply(admin).await?;
    }
    Ok(())
}

/// Lets the policies know the people of the token file.
async fn know_people(admin: &Client) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "banlieue-system");
    let act = "write ConfigMap banlieue-admission";
    if maps.get_opt("banlieue-admission").await.map_err(Error::api(act))?.is_none() {
        return Ok(());
    }
    let people = json!({"data": {"issuer": ISSUER, "usernamePrefix": ""}});
    maps.patch("banlieue-admission", &PatchParams::default(), &Patch::Merge(&people)).await.map_err(Error::api(act))?;
    Ok(())
}
