//! Attestation on real parts: spire-server with our plugin, spire-agent with ours, a real vTPM for each member, KubeVirt's
//! control plane; only the boot is recorded (light instances).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod light;

use banlieue_crds::{EndorsementReport, PoolMember, VirtualMachinePool, conditions};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use light::{Fixture, HONEST, TAMPERED, eventually, test};

/// A member attests, proves itself again at each rotation with its pinned key and no enrolment, also after the plugin's
/// worker was killed, and at its end is banned, its key a tombstone.
#[test]
fn a_member_attests_again_and_again_and_is_revoked_at_its_end() {
    test(async |at: Fixture| {
        at.pool("p", HONEST).await;
        let member = at.attested("p").await;
        let status = member.status.clone().unwrap();
        let endorsement = status.endorsement.clone().unwrap();
        let record = status.attestation.clone().unwrap();
        assert_eq!(endorsement.source, banlieue_crds::pool::Endorsement::HostReported);
        assert_eq!(record.latched, Some(false));
        assert_eq!(record.policy_digest.as_deref(), Some(at.policy()));
        assert!(status.enrolment.as_ref().unwrap().consumed_at.is_some());
        let uid = member.uid().unwrap();
        let instance = status.instance_ref.clone().unwrap();
        let report = at
            .all::<EndorsementReport>()
            .get(&format!("{}.{}", instance.uid, status.node_name.clone().unwrap()))
            .await
            .unwrap();
        assert!(report.spec.ek_digests.contains(&endorsement.ek_digest));

        let id = at.agent_id(&uid);
        // Eventually, for another test may be killing SPIRE just now.
        eventually("SPIRE lists the agent", async || at.agents().await.contains(&id)).await;
        eventually("its node entry is there", async || {
            at.spire(&["entry", "show", "-parentID", &id]).await.contains(&format!("/banlieue/node/{uid}"))
        })
        .await;

        eventually("it is ready", async || at.condition(&member, "Ready").await.is_some_and(|c| c.status == "True"))
            .await;
        let verified = record.verified_at.clone();
        eventually("it proved itself again", async || at.verified_at(&member).await > verified).await;

        at.kill_plugin_worker().await;
        let verified = at.verified_at(&member).await;
        eventually("and again, by another worker", async || at.verified_at(&member).await > verified).await;
        let now = at.member(&member).await.unwrap().status.unwrap();
        assert_eq!(now.endorsement.unwrap(), endorsement, "the pin stays");
        assert_eq!(now.enrolment, status.enrolment, "the enrolment is used once");
        assert!(conditions::is_true(&now.conditions, "Attested"));

        at.all::<VirtualMachinePool>().delete("p", &DeleteParams::default()).await.unwrap();
        eventually("the member says that its identity is revoked, or is gone", async || {
            match at.member(&member).await {
                Some(member) => conditions::is_true(&member.status.unwrap().conditions, "IdentityRevoked"),
                None => true,
            }
        })
        .await;
        eventually("SPIRE shows the agent banned", async || {
            at.spire(&["agent", "show", "-spiffeID", &id]).await.contains("Banned")
        })
        .await;
        eventually("SPIRE has no entry of it", async || {
            at.spire(&["entry", "show", "-parentID", &id]).await.contains("Found 0 entries")
        })
        .await;
        eventually("the member is gone", async || at.member(&member).await.is_none()).await;
        let report = at.all::<EndorsementReport>().get_opt(&report.name_any()).await.unwrap();
        let ended = report.is_none_or(|report| report.status.is_some_and(|status| status.ended_at.is_some()));
        assert!(ended, "the report is a tombstone");
    });
}

/// An image that measures something else never becomes a member, and the member says which PCR and event.
#[test]
fn a_tampered_image_is_refused_by_name() {
    test(async |at: Fixture| {
        at.pool("p", TAMPERED).await;
        let mut message = String::new();
        eventually("a member says why it is refused", async || {
            for member in at.all::<PoolMember>().list(&ListParams::default()).await.unwrap() {
                let conditions = member.status.unwrap_or_default().conditions;
                assert!(!conditions::is_true(&conditions, "Attested") && !conditions::is_true(&conditions, "Ready"));
                if let Some(attested) = conditions::find(&conditions, "Attested")
                    && attested.reason == "AttestationRefused"
                {
                    message = attested.message.clone();
                    return true;
                }
            }
            false
        })
        .await;
        for part in ["PolicyMismatch", "PCR 9", "event 1", "expected sha256:", "found sha256:"] {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
        eventually("the failure budget stops it", async || {
            let pool = at.all::<VirtualMachinePool>().get("p").await.unwrap();
            conditions::is_true(&pool.status.unwrap_or_default().conditions, "ProvisioningHalted")
        })
        .await;
        at.all::<VirtualMachinePool>().delete("p", &DeleteParams::default()).await.unwrap();
    });
}

/// A policy that is revoked ends its members, and nobody is admitted by it any more.
#[test]
fn a_revoked_policy_ends_its_members() {
    test(async |at: Fixture| {
        at.pool("p", HONEST).await;
        let member = at.attested("p").await;
        let revoked = serde_json::json!({ "spec": { "attestation": {
            "revoked": [{ "digest": at.policy(), "reason": "found wanting" }]
        } } });
        let pools = at.all::<VirtualMachinePool>();
        pools.patch("p", &PatchParams::default(), &Patch::Merge(revoked)).await.unwrap();
        eventually("the member is not attested any more", async || match at.condition(&member, "Attested").await {
            Some(attested) => attested.status == "False" && attested.reason == "PolicyRevoked",
            None => at.member(&member).await.is_none(),
        })
        .await;
        pools.delete("p", &DeleteParams::default()).await.unwrap();
        eventually("the member is gone", async || at.member(&member).await.is_none()).await;
    });
}

/// What is killed comes back and converges: the attestor controller, and SPIRE itself.
#[test]
fn kills_of_the_attestor_controller_and_of_spire_converge() {
    test(async |at: Fixture| {
        use banlieue_cluster::{Signal, component};
        at.pool("p", HONEST).await;
        let member = at.attested("p").await;
        for part in [component::ATTESTOR_CONTROLLER, component::SPIRE_SERVER] {
            at.cluster.kill(part, Signal::Kill).await.unwrap();
            at.cluster.restart(part).await.unwrap();
            let verified = at.verified_at(&member).await;
            eventually(&format!("it proves itself after {part} was killed"), async || {
                at.verified_at(&member).await > verified
            })
            .await;
            assert!(at.condition(&member, "Attested").await.is_some_and(|attested| attested.status == "True"));
        }

        // SPIRE never restarts a plugin and stays green without it: what says so is the pool.
        at.kill_plugin().await;
        let reachable = async |status: &str| {
            let pool = at.all::<VirtualMachinePool>().get("p").await.unwrap();
            let conditions = pool.status.unwrap_or_default().conditions;
            conditions::find(&conditions, "AttestorReachable").is_some_and(|it| it.status == status)
        };
        eventually("the pool says that the plugin is gone", async || reachable("False").await).await;
        at.cluster.kill(component::SPIRE_SERVER, Signal::Kill).await.unwrap();
        at.cluster.restart(component::SPIRE_SERVER).await.unwrap();
        eventually("the pool says that it is back", async || reachable("True").await).await;
        at.all::<VirtualMachinePool>().delete("p", &DeleteParams::default()).await.unwrap();
        eventually("the member is gone", async || at.member(&member).await.is_none()).await;
    });
}
