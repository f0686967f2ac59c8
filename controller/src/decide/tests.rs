//! Decisions as tables.

use std::sync::Arc;

use banlieue_crds::conditions::ClaimReason;
use banlieue_crds::member::MemberPhase;
use banlieue_crds::pool::AttestationMode;
use banlieue_crds::{VirtualMachineClaim, VirtualMachinePool};
use serde_json::{Value, json};

use super::testing::{at, claim, claim_snapshot, coming, instance, pool, pool_snapshot, ready};
use super::*;
use crate::store::{ClaimSnapshot, MemberSnapshot, NodeFacts, PodFacts, PoolSnapshot};

fn tuning() -> Tuning {
    Tuning::default()
}

// Claims.

fn bound_status() -> Value {
    json!({
        "phase": "Bound", "memberRef": {"name": "p-aaaaa", "uid": "uid-p-aaaaa"},
        "boundAt": "2026-11-30T20:01:00.000000Z", "expiresAt": "2026-11-30T20:02:40.000000Z",
    })
}

fn bound(change: impl FnOnce(&mut ClaimSnapshot)) -> Option<ClaimIntent> {
    let pool = pool("p");
    let mut snapshot = claim_snapshot(&pool, claim(&pool, bound_status()), Some(ready(&pool, "p-aaaaa")));
    change(&mut snapshot);
    super::claim(&snapshot, at(100), &tuning()).intent
}

fn ends_with(intent: Option<ClaimIntent>) -> ClaimReason {
    match intent {
        Some(ClaimIntent::Release { reason, .. }) => reason,
        other => panic!("{other:?} is no end"),
    }
}

fn member_of(snapshot: &mut ClaimSnapshot) -> &mut MemberSnapshot {
    snapshot.acknowledged.as_mut().unwrap()
}

#[test]
fn a_bound_claim_is_left_alone_until_something_ends_it() {
    assert_eq!(bound(|_| {}), None);
    let deadline = bound(|s| {
        let claim = Arc::make_mut(&mut s.claim);
        claim.status.as_mut().unwrap().expires_at =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(at(100)));
    });
    assert_eq!(ends_with(deadline), ClaimReason::Expired);
    let deleted = bound(|s| {
        Arc::make_mut(&mut s.claim).metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(99)));
    });
    assert_eq!(ends_with(deleted), ClaimReason::Released);
    let finished = bound(|s| {
        Arc::make_mut(&mut s.claim).status.as_mut().unwrap().workload =
            serde_json::from_value(json!({"state": "Finished"})).unwrap();
    });
    assert_eq!(ends_with(finished), ClaimReason::WorkloadFinished);
    let quarantined = bound(|s| {
        let member = Arc::make_mut(&mut member_of(s).member);
        member.metadata.annotations = Some([("banlieue.io/quarantine".to_owned(), "why".to_owned())].into());
    });
    assert_eq!(ends_with(quarantined), ClaimReason::AttestationLost);
    let gone = bound(|s| {
        s.acknowledged = None;
        s.committed.clear();
    });
    assert!(
        matches!(gone, Some(ClaimIntent::Release { reason: ClaimReason::MemberLost, verify: true, .. })),
        "asked for"
    );
    let no_instance = bound(|s| member_of(s).instance = None);
    assert!(matches!(no_instance, Some(ClaimIntent::Release { verify: true, .. })), "asked for");
    let powered_off = bound(|s| member_of(s).instance = Some(Arc::new(instance("u", "vm-p-aaaaa", Some("Succeeded")))));
    assert_eq!(ends_with(powered_off), ClaimReason::MemberLost);
}

#[test]
fn a_guest_that_powers_off_at_its_deadline_has_expired() {
    let pool = pool("p");
    let mut member = ready(&pool, "p-aaaaa");
    member.instance = Some(Arc::new(instance("uid-p-aaaaa", "vm-p-aaaaa", Some("Succeeded"))));
    let snapshot = claim_snapshot(&pool, claim(&pool, bound_status()), Some(member));
    assert_eq!(ends_with(super::claim(&snapshot, at(157), &tuning()).intent), ClaimReason::Expired);
    assert_eq!(ends_with(super::claim(&snapshot, at(150), &tuning()).intent), ClaimReason::MemberLost);
}

