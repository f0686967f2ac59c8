//! Members and what belongs to them: one writer for each part.

use banlieue_cluster::Identity;
use banlieue_crds::PoolMember;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::annotate;
use crate::api::objects::{HEX, WHEN, member, with};
use crate::api::{Fixture, eventually, merge, merge_status, no_right, post, refused, test};

#[test]
fn members_are_the_controllers() {
    test(async |at: Fixture| {
        let controller: Api<PoolMember> = at.api(Identity::Controller).await;
        let operator: Api<PoolMember> = at.api(Identity::Operator).await;
        let admin: Api<PoolMember> = at.api(Identity::Admin).await;
        refused(
            admin.create(&post(), &member("m")).await,
            "members are made by banlieue-controller: raise warmReplicas",
        );
        no_right(operator.create(&post(), &member("m")).await);
        let made = with(&member("m"), "/metadata/finalizers", json!(["banlieue.io/destroy"]));
        controller.create(&post(), &made).await.unwrap();
        for who in [Identity::Operator, Identity::Broker, Identity::Admin] {
            let api: Api<PoolMember> = at.api(who).await;
            let says = "operators and brokers may set the annotation banlieue.io/quarantine and nothing else";
            for patch in [
                json!({ "spec": { "claimRef": { "name": "c", "uid": "1" } } }),
                json!({ "metadata": { "finalizers": null } }),
                json!({ "metadata": { "labels": { "banlieue.io/state": "warm" } } }),
            ] {
                refused(merge(&api, "m", patch).await, says);
            }
            merge(&api, "m", annotate("banlieue.io/quarantine", json!("odd"))).await.unwrap();
        }
        no_right(merge(&at.api::<PoolMember>(Identity::PoolAuthor).await, "m", annotate("a", json!("b"))).await);
        no_right(at.api::<PoolMember>(Identity::Broker).await.delete("m", &DeleteParams::default()).await);
        operator.delete("m", &DeleteParams::default()).await.unwrap();
        merge(&controller, "m", json!({ "metadata": { "finalizers": null } })).await.unwrap();
    });
}

#[test]
fn an_operator_lets_a_stuck_member_go() {
    test(async |at: Fixture| {
        let controller: Api<PoolMember> = at.api(Identity::Controller).await;
        let operator: Api<PoolMember> = at.api(Identity::Operator).await;
        let broker: Api<PoolMember> = at.api(Identity::Broker).await;
        let made = with(&member("m"), "/metadata/finalizers", json!(["banlieue.io/destroy"]));
        controller.create(&post(), &made).await.unwrap();
        let to = |list: Value| json!({ "metadata": { "finalizers": list } });
        let says = "operators may also take finalizers from a member whose deletion was asked for";
        refused(merge(&operator, "m", to(Value::Null)).await, says);
        operator.delete("m", &DeleteParams::default()).await.unwrap();
        refused(merge(&broker, "m", to(Value::Null)).await, says);
        refused(merge(&broker, "m", annotate("other", json!("x"))).await, says);
        merge(&broker, "m", annotate("banlieue.io/quarantine", json!("x"))).await.unwrap();
        merge(&operator, "m", to(Value::Null)).await.unwrap();
        assert!(operator.get_opt("m").await.unwrap().is_none());
    });
}

