//! A copy of a vTPM's state: two living members that prove one endorsement key. Light instances: real vTPMs, real SPIRE
//! agents and our plugins, no boot.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod light;

use std::path::Path;

use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::conditions::ClaimReason;
use banlieue_crds::kubevirt::VirtualMachineInstance;
use banlieue_crds::member::MemberPhase;
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool};
use banlieue_tests::members::{self, instance_uid};
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use light::{Fixture, HONEST, eventually, test};
use serde_json::json;

/// Where the copy is made.
const NODE: &str = "l-1";
const OTHER: &str = "l-2";
const DUPLICATE: &str = "DuplicateEndorsementKey";

/// Nobody can tell which of the two is the copy: both are out, and the claim of the bound one ends.
#[test]
fn two_members_that_prove_one_key_are_both_out() {
    test(async |at: Fixture| {
        at.pool("p", HONEST).await;
        let original = at.attested("p").await;
        at.claim("p", "c").await;
        eventually("the original is bound", async || {
            at.member(&original).await.is_some_and(|member| member.spec.claim_ref.is_some())
        })
        .await;

        // Its node cannot start it without its enrolment, and goes on with the vTPM that it finds once it has that.
        for node in [NODE, OTHER] {
            members::cordon(at.cluster.admin(), node, true).await;
        }
        at.pool("q", HONEST).await;
        let mut made = None;
        eventually("a member has an instance", async || {
            made = members::first(&at.all(), "q", members::is_made).await;
            made.is_some()
        })
        .await;
        let copy = made.unwrap();
        let secrets = members::enrolments(at.cluster, &at.namespace).await;
        let enrolment = members::take_enrolment(&secrets, &copy).await;
        members::cordon(at.cluster.admin(), NODE, false).await;
        eventually("the node misses the enrolment", async || {
            let instance = at.all::<VirtualMachineInstance>().get(&copy.name_any()).await.unwrap();
            let said = instance.condition("Synchronized").and_then(|it| it.message.clone());
            said.is_some_and(|message| message.contains(&enrolment.name_any()))
        })
        .await;
        copy_state(&at, &original, &copy);
        secrets.create(&PostParams::default(), &enrolment).await.unwrap();

        let attested = async |member: &PoolMember| {
            let condition = at.condition(member, "Attested").await;
            condition.is_some_and(|it| it.status == "False" && it.reason == DUPLICATE)
        };
        eventually("the copy is out", async || attested(&copy).await).await;
        eventually("and in quarantine", async || {
            at.member(&copy).await.unwrap().status.unwrap().phase == Some(MemberPhase::Quarantined)
        })
        .await;
        let status = at.member(&copy).await.unwrap().status.unwrap();
        assert!(status.attestation.unwrap().verified_at.is_none(), "it was never admitted");
        let key = |status: Option<banlieue_crds::member::PinnedEndorsement>| status.unwrap().ek_digest;
        assert_eq!(key(status.endorsement), key(original.status.clone().unwrap().endorsement));

        eventually("the original's claim ended", async || {
            let claim = at.all::<VirtualMachineClaim>().get("c").await.unwrap().status.unwrap_or_default();
            if claim.phase != Some(ClaimPhase::Failed) {
                return false;
            }
            assert_eq!(claim.termination_reason, Some(ClaimReason::AttestationLost));
            let conditions = format!("{:?}", claim.conditions);
            assert!(conditions.contains(DUPLICATE), "{conditions}");
            true
        })
        .await;
        eventually("the original is gone", async || at.member(&original).await.is_none()).await;
        assert!(attested(&copy).await, "being alone does not clear the copy");
        for pool in ["p", "q"] {
            at.all::<VirtualMachinePool>().delete(pool, &DeleteParams::default()).await.unwrap();
        }
        eventually("the copy is gone", async || at.member(&copy).await.is_none()).await;
    });
}

/// Copies the vTPM of one machine, with what its node knows of its keys, to where the node looks for the other's.
fn copy_state(at: &Fixture, from: &PoolMember, to: &PoolMember) {
    let machines = at.cluster.dir().join("vm/vms");
    let (source, target) = (machines.join(instance_uid(from)), machines.join(instance_uid(to)));
    std::fs::create_dir(&target).unwrap();
    let identity = json!({ "uid": instance_uid(to), "namespace": at.namespace, "name": to.name_any(), "node": NODE });
    std::fs::write(target.join("instance.json"), identity.to_string()).unwrap();
    copy(&source.join("endorsement.json"), &target.join("endorsement.json"));
    std::fs::create_dir(target.join("tpm")).unwrap();
    for entry in std::fs::read_dir(source.join("tpm")).unwrap() {
        let entry = entry.unwrap();
        // A running swtpm's lock is its own.
        if entry.file_name() != ".lock" && entry.file_type().unwrap().is_file() {
            copy(&entry.path(), &target.join("tpm").join(entry.file_name()));
        }
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}
