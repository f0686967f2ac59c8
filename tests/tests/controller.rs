//! Pools of mode None on a real API server with KubeVirt's control plane and weightless instances: filling, lending,
//! ending, and what it costs.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod lending;

use banlieue_cluster::{Signal, component};
use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::conditions::{self, ClaimReason};
use banlieue_crds::{PoolMember, VirtualMachinePool};
use kube::ResourceExt;
use lending::{Bindings, CONTROLLER, Fixture, eventually, test};

/// From claim to Bound at most two writes by our controller, in the claim's whole life at most ten; counted where it
/// cannot be forgotten, in the API server's audit log.
#[test]
fn a_claim_is_lent_expires_and_costs_ten_writes() {
    test(async |at: Fixture| {
        at.pool("p", 2, 6, 2).await;
        at.pool_is_warm("p").await;
        at.claim("p", "c", 6).await;
        let bound = at.phase_is("c", ClaimPhase::Bound).await;
        let status = bound.status.clone().unwrap();
        let member = status.member_ref.unwrap();
        let (bound_at, expires_at) = (status.bound_at.unwrap().0, status.expires_at.unwrap().0);
        assert_eq!(expires_at.duration_since(bound_at).as_secs(), 6);
        let object = at.all::<PoolMember>().get(&member.name).await.unwrap();
        assert_eq!(object.spec.claim_ref.as_ref().unwrap().uid, bound.uid().unwrap(), "both directions");
        assert_eq!(object.labels()["banlieue.io/state"], "bound");

        // The pool refills while the claim holds its member.
        at.pool_is_warm("p").await;

        let released = at.phase_is("c", ClaimPhase::Released).await;
        let status = released.status.unwrap();
        assert_eq!(status.termination_reason, Some(ClaimReason::Expired));
        let destroyed = conditions::find(&status.conditions, "Destroyed").unwrap();
        assert_eq!(destroyed.status, "True");
        for step in ["releasing", "instance gone", "launcher pod gone", "Secret gone", "member gone"] {
            assert!(destroyed.message.contains(step), "{step} is not in: {}", destroyed.message);
        }
        at.member_is_gone(&member.name).await;
        at.claim_is_gone("c").await;

        let audit = at.cluster.audit().unwrap();
        let concerns = |event: &&banlieue_cluster::audit::Event| {
            event.object_ref.as_ref().is_some_and(|object| {
                object.namespace == at.namespace
                    && ((object.resource == "virtualmachineclaims" && object.name == "c")
                        || (["poolmembers", "virtualmachineinstances", "secrets"].contains(&object.resource.as_str())
                            && object.name.starts_with(&member.name)))
            })
        };
        let writes: Vec<_> = audit.writes(CONTROLLER).filter(concerns).collect();
        let claimed = audit
            .events
            .iter()
            .find(|event| {
                event.verb == "create"
                    && event.object_ref.as_ref().is_some_and(|o| o.name == "c" && o.namespace == at.namespace)
            })
            .map(|event| event.request_received_timestamp.clone())
            .unwrap();
        let life: Vec<_> = writes.iter().filter(|event| event.request_received_timestamp >= claimed).collect();
        let say = |event: &&&banlieue_cluster::audit::Event| {
            let object = event.object_ref.clone().unwrap();
            format!("{} {}/{} {}", event.verb, object.resource, object.subresource, object.name)
        };
        let told: Vec<String> = life.iter().map(say).collect();
        let acknowledged = told.iter().position(|line| line.starts_with("patch virtualmachineclaims/status")).unwrap();
        let acknowledgement = &life[acknowledged].request_received_timestamp;
        println!("writes of one claim's life: {told:#?}");
        println!("claim posted {claimed}, acknowledgement received {acknowledgement}");
        assert!(acknowledged < 2, "{} writes from claim to Bound: {told:#?}", acknowledged + 1);
        assert!(told.len() <= 10, "{} writes in the claim's life: {told:#?}", told.len());
    });
}

/// A claim that names no pool says so and is served when the pool appears; deleting a claim in any phase is legal.
#[test]
fn a_claim_waits_for_its_pool_and_may_be_deleted_at_any_time() {
    test(async |at: Fixture| {
        at.claim("later", "early", 600).await;
        let api = at.all::<banlieue_crds::VirtualMachineClaim>();
        eventually("the claim says that there is no pool", async || {
            let status = api.get("early").await.unwrap().status.unwrap_or_default();
            conditions::find(&status.conditions, "Bound").is_some_and(|bound| bound.reason == "PoolNotFound")
        })
        .await;
        at.pool("later", 1, 3, 1).await;
        let bound = at.phase_is("early", ClaimPhase::Bound).await;
        let member = bound.status.unwrap().member_ref.unwrap().name;
        // The finalizer comes after Bound, off the hot path: a claim deleted before it does not wait for its member.
        eventually("the claim is protected", async || {
            api.get("early").await.unwrap().finalizers().iter().any(|it| it == "banlieue.io/claim-protection")
        })
        .await;
        at.release("early").await;
        at.claim_is_gone("early").await;
        at.member_is_gone(&member).await;
        at.claim("nowhere", "never", 600).await;
        at.release("never").await;
        at.claim_is_gone("never").await;
    });
}

