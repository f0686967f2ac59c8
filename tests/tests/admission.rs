//! Who may do what: the admission policies and roles of the chart, each tried by whom it lets and by whom it stops.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod api;

use api::objects::{HEX, WHEN, claim, member, pool, report, with};
use api::{Fixture, eventually, no_right, refused, test};
use banlieue_cluster::Identity;
use banlieue_crds::{EndorsementReport, PoolMember, VirtualMachineClaim, VirtualMachinePool};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

fn post() -> PostParams {
    PostParams::default()
}

async fn merge<K>(api: &Api<K>, name: &str, patch: Value) -> kube::Result<K>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

async fn merge_status<K>(api: &Api<K>, name: &str, status: Value) -> kube::Result<K>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await
}

fn annotate(key: &str, value: Value) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

/// Alice as a subject, as the local cluster's parameters know people.
fn of_alice(name: &str) -> VirtualMachineClaim {
    let claim = with(&claim(name), "/spec/subject/issuer", json!("https://kubernetes.default.svc"));
    with(&claim, "/spec/subject/id", json!("alice"))
}

#[test]
fn every_policy_type_checks() {
    test(async |at: Fixture| {
        let api: Api<ValidatingAdmissionPolicy> = Api::all(at.cluster.admin());
        let names =
            ["pools", "members", "claims", "claim-limits", "endorsement-reports", "member-objects", "no-way-in"];
        for name in names {
            let name = format!("{name}.banlieue.io");
            eventually(&format!("policy {name} is type-checked"), async || {
                let policy = api.get(&name).await.unwrap();
                policy.status.is_some_and(|status| status.observed_generation == policy.metadata.generation)
            })
            .await;
            let checked = api.get(&name).await.unwrap().status.unwrap().type_checking.unwrap_or_default();
            assert_eq!(checked.expression_warnings.unwrap_or_default(), [], "{name}");
        }
    });
}

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

