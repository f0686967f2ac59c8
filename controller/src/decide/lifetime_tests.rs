//! By what a member is judged while it lives, what its clocks count, and which deaths count against its pool.

use std::sync::Arc;

use banlieue_crds::VirtualMachinePool;
use banlieue_crds::conditions::{self, PoolCondition};
use banlieue_crds::kubevirt::VirtualMachineInstance;
use banlieue_crds::member::MemberPhase;
use banlieue_crds::pool::AttestationMode;
use serde_json::json;

use super::testing::{at, claim, claim_snapshot, coming, pool, pool_snapshot, ready};
use super::tests::{attested_status, creates, failed, vtpm, written};
use super::*;
use crate::store::{InstanceFacts, MemberSnapshot, PodFacts};

fn attestor(pool: &mut VirtualMachinePool, status: &str, since: i64) {
    let mut list = pool.status.take().unwrap_or_default();
    list.conditions = serde_json::from_value(json!([{ "type": "AttestorReachable", "status": status, "reason": "R",
        "message": "m", "lastTransitionTime": at(since).to_string() }]))
    .unwrap();
    pool.status = Some(list);
}

/// A pool whose members prove themselves, by evidence that counts for an hour.
fn proving() -> VirtualMachinePool {
    let mut pool = pool("p");
    vtpm(&mut pool);
    pool.spec.attestation.max_age_seconds = 3600;
    pool
}

fn bound(pool: &VirtualMachinePool, member: MemberSnapshot) -> crate::store::ClaimSnapshot {
    let status = json!({
        "phase": "Bound", "memberRef": {"name": "a", "uid": "uid-a"},
        "boundAt": "2026-11-30T20:01:00.000000Z", "expiresAt": "2026-12-30T20:01:00.000000Z",
    });
    claim_snapshot(pool, claim(pool, status), Some(member))
}

#[test]
fn old_evidence_is_old_whatever_the_attestor_controller_said_last() {
    let pool = proving();
    for (status, reason) in [
        ("True", "Verified"),
        ("False", "Attesting"),
        ("False", "AgentMissing"),
        ("False", "NotRequired"),
        ("False", "EntriesMissing"),
        ("Unknown", "AttestorUnreachable"),
    ] {
        let mut member = ready(&pool, "a");
        attested_status(&mut member, status, reason, "");
        let lost = |now| {
            let plan = super::claim(&bound(&pool, member.clone()), now, &Tuning::default());
            matches!(plan.intent, Some(ClaimIntent::Release { reason, .. }) if reason.as_str() == "AttestationLost")
        };
        // Accepted at 60, good for an hour.
        assert!(!lost(at(3659)), "{reason}");
        assert!(lost(at(3660)), "{reason}");
    }
    let mut never = ready(&pool, "a");
    attested_status(&mut never, "False", "Attesting", "");
    Arc::make_mut(&mut never.member).status.as_mut().unwrap().attestation = None;
    let never = super::claim(&bound(&pool, never), at(61), &Tuning::default());
    assert!(matches!(never.intent, Some(ClaimIntent::Release { .. })), "nobody could ever say that it is old");
}

#[test]
fn a_member_is_judged_by_what_it_was_made_with() {
    let mut pool = proving();
    let mut member = ready(&pool, "a");
    attested_status(&mut member, "True", "Verified", "");
    pool.spec.attestation.max_age_seconds = 1;
    pool.spec.attestation.mode = AttestationMode::None;
    let judged = attested(&member.member, Some(&pool), at(1000));
    assert_eq!(judged, Attested::Until(at(3660)), "whoever may change a pool may not end its bound members by it");
    assert_eq!(attested(&member.member, None, at(3660)), attested(&member.member, Some(&pool), at(3660)));
    let instance = crate::runtime::instance(&pool, &member.member);
    assert_eq!(instance["spec"]["volumes"].as_array().unwrap().len(), 2, "its seed was planned when it was made");
}

#[test]
fn clocks_count_what_is_the_members_own_doing() {
    let mut pool = proving();
    let phase = |pool: &VirtualMachinePool, accepted: bool, now| {
        let mut member = coming(pool, "a", Some("Running"));
        Arc::make_mut(member.instance.as_mut().unwrap()).running_at = Some(at(20));
        if accepted {
            attested_status(&mut member, "False", "Attesting", "");
            let status = Arc::make_mut(&mut member.member).status.as_mut().unwrap();
            status.enrolment.as_mut().unwrap().consumed_at =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(at(60)));
        }
        super::member(&member, now).intents.into_iter().find_map(|intent| match intent {
            MemberIntent::Status(draft) => Some(draft.phase),
            _ => None,
        })
    };
    let failed = Some(MemberPhase::Failed);
    assert_ne!(phase(&pool, false, at(619)), failed);
    assert_eq!(phase(&pool, false, at(620)), failed);
    // Its evidence was accepted: what is missing is the attestor controller's word.
    assert_ne!(phase(&pool, true, at(1000)), failed);
    assert_eq!(phase(&pool, true, at(3660)), failed, "until the evidence is old");
    attestor(&mut pool, "False", 100);
    assert_ne!(phase(&pool, false, at(100_000)), failed, "nobody can be attested");
    attestor(&mut pool, "True", 5000);
    assert_ne!(phase(&pool, false, at(5599)), failed, "the clock starts when the attestor answers");
    assert_eq!(phase(&pool, false, at(5600)), failed);
}

