//! Members as they are now, and what their enrolment holds.

use banlieue_cluster::{Cluster, Identity};
use banlieue_crds::{PoolMember, conditions};
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// The pool's first member of which this holds, if any.
///
/// # Panics
/// Members cannot be listed.
pub async fn first(members: &Api<PoolMember>, pool: &str, holds: impl Fn(&PoolMember) -> bool) -> Option<PoolMember> {
    let all = members.list(&ListParams::default()).await.unwrap();
    all.into_iter().find(|member| member.spec.pool_ref.name == pool && holds(member))
}

/// Whether the member's instance is recorded.
#[must_use]
pub fn is_made(member: &PoolMember) -> bool {
    member.status.as_ref().is_some_and(|status| status.instance_ref.is_some())
}

/// The member as it is now, in the same life.
///
/// # Panics
/// Members cannot be read.
pub async fn now(members: &Api<PoolMember>, member: &PoolMember) -> Option<PoolMember> {
    let found = members.get_opt(&member.name_any()).await.unwrap();
    found.filter(|found| found.uid() == member.uid())
}

/// A condition that the member has now.
///
/// # Panics
/// Members cannot be read.
pub async fn condition(members: &Api<PoolMember>, member: &PoolMember, kind: &str) -> Option<Condition> {
    let status = now(members, member).await?.status?;
    conditions::find(&status.conditions, kind).cloned()
}

/// uid of the member's instance.
///
/// # Panics
/// It has none yet.
#[must_use]
pub fn instance_uid(member: &PoolMember) -> String {
    member.status.as_ref().and_then(|status| status.instance_ref.as_ref()).unwrap().uid.clone()
}

/// Name of the member's enrolment Secret.
#[must_use]
pub fn enrolment(member: &PoolMember) -> String {
    format!("{}-enrol", member.name_any())
}

/// Enrolment Secrets, as the controller's own account: nobody else may touch them.
///
/// # Panics
/// The account cannot be used.
pub async fn enrolments(cluster: &Cluster, namespace: &str) -> Api<Secret> {
    Api::namespaced(cluster.kube(&Identity::Controller).await.unwrap(), namespace)
}

/// Deletes the member's enrolment Secret, and gives it as it can be made again.
///
/// # Panics
/// There is none, or it may not be deleted.
pub async fn take_enrolment(secrets: &Api<Secret>, member: &PoolMember) -> Secret {
    let mut object = secrets.get(&enrolment(member)).await.unwrap();
    secrets.delete(&enrolment(member), &DeleteParams::default()).await.unwrap();
    let metadata = &mut object.metadata;
    (metadata.uid, metadata.resource_version, metadata.managed_fields) = (None, None, None);
    object
}

/// Says whether a node takes more members.
///
/// # Panics
/// There is no such node.
pub async fn cordon(admin: Client, node: &str, cordoned: bool) {
    let patch = Patch::Merge(json!({ "spec": { "unschedulable": cordoned } }));
    Api::<Node>::all(admin).patch(node, &PatchParams::default(), &patch).await.unwrap();
}
