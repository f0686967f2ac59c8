//! `banlieue-controller doctor`: does the cluster have what banlieue needs, and who could reach into a member?
//!
//! Reads only. Every finding is a line for a person; the exit code says whether something is missing.

mod reach;

use std::fmt::Write as _;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};

use crate::api::{chain, connect};
use crate::config::DoctorArgs;
use crate::run::{RunError, check_cluster, client_config};
use reach::{Binding, Rules, Subject, subjects};

/// Our admission policies, as the chart names them.
const POLICIES: [&str; 7] = [
    "pools.banlieue.io",
    "members.banlieue.io",
    "claims.banlieue.io",
    "claim-limits.banlieue.io",
    "endorsement-reports.banlieue.io",
    "member-objects.banlieue.io",
    "no-way-in.banlieue.io",
];

/// Our definitions.
const DEFINITIONS: [&str; 4] = [
    "virtualmachinepools.banlieue.io",
    "poolmembers.banlieue.io",
    "virtualmachineclaims.banlieue.io",
    "endorsementreports.banlieue.io",
];

/// What the controller must be allowed everywhere: group, resource, verbs.
const RIGHTS: [(&str, &str, &[&str]); 8] = [
    ("banlieue.io", "virtualmachinepools", &["list", "watch", "patch"]),
    ("banlieue.io", "virtualmachinepools/status", &["patch"]),
    ("banlieue.io", "poolmembers", &["list", "watch", "create", "patch", "delete"]),
    ("banlieue.io", "poolmembers/status", &["patch"]),
    ("banlieue.io", "virtualmachineclaims", &["list", "watch", "patch", "delete"]),
    ("banlieue.io", "virtualmachineclaims/status", &["patch"]),
    ("kubevirt.io", "virtualmachineinstances", &["list", "watch", "create", "delete"]),
    ("", "pods", &["list", "watch"]),
];

/// What it must be allowed where pools are.
const POOL_RIGHTS: [(&str, &str, &[&str]); 3] = [
    ("", "secrets", &["get", "create", "delete"]),
    ("", "configmaps", &["get", "list", "watch", "create", "delete"]),
    ("networking.k8s.io", "networkpolicies", &["list", "watch", "create"]),
];

#[derive(Default)]
struct Report {
    text: String,
    missing: u32,
}

impl Report {
    fn good(&mut self, line: impl AsRef<str>) {
        let _ = writeln!(self.text, "ok       {}", line.as_ref());
    }

    fn bad(&mut self, line: impl AsRef<str>) {
        self.missing += 1;
        let _ = writeln!(self.text, "MISSING  {}", line.as_ref());
    }

    fn note(&mut self, line: impl AsRef<str>) {
        let _ = writeln!(self.text, "note     {}", line.as_ref());
    }
}

/// Looks, prints, and answers whether nothing is missing.
pub async fn doctor(args: DoctorArgs) -> Result<bool, RunError> {
    let config = client_config().await?;
    let url = config.cluster_url.to_string();
    let client = connect(config).map_err(|error| RunError::Config(chain(&error)))?;
    check_cluster(&client, &url).await?;
    let mut report = Report::default();
    let failed = |error: kube::Error| match error {
        kube::Error::Api(status) => RunError::Refused { url: url.clone(), cause: status.message.clone() },
        other => RunError::Unreachable { url: url.clone(), cause: chain(&other) },
    };
    definitions(&client, &mut report).await.map_err(failed)?;
    kubevirt(&client, &mut report).await.map_err(failed)?;
    policies(&client, &args, &mut report).await.map_err(failed)?;
    rights(&client, &mut report).await.map_err(failed)?;
    reach_into_members(&client, &mut report).await.map_err(failed)?;
    print!("{}", report.text);
    Ok(report.missing == 0)
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

async fn policies(client: &Client, args: &DoctorArgs, report: &mut Report) -> kube::Result<()> {
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
    report.note(format!("programs of banlieue are expected in namespace {}", args.system_namespace));
    Ok(())
}

async fn rights(client: &Client, report: &mut Report) -> kube::Result<()> {
    for (group, resource, verbs) in RIGHTS {
        check_rights(client, None, group, resource, verbs, report).await?;
    }
    let pools: Api<banlieue_crds::VirtualMachinePool> = Api::all(client.clone());
    let mut namespaces: Vec<String> =
        pools.list(&ListParams::default()).await?.iter().filter_map(ResourceExt::namespace).collect();
    namespaces.sort();
    namespaces.dedup();
    for namespace in namespaces {
        for (group, resource, verbs) in POOL_RIGHTS {
            check_rights(client, Some(&namespace), group, resource, verbs, report).await?;
        }
    }
    Ok(())
}

async fn check_rights(
    client: &Client,
    namespace: Option<&str>,
    group: &str,
    resource: &str,
    verbs: &[&str],
    report: &mut Report,
) -> kube::Result<()> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let (name, sub) = match resource.split_once('/') {
        Some((name, sub)) => (name, Some(sub.to_owned())),
        None => (resource, None),
    };
    let mut denied = Vec::new();
    for verb in verbs {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(group.to_owned()),
                    resource: Some(name.to_owned()),
                    subresource: sub.clone(),
                    verb: Some((*verb).to_owned()),
                    namespace: namespace.map(str::to_owned),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer = api.create(&PostParams::default(), &review).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            denied.push(*verb);
        }
    }
    let place = namespace.map(|namespace| format!(" in {namespace}")).unwrap_or_default();
    if denied.is_empty() {
        report.good(format!("rights on {resource}{place}"));
    } else {
        let role = if namespace.is_some() { "banlieue-controller-pool-namespace" } else { "banlieue-controller" };
        report.bad(format!("rights on {resource}{place}: {}; bind ClusterRole {role}", denied.join(", ")));
    }
    Ok(())
}

async fn reach_into_members(client: &Client, report: &mut Report) -> kube::Result<()> {
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
    let found = subjects(&rules, &bound);
    if found.is_empty() {
        report.good("nobody holds rights on KubeVirt's subresources");
    }
    for Subject { who, place, what } in found {
        report.note(format!("{who} may use {} of instances {place}", what.join(", ")));
    }
    Ok(())
}
