//! Our namespaces, and what the charts install.

use banlieue_crds::names::{accounts, labels};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::apply::Manifests;
use crate::error::{Error, Result};
use crate::process::{Processes, until};
use crate::programs::repository;

/// Issuer of people who claim without a broker: the API server's own token file. Their subject's id is their user name.
pub const ISSUER: &str = "https://kubernetes.default.svc";

/// Installs both charts, and makes `sandboxes` a pool namespace.
pub(crate) async fn install(processes: &Processes, admin: &Client) -> Result<()> {
    processes
        .step("definitions, roles and policies", async || {
            Manifests::parse("manifests/base.yaml", include_str!("../manifests/base.yaml"))?
                .and(Manifests::folder(&repository().join("charts/banlieue-crds/crds"))?)
                .and(Manifests::folder(&repository().join("charts/banlieue/files"))?)
                .apply(admin)
                .await?;
            futures::try_join!(pool_namespace(admin, "sandboxes"), know_people(admin))?;
            policies_act(admin).await
        })
        .await
}

/// Makes a namespace one that may hold pools: roles of our programs and of people.
pub(crate) async fn pool_namespace(admin: &Client, name: &str) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    Manifests::parse("namespace", &namespace.to_string())?.apply(admin).await?;
    Manifests::folder(&repository().join("charts/banlieue/pool-namespace"))?
        .and(Manifests::parse("manifests/people.yaml", include_str!("../manifests/people.yaml"))?)
        .within(name)
        .apply(admin)
        .await?;
    rights_count(admin, name).await
}

/// The API server learns of new bindings from a watch of its own; until then it forbids what they allow.
async fn rights_count(admin: &Client, namespace: &str) -> Result<()> {
    let programs = [accounts::CONTROLLER, accounts::ATTESTOR, accounts::ATTESTOR_CONTROLLER, accounts::MEDIATORE];
    let users = programs.map(|account| SubjectAccessReviewSpec {
        user: Some(accounts::username(accounts::SYSTEM_NAMESPACE, account)),
        resource_attributes: Some(getting(namespace, "poolmembers")),
        ..SubjectAccessReviewSpec::default()
    });
    let groups = ["banlieue:pool-authors", "banlieue:operators", "banlieue:claimants"];
    let people = groups.map(|group| SubjectAccessReviewSpec {
        groups: Some(vec![group.to_owned()]),
        resource_attributes: Some(getting(namespace, "virtualmachineclaims")),
        ..SubjectAccessReviewSpec::default()
    });
    let reviews: Api<SubjectAccessReview> = Api::all(admin.clone());
    for spec in users.into_iter().chain(people) {
        let who = spec.user.clone().or_else(|| spec.groups.as_ref()?.first().cloned()).unwrap_or_default();
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        until(&format!("the rights of {who} in {namespace} count"), async || {
            let answer = reviews.create(&PostParams::default(), &review).await;
            answer.is_ok_and(|answer| answer.status.is_some_and(|status| status.allowed))
        })
        .await?;
    }
    Ok(())
}

fn getting(namespace: &str, resource: &str) -> ResourceAttributes {
    ResourceAttributes {
        group: Some("banlieue.io".to_owned()),
        namespace: Some(namespace.to_owned()),
        resource: Some(resource.to_owned()),
        verb: Some("get".to_owned()),
        ..ResourceAttributes::default()
    }
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

/// The API server compiles policies some time after it was given them; until then it refuses nothing.
async fn policies_act(admin: &Client) -> Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(admin.clone());
    let installed = policies.get_opt("member-objects.banlieue.io").await;
    if installed.map_err(Error::api("look for our admission policies"))?.is_none() {
        return Ok(());
    }
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "banlieue-system");
    let mut probe = ConfigMap::default();
    probe.metadata.name = Some("policy-probe".into());
    probe.metadata.labels = Some([(labels::POOL.to_owned(), "probe".to_owned())].into());
    let params = PostParams { dry_run: true, field_manager: None };
    until("our admission policies act", async || maps.create(&params, &probe).await.is_err()).await
}
