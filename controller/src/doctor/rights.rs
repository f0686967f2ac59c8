//! Whether whoever asks (the controller's service account, when it runs where the controller does) may do what the
//! controller does.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

use super::report::Report;
use crate::campaign::LEASE;
use crate::config::DoctorArgs;

/// One row: group, resource with its subresource, name or none for any, verbs.
type Right<'a> = (&'a str, &'a str, Option<&'a str>, &'a [&'a str]);

/// What the controller must be allowed everywhere.
const EVERYWHERE: [Right<'static>; 10] = [
    ("banlieue.io", "virtualmachinepools", None, &["list", "watch", "patch"]),
    ("banlieue.io", "virtualmachinepools/status", None, &["patch"]),
    ("banlieue.io", "poolmembers", None, &["list", "watch", "create", "patch", "delete"]),
    ("banlieue.io", "poolmembers/status", None, &["patch"]),
    ("banlieue.io", "virtualmachineclaims", None, &["list", "watch", "patch", "delete"]),
    ("banlieue.io", "virtualmachineclaims/status", None, &["patch"]),
    ("kubevirt.io", "virtualmachineinstances", None, &["get", "list", "watch", "create", "delete"]),
    ("", "pods", None, &["list", "watch"]),
    // Cordons and nodes that are not ready.
    ("", "nodes", None, &["list", "watch"]),
    ("events.k8s.io", "events", None, &["create"]),
];

/// What it must be allowed where pools are.
const WHERE_POOLS_ARE: [Right<'static>; 3] = [
    ("", "secrets", None, &["get", "create", "delete"]),
    ("", "configmaps", None, &["get", "list", "watch", "create", "delete"]),
    ("networking.k8s.io", "networkpolicies", None, &["list", "watch", "create", "patch"]),
];

/// Asks for each.
pub(super) async fn look(
    client: &Client,
    args: &DoctorArgs,
    pool_namespaces: &[String],
    report: &mut Report,
) -> kube::Result<()> {
    let me: Api<SelfSubjectReview> = Api::all(client.clone());
    let me = me.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let me = me.status.and_then(|status| status.user_info?.username).unwrap_or_else(|| "nobody".into());
    report.heading(format!("What {me} may do"));
    for right in EVERYWHERE {
        check(client, None, right, "ClusterRole banlieue-controller", report).await?;
    }
    let own: [Right<'_>; 3] = [
        ("coordination.k8s.io", "leases", None, &["create"]),
        ("coordination.k8s.io", "leases", Some(LEASE), &["get", "patch"]),
        ("", "configmaps", Some(&args.bundle_configmap), &["get"]),
    ];
    for right in own {
        check(client, Some(&args.system_namespace), right, "Role banlieue-controller", report).await?;
    }
    for namespace in pool_namespaces {
        for right in WHERE_POOLS_ARE {
            let role = "ClusterRole banlieue-controller-pool-namespace";
            check(client, Some(namespace), right, role, report).await?;
        }
    }
    Ok(())
}

async fn check(
    client: &Client,
    namespace: Option<&str>,
    (group, resource, object, verbs): Right<'_>,
    role: &str,
    report: &mut Report,
) -> kube::Result<()> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let (plural, sub) = match resource.split_once('/') {
        Some((plural, sub)) => (plural, Some(sub.to_owned())),
        None => (resource, None),
    };
    let mut denied = Vec::new();
    for verb in verbs {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(group.to_owned()),
                    resource: Some(plural.to_owned()),
                    subresource: sub.clone(),
                    name: object.map(str::to_owned),
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
    let object = object.map(|name| format!(" {name}")).unwrap_or_default();
    let place = namespace.map(|namespace| format!(" in {namespace}")).unwrap_or_default();
    if denied.is_empty() {
        report.good(format!("{resource}{object}{place}: {}", verbs.join(", ")));
    } else {
        report.bad(format!("{resource}{object}{place}: may not {}; bind {role}{place}", denied.join(", ")));
    }
    Ok(())
}