#[test]
fn a_deadline_only_grows() {
    let grow = |ttl: u32, most: u32| {
        bound(|s| {
            Arc::make_mut(&mut s.claim).spec.ttl_seconds = ttl;
            Arc::make_mut(s.pool.as_mut().unwrap()).spec.claim_policy.max_ttl_seconds = most;
        })
    };
    assert_eq!(grow(150, 8000), Some(ClaimIntent::Extend { expires_at: at(210) }));
    assert_eq!(grow(150, 120), Some(ClaimIntent::Extend { expires_at: at(180) }), "up to the pool's maximum");
    assert_eq!(grow(100, 50), None, "a pool that lowers its maximum ends nobody");
}

fn pending(
    change: impl FnOnce(&mut VirtualMachineClaim, &mut VirtualMachinePool, &mut Option<(u32, bool)>),
) -> ClaimPlan {
    let mut pool = pool("p");
    let mut object = claim(&pool, json!({}));
    let mut unserved = None;
    change(&mut object, &mut pool, &mut unserved);
    let mut snapshot = claim_snapshot(&pool, object, None);
    snapshot.unserved = unserved;
    super::claim(&snapshot, at(70), &tuning())
}

fn fails_with(plan: ClaimPlan) -> ClaimReason {
    match plan.intent {
        Some(ClaimIntent::Fail { reason, .. }) => reason,
        other => panic!("{other:?} is no failure"),
    }
}

#[test]
fn what_the_pool_does_not_allow_fails_before_it_is_bound() {
    assert_eq!(pending(|_, _, _| {}).intent, None);
    assert_eq!(fails_with(pending(|c, _, _| c.spec.ttl_seconds = 1_000_000)), ClaimReason::TtlExceedsPool);
    assert_eq!(fails_with(pending(|c, _, _| c.spec.priority = 1)), ClaimReason::TtlExceedsPool);
    assert_eq!(
        fails_with(pending(|_, p, _| p.spec.claim_policy.allowed_images = vec!["other/*".into()])),
        ClaimReason::ImageDenied
    );
    assert_eq!(fails_with(pending(|_, p, _| p.spec.claim_policy.require_digest = true)), ClaimReason::ImageDenied);
    assert_eq!(fails_with(pending(|c, _, _| c.spec.audiences = vec!["a".into()])), ClaimReason::AudienceDenied);
    assert_eq!(fails_with(pending(|c, _, _| c.spec.bind_deadline_seconds = 5)), ClaimReason::BindDeadlineExceeded);
    assert_eq!(
        fails_with(pending(|_, p, _| p.spec.claim_policy.max_bind_deadline_seconds = 5)),
        ClaimReason::BindDeadlineExceeded
    );
    let empty = pending(|c, _, unserved| {
        c.spec.when_empty = banlieue_crds::claim::WhenEmpty::Fail;
        *unserved = Some((1, false));
    });
    assert_eq!(fails_with(empty), ClaimReason::NoMemberAvailable);
    let many = {
        let pool = pool("p");
        let mut snapshot = claim_snapshot(&pool, claim(&pool, json!({})), None);
        snapshot.subject_before = 5;
        super::claim(&snapshot, at(61), &tuning())
    };
    assert_eq!(fails_with(many), ClaimReason::TooManyClaims);
}

#[test]
fn a_claim_says_why_it_waits_and_no_more_than_it_must() {
    let said = pending(|_, _, unserved| *unserved = Some((3, true)));
    assert!(matches!(
        said.intent,
        Some(ClaimIntent::Wait { reason: ClaimReason::QueuedBehindSubject, position: Some(3), .. })
    ));
    let early = {
        let pool = pool("p");
        let mut snapshot = claim_snapshot(&pool, claim(&pool, json!({})), None);
        snapshot.unserved = Some((1, false));
        super::claim(&snapshot, at(61), &tuning())
    };
    assert_eq!(early.intent, None);
    assert_eq!(early.wake, Some(at(65)));
    let no_pool = {
        let pool = pool("p");
        let mut snapshot = claim_snapshot(&pool, claim(&pool, json!({})), None);
        snapshot.pool = None;
        super::claim(&snapshot, at(61), &tuning())
    };
    assert!(matches!(no_pool.intent, Some(ClaimIntent::Wait { reason: ClaimReason::PoolNotFound, .. })));
}

