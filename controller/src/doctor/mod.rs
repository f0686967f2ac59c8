//! `banlieue-controller doctor`: does the cluster have what banlieue needs, and who could reach into a member?
//!
//! Reads only. Every finding is a line for a person; the exit code says whether something is wrong.

mod reach;
mod report;
mod rights;
mod settings;

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};

use crate::api::{chain, connect};
use crate::config::DoctorArgs;
use crate::run::{RunError, check_cluster, client_config};
use reach::{Binding, Rules, Subject, subjects};
use report::Report;

/// Our admission policies, as the chart names them.
const POLICIES: [&str; 8] = [
    "pools.banlieue.io",
    "members.banlieue.io",
    "claims.banlieue.io",
    "claim-limits.banlieue.io",
    "endorsement-reports.banlieue.io",
    "member-objects.banlieue.io",
    "no-way-in.banlieue.io",
    "denied-subjects.banlieue.io",
];

/// Our definitions.
const DEFINITIONS: [&str; 4] = [
    "virtualmachinepools.banlieue.io",
    "poolmembers.banlieue.io",
    "virtualmachineclaims.banlieue.io",
    "endorsementreports.banlieue.io",
];

/// Looks, prints, and answers whether nothing is wrong.
pub async fn doctor(args: DoctorArgs) -> Result<bool, RunError> {
    let config = client_config().await?;
    let url = config.cluster_url.to_string();
    let client = connect(config).map_err(|error| RunError::Config(chain(&error)))?;
    check_cluster(&client, &url).await?;
    let mut report = Report::default();
    report.heading(format!("What is installed, at {url}"));
    let failed = |error: kube::Error| match error {
        kube::Error::Api(status) => RunError::Refused { url: url.clone(), cause: status.message.clone() },
        other => RunError::Unreachable { url: url.clone(), cause: chain(&other) },
    };
    definitions(&client, &mut report).await.map_err(failed)?;
    kubevirt(&client, &mut report).await.map_err(failed)?;
    policies(&client, &mut report).await.map_err(failed)?;
    report.heading("How it is configured");
    settings::look(&client, &args, &mut report).await.map_err(failed)?;
    let (rules, bound) = roles(&client).await.map_err(failed)?;
    let pool_namespaces = pool_namespaces(&client, &bound).await.map_err(failed)?;
    match pool_namespaces.as_slice() {
        [] => report.warn("there is no pool namespace yet: charts/banlieue/pool-namespace makes one"),
        some => report.good(format!("pool namespaces: {}", some.join(", "))),
    }
    rights::look(&client, &args, &pool_namespaces, &mut report).await.map_err(failed)?;
    reach_into_members(&rules, &bound, &pool_namespaces, &mut report);
    print!("{}", report.text());
    Ok(report.is_good())
}

async fn definitions(client: &Client, report: &mut Report) -> kube::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for name in DEFINITIONS {
        match api.get_opt(name).await? {
            Some(_) => report.good(format!("definition {name}")),
            None => report.bad(format!("definition {name}: apply charts/banlieue-crds")),
        }
    }
    Ok(())
}

async fn kubevirt(client: &Client, report: &mut Report) -> kube::Result<()> {
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kubevirt.io", "v1", "KubeVirt"), "kubevirts");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let found = api.list(&ListParams::default()).await?;
    match found.items.first() {
        Some(kubevirt) => {
            let version = kubevirt
                .data
                .pointer("/status/observedKubeVirtVersion")
                .and_then(serde_json::Value::as_str)
                .unwrap_or("version not reported");
            let at = kubevirt.namespace().unwrap_or_default();
            report.good(format!("KubeVirt in namespace {at}, {version}"));
        }
        None => report.bad("a KubeVirt object: KubeVirt's definitions are there, KubeVirt is not deployed"),
    }
    Ok(())
}

async fn policies(client: &Client, report: &mut Report) -> kube::Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let bound = bindings.list(&ListParams::default()).await?;
    for name in POLICIES {
        let is_bound = bound
            .iter()
            .any(|binding| binding.spec.as_ref().and_then(|spec| spec.policy_name.as_deref()) == Some(name));
        match (policies.get_opt(name).await?.is_some(), is_bound) {
            (true, true) => report.good(format!("admission policy {name}")),
            (true, false) => report.bad(format!("a binding of admission policy {name}: apply charts/banlieue")),
            (false, _) => report.bad(format!("admission policy {name}: apply charts/banlieue")),
        }
    }
    Ok(())
}

/// Where pools are, or where the chart's binding says that they may be.
async fn pool_namespaces(client: &Client, bound: &[Binding]) -> kube::Result<Vec<String>> {
    let pools: Api<banlieue_crds::VirtualMachinePool> = Api::all(client.clone());
    let pools = pools.list(&ListParams::default()).await?;
    let marked = bound
        .iter()
        .filter(|binding| binding.role == (None, "banlieue-controller-pool-namespace".to_owned()))
        .filter_map(|binding| binding.namespace.clone());
    let all: BTreeSet<String> = pools.iter().filter_map(ResourceExt::namespace).chain(marked).collect();
    Ok(all.into_iter().collect())
}

/// Every role and binding of the cluster.
async fn roles(client: &Client) -> kube::Result<(Rules, Vec<Binding>)> {
    let all = ListParams::default();
    let cluster_roles: Api<ClusterRole> = Api::all(client.clone());
    let roles: Api<Role> = Api::all(client.clone());
    let cluster_bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let bindings: Api<RoleBinding> = Api::all(client.clone());
    let mut rules = Rules::default();
    for role in cluster_roles.list(&all).await? {
        rules.insert(None, &role.name_any(), role.rules.clone().unwrap_or_default());
    }
    for role in roles.list(&all).await? {
        rules.insert(role.namespace(), &role.name_any(), role.rules.clone().unwrap_or_default());
    }
    let mut bound = Vec::new();
    for binding in cluster_bindings.list(&all).await? {
        bound.push(Binding::new(None, &binding.role_ref, binding.subjects.as_deref().unwrap_or_default()));
    }
    for binding in bindings.list(&all).await? {
        let subjects = binding.subjects.as_deref().unwrap_or_default();
        bound.push(Binding::new(binding.namespace(), &binding.role_ref, subjects));
    }
    Ok((rules, bound))
}

fn reach_into_members(rules: &Rules, bound: &[Binding], pool_namespaces: &[String], report: &mut Report) {
    report.heading("Who holds rights that reach into members (the policies refuse their use on members)");
    let found = subjects(rules, bound, pool_namespaces);
    if found.is_empty() {
        report.good("nobody");
    }
    for Subject { who, place, what } in found {
        let line = format!("{who}, {place}: {}", what.join(", "));
        // Kubernetes itself gives them everything, and nobody can take it away.
        if who == "Group system:masters" { report.note(line) } else { report.warn(line) }
    }
}
