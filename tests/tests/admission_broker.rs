//! What mediatore may do in a pool namespace, by using it, and what it and others may not.
#![allow(clippy::unwrap_used, clippy::panic)] // a test ends at what it did not expect

mod api;

use api::objects::{claim, member, pool};
use api::{Fixture, eventually, no_right, refused, test};
use banlieue_cluster::Identity;
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

const DENIED: &str = "mediatore-denied";

fn post() -> PostParams {
    PostParams::default()
}

fn map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some([("s".to_owned(), "left".to_owned())].into()),
        ..ConfigMap::default()
    }
}

/// Gives a person what Kubernetes' own role `edit` gives on ConfigMaps.
fn editor_role(namespace: &str) -> String {
    let (role, meta) = ("rbac.authorization.k8s.io", json!({ "name": "editor", "namespace": namespace }));
    let rule = json!({ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "deletecollection"] });
    let api = format!("{role}/v1");
    let objects = [
        json!({ "apiVersion": api, "kind": "Role", "metadata": meta, "rules": [rule] }),
        json!({
            "apiVersion": api, "kind": "RoleBinding", "metadata": meta,
            "roleRef": { "apiGroup": role, "kind": "Role", "name": "editor" },
            "subjects": [{ "apiGroup": role, "kind": "User", "name": Identity::Stranger.name() }],
        }),
    ];
    objects.map(|object| object.to_string()).join("\n---\n")
}

fn merge() -> Patch<serde_json::Value> {
    Patch::Merge(json!({ "data": { "s": null } }))
}

#[test]
fn denied_subjects_are_written_by_mediatore_alone() {
    test(async |at: Fixture| {
        let (author, broker): (Api<ConfigMap>, Api<ConfigMap>) =
            (at.api(Identity::PoolAuthor).await, at.api(Identity::Broker).await);
        let says = "mediatore-denied says who may not claim, and is written by mediatore, not by";
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(at.cluster.admin());
        eventually("the policy is type-checked", async || {
            let policy = policies.get("denied-subjects.banlieue.io").await.unwrap();
            policy.status.is_some_and(|status| status.observed_generation == policy.metadata.generation)
        })
        .await;
        let checked = policies.get("denied-subjects.banlieue.io").await.unwrap().status.unwrap().type_checking;
        assert_eq!(checked.unwrap_or_default().expression_warnings.unwrap_or_default(), []);
        eventually("the policy is in force", async || {
            let attempt = PostParams { dry_run: true, ..post() };
            author.create(&attempt, &map(DENIED)).await.is_err()
        })
        .await;
        refused(author.create(&post(), &map(DENIED)).await, says);
        broker.create(&post(), &map(DENIED)).await.unwrap();
        broker.patch(DENIED, &PatchParams::default(), &Patch::Merge(json!({ "data": { "t": "x" } }))).await.unwrap();
        refused(author.patch(DENIED, &PatchParams::default(), &merge()).await, says);
        let mut changed = author.get(DENIED).await.unwrap();
        changed.data = None;
        refused(author.replace(DENIED, &post(), &changed).await, says);
        refused(author.delete(DENIED, &DeleteParams::default()).await, says);
        // Whoever may delete collections names no object with that.
        at.cluster.apply(&editor_role(&at.namespace)).await.unwrap();
        let editor: Api<ConfigMap> = at.api(Identity::Stranger).await;
        refused(editor.delete_collection(&DeleteParams::default(), &ListParams::default()).await, says);
        assert_eq!(broker.get(DENIED).await.unwrap().data.unwrap().len(), 2, "nobody changed it");
        // Their own are theirs, whatever they are called.
        author.create(&post(), &map("mediatore-denied-2")).await.unwrap();
        author.delete("mediatore-denied-2", &DeleteParams::default()).await.unwrap();
    });
}

#[test]
fn a_namespace_goes_with_its_denied_subjects() {
    test(async |at: Fixture| {
        at.api::<ConfigMap>(Identity::Broker).await.create(&post(), &map(DENIED)).await.unwrap();
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(at.cluster.admin());
        namespaces.delete(&at.namespace, &DeleteParams::default()).await.unwrap();
        eventually("the namespace is gone", async || namespaces.get_opt(&at.namespace).await.unwrap().is_none()).await;
    });
}

#[test]
fn mediatore_has_the_rights_it_uses_and_no_more() {
    test(async |at: Fixture| {
        let claims: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        let admin = at.cluster.admin();
        let pools: Api<VirtualMachinePool> = Api::namespaced(admin.clone(), &at.namespace);
        pools.create(&post(), &pool("p")).await.unwrap();
        claims.create(&post(), &claim("c")).await.unwrap();
        let note = json!({ "metadata": { "annotations": { "banlieue.io/slot": "s/u/1" } } });
        claims.patch("c", &PatchParams::default(), &Patch::Merge(note)).await.unwrap();
        no_right(claims.replace("c", &post(), &claims.get("c").await.unwrap()).await);
        no_right(claims.get_status("c").await);
        no_right(claims.delete_collection(&DeleteParams::default(), &ListParams::default()).await);

        let pools: Api<VirtualMachinePool> = at.api(Identity::Broker).await;
        pools.list(&ListParams::default()).await.unwrap();
        no_right(pools.get("p").await);
        no_right(pools.delete("p", &DeleteParams::default()).await);

        let members: Api<PoolMember> = at.api(Identity::Broker).await;
        members.list(&ListParams::default()).await.unwrap();
        no_right(members.create(&post(), &member("m")).await);
        no_right(members.delete("m", &DeleteParams::default()).await);

        let secrets: Api<Secret> = at.api(Identity::Broker).await;
        no_right(secrets.list(&ListParams::default()).await);
        let maps: Api<ConfigMap> = at.api(Identity::Broker).await;
        no_right(maps.list(&ListParams::default()).await);
        no_right(maps.get("measurements").await);
        no_right(maps.delete(DENIED, &DeleteParams::default()).await);
        let events: Api<Event> = at.api(Identity::Broker).await;
        no_right(events.list(&ListParams::default()).await);
        let elsewhere: Api<Secret> = Api::namespaced(at.client(Identity::Broker).await, "banlieue-system");
        no_right(elsewhere.get("x").await);
    });
}