/// Every part of a member's status, tried by each of its three writers and by the cluster's admin.
#[test]
fn each_part_of_a_members_status_has_one_writer() {
    test(async |at: Fixture| {
        let controller: Api<PoolMember> = at.api(Identity::Controller).await;
        controller.create(&post(), &member("m")).await.unwrap();
        let condition = |type_: &str| json!([{ "type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": WHEN }]);
        let instance =
            json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "m", "uid": "1" });
        let writers = [Identity::Controller, Identity::AttestorPlugin, Identity::AttestorController, Identity::Admin];
        for (owner, status) in [
            (Identity::Controller, json!({ "phase": "Booting" })),
            (Identity::Controller, json!({ "instanceRef": instance })),
            (Identity::Controller, json!({ "nodeName": "n" })),
            (Identity::Controller, json!({ "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }] })),
            (Identity::Controller, json!({ "phaseTimes": { "created": WHEN } })),
            (Identity::Controller, json!({ "enrolment": { "seedDigest": HEX, "expiresAt": WHEN } })),
            (Identity::AttestorPlugin, json!({ "enrolment": { "consumedAt": WHEN } })),
            (Identity::AttestorPlugin, json!({ "endorsement": { "source": "HostReported", "ekDigest": HEX } })),
            (Identity::AttestorPlugin, json!({ "attestation": { "verifiedAt": WHEN, "latched": false } })),
            (Identity::AttestorController, json!({ "conditions": condition("Attested") })),
            (Identity::AttestorController, json!({ "conditions": condition("IdentityRevoked") })),
        ] {
            for who in writers.iter().filter(|who| **who != owner) {
                let says = if *who == Identity::Admin { "the status of a member is written by" } else { "alone" };
                refused(merge_status(&at.api::<PoolMember>(who.clone()).await, "m", status.clone()).await, says);
            }
            merge_status(&at.api::<PoolMember>(owner).await, "m", status).await.unwrap();
        }
        // Its own condition does not take the attestor's away: that is what apply with a manager of one's own is for.
        let ready = json!({
            "apiVersion": "banlieue.io/v1alpha1", "kind": "PoolMember",
            "status": { "conditions": condition("Ready") }
        });
        let apply = PatchParams::apply("banlieue-status");
        let after = controller.patch_status("m", &apply, &Patch::Apply(ready)).await.unwrap();
        let types: Vec<_> = after.status.unwrap().conditions.into_iter().map(|c| c.type_).collect();
        assert_eq!(types, ["IdentityRevoked", "Ready"]);
    });
}

#[test]
fn what_belongs_to_members_is_written_by_the_controller() {
    test(async |at: Fixture| {
        let owner = at.api::<PoolMember>(Identity::Controller).await.create(&post(), &member("m")).await.unwrap();
        let owner = json!([{
            "apiVersion": "banlieue.io/v1alpha1", "kind": "PoolMember", "name": "m", "uid": owner.metadata.uid,
            "controller": true, "blockOwnerDeletion": true
        }]);
        let secret = |name: &str, metadata: Value| -> Secret {
            let mut object = json!({ "metadata": metadata, "stringData": { "a": "b" } });
            object["metadata"]["name"] = json!(name);
            serde_json::from_value(object).unwrap()
        };
        let enrol = secret("m-enrol", json!({ "ownerReferences": owner, "labels": { "banlieue.io/pool": "p" } }));
        let labelled = secret("x", json!({ "labels": { "banlieue.io/pool": "p" } }));
        let admin: Api<Secret> = at.api(Identity::Admin).await;
        let broker: Api<Secret> = at.api(Identity::Broker).await;
        let controller: Api<Secret> = at.api(Identity::Controller).await;
        let says = "with the label banlieue.io/pool are written by banlieue-controller";
        for api in [&admin, &broker] {
            refused(api.create(&post(), &enrol).await, says);
            refused(api.create(&post(), &labelled).await, says);
        }
        controller.create(&post(), &enrol).await.unwrap();
        for api in [&admin, &broker] {
            refused(api.delete("m-enrol", &DeleteParams::default()).await, says);
        }
        // Stripping the label to get at it is a write too, and so is putting it on something else.
        refused(merge(&admin, "m-enrol", json!({ "metadata": { "labels": null } })).await, says);
        admin.create(&post(), &secret("foreign", json!({}))).await.unwrap();
        let label = json!({ "metadata": { "labels": { "banlieue.io/pool": "p" } } });
        refused(merge(&admin, "foreign", label).await, says);
        // mediatore's own Secrets, and everybody's own, are none of ours.
        broker.create(&post(), &secret("grant", json!({}))).await.unwrap();
        // Kubernetes' garbage collector takes the Secret with its member.
        at.api::<PoolMember>(Identity::Controller).await.delete("m", &DeleteParams::default()).await.unwrap();
        eventually("the garbage collector removed the Secret", async || {
            controller.get_opt("m-enrol").await.unwrap().is_none()
        })
        .await;

        // A pool author's own ConfigMaps are theirs; the copy that members are judged by is not.
        let author: Api<ConfigMap> = at.api(Identity::PoolAuthor).await;
        let map = |name: &str, labels: Value| -> ConfigMap {
            serde_json::from_value(
                json!({ "metadata": { "name": name, "labels": labels }, "data": { "measurements.yaml": "x" } }),
            )
            .unwrap()
        };
        author.create(&post(), &map("m", json!({}))).await.unwrap();
        let copy = map("p-policy-0123456789ab", json!({ "banlieue.io/pool": "p" }));
        refused(author.create(&post(), &copy).await, says);
        at.api::<ConfigMap>(Identity::Controller).await.create(&post(), &copy).await.unwrap();
        refused(author.delete("p-policy-0123456789ab", &DeleteParams::default()).await, says);
    });
}
