//! mediatore after a crash: kill -9 of a replica in the middle of making and releasing a claim, what such a crash leaves, and
//! what looks like one and is none. Nothing is lost, nothing is there twice.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod broker;

use broker::{NAMESPACE, World, claims_of, eventually, post, refused, request, slots_of, test};

use banlieue_cluster::Identity;
use banlieue_cluster::idp::Person;
use banlieue_crds::VirtualMachineClaim;
use banlieue_identity::SubjectKey;
use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Waits until the watch shows what is looked for.
async fn seen<K>(world: &World, what: &str, mut shows: impl AsyncFnMut(&K) -> bool)
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    K::DynamicType: Default,
{
    let objects = watcher(world.all::<K>(), watcher::Config::default()).default_backoff().applied_objects();
    let mut objects = std::pin::pin!(objects);
    let found = tokio::time::timeout(std::time::Duration::from_secs(600), async {
        while let Some(object) = objects.try_next().await.unwrap() {
            if shows(&object).await {
                return;
            }
        }
    });
    found.await.unwrap_or_else(|_| panic!("{what}: not within ten minutes"));
}

/// How far a claim's making or ending had come when its replica was killed, as it shows from outside.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Point {
    Slot,
    Claim,
    Grant,
    Releasing,
    Gone,
}

async fn reached(world: &World, point: Point, person: &Person) {
    let what = format!("{point:?}");
    match point {
        Point::Slot => {
            let key = SubjectKey::of(&world.entra.issuer, &person.id).to_string();
            seen::<Lease>(world, &what, async |lease| lease.name_any().contains(&key)).await;
        }
        Point::Claim => seen::<VirtualMachineClaim>(world, &what, async |it| it.spec.subject.id == person.id).await,
        Point::Grant => {
            seen::<Secret>(world, &what, async |secret| {
                let name = secret.name_any();
                let claims = claims_of(world, &person.id).await;
                claims.iter().any(|claim| name == format!("grant-{}", claim.uid().unwrap()))
            })
            .await;
        }
        Point::Releasing => {
            seen::<VirtualMachineClaim>(world, &what, async |claim| {
                claim.spec.subject.id == person.id && claim.metadata.deletion_timestamp.is_some()
            })
            .await;
        }
        Point::Gone => eventually(&what, async || claims_of(world, &person.id).await.is_empty()).await,
    }
}

#[test]
fn kill_in_the_middle_of_making_a_claim() {
    test(async |world| {
        let pool = world.pool(0, 4, 3).await;
        for point in [Point::Slot, Point::Claim, Point::Grant] {
            let (person, token) = world.somebody().await;
            let victim = format!("making-{point:?}").to_lowercase();
            let url = world.replica(&victim, |_| ()).await;
            let asking = world.ask_at(&url, Method::POST, "/v1/claims", &token).header("Idempotency-Key", "one");
            let asking = asking.body(request(&pool).to_string()).send();
            let killing = async {
                reached(world, point, &person).await;
                world.kill(&victim).await;
            };
            let (answer, ()) = tokio::join!(asking, killing);
            // Whatever it came to: a retry elsewhere goes on from there.
            let mut made = Value::Null;
            eventually(&format!("a retry after {point:?}"), async || {
                let (status, body) = post(world, 0, &token, Some("one"), &request(&pool)).await;
                assert!(matches!(status, 201 | 503), "{point:?}: {status} {body}");
                made = body;
                status == 201
            })
            .await;
            let claims = claims_of(world, &person.id).await;
            let uids: Vec<String> = claims.iter().map(|claim| claim.uid().unwrap()).collect();
            assert_eq!(uids, [made["uid"].as_str().unwrap()], "{point:?}: one claim");
            assert_eq!(slots_of(world, &person).await.len(), 1, "{point:?}: one slot");
            assert!(world.all::<Secret>().get_opt(&format!("grant-{}", uids[0])).await.unwrap().is_some(), "{point:?}");
            if let Ok(answer) = answer
                && answer.status() == 201
                // Its head may have been sent, and the rest not.
                && let Ok(text) = answer.text().await
            {
                assert_eq!(
                    serde_json::from_str::<Value>(&text).unwrap()["uid"],
                    made["uid"],
                    "nothing promised is lost"
                );
            }
            assert!(!world.audit(&uids[0]).is_empty(), "{point:?}: its grant is in the record");
        }
    });
}

#[test]
fn kill_in_the_middle_of_releasing_a_claim() {
    test(async |world| {
        let pool = world.pool(0, 4, 3).await;
        for point in [Point::Releasing, Point::Gone] {
            let (person, token) = world.somebody().await;
            let victim = format!("ending-{point:?}").to_lowercase();
            let url = world.replica(&victim, |_| ()).await;
            let (status, made) = post(world, 0, &token, None, &request(&pool)).await;
            assert_eq!(status, 201, "{made}");
            let (name, uid) = (made["name"].as_str().unwrap(), made["uid"].as_str().unwrap());
            let path = format!("/v1/claims/{name}");
            let asking = world.ask_at(&url, Method::DELETE, &path, &token).send();
            let killing = async {
                reached(world, point, &person).await;
                world.kill(&victim).await;
            };
            let (answer, ()) = tokio::join!(asking, killing);
            if let Ok(answer) = answer {
                assert_eq!(answer.status(), 204, "{point:?}");
            }
            eventually(&format!("the claim is gone after {point:?}"), async || {
                let response = world.ask(1, Method::DELETE, &path, &token).send().await.unwrap();
                assert!(matches!(response.status().as_u16(), 204 | 404), "{point:?}: {}", response.status());
                response.status() == 404
            })
            .await;
            eventually("its slot is free", async || slots_of(world, &person).await.is_empty()).await;
            let grants = world.all::<Secret>();
            eventually("its grant is gone", async || grants.get_opt(&format!("grant-{uid}")).await.unwrap().is_none())
                .await;
        }
    });
}