/// KubeVirt's own judgement of a template is a condition of the pool, and nothing is churned.
#[test]
fn a_template_that_kubevirt_refuses_makes_no_member() {
    test(async |at: Fixture| {
        let pool = at.pool("p", 1, 2, 1).await;
        at.pool_is_warm("p").await;
        let mut bad = pool.clone();
        bad.metadata = kube::api::ObjectMeta {
            name: Some("bad".into()),
            annotations: pool.metadata.annotations,
            ..Default::default()
        };
        bad.status = None;
        let spec = &mut bad.spec.template.kube_virt.as_mut().unwrap().spec;
        // Ours leaves the bus to KubeVirt, which knows no such one.
        spec["domain"]["devices"]["disks"][0]["disk"]["bus"] = serde_json::json!("omnibus");
        let api = at.all::<VirtualMachinePool>();
        api.create(&Default::default(), &bad).await.unwrap();
        eventually("the pool says why", async || {
            let status = api.get("bad").await.unwrap().status.unwrap_or_default();
            conditions::find(&status.conditions, "TemplateValid").is_some_and(|valid| {
                valid.status == "False" && valid.reason == "TemplateInvalid" && !valid.message.is_empty()
            })
        })
        .await;
        let members = at.members().await;
        assert!(members.iter().all(|member| member.spec.pool_ref.name == "p"), "a member was made from a bad template");
    });
}

/// Deleting a pool sends unbound members away, waits for bound ones, and ends them when it drains now.
#[test]
fn a_pool_drains() {
    test(async |at: Fixture| {
        at.pool("p", 2, 4, 2).await;
        at.pool_is_warm("p").await;
        at.claim("p", "c", 3600).await;
        at.phase_is("c", ClaimPhase::Bound).await;
        let api = at.all::<VirtualMachinePool>();
        api.delete("p", &Default::default()).await.unwrap();
        eventually("only the bound member is left", async || at.members().await.len() == 1).await;
        at.phase_is("c", ClaimPhase::Bound).await;
        let now = serde_json::json!({ "metadata": { "annotations": { "banlieue.io/drain": "now" } } });
        api.patch("p", &Default::default(), &kube::api::Patch::Merge(now)).await.unwrap();
        let ended = at.phase_is("c", ClaimPhase::Released).await;
        assert_eq!(ended.status.unwrap().termination_reason, Some(ClaimReason::PoolDeleted));
        eventually("the pool is gone", async || api.get_opt("p").await.unwrap().is_none()).await;
        assert_eq!(at.members().await.len(), 0);
    });
}

/// 300 claims at once on a weightless pool of 200: every member is bound at most once, the rest wait, all end.
#[test]
fn three_hundred_claims_on_a_pool_of_two_hundred() {
    test(async |at: Fixture| {
        at.pool("p", 200, 200, 50).await;
        at.pool_is_warm("p").await;
        let start = std::time::Instant::now();
        let names: Vec<String> = (0..300).map(|n| format!("c{n:03}")).collect();
        futures::future::join_all(names.iter().map(|name| at.claim("p", name, 20))).await;
        println!("300 claims posted in {:?}", start.elapsed());
        let mut seen = Bindings::default();
        let mut first = true;
        eventually("every claim was bound once and is gone", async || {
            let (members, claims) = (at.members().await, at.claims().await);
            seen.see(&members, &claims);
            assert!(members.len() <= 200, "{} members live, maxReplicas is 200", members.len());
            if first && seen.claims() >= 200 {
                println!("200 claims bound after {:?}", start.elapsed());
                first = false;
            }
            claims.is_empty()
        })
        .await;
        println!("all ended after {:?}; {} bindings were seen", start.elapsed(), seen.claims());
    });
}