/// What has power over a claim later must not be smuggled in when it is made.
#[test]
fn a_claim_is_made_without_powers() {
    test(async |at: Fixture| {
        let alice: Api<VirtualMachineClaim> = at.api(Identity::Alice).await;
        let broker: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        let force = |claim: &VirtualMachineClaim| {
            with(claim, "/metadata/annotations", json!({ "banlieue.io/force-release": "mine" }))
        };
        let says =
            "banlieue.io/force-release gives up waiting for a destroyed member and is set by operators: leave it out";
        refused(alice.create(&post(), &force(&of_alice("x"))).await, says);
        refused(broker.create(&post(), &force(&claim("x"))).await, says);
        let held = |claim: &VirtualMachineClaim, by: Value| with(claim, "/metadata/finalizers", by);
        let says = "a claim is made with the finalizer banlieue.io/claim-protection or with none";
        for list in [json!(["evil.example/never"]), json!(["banlieue.io/claim-protection", "evil.example/never"])] {
            refused(alice.create(&post(), &held(&of_alice("x"), list.clone())).await, says);
            refused(broker.create(&post(), &held(&claim("x"), list)).await, says);
        }
        let ours = json!(["banlieue.io/claim-protection"]);
        alice.create(&post(), &held(&of_alice("a"), ours.clone())).await.unwrap();
        let noted = with(&held(&claim("b"), ours), "/metadata/annotations", json!({ "mediatore/slot": "1" }));
        broker.create(&post(), &noted).await.unwrap();
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
fn a_claims_subject_is_who_asks_or_a_broker_asks() {
    test(async |at: Fixture| {
        let alice: Api<VirtualMachineClaim> = at.api(Identity::Alice).await;
        alice.create(&post(), &of_alice("own")).await.unwrap();
        let says = "subject must be who asks: set subject.issuer to https://kubernetes.default.svc";
        refused(alice.create(&post(), &with(&of_alice("x"), "/spec/subject/id", json!("bob"))).await, says);
        refused(
            alice.create(&post(), &with(&of_alice("x"), "/spec/subject/issuer", json!("https://issuer"))).await,
            says,
        );
        refused(alice.create(&post(), &with(&of_alice("x"), "/spec/subject/azp", json!("agent"))).await, says);
        no_right(at.api::<VirtualMachineClaim>(Identity::Stranger).await.create(&post(), &claim("x")).await);
        refused(at.api::<VirtualMachineClaim>(Identity::Admin).await.create(&post(), &claim("x")).await, says);
        at.api::<VirtualMachineClaim>(Identity::Broker).await.create(&post(), &claim("c")).await.unwrap();
    });
}

#[test]
fn a_claim_is_touched_by_its_own_people_only() {
    test(async |at: Fixture| {
        let alice: Api<VirtualMachineClaim> = at.api(Identity::Alice).await;
        let bob: Api<VirtualMachineClaim> = at.api(Identity::Bob).await;
        let broker: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        let operator: Api<VirtualMachineClaim> = at.api(Identity::Operator).await;
        let controller: Api<VirtualMachineClaim> = at.api(Identity::Controller).await;
        alice.create(&post(), &of_alice("a")).await.unwrap();
        let says = "this claim belongs to somebody else";
        let longer = |ttl: u32| json!({ "spec": { "ttlSeconds": ttl } });
        refused(merge(&bob, "a", longer(3601)).await, says);
        refused(bob.delete("a", &DeleteParams::default()).await, says);
        merge(&alice, "a", longer(3602)).await.unwrap();
        merge(&broker, "a", longer(3603)).await.unwrap();
        // Finalizers and the way around them.
        merge(&controller, "a", json!({ "metadata": { "finalizers": ["banlieue.io/claim-protection"] } }))
            .await
            .unwrap();
        let bare = json!({ "metadata": { "finalizers": null } });
        refused(merge(&alice, "a", bare.clone()).await, "finalizers of a claim are kept by banlieue-controller");
        let force = annotate("banlieue.io/force-release", json!("node is ash"));
        for api in [&alice, &broker, &controller] {
            refused(merge(api, "a", force.clone()).await, "is set by operators: ask one of them");
        }
        merge(&operator, "a", force).await.unwrap();
        alice.delete("a", &DeleteParams::default()).await.unwrap();
        merge(&controller, "a", bare).await.unwrap();
        assert!(controller.get_opt("a").await.unwrap().is_none());
        // A broker's claim for a person of another issuer is not Alice's, whatever its name says.
        broker.create(&post(), &with(&claim("b"), "/spec/subject/id", json!("alice"))).await.unwrap();
        refused(alice.delete("b", &DeleteParams::default()).await, says);
        operator.delete("b", &DeleteParams::default()).await.unwrap();
    });
}

#[test]
fn each_part_of_a_claims_status_has_its_writer() {
    test(async |at: Fixture| {
        let broker: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        let controller: Api<VirtualMachineClaim> = at.api(Identity::Controller).await;
        let admin: Api<VirtualMachineClaim> = at.api(Identity::Admin).await;
        broker.create(&post(), &claim("c")).await.unwrap();
        let bound =
            json!({ "phase": "Bound", "memberRef": { "name": "m", "uid": "1" }, "boundAt": WHEN, "expiresAt": WHEN });
        refused(merge_status(&broker, "c", bound.clone()).await, "are written by banlieue-controller alone");
        refused(
            merge_status(&admin, "c", bound.clone()).await,
            "the status of a claim is written by banlieue-controller and mediatore",
        );
        no_right(merge_status(&at.api::<VirtualMachineClaim>(Identity::Alice).await, "c", bound.clone()).await);
        merge_status(&controller, "c", bound).await.unwrap();
        for status in [
            json!({ "phase": "Releasing" }),
            json!({ "expiresAt": "2030-01-01T00:00:00Z" }),
            json!({ "terminationReason": "Released" }),
        ] {
            refused(merge_status(&broker, "c", status).await, "are written by banlieue-controller alone");
        }
        merge_status(&broker, "c", json!({ "spiffeId": "spiffe://td/x", "workload": { "state": "Running" } }))
            .await
            .unwrap();
    });
}

#[test]
fn claims_keep_within_their_pools_policy() {
    test(async |at: Fixture| {
        at.api::<VirtualMachinePool>(Identity::PoolAuthor).await.create(&post(), &pool("p")).await.unwrap();
        let roomy = with(&pool("q"), "/spec/claimPolicy", json!({ "allowedImages": ["*"], "requireDigest": true }));
        at.api::<VirtualMachinePool>(Identity::PoolAuthor).await.create(&post(), &roomy).await.unwrap();
        let api: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        eventually("the pools are known to the policy", async || {
            let long = with(&claim("x"), "/spec/ttlSeconds", json!(7201));
            api.create(&PostParams { dry_run: true, ..post() }, &long).await.is_err()
        })
        .await;
        for (pointer, value, says) in [
            ("/spec/ttlSeconds", json!(7201), "ttlSeconds exceeds what pool p allows: use at most 7200"),
            (
                "/spec/bindDeadlineSeconds",
                json!(601),
                "bindDeadlineSeconds exceeds what pool p allows: use at most 600",
            ),
            ("/spec/retentionSeconds", json!(3601), "retentionSeconds exceeds what pool p allows: use at most 3600"),
            ("/spec/priority", json!(1), "priority exceeds what pool p allows: use at most 0"),
            ("/spec/workload/image", json!("s/x:1"), "image s/x:1 is not allowed by pool p: use one of [r/*, exact:1]"),
            ("/spec/workload/image", json!("exact:12"), "image exact:12 is not allowed by pool p"),
            (
                "/spec/audiences",
                json!(["api://a", "api://b"]),
                "an audience is not allowed by pool p: use only [api://a]",
            ),
        ] {
            refused(api.create(&post(), &with(&claim("x"), pointer, value)).await, says);
        }
        api.create(&post(), &with(&claim("exact"), "/spec/workload/image", json!("exact:1"))).await.unwrap();
        let made = api.create(&post(), &with(&claim("c"), "/spec/ttlSeconds", json!(7200))).await.unwrap();
        refused(merge(&api, "c", json!({ "spec": { "ttlSeconds": 7201 } })).await, "use at most 7200");
        // A pool that shrinks its policy does not lock existing claims: they still end.
        let author: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        merge(&author, "p", json!({ "spec": { "claimPolicy": { "maxTtlSeconds": 60 } } })).await.unwrap();
        merge(&api, &made.metadata.name.unwrap(), annotate("a", json!("b"))).await.unwrap();
        // By digest.
        let other = with(&with(&claim("d"), "/spec/poolRef/name", json!("q")), "/spec/audiences", json!([]));
        refused(api.create(&post(), &other).await, "pool q wants images by digest");
        let pinned = format!("s/x@sha256:{HEX}");
        api.create(&post(), &with(&other, "/spec/workload/image", json!(pinned))).await.unwrap();
        // A pool that is not there: the controller says PoolNotFound on the claim.
        api.create(&post(), &with(&claim("lost"), "/spec/poolRef/name", json!("nowhere"))).await.unwrap();
    });
}

#[test]
fn a_claim_on_a_namespace_without_pools_is_kept_for_its_condition() {
    test(async |at: Fixture| {
        at.api::<VirtualMachineClaim>(Identity::Broker).await.create(&post(), &claim("c")).await.unwrap();
    });
}

#[test]
fn a_node_reports_for_itself_alone() {
    test(async |at: Fixture| {
        let nodes: Api<Node> = Api::all(at.cluster.admin());
        for name in ["adm-1", "adm-2"] {
            nodes
                .create(&post(), &serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap())
                .await
                .unwrap();
        }
        let one: Api<EndorsementReport> = at.api(Identity::NodeReporter("adm-1".into())).await;
        refused(one.create(&post(), &report("adm-2")).await, "a token of node adm-1 cannot report for node adm-2");
        let made = one.create(&post(), &report("adm-1")).await.unwrap().metadata.name.unwrap();
        // The same account with a token that is bound to no node.
        let loose: Api<EndorsementReport> = Api::namespaced(loose_reporter(&at).await, &at.namespace);
        refused(
            loose.create(&post(), &report("adm-2")).await,
            "the token is not bound to a node: request it with boundObjectRef of kind Node",
        );
        for who in
            [Identity::Controller, Identity::AttestorPlugin, Identity::Broker, Identity::PoolAuthor, Identity::Operator]
        {
            no_right(at.api::<EndorsementReport>(who).await.create(&post(), &report("adm-2")).await);
        }
        let admin: Api<EndorsementReport> = at.api(Identity::Admin).await;
        refused(admin.create(&post(), &report("adm-2")).await, "endorsement reports are written by node reporters");
        refused(
            admin.delete(&made, &DeleteParams::default()).await,
            "only the attestor controller ends and deletes it",
        );
        refused(
            merge_status(&admin, &made, json!({ "endedAt": WHEN })).await,
            "only the attestor controller ends and deletes it",
        );
        no_right(one.delete(&made, &DeleteParams::default()).await);
        let ends: Api<EndorsementReport> = at.api(Identity::AttestorController).await;
        merge_status(&ends, &made, json!({ "endedAt": WHEN })).await.unwrap();
        ends.delete(&made, &DeleteParams::default()).await.unwrap();
    });
}

/// A client of the reporter's account without a node.
async fn loose_reporter(at: &Fixture) -> kube::Client {
    use k8s_openapi::api::authentication::v1::TokenRequest;
    use k8s_openapi::api::core::v1::ServiceAccount;
    let accounts: Api<ServiceAccount> = Api::namespaced(at.cluster.admin(), "banlieue-system");
    let request: TokenRequest = serde_json::from_value(json!({ "spec": { "audiences": [] } })).unwrap();
    let answer = accounts.create_token_request("banlieue-node-reporter", &post(), &request).await.unwrap();
    at.client(Identity::Broker).await; // makes the kubeconfig that is read here
    let path = at.cluster.kubeconfig(&Identity::Broker).await.unwrap();
    let mut kubeconfig = kube::config::Kubeconfig::read_from(path).unwrap();
    kubeconfig.auth_infos[0].auth_info =
        serde_json::from_value(json!({ "token": answer.status.unwrap().token })).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
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

#[test]
fn a_namespace_with_members_can_be_deleted() {
    test(async |at: Fixture| {
        use k8s_openapi::api::core::v1::Namespace;
        at.api::<PoolMember>(Identity::Controller).await.create(&post(), &member("m")).await.unwrap();
        at.api::<VirtualMachineClaim>(Identity::Broker).await.create(&post(), &claim("c")).await.unwrap();
        at.api::<VirtualMachinePool>(Identity::PoolAuthor).await.create(&post(), &pool("p")).await.unwrap();
        let namespaces: Api<Namespace> = Api::all(at.cluster.admin());
        namespaces.delete(&at.namespace, &DeleteParams::default()).await.unwrap();
        eventually("the namespace controller emptied and removed the namespace", async || {
            namespaces.get_opt(&at.namespace).await.unwrap().is_none()
        })
        .await;
    });
}

#[test]
fn nobody_enters_a_pod_of_a_pool_namespace() {
    test(async |at: Fixture| {
        let admin = at.cluster.admin();
        let attempt = async |namespace: &str, what: &str| {
            let path = format!("/api/v1/namespaces/{namespace}/pods/none/{what}");
            admin.request_text(http::Request::post(path).body(vec![]).unwrap()).await
        };
        let ways = ["exec?command=ls", "attach?stdin=true", "portforward?ports=22", "proxy/"];
        at.api::<VirtualMachinePool>(Identity::PoolAuthor).await.create(&post(), &pool("p")).await.unwrap();
        let says = "holds the pool p: its members cannot be entered or moved";
        eventually("the pool is known to the policy", async || {
            matches!(attempt(&at.namespace, ways[0]).await, Err(kube::Error::Api(status)) if status.code == 403)
        })
        .await;
        for way in ways {
            refused(attempt(&at.namespace, way).await, says);
            // Where no pool is, the policy has no say: the pod is looked for.
            let answer = attempt("default", way).await;
            assert!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 404), "{answer:?}");
        }
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(admin.clone(), &at.namespace);
        let pod = json!({ "metadata": { "name": "launcher" }, "spec": { "containers": [{ "name": "c", "image": "i" }], "automountServiceAccountToken": false } });
        eventually("the namespace's service account is there", async || {
            pods.create(&post(), &serde_json::from_value(pod.clone()).unwrap()).await.is_ok()
        })
        .await;
        let debug = Patch::Strategic(json!({ "spec": { "ephemeralContainers": [{ "name": "d", "image": "i" }] } }));
        refused(pods.patch_ephemeral_containers("launcher", &PatchParams::default(), &debug).await, says);
    });
}

#[test]
fn secrets_are_read_in_pool_namespaces_and_by_name_only() {
    test(async |at: Fixture| {
        let lists = kube::api::ListParams::default();
        for who in [Identity::Controller, Identity::AttestorPlugin, Identity::Broker] {
            let here: Api<Secret> = at.api(who.clone()).await;
            no_right(here.list(&lists).await);
            assert!(here.get_opt("none").await.unwrap().is_none());
            let elsewhere: Api<Secret> = Api::namespaced(at.client(who.clone()).await, "kube-system");
            no_right(elsewhere.get("none").await);
        }
        for who in [
            Identity::AttestorController,
            Identity::NodeReporter("sec-1".into()),
            Identity::PoolAuthor,
            Identity::Alice,
            Identity::Operator,
        ] {
            if let Identity::NodeReporter(node) = &who {
                let nodes: Api<Node> = Api::all(at.cluster.admin());
                nodes
                    .create(&post(), &serde_json::from_value(json!({ "metadata": { "name": node } })).unwrap())
                    .await
                    .unwrap();
            }
            no_right(at.api::<Secret>(who).await.get("none").await);
        }
    });
}

/// The chart's policies, bound once more with parameters that do not exist, to this namespace alone.
#[test]
fn missing_parameters_deny_what_is_ours_and_nothing_else() {
    test(async |at: Fixture| {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(at.cluster.admin());
        for policy in ["pools", "members", "claims", "endorsement-reports", "member-objects"] {
            let name = format!("{policy}.banlieue.io");
            let chart = bindings.get(&name).await.unwrap();
            let mut spec = chart.spec.unwrap();
            let params = spec.param_ref.as_mut().unwrap();
            assert_eq!(params.parameter_not_found_action.as_deref(), Some("Deny"), "{name}");
            params.name = Some("nowhere".into());
            let here =
                json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": at.namespace } } });
            spec.match_resources = Some(serde_json::from_value(here).unwrap());
            let metadata = ObjectMeta { name: Some(format!("{policy}-{}", at.namespace)), ..ObjectMeta::default() };
            let binding = ValidatingAdmissionPolicyBinding { metadata, spec: Some(spec) };
            bindings.create(&post(), &binding).await.unwrap();
        }
        let attempt = PostParams { dry_run: true, ..post() };
        let says = "no params found for policy binding with `Deny` parameterNotFoundAction";
        let pools: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        let members: Api<PoolMember> = at.api(Identity::Controller).await;
        let claims: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        let secrets: Api<Secret> = at.api(Identity::Controller).await;
        let ours = json!({ "metadata": { "name": "x", "labels": { "banlieue.io/pool": "p" } } });
        let ours: Secret = serde_json::from_value(ours).unwrap();
        // The API server takes bindings up in any order.
        eventually("each binding without parameters denies", async || {
            says_so(pools.create(&attempt, &pool("p")).await, says)
                && says_so(members.create(&attempt, &member("m")).await, says)
                && says_so(claims.create(&attempt, &claim("c")).await, says)
                && says_so(secrets.create(&attempt, &ours).await, says)
        })
        .await;
        // The rest of the cluster goes on, and the parameters can be put back.
        let foreign = json!({ "metadata": { "name": "x" } });
        secrets.create(&attempt, &serde_json::from_value(foreign).unwrap()).await.unwrap();
    });
}

/// Whether an attempt was refused in these words, for attempts that come too early as well.
fn says_so<T>(result: kube::Result<T>, says: &str) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.message.contains(says))
}
