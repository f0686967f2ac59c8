//! Outages of SPIRE and of the API server that outlast evidence: nobody is ended by them, nobody is lent on old evidence,
//! and all converges after.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod light;

use banlieue_cluster::{Signal, component};
use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool};
use kube::api::{DeleteParams, ListParams};
use light::{Fixture, HONEST, eventually, test};
use serde_json::json;

/// Longer than the time between two proofs, and soon over.
const SHORT: u32 = 40;

async fn ready(at: &Fixture, member: &PoolMember) -> bool {
    at.condition(member, "Ready").await.is_some_and(|it| it.status == "True")
}

async fn claim_is(at: &Fixture, name: &str, phase: ClaimPhase) -> bool {
    let claim = at.all::<VirtualMachineClaim>().get(name).await.unwrap();
    claim.status.and_then(|status| status.phase) == Some(phase)
}

#[test]
fn outages_end_nobody_and_lend_nobody() {
    test(async |at: Fixture| {
        at.pool("long", HONEST).await;
        let held = at.attested("long").await;
        at.claim("long", "held").await;
        eventually("it is bound", async || claim_is(&at, "held", ClaimPhase::Bound).await).await;
        let held = at.member(&held).await.unwrap();
        at.pool_with("short", HONEST, json!({ "maxAgeSeconds": SHORT })).await;
        let warm = at.attested("short").await;
        eventually("it is warm", async || ready(&at, &warm).await).await;

        // SPIRE is gone until evidence is old.
        at.cluster.kill(component::SPIRE_SERVER, Signal::Kill).await.unwrap();
        eventually("the short-lived evidence is stale, and says so", async || {
            at.condition(&warm, "Attested")
                .await
                .is_some_and(|it| (it.status.as_str(), it.reason.as_str()) == ("False", "AttestationStale"))
        })
        .await;
        eventually("it is not warm any more", async || !ready(&at, &warm).await).await;
        at.claim("short", "late").await;
        eventually("the claim waits", async || {
            let claim = at.all::<VirtualMachineClaim>().get("late").await.unwrap();
            claim.status.is_some_and(|status| status.conditions.iter().any(|it| it.status == "False"))
        })
        .await;
        assert!(claim_is(&at, "late", ClaimPhase::Pending).await);
        let lent = async |claim: &str| {
            let members = at.all::<PoolMember>().list(&ListParams::default()).await.unwrap();
            members.into_iter().filter(|it| it.spec.claim_ref.as_ref().is_some_and(|it| it.name == claim)).count()
        };
        assert_eq!(lent("late").await, 0, "lent on evidence that is too old");
        // It is kept, for it is none of its doing; and who is bound stays bound.
        assert!(
            at.member(&warm).await.is_some_and(|it| it.metadata.deletion_timestamp.is_none()),
            "ended by the outage"
        );
        assert!(claim_is(&at, "held", ClaimPhase::Bound).await, "a claim ended by the outage");
        at.cluster.restart(component::SPIRE_SERVER).await.unwrap();
        let before = at.verified_at(&held).await;
        eventually("the bound one proves itself again", async || at.verified_at(&held).await > before).await;
        eventually("the claim that waited is bound", async || claim_is(&at, "late", ClaimPhase::Bound).await).await;
        assert_eq!(lent("late").await, 1);
        assert!(at.member(&warm).await.is_some(), "the member outlived the outage");

        // The API server is gone for as long: nothing can be read or written, so an agent says when evidence is old.
        at.pool_with("third", HONEST, json!({ "maxAgeSeconds": SHORT })).await;
        let warm = at.attested("third").await;
        eventually("it is warm", async || ready(&at, &warm).await).await;
        let evidence = at.verified_at(&warm).await.unwrap().0;
        at.cluster.kill(component::API_SERVER, Signal::Stop).await.unwrap();
        eventually("evidence grows old", async || {
            k8s_openapi::jiff::Timestamp::now().duration_since(evidence).as_secs() > i64::from(SHORT)
        })
        .await;
        at.cluster.kill(component::API_SERVER, Signal::Cont).await.unwrap();
        // It ends when it loses its lease, and nothing here plays the kubelet that starts it again.
        at.cluster.restart(component::VIRT_CONTROLLER).await.unwrap();
        let verified = async |member: &PoolMember| {
            let before = at.verified_at(member).await;
            eventually("it proves itself again", async || at.verified_at(member).await > before).await;
        };
        eventually("the API server answers", async || {
            at.all::<PoolMember>().list(&ListParams::default()).await.is_ok()
        })
        .await;
        verified(&held).await;
        verified(&warm).await;
        eventually("it is warm again", async || ready(&at, &warm).await).await;
        for claim in ["held", "late"] {
            // `late` is on short-lived evidence: by the design that ends its claim once it is old.
            let bound = claim_is(&at, claim, ClaimPhase::Bound).await;
            assert!(bound || claim == "late", "{claim} is not bound any more");
        }
        at.claim("third", "last").await;
        eventually("it is lent", async || claim_is(&at, "last", ClaimPhase::Bound).await).await;

        for claim in ["held", "last"] {
            at.all::<VirtualMachineClaim>().delete(claim, &DeleteParams::default()).await.unwrap();
        }
        for pool in ["long", "short", "third"] {
            at.all::<VirtualMachinePool>().delete(pool, &DeleteParams::default()).await.unwrap();
        }
        eventually("the members are gone", async || {
            at.member(&held).await.is_none() && at.member(&warm).await.is_none()
        })
        .await;
    });
}