#[test]
fn a_committed_member_is_acknowledged_and_no_other_is_tried() {
    let pool = pool("p");
    let snapshot = claim_snapshot(&pool, claim(&pool, json!({})), Some(ready(&pool, "p-aaaaa")));
    assert_eq!(super::claim(&snapshot, at(70), &tuning()).intent, Some(ClaimIntent::Acknowledge));
}

#[test]
fn the_end_goes_by_one_path() {
    let pool = pool("p");
    let mut status = bound_status();
    status["phase"] = json!("Releasing");
    status["terminationReason"] = json!("MemberLost");
    let mut snapshot = claim_snapshot(&pool, claim(&pool, status.clone()), Some(ready(&pool, "p-aaaaa")));
    assert!(matches!(super::claim(&snapshot, at(70), &tuning()).intent, Some(ClaimIntent::DeleteMember { .. })));
    let deleting = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(70)));
    Arc::make_mut(&mut snapshot.acknowledged.as_mut().unwrap().member).metadata.deletion_timestamp = deleting.clone();
    assert_eq!(super::claim(&snapshot, at(70), &tuning()).intent, None, "waits for the member");
    Arc::make_mut(&mut snapshot.claim).metadata.annotations =
        Some([("banlieue.io/force-release".to_owned(), String::new())].into());
    assert!(matches!(
        super::claim(&snapshot, at(70), &tuning()).intent,
        Some(ClaimIntent::Finish { forced: true, .. })
    ));
    snapshot.acknowledged = None;
    snapshot.committed.clear();
    assert!(matches!(
        super::claim(&snapshot, at(70), &tuning()).intent,
        Some(ClaimIntent::Finish { forced: false, reason: ClaimReason::MemberLost })
    ));

    status["phase"] = json!("Failed");
    status["conditions"] = json!([{"type": "Destroyed", "status": "True", "reason": "MemberLost", "message": "",
        "lastTransitionTime": "2026-11-30T20:02:00Z"}]);
    let mut object = claim(&pool, status);
    let ended = claim_snapshot(&pool, object.clone(), None);
    assert_eq!(super::claim(&ended, at(121), &tuning()).intent, Some(ClaimIntent::RemoveFinalizer));
    object.metadata.finalizers = None;
    let ended = claim_snapshot(&pool, object, None);
    assert_eq!(super::claim(&ended, at(121), &tuning()).wake, Some(at(150)));
    assert_eq!(super::claim(&ended, at(150), &tuning()).intent, Some(ClaimIntent::Delete));
}

// Members.

pub(super) fn vtpm(pool: &mut VirtualMachinePool) {
    pool.spec.attestation.mode = AttestationMode::Vtpm;
    pool.spec.attestation.max_age_seconds = 60;
}