#[test]
fn an_image_that_cannot_be_pulled_is_said_and_churns_nothing() {
    let pool = pool("p");
    let instance: VirtualMachineInstance = serde_json::from_value(json!({
        "metadata": {"name": "a", "uid": "vm-a"}, "spec": {"domain": {}},
        "status": {"phase": "Scheduling", "conditions": [{"type": "Synchronized", "status": "False",
            "reason": "ErrImagePull", "message": "guest:1 is not there"}]},
    }))
    .unwrap();
    assert!(InstanceFacts::of(&instance).image_missing);
    let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_value(json!({
        "metadata": {"labels": {"kubevirt.io/created-by": "vm-a"}},
        "status": {
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-30T20:00:00Z"}],
            "initContainerStatuses": [{"name": "volumecontainerdisk", "image": "guest:1", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "guest:1 is gone"}}}],
        },
    }))
    .unwrap();
    let mut member = coming(&pool, "a", Some("Scheduling"));
    member.pods = vec![Arc::new(PodFacts::of(&pod).unwrap())];
    let plan = super::member(&member, at(100_000));
    let draft = written(&plan);
    assert_eq!((draft.phase, draft.ready_condition.reason.as_str()), (MemberPhase::Provisioning, "ImagePullFailed"));
    let told = super::pool(&pool_snapshot(&pool, vec![member.clone()]), at(100_000), &Tuning::default());
    let capacity = conditions::find(&told.status.conditions, PoolCondition::Capacity).unwrap();
    assert_eq!((capacity.status.as_str(), capacity.reason.as_str()), ("False", "ImagePullFailed"));
    assert!(capacity.message.contains("guest:1 is gone"), "{}", capacity.message);
    // Once it is there, the machine has its whole time to get Ready.
    let running = Arc::make_mut(member.instance.as_mut().unwrap());
    running.phase = Some(banlieue_crds::kubevirt::InstancePhase::Running);
    running.running_at = Some(at(100_000));
    assert_eq!(written(&super::member(&member, at(100_001))).phase, MemberPhase::Ready);
}

#[test]
fn a_member_that_dies_by_itself_says_after_how_long_and_what_to_look_at() {
    let pool = proving();
    let mut member = ready(&pool, "a");
    attested_status(&mut member, "True", "Verified", "");
    Arc::make_mut(member.instance.as_mut().unwrap()).phase = Some(banlieue_crds::kubevirt::InstancePhase::Succeeded);
    let plan = super::member(&member, at(629));
    let draft = written(&plan);
    let message = &draft.ready_condition.message;
    assert_eq!((draft.phase, draft.ready_condition.reason.as_str()), (MemberPhase::Failed, "InstanceFailed"));
    assert!(message.contains("by itself 599 s after Ready") && message.contains("`programs`"), "{message}");
}

fn consecutive(pool: &VirtualMachinePool, members: Vec<MemberSnapshot>, now: i64) -> u32 {
    let plan = super::pool(&pool_snapshot(pool, members), at(now), &Tuning::default());
    plan.status.failures.map_or(0, |failures| failures.consecutive)
}

#[test]
fn what_counts_against_a_pool_is_what_its_members_do_by_themselves() {
    let mut pool = proving();
    let lost = |workload: serde_json::Value| {
        let mut member = ready(&pool, "a");
        Arc::make_mut(member.instance.as_mut().unwrap()).phase =
            Some(banlieue_crds::kubevirt::InstancePhase::Succeeded);
        let status = json!({"phase": "Releasing", "terminationReason": "MemberLost", "workload": workload,
            "memberRef": {"name": "a", "uid": "uid-a"}, "boundAt": "2026-11-30T20:01:00.000000Z"});
        let claim = claim(&pool, status);
        Arc::make_mut(&mut member.member).spec.claim_ref =
            Some(banlieue_crds::ObjectRef { name: "c".into(), uid: "uid-c".into() });
        member.claim = Some(Arc::new(claim));
        member
    };
    assert_eq!(consecutive(&pool, vec![lost(json!(null))], 100), 1, "its guest was never heard");
    let heard = lost(json!({"latchedAt": "2026-11-30T20:01:05.000000Z"}));
    assert_eq!(consecutive(&pool, vec![heard.clone()], 100), 0, "a tenant may end its machine");

    // One that was heard shows that its kind works, though nobody lived long yet.
    let counted = super::pool(&pool_snapshot(&pool, vec![failed(&pool, "b")]), at(62), &Tuning::default());
    let mut after = pool.clone();
    after.status = Some(counted.status);
    assert_eq!(consecutive(&after, vec![heard.clone()], 100), 0);
    assert_eq!(consecutive(&after, vec![lost(json!(null))], 100), 2);

    attestor(&mut pool, "False", 0);
    let silent = super::pool(&pool_snapshot(&pool, vec![failed(&pool, "b")]), at(100), &Tuning::default());
    let record = silent.status.failures.unwrap();
    assert_eq!((record.consecutive, record.counted.len()), (0, 1), "nobody could be attested: seen, not counted");
}

#[test]
fn a_halt_says_when_the_next_attempt_is_or_that_it_is_under_way() {
    let mut pool = pool("p");
    pool.spec.failure_budget.consecutive = 1;
    let first = super::pool(&pool_snapshot(&pool, vec![failed(&pool, "a")]), at(100), &Tuning::default());
    let halted = |plan: &PoolPlan| {
        conditions::find(&plan.status.conditions, PoolCondition::ProvisioningHalted).unwrap().message.clone()
    };
    assert!(halted(&first).contains("not before"), "{}", halted(&first));
    pool.status = Some(first.status);
    let later = |members| super::pool(&pool_snapshot(&pool, members), at(200), &Tuning::default());
    let idle = later(vec![failed(&pool, "a")]);
    assert!(!halted(&idle).contains("not before"), "{}", halted(&idle));
    assert_eq!(creates(&idle), 1);
    let trying = later(vec![failed(&pool, "a"), coming(&pool, "b", None)]);
    assert!(halted(&trying).contains("under way"), "{}", halted(&trying));
}
