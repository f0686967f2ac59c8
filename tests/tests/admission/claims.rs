//! Claims: for whom one may be made, who may touch it, and what its pool allows.

use banlieue_cluster::Identity;
use banlieue_crds::{VirtualMachineClaim, VirtualMachinePool};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::annotate;
use crate::api::objects::{HEX, WHEN, claim, pool, with};
use crate::api::{Fixture, eventually, merge, merge_status, no_right, post, refused, test};

/// Alice as a subject, as the local cluster's parameters know people.
fn of_alice(name: &str) -> VirtualMachineClaim {
    let claim = with(&claim(name), "/spec/subject/issuer", json!("https://kubernetes.default.svc"));
    with(&claim, "/spec/subject/id", json!("alice"))
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
