//! What a platform person reads on the objects when something is not as it should be. A cluster of its own: a test here
//! changes a definition.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod lending;

use std::sync::{Mutex, PoisonError};

use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool, conditions};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding as PolicyBinding,
};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use lending::{Fixture, eventually, pool_object, test};
use serde_json::{Value, json};

/// One after the other: while a definition changes, the API server may refuse what concerns it for a moment.
static TURN: Mutex<()> = Mutex::new(());

fn in_turn<F: Future<Output = ()>>(body: impl FnOnce(Fixture) -> F) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    test(body);
}

fn post() -> PostParams {
    PostParams::default()
}

async fn events(at: &Fixture, reason: &str) -> Vec<Event> {
    let all = at.all::<Event>().list(&ListParams::default()).await.unwrap().items;
    all.into_iter().filter(|event| event.reason.as_deref() == Some(reason)).collect()
}

/// An instance that is refused when it is made, and not when KubeVirt is asked: one attempt follows the other. They are
/// one event with a count.
#[test]
fn attempts_that_are_refused_alike_are_one_event_with_a_count() {
    in_turn(async |at: Fixture| {
        let name = format!("refuse-{}", at.namespace);
        let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": at.namespace } },
                    "resourceRules": [
                        { "apiGroups": ["kubevirt.io"], "apiVersions": ["*"], "operations": ["CREATE"],
                          "resources": ["virtualmachineinstances"] },
                        { "apiGroups": [""], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["configmaps"] },
                    ],
                },
                "validations": [{
                    "expression": "has(request.dryRun) && request.dryRun", "message": "no room for it here",
                    "reason": "Forbidden",
                }],
            },
        }))
        .unwrap();
        let binding: PolicyBinding = serde_json::from_value(json!({
            "metadata": { "name": name }, "spec": { "policyName": name, "validationActions": ["Deny"] },
        }))
        .unwrap();
        Api::<ValidatingAdmissionPolicy>::all(at.cluster.admin()).create(&post(), &policy).await.unwrap();
        Api::<PolicyBinding>::all(at.cluster.admin()).create(&post(), &binding).await.unwrap();
        let mut trial = 0;
        eventually("the policy is in force", async || {
            trial += 1;
            let map: ConfigMap =
                serde_json::from_value(json!({ "metadata": { "name": format!("trial-{trial}") } })).unwrap();
            let answer = at.all::<ConfigMap>().create(&post(), &map).await;
            answer.is_err_and(|error| error.to_string().contains("no room for it here"))
        })
        .await;
        let mut pool = pool_object("p", 1, 3, 1);
        pool.spec.failure_budget.backoff_max_seconds = 1;
        let pools = at.all::<VirtualMachinePool>();
        pools.create(&post(), &pool).await.unwrap();
        let mut seen = std::collections::BTreeSet::new();
        eventually("repeats are counted on the first", async || {
            seen.extend(
                at.all::<PoolMember>().list(&Default::default()).await.unwrap().into_iter().filter_map(|m| m.uid()),
            );
            let told = events(&at, "InstanceRefused").await;
            told.iter().any(|event| event.series.as_ref().is_some_and(|series| series.count >= 3))
        })
        .await;
        assert!(seen.len() >= 2, "each attempt was another member");
        let told = events(&at, "InstanceRefused").await;
        assert_eq!(told.len(), 1, "{told:#?}");
        assert!(told[0].note.as_ref().unwrap().contains("no room for it here"), "{told:#?}");
    });
}

/// A claim of a newer version, as after going back to an older controller: it says so, and nobody else waits for it.
#[test]
fn an_object_that_cannot_be_read_is_told_of_and_stops_nobody() {
    in_turn(async |at: Fixture| {
        at.pool("p", 1, 3, 1).await;
        at.pool_is_warm("p").await;
        let crds: Api<CustomResourceDefinition> = Api::all(at.cluster.admin());
        let name = "virtualmachineclaims.banlieue.io";
        let mut newer = serde_json::to_value(crds.get(name).await.unwrap()).unwrap();
        let words = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/whenEmpty/enum";
        newer.pointer_mut(words).unwrap().as_array_mut().unwrap().push(json!("Tomorrow"));
        crds.replace(name, &post(), &serde_json::from_value(newer).unwrap()).await.unwrap();
        let claim = json!({
            "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachineClaim", "metadata": { "name": "newer" },
            "spec": {
                "poolRef": { "name": "p" }, "whenEmpty": "Tomorrow", "subject": { "issuer": "https://issuer.example", "id": "s" },
                "workload": { "image": "registry.local/job:1" },
            },
        });
        let broker = at.cluster.kube(&banlieue_cluster::Identity::Broker).await.unwrap();
        eventually("a newer claim is made", async || {
            let path = format!("/apis/banlieue.io/v1alpha1/namespaces/{}/virtualmachineclaims", at.namespace);
            let request = http::Request::post(path).header("content-type", "application/json");
            let request = request.body(serde_json::to_vec(&claim).unwrap()).unwrap();
            broker.request::<Value>(request).await.is_ok()
        })
        .await;
        at.is_told("VirtualMachineClaim/newer", "Unreadable").await;
        let told = events(&at, "Unreadable").await;
        let note = told[0].note.as_ref().unwrap();
        assert!(note.contains("Tomorrow") && note.contains("Correct or delete it"), "{note}");
        at.claim("p", "mine", 3600).await;
        at.phase_is("mine", ClaimPhase::Bound).await;
        assert_eq!(events(&at, "Unreadable").await.len(), 1, "once");
    });
}

/// Whoever looks at an object reads a sentence, whether all is well or not.
#[test]
fn every_condition_has_a_sentence() {
    in_turn(async |at: Fixture| {
        at.pool("p", 1, 3, 1).await;
        at.pool_is_warm("p").await;
        at.claim("p", "c", 3600).await;
        at.claim("nowhere", "lost", 3600).await;
        at.phase_is("c", ClaimPhase::Bound).await;
        at.pool_is_warm("p").await;
        let claims = at.all::<VirtualMachineClaim>();
        let mut said = String::new();
        eventually("the lost one says which pool there is not, and what to do", async || {
            let status = claims.get("lost").await.unwrap().status.unwrap_or_default();
            let bound = conditions::find(&status.conditions, "Bound").filter(|bound| bound.reason == "PoolNotFound");
            said = bound.map(|bound| bound.message.clone()).unwrap_or_default();
            !said.is_empty()
        })
        .await;
        let names = format!("there is no VirtualMachinePool nowhere in namespace {}: create it", at.namespace);
        assert!(said.starts_with(&names), "{said}");
        let mut all = Vec::new();
        for pool in at.all::<VirtualMachinePool>().list(&Default::default()).await.unwrap() {
            all.extend(pool.status.unwrap_or_default().conditions);
        }
        for member in at.members().await {
            all.extend(member.status.unwrap_or_default().conditions);
        }
        for claim in at.claims().await {
            all.extend(claim.status.unwrap_or_default().conditions);
        }
        assert!(all.len() >= 8 && all.iter().any(|condition| condition.status == "True"), "{all:#?}");
        let mute: Vec<_> = all.iter().filter(|condition| condition.message.is_empty()).collect();
        assert!(mute.is_empty(), "{mute:#?}");
    });
}
