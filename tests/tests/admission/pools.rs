//! Pools: unattested ones on purpose, a cap, and what only operators and the controller may write.

use banlieue_cluster::Identity;
use banlieue_crds::VirtualMachinePool;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::annotate;
use crate::api::objects::{HEX, pool, with};
use crate::api::{Fixture, merge, merge_status, no_right, post, refused, test};

#[test]
fn an_unattested_pool_says_so_on_purpose() {
    test(async |at: Fixture| {
        let author: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        let bare = with(&pool("p"), "/spec/attestation", json!({ "mode": "None" }));
        let says = "set the annotation banlieue.io/allow-unattested: \"true\" if that is meant, or use mode VTPM";
        refused(author.create(&post(), &bare).await, says);
        let no = json!({ "banlieue.io/allow-unattested": "yes" });
        refused(author.create(&post(), &with(&bare, "/metadata/annotations", no)).await, says);
        let yes = json!({ "banlieue.io/allow-unattested": "true" });
        author.create(&post(), &with(&bare, "/metadata/annotations", yes)).await.unwrap();
        // Taking the annotation away again, and slipping mode None into a pool that asked for evidence.
        refused(merge(&author, "p", annotate("banlieue.io/allow-unattested", Value::Null)).await, says);
        author.create(&post(), &pool("q")).await.unwrap();
        let none = json!({ "spec": { "attestation": { "mode": "None" } } });
        refused(merge(&author, "q", none).await, "attestation.mode is immutable");
    });
}

#[test]
fn a_pool_ends_whatever_became_of_its_annotation() {
    test(async |at: Fixture| {
        let author: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        let controller: Api<VirtualMachinePool> = at.api(Identity::Controller).await;
        let bare = with(&pool("p"), "/spec/attestation", json!({ "mode": "None" }));
        let bare = with(&bare, "/metadata/annotations", json!({ "banlieue.io/allow-unattested": "true" }));
        author.create(&post(), &bare).await.unwrap();
        merge(&controller, "p", json!({ "metadata": { "finalizers": ["banlieue.io/drain"] } })).await.unwrap();
        author.delete("p", &DeleteParams::default()).await.unwrap();
        merge(&author, "p", annotate("banlieue.io/allow-unattested", Value::Null)).await.unwrap();
        merge(&controller, "p", json!({ "metadata": { "finalizers": null } })).await.unwrap();
        assert!(author.get_opt("p").await.unwrap().is_none());
    });
}

#[test]
fn pools_have_a_cap_and_revoking_is_for_operators() {
    test(async |at: Fixture| {
        let author: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        let says = "maxReplicas is above 1000, the cap of this cluster: lower it";
        refused(author.create(&post(), &with(&pool("p"), "/spec/maxReplicas", json!(1001))).await, says);
        author.create(&post(), &pool("p")).await.unwrap();
        refused(merge(&author, "p", json!({ "spec": { "maxReplicas": 1001 } })).await, says);
        let revoked = json!({ "spec": { "attestation": { "revoked": [{ "digest": HEX, "reason": "leaked" }] } } });
        refused(
            merge(&author, "p", revoked.clone()).await,
            "attestation.revoked ends bound members and is set by operators",
        );
        let operator: Api<VirtualMachinePool> = at.api(Identity::Operator).await;
        merge(&operator, "p", revoked).await.unwrap();
        // What an operator revoked, an author does not allow again; the rest of the pool stays theirs.
        let undo = json!({ "spec": { "attestation": { "revoked": [] } } });
        refused(merge(&author, "p", undo.clone()).await, "attestation.revoked");
        merge(&author, "p", json!({ "spec": { "warmReplicas": 3 } })).await.unwrap();
        // A pool that waits for its last members is still their pool.
        let drain = json!({ "metadata": { "finalizers": ["banlieue.io/drain"] } });
        merge(&at.api::<VirtualMachinePool>(Identity::Controller).await, "p", drain).await.unwrap();
        author.delete("p", &DeleteParams::default()).await.unwrap();
        refused(merge(&author, "p", undo).await, "attestation.revoked");
        refused(merge(&author, "p", json!({ "spec": { "maxReplicas": 1001 } })).await, "maxReplicas is above 1000");
        merge(&author, "p", annotate("banlieue.io/drain", json!("now"))).await.unwrap();
    });
}

#[test]
fn finalizers_of_a_pool_are_the_controllers() {
    test(async |at: Fixture| {
        let author: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        let controller: Api<VirtualMachinePool> = at.api(Identity::Controller).await;
        let operator: Api<VirtualMachinePool> = at.api(Identity::Operator).await;
        let says = "finalizers of a pool are kept by banlieue-controller";
        let foreign = with(&pool("p"), "/metadata/finalizers", json!(["evil.example/never"]));
        refused(author.create(&post(), &foreign).await, says);
        author.create(&post(), &with(&pool("p"), "/metadata/finalizers", json!(["banlieue.io/drain"]))).await.unwrap();
        let to = |list: Value| json!({ "metadata": { "finalizers": list } });
        refused(merge(&author, "p", to(json!(["banlieue.io/drain", "evil.example/never"]))).await, says);
        author.delete("p", &DeleteParams::default()).await.unwrap();
        // Without it the members would outlive their pool unseen.
        refused(merge(&author, "p", to(Value::Null)).await, says);
        merge(&operator, "p", annotate("a", json!("b"))).await.unwrap();
        merge(&controller, "p", to(Value::Null)).await.unwrap();
        author.create(&post(), &with(&pool("q"), "/metadata/finalizers", json!(["banlieue.io/drain"]))).await.unwrap();
        author.delete("q", &DeleteParams::default()).await.unwrap();
        merge(&operator, "q", to(Value::Null)).await.unwrap();
    });
}

#[test]
fn status_has_its_writers() {
    test(async |at: Fixture| {
        let author: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        author.create(&post(), &pool("p")).await.unwrap();
        no_right(merge_status(&author, "p", json!({ "warm": 9 })).await);
        let admin: Api<VirtualMachinePool> = at.api(Identity::Admin).await;
        refused(
            merge_status(&admin, "p", json!({ "warm": 9 })).await,
            "the status of a pool is written by banlieue-controller",
        );
        for who in [Identity::Controller, Identity::AttestorController] {
            merge_status(&at.api::<VirtualMachinePool>(who).await, "p", json!({ "warm": 1 })).await.unwrap();
        }
    });
}