/// Takes away what makes a claim count, as a crash before it was there would have left it.
async fn bare(world: &World, person: &Person, uid: &str) {
    world.all::<Secret>().delete(&format!("grant-{uid}"), &DeleteParams::default()).await.unwrap();
    for slot in slots_of(world, person).await {
        world.all::<Lease>().delete(&slot, &DeleteParams::default()).await.unwrap();
    }
}

#[test]
fn a_retry_takes_a_slot_before_it_grants() {
    test(async |world| {
        let pool = world.pool(0, 4, 1).await;
        let (person, token) = world.somebody().await;
        let first = post(world, 0, &token, Some("first"), &request(&pool)).await;
        assert_eq!(first.0, 201, "{first:?}");
        let uid = first.1["uid"].as_str().unwrap();
        bare(world, &person, uid).await;
        let again = post(world, 1, &token, Some("first"), &request(&pool)).await;
        assert_eq!((again.0, &again.1["uid"]), (201, &first.1["uid"]), "{again:?}");
        assert_eq!(slots_of(world, &person).await.len(), 1, "it holds a slot again");
        assert!(world.all::<Secret>().get_opt(&format!("grant-{uid}")).await.unwrap().is_some());
    });
}

#[test]
fn a_missing_sealing_key_releases_nothing() {
    test(async |world| {
        let pool = world.pool(0, 1, 1).await;
        let (person, token) = world.somebody().await;
        let (status, made) = post(world, 0, &token, Some("k"), &request(&pool)).await;
        assert_eq!(status, 201, "{made}");
        let other = world.config.with_file_name("sealing-other");
        std::fs::write(&other, "7a".repeat(32)).unwrap();
        let url = world
            .replica("other-key", |config| config["sealing_keys"] = json!([{ "id": "other", "file": other }]))
            .await;
        // It sweeps every 15 seconds, and would have released the claim at the fifth time.
        let log = world.cluster.log("other-key");
        eventually("the replica without the key looked at the claim seven times", async || {
            let said = std::fs::read_to_string(&log).unwrap();
            said.lines().filter(|line| line.contains("not among sealing_keys") && line.contains("\"one\"")).count() >= 7
        })
        .await;
        let retried = world.ask_at(&url, Method::POST, "/v1/claims", &token).header("Idempotency-Key", "k");
        refused("a retry there", retried.body(request(&pool).to_string()).send().await.unwrap(), 503, "unavailable")
            .await;
        world.kill("other-key").await;
        let claims = claims_of(world, &person.id).await;
        assert_eq!(claims.len(), 1);
        let (_, again) = post(world, 1, &token, Some("k"), &request(&pool)).await;
        assert_eq!(again["uid"], made["uid"]);
        // It found no member; nobody asked for its end.
        let asked: Vec<Value> = world.audit(made["uid"].as_str().unwrap());
        assert!(asked.iter().all(|line| line["action"] == "claim"), "{asked:?}");
        assert!(!std::fs::read_to_string(&log).unwrap().contains("releasing a claim"));
    });
}

#[test]
fn what_a_crash_leaves_is_tidied_up() {
    test(async |world| {
        let pool = world.pool(0, 1, 1).await;
        let (person, token) = world.somebody().await;
        let broker = world.cluster.kube(&Identity::Broker).await.unwrap();
        // Between slot and claim.
        let key = SubjectKey::of(&world.entra.issuer, &person.id);
        let lease: Lease = serde_json::from_value(json!({
            "metadata": {
                "name": format!("slot-{pool}-{key}-0"),
                "labels": { "app.kubernetes.io/managed-by": "mediatore", "app.kubernetes.io/component": "slot" },
            },
            "spec": { "holderIdentity": "c-0000000000000000000000000000000000000000" },
        }))
        .unwrap();
        let leases: Api<Lease> = Api::namespaced(broker.clone(), NAMESPACE);
        leases.create(&PostParams::default(), &lease).await.unwrap();
        // Between claim and grant.
        let claim: VirtualMachineClaim = serde_json::from_value(json!({
            "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachineClaim",
            "metadata": { "name": format!("left-{pool}"), "labels": { "app.kubernetes.io/managed-by": "mediatore" } },
            "spec": {
                "poolRef": { "name": pool }, "bindDeadlineSeconds": 600,
                "subject": { "issuer": world.entra.issuer, "id": "left" },
                "workload": { "image": broker::IMAGE },
            },
        }))
        .unwrap();
        let claims: Api<VirtualMachineClaim> = Api::namespaced(broker, NAMESPACE);
        claims.create(&PostParams::default(), &claim).await.unwrap();

        let (status, full) = post(world, 0, &token, None, &request(&pool)).await;
        assert!(status == 429 || status == 201, "{full}");
        eventually("the slot is swept", async || {
            leases.get_opt(&format!("slot-{pool}-{key}-0")).await.unwrap().is_none_or(|lease| {
                lease.spec.unwrap().holder_identity.unwrap() != "c-0000000000000000000000000000000000000000"
            })
        })
        .await;
        eventually("the claim is released", async || {
            claims
                .get_opt(&format!("left-{pool}"))
                .await
                .unwrap()
                .is_none_or(|it| it.metadata.deletion_timestamp.is_some())
        })
        .await;
        eventually("its subject can claim", async || {
            post(world, 1, &token, Some("after"), &request(&pool)).await.0 == 201
        })
        .await;
    });
}