/// Every change of a condition that matters to a person is an event with the condition's reason.
#[test]
fn what_happens_is_told_in_events() {
    test(async |at: Fixture| {
        at.pool("p", 1, 3, 1).await;
        at.pool_is_warm("p").await;
        at.is_told("VirtualMachinePool/p", "Warm").await;
        at.claim("p", "c", 4).await;
        let member = at.phase_is("c", ClaimPhase::Bound).await.status.unwrap().member_ref.unwrap().name;
        at.is_told(&format!("PoolMember/{member}"), "Ready").await;
        at.is_told("VirtualMachineClaim/c", "Bound").await;
        at.is_told("VirtualMachineClaim/c", "Expired").await;
        at.claim("nowhere", "lost", 4).await;
        at.is_told("VirtualMachineClaim/lost", "PoolNotFound").await;
        at.release("lost").await;
        let api = at.all::<VirtualMachinePool>();
        let paused = |paused: bool| kube::api::Patch::Merge(serde_json::json!({ "spec": { "paused": paused } }));
        api.patch("p", &Default::default(), &paused(true)).await.unwrap();
        let empty = kube::api::Patch::Merge(serde_json::json!({ "spec": { "warmReplicas": 2 } }));
        api.patch("p", &Default::default(), &empty).await.unwrap();
        at.is_told("VirtualMachinePool/p", "Paused").await;
        api.patch("p", &Default::default(), &paused(false)).await.unwrap();
        let broken = serde_json::json!({ "spec": { "template": { "kubeVirt": { "spec": { "hostname": "x" } } } } });
        api.patch("p", &Default::default(), &kube::api::Patch::Merge(broken)).await.unwrap();
        at.is_told("VirtualMachinePool/p", "TemplateInvalid").await;
    });
}

/// A waiting claim says what it waits for, and one too many for its subject ends.
#[test]
fn a_claim_says_why_it_waits() {
    test(async |at: Fixture| {
        let mut pool = lending::pool_object("p", 0, 3, 1);
        pool.spec.claim_policy.max_claims_per_subject = 2;
        at.all::<VirtualMachinePool>().create(&Default::default(), &pool).await.unwrap();
        let api = at.all::<banlieue_crds::VirtualMachineClaim>();
        let reason = async |claim: &str| {
            let status = api.get(claim).await.unwrap().status.unwrap_or_default();
            conditions::find(&status.conditions, "Bound").map(|bound| (bound.reason.clone(), status.queue_position))
        };
        at.claim_for("greedy", "p", "g1", 600).await;
        at.claim_for("greedy", "p", "g2", 600).await;
        // Which of the two is first is open: both may have been made within one second.
        eventually("both wait for a member", async || {
            let no_member = |place| Some(("NoMemberAvailable".to_owned(), Some(place)));
            let places = [reason("g1").await, reason("g2").await];
            places == [no_member(1), no_member(2)] || places == [no_member(2), no_member(1)]
        })
        .await;
        // Younger than both, and before the second of them: its subject has no other.
        at.claim_for("modest", "p", "m1", 600).await;
        eventually("one stands behind its subject's own", async || {
            let behind = |found: Option<(String, _)>| found.is_some_and(|(reason, _)| reason == "QueuedBehindSubject");
            behind(reason("g1").await) || behind(reason("g2").await)
        })
        .await;
        at.claim_for("greedy", "p", "g3", 600).await;
        let failed = at.phase_is("g3", ClaimPhase::Failed).await.status.unwrap();
        assert_eq!(failed.termination_reason, Some(ClaimReason::TooManyClaims));
        for claim in ["g1", "g2", "g3", "m1"] {
            at.release(claim).await;
            at.claim_is_gone(claim).await;
        }
    });
}

/// A claim without a finalizer that is deleted before the controller has added one: nobody waits for its member, which
/// is destroyed and verified gone all the same, and says so.
#[test]
fn a_claim_that_does_not_wait_leaves_no_member_behind() {
    test(async |at: Fixture| {
        at.pool("p", 1, 3, 1).await;
        at.pool_is_warm("p").await;
        at.claim("p", "hasty", 3600).await;
        let member = at.phase_is("hasty", ClaimPhase::Bound).await.status.unwrap().member_ref.unwrap().name;
        // Frozen, so that it cannot be faster than we are.
        at.cluster.kill(component::CONTROLLER, Signal::Stop).await.unwrap();
        let api = at.all::<banlieue_crds::VirtualMachineClaim>();
        let none = kube::api::Patch::Merge(serde_json::json!({ "metadata": { "finalizers": null } }));
        api.patch("hasty", &Default::default(), &none).await.unwrap();
        api.delete("hasty", &Default::default()).await.unwrap();
        assert!(api.get_opt("hasty").await.unwrap().is_none(), "nothing holds it");
        at.cluster.kill(component::CONTROLLER, Signal::Cont).await.unwrap();
        eventually("its member is gone", async || at.all::<PoolMember>().get_opt(&member).await.unwrap().is_none())
            .await;
        at.member_is_gone(&member).await;
        at.is_told(&format!("PoolMember/{member}"), "ClaimGone").await;
        at.pool_is_warm("p").await;
    });
}