pub(super) fn attested_status(snapshot: &mut MemberSnapshot, status: &str, reason: &str, message: &str) {
    let member = Arc::make_mut(&mut snapshot.member).status.as_mut().unwrap();
    member.enrolment = serde_json::from_value(json!({ "seedDigest": "00".repeat(32) })).unwrap();
    member.attestation = serde_json::from_value(json!({ "verifiedAt": "2026-11-30T20:01:00.000000Z" })).unwrap();
    member.conditions.push(
        serde_json::from_value(json!({"type": "Attested", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-11-30T20:01:00Z"}))
        .unwrap(),
    );
}

pub(super) fn written(plan: &MemberPlan) -> &MemberDraft {
    plan.intents
        .iter()
        .find_map(|intent| match intent {
            MemberIntent::Status(draft) => Some(draft.as_ref()),
            _ => None,
        })
        .unwrap_or_else(|| panic!("no status in {plan:?}"))
}

#[test]
fn ready_only_after_evidence_that_counts() {
    let mut pool = pool("p");
    assert_eq!(written(&member(&coming(&pool, "a", Some("Running")), at(61))).phase, MemberPhase::Ready, "mode None");
    vtpm(&mut pool);
    assert_eq!(written(&member(&coming(&pool, "a", Some("Running")), at(61))).phase, MemberPhase::Booting);
    assert_eq!(written(&member(&coming(&pool, "a", Some("Scheduled")), at(61))).phase, MemberPhase::Provisioning);
    let mut judged = coming(&pool, "a", Some("Running"));
    attested_status(&mut judged, "True", "Verified", "");
    let mut waits = coming(&pool, "a", Some("Running"));
    attested_status(&mut waits, "False", "EntriesMissing", "2 of 3 are there");
    let plan = member(&waits, at(61));
    assert_eq!(written(&plan).ready_condition.reason, "Attesting");
    assert_eq!(written(&plan).ready_condition.message, "EntriesMissing: 2 of 3 are there", "the attestor's own word");
    let plan = member(&judged, at(61));
    assert_eq!(written(&plan).phase, MemberPhase::Ready);
    assert_eq!(plan.wake, Some(at(120)), "when the evidence is too old");
    assert!(plan.intents.contains(&MemberIntent::DeleteSecret));
    assert_eq!(written(&member(&judged, at(120))).phase, MemberPhase::Attesting, "a dead attestor fails closed");
    assert!(lendable(&judged, at(61)).is_err(), "the phase is not written yet");
}

#[test]
fn a_refusal_names_pcr_and_event_in_the_members_own_condition() {
    let mut pool = pool("p");
    vtpm(&mut pool);
    let mut refused = coming(&pool, "a", Some("Running"));
    attested_status(&mut refused, "False", "AttestationRefused", "PCR 11: event .initrd differs");
    let plan = member(&refused, at(61));
    let draft = written(&plan);
    assert_eq!(draft.phase, MemberPhase::Failed);
    assert_eq!(draft.ready_condition.message, "PCR 11: event .initrd differs");
    // The plugin's word counts before the attestor controller's condition, and after the guest has powered off.
    let mut off = coming(&pool, "a", Some("Succeeded"));
    attested_status(&mut off, "False", "Attesting", "");
    Arc::make_mut(&mut off.member).status.as_mut().unwrap().attestation =
        serde_json::from_value(json!({ "refusal": { "reason": "PolicyMismatch", "message": "PCR 4 differs" } }))
            .unwrap();
    assert_eq!(written(&member(&off, at(61))).ready_condition.message, "PolicyMismatch: PCR 4 differs");
    let mut twice = coming(&pool, "a", Some("Running"));
    attested_status(&mut twice, "False", "DuplicateEndorsementKey", "also pinned to b");
    assert_eq!(written(&member(&twice, at(61))).phase, MemberPhase::Quarantined);
}

#[test]
fn another_instance_under_the_name_fails_the_member() {
    let pool = pool("p");
    let mut member_snapshot = ready(&pool, "a");
    member_snapshot.instance = Some(Arc::new(instance("uid-a", "another", Some("Running"))));
    assert_eq!(written(&member(&member_snapshot, at(61))).phase, MemberPhase::Failed);
    member_snapshot.instance = None;
    assert_eq!(member(&member_snapshot, at(61)).intents, [MemberIntent::VerifyInstance], "asked for before it fails");
}

#[test]
fn age_counts_from_scheduled() {
    let pool = pool("p");
    let waiting = coming(&pool, "a", Some("Scheduling"));
    assert_eq!(written(&member(&waiting, at(100_000))).phase, MemberPhase::Provisioning, "no node, no age");
    let mut slow = coming(&pool, "a", Some("Scheduled"));
    let pod = PodFacts {
        instance_uid: "vm-a".into(),
        member: None,
        scheduled_at: Some(at(1000)),
        unschedulable: None,
        image_missing: None,
    };
    slow.pods = vec![Arc::new(pod)];
    assert_eq!(member(&slow, at(1001)).wake, Some(at(1600)));
    assert_eq!(written(&member(&slow, at(1600))).phase, MemberPhase::Failed);
}

#[test]
fn a_spent_member_without_a_claim_that_counts_goes() {
    let pool = pool("p");
    let with_claim = |status: Value, named: bool| {
        let mut snapshot = ready(&pool, "p-aaaaa");
        let claim = claim(&pool, status);
        Arc::make_mut(&mut snapshot.member).spec.claim_ref =
            Some(banlieue_crds::ObjectRef { name: "c".into(), uid: "uid-c".into() });
        snapshot.claim = named.then(|| Arc::new(claim));
        member(&snapshot, at(70)).intents
    };
    assert_eq!(with_claim(bound_status(), true), []);
    assert_eq!(with_claim(json!({}), true), [], "about to be acknowledged");
    assert_eq!(with_claim(json!({}), false), [MemberIntent::VerifyClaim], "asked for before it goes");
    let mut other = bound_status();
    other["memberRef"]["uid"] = json!("another");
    assert!(matches!(with_claim(other, true).as_slice(), [MemberIntent::Delete { .. }]), "surplus");
    assert!(matches!(with_claim(json!({"phase": "Failed"}), true).as_slice(), [MemberIntent::Delete { .. }]));
}

// Pools.

fn plan(snapshot: &PoolSnapshot) -> PoolPlan {
    super::pool(snapshot, at(100), &tuning())
}

pub(super) fn creates(plan: &PoolPlan) -> usize {
    plan.intents.iter().map(|intent| if let PoolIntent::Create { count, .. } = intent { *count } else { 0 }).sum()
}

fn deletes(plan: &PoolPlan) -> Vec<&str> {
    plan.intents
        .iter()
        .filter_map(|intent| {
            if let PoolIntent::DeleteMember { member, .. } = intent { Some(member.name.as_str()) } else { None }
        })
        .collect()
}

#[test]
fn filling_keeps_to_surge_and_cap_and_counts_creates_in_flight() {
    let mut pool = pool("p");
    pool.spec.warm_replicas = 5;
    assert_eq!(creates(&plan(&pool_snapshot(&pool, vec![]))), 2, "surge");
    let mut snapshot = pool_snapshot(&pool, vec![]);
    snapshot.expected = 1;
    assert_eq!(creates(&plan(&snapshot)), 1, "one is in flight");
    let one = coming(&pool, "a", None);
    assert_eq!(creates(&plan(&pool_snapshot(&pool, vec![one]))), 1);
    pool.spec.max_replicas = 5;
    let mut dying: Vec<MemberSnapshot> = ["a", "b", "c", "d"].iter().map(|name| ready(&pool, name)).collect();
    for member in &mut dying {
        Arc::make_mut(&mut member.member).metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(90)));
    }
    assert_eq!(creates(&plan(&pool_snapshot(&pool, dying))), 1, "terminating members count against the cap");
    pool.spec.paused = true;
    assert_eq!(creates(&plan(&pool_snapshot(&pool, vec![]))), 0);
}

#[test]
fn scaling_down_takes_the_youngest_and_nobody_while_claims_wait() {
    let mut pool = pool("p");
    pool.spec.warm_replicas = 1;
    let members = vec![ready(&pool, "a"), coming(&pool, "b", None)];
    let mut snapshot = pool_snapshot(&pool, members);
    assert_eq!(deletes(&plan(&snapshot)), ["b"], "the one that is not ready yet");
    snapshot.waiting = 1;
    assert_eq!(deletes(&plan(&snapshot)), Vec::<&str>::new());
    snapshot.waiting = 0;
    snapshot.members[1].held = true;
    assert!(!deletes(&plan(&snapshot)).contains(&"b"), "somebody is writing it");
}

#[test]
fn a_rollout_never_goes_below_what_may_be_missing() {
    let old = pool("p");
    let mut new = old.clone();
    new.spec.warm_replicas = 3;
    new.spec.template.metadata.labels.insert("app.kubernetes.io/version".into(), "2".into());
    let old_members = || ["a", "b", "c"].iter().map(|name| ready(&old, name)).collect::<Vec<_>>();
    let rolling = plan(&pool_snapshot(&new, old_members()));
    assert_eq!(deletes(&rolling).len(), 1, "maxUnavailable is 1");
    assert_eq!(creates(&rolling), 2);
    assert_eq!(rolling.status.updated, 0);
    let mut recreate = new.clone();
    recreate.spec.update_strategy.type_ = banlieue_crds::pool::UpdateStrategyType::Recreate;
    assert_eq!(deletes(&plan(&pool_snapshot(&recreate, old_members()))).len(), 3);
    let mut replenish = new.clone();
    replenish.spec.update_strategy.type_ = banlieue_crds::pool::UpdateStrategyType::OnReplenish;
    assert_eq!(deletes(&plan(&pool_snapshot(&replenish, old_members()))).len(), 0);
    // A new revision that KubeVirt refuses stops before anything is touched.
    let mut refused = pool_snapshot(&new, old_members());
    let verdict = TemplateVerdict::Refused { message: "no".into(), ask_again: at(1000) };
    refused.facts.template = Some((revision(&new), verdict));
    let stopped = plan(&refused);
    assert_eq!((deletes(&stopped).len(), creates(&stopped)), (0, 0));
}

#[test]
fn a_cordoned_node_empties_the_warm_set_at_once_and_is_replaced_after_a_while() {
    let pool = pool("p");
    let mut member = ready(&pool, "a");
    member.node = Some(Arc::new(NodeFacts { unusable: Some("is cordoned".into()), since: at(90) }));
    let snapshot = pool_snapshot(&pool, vec![member.clone(), ready(&pool, "b")]);
    let soon = plan(&snapshot);
    assert_eq!((soon.status.warm, creates(&soon), deletes(&soon).len()), (1, 0, 0));
    assert!(pick(&pool, &revision(&pool), [&member].into_iter(), at(100)).is_none());
    let later = super::pool(&snapshot, at(151), &tuning());
    assert_eq!((creates(&later), deletes(&later)), (1, vec!["a"]));
}

pub(super) fn failed(pool: &VirtualMachinePool, name: &str) -> MemberSnapshot {
    let mut snapshot = coming(pool, name, Some("Running"));
    let status = Arc::make_mut(&mut snapshot.member).status.as_mut().unwrap();
    status.phase = Some(MemberPhase::Failed);
    status.conditions.push(
        serde_json::from_value(json!({"type": "Ready", "status": "False", "reason": "AttestationRefused",
            "message": "PCR 11", "lastTransitionTime": "2026-11-30T20:01:00Z"}))
        .unwrap(),
    );
    snapshot
}

#[test]
fn a_failure_is_counted_once_before_its_member_may_go_and_a_spent_budget_stops_the_pool() {
    let mut pool = pool("p");
    pool.spec.failure_budget.consecutive = 2;
    pool.spec.failure_budget.keep_failed = 0;
    let members = || vec![failed(&pool, "a"), failed(&pool, "b")];
    let first = plan(&pool_snapshot(&pool, members()));
    let record = first.status.failures.clone().unwrap();
    assert_eq!((record.consecutive, deletes(&first).len()), (2, 0), "counted, but not written down yet");
    let halted = first.status.conditions.iter().find(|c| c.type_ == "ProvisioningHalted").unwrap();
    assert_eq!((halted.status.as_str(), halted.reason.as_str()), ("True", "FailureBudgetSpent"));
    assert!(halted.message.contains("PCR 11"), "{}", halted.message);
    let short = first.status.conditions.iter().find(|c| c.type_ == "Ready").unwrap();
    assert!(short.message.contains("PCR 11"), "the pool says why it is short: {}", short.message);
    assert_eq!(creates(&first), 0);

    let mut counted = pool.clone();
    counted.status = Some(first.status);
    let second = super::pool(&pool_snapshot(&counted, members()), at(101), &tuning());
    assert_eq!(second.status.failures.clone().unwrap().consecutive, 2, "not counted twice");
    assert_eq!(deletes(&second).len(), 2);
    let later = super::pool(&pool_snapshot(&counted, vec![]), at(200), &tuning());
    assert_eq!(creates(&later), 1, "one attempt after the pause");
    let mut fine = ready(&pool, "c");
    let times = Arc::make_mut(&mut fine.member).status.as_mut().unwrap().phase_times.as_mut().unwrap();
    times.ready = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(at(150)));
    let ready = super::pool(&pool_snapshot(&counted, vec![fine.clone()]), at(200), &tuning());
    assert_eq!(ready.status.failures.unwrap().consecutive, 2, "Ready is what a guest without identity gets, too");
    assert_eq!(ready.wake, Some(at(780)), "looked at again when it has lived long enough");
    let recovered = super::pool(&pool_snapshot(&counted, vec![fine]), at(780), &tuning());
    assert_eq!(recovered.status.failures, None, "one that lived long enough ends the row");
}

#[test]
fn a_pool_that_is_deleted_sends_unbound_members_away_and_waits_for_the_rest() {
    let mut pool = pool("p");
    pool.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(99)));
    let mut bound = ready(&pool, "b");
    Arc::make_mut(&mut bound.member).spec.claim_ref = Some(Default::default());
    let draining = plan(&pool_snapshot(&pool, vec![ready(&pool, "a"), bound]));
    assert_eq!(deletes(&draining), ["a"]);
    assert!(!draining.intents.contains(&PoolIntent::RemoveFinalizer));
    let mut lost = pool_snapshot(&pool, vec![]);
    lost.expected = 1;
    assert!(!plan(&lost).intents.contains(&PoolIntent::RemoveFinalizer), "a create may still arrive");
    assert!(plan(&pool_snapshot(&pool, vec![])).intents.contains(&PoolIntent::RemoveFinalizer));
}
