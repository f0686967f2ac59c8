//! mediatore's callers' side, on a real API server under its own rights, with tokens of a real provider: three replicas,
//! real claims, real members.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod broker;

use broker::{NAMESPACE, body, claims_of, eventually, post, refused, request, slots_of, test};

use banlieue_cluster::{Identity, programs};
use banlieue_crds::VirtualMachineClaim;
use banlieue_identity::SubjectKey;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use reqwest::Method;
use serde_json::{Value, json};

#[test]
fn a_person_claims_sees_and_releases() {
    test(async |world| {
        let pool = world.pool(1, 2, 2).await;
        let (person, token) = world.somebody().await;
        let (_, other) = world.somebody().await;
        // As the reference's curl does: no content type of ours.
        let (status, made) = post(world, 0, &token, None, &request(&pool)).await;
        assert_eq!(status, 201, "{made}");
        let (name, uid) = (made["name"].as_str().unwrap().to_owned(), made["uid"].as_str().unwrap().to_owned());
        let claim = world.claim(&name).await.unwrap();
        assert_eq!(claim.metadata.finalizers.as_deref().unwrap(), ["banlieue.io/claim-protection"]);
        assert_eq!(
            (claim.spec.subject.issuer.as_str(), claim.spec.subject.id.as_str()),
            (world.entra.issuer.as_str(), person.id.as_str())
        );
        assert_eq!(claim.spec.subject.azp, "");
        assert_eq!(claim.spec.workload.args[1], "-p");

        let secrets = world.all::<Secret>();
        let grant = secrets.get(&format!("grant-{uid}")).await.unwrap();
        assert_eq!(grant.owner_references()[0].uid, uid);
        let sealed = &grant.data.as_ref().unwrap()["grant"].0;
        assert!(!String::from_utf8_lossy(sealed).contains(&person.id), "the grant is sealed");
        assert_eq!(slots_of(world, &person).await.len(), 1);

        let path = format!("/v1/claims/{name}");
        eventually("the claim is bound", async || {
            body(world.ask(1, Method::GET, &path, &token).send().await.unwrap()).await["phase"] == "Bound"
        })
        .await;
        let list = body(world.ask(2, Method::GET, "/v1/claims", &token).send().await.unwrap()).await;
        assert_eq!(list["claims"][0]["name"], name.as_str(), "{list}");
        let list = body(world.ask(2, Method::GET, "/v1/claims", &other).send().await.unwrap()).await;
        assert_eq!(list["claims"], json!([]), "somebody else's list");
        for method in [Method::GET, Method::DELETE] {
            let response = world.ask(1, method.clone(), &path, &other).send().await.unwrap();
            refused("somebody else's claim", response, 404, "not_found").await;
        }

        for replica in [0, 1] {
            let response = world.ask(replica, Method::DELETE, &path, &token).send().await.unwrap();
            assert_eq!(response.status(), 204, "again and again while it goes");
        }
        eventually("the claim is gone", async || {
            let response = world.ask(0, Method::DELETE, &path, &token).send().await.unwrap();
            response.status() == 404
        })
        .await;
        eventually("its slot is free", async || slots_of(world, &person).await.is_empty()).await;
        eventually("its grant is gone", async || secrets.get_opt(&format!("grant-{uid}")).await.unwrap().is_none())
            .await;
        let actions: Vec<Value> = world.audit(&uid).iter().map(|line| line["action"].clone()).collect();
        assert_eq!(actions[..2], [json!("claim"), json!("release")]);
        let text = std::fs::read_to_string(world.config.with_file_name("audit.jsonl")).unwrap();
        assert!(!text.contains(token.rsplit('.').next().unwrap()), "no token is in the audit record");
    });
}

#[test]
fn a_retry_is_the_same_claim() {
    test(async |world| {
        let pool = world.pool(0, 2, 3).await;
        let (person, token) = world.somebody().await;
        let wanted = request(&pool);
        let answers = join_all((0..20).map(|n| post(world, n, &token, Some("retry-1"), &wanted))).await;
        let names: Vec<&Value> = answers.iter().map(|(_, made)| &made["name"]).collect();
        assert!(answers.iter().all(|(status, _)| *status == 201), "{answers:?}");
        assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
        let claims = claims_of(world, &person.id).await;
        assert_eq!(claims.len(), 1);
        assert!(world.all::<Secret>().get_opt(&format!("grant-{}", claims[0].uid().unwrap())).await.unwrap().is_some());

        let mut other = request(&pool);
        other["workload"]["args"] = json!(["/usr/bin/other"]);
        let response = world.ask(1, Method::POST, "/v1/claims", &token).header("Idempotency-Key", "retry-1");
        refused("another body", response.body(other.to_string()).send().await.unwrap(), 409, "idempotency_conflict")
            .await;
        let (_, somebody) = world.somebody().await;
        let (status, theirs) = post(world, 0, &somebody, Some("retry-1"), &wanted).await;
        assert_eq!(status, 201, "a key is one subject's own: {theirs}");
        assert_ne!(theirs["name"], *names[0]);
    });
}

#[test]
fn two_hundred_at_the_limit_minus_one_give_exactly_one() {
    test(async |world| {
        let pool = world.pool(3, 6, 3).await;
        let (person, token) = world.somebody().await;
        // A claim that waits in vain ends, and its slot with it: here each finds its member.
        eventually("three members are warm", async || {
            let pools = body(world.ask(0, Method::GET, "/v1/pools", &token).send().await.unwrap()).await;
            let ours =
                pools["pools"].as_array().unwrap().iter().find(|it| it["pool_ref"] == format!("{NAMESPACE}/{pool}"));
            ours.is_some_and(|it| it["warm"] == 3)
        })
        .await;
        for _ in 0..2 {
            let (status, made) = post(world, 0, &token, None, &request(&pool)).await;
            assert_eq!(status, 201, "{made}");
        }
        let answers = join_all((0..200).map(|n| {
            let (token, pool) = (&token, &pool);
            async move {
                // Half of them can be retried, which takes another way to the slot.
                let key = format!("key-{n}");
                post(world, n, token, (n % 2 == 0).then_some(key.as_str()), &request(pool)).await
            }
        }))
        .await;
        let made = answers.iter().filter(|(status, _)| *status == 201).count();
        let full = answers.iter().filter(|(status, body)| *status == 429 && body["error"] == "too_many_claims").count();
        assert_eq!((made, full), (1, 199), "{:?}", answers.iter().find(|(status, _)| !matches!(status, 201 | 429)));
        assert_eq!(claims_of(world, &person.id).await.len(), 3);
        assert_eq!(slots_of(world, &person).await.len(), 3);
        let (_, other) = world.somebody().await;
        assert_eq!(post(world, 1, &other, None, &request(&pool)).await.0, 201, "others have slots of their own");
    });
}

#[test]
fn agents_and_services() {
    test(async |world| {
        let pool = world.pool(0, 6, 2).await;
        let (person, token) = world.somebody().await;
        let agent = world.agent_for(&person).await;
        let (status, by_person) = post(world, 0, &token, None, &request(&pool)).await;
        assert_eq!(status, 201, "{by_person}");
        let (status, by_agent) = post(world, 0, &agent, None, &request(&pool)).await;
        assert_eq!(status, 201, "{by_agent}");
        let claim = world.claim(by_agent["name"].as_str().unwrap()).await.unwrap();
        assert_eq!((claim.spec.subject.id.as_str(), claim.spec.subject.azp.as_str()), (person.id.as_str(), "agent"));
        let line = &world.audit(by_agent["uid"].as_str().unwrap())[0];
        assert_eq!((&line["azp"], &line["path"]), (&json!("agent"), &json!("agent_for_person")), "{line}");

        let names = async |token: &str| {
            let list = body(world.ask(0, Method::GET, "/v1/claims", token).send().await.unwrap()).await;
            list["claims"].as_array().unwrap().len()
        };
        eventually("the person sees both", async || names(&token).await == 2).await;
        assert_eq!(names(&agent).await, 1, "the agent sees its own");
        let path = format!("/v1/claims/{}", by_person["name"].as_str().unwrap());
        refused("the person's", world.ask(0, Method::GET, &path, &agent).send().await.unwrap(), 404, "not_found").await;

        let service = world.service().await;
        let (status, made) = post(world, 0, &service, None, &request(&pool)).await;
        assert_eq!(status, 201, "{made}");
        let claim = world.claim(made["name"].as_str().unwrap()).await.unwrap();
        assert_eq!(claim.spec.subject.id, "pipeline-object");
        let mut theirs = request(&pool);
        theirs["audiences"] = json!(["api://people-only"]);
        let response = world.ask(0, Method::POST, "/v1/claims", &service).body(theirs.to_string());
        refused("not listed", response.send().await.unwrap(), 403, "forbidden").await;
        // A share of one person's two: one.
        let response = world.ask(1, Method::POST, "/v1/claims", &agent).body(request(&pool).to_string());
        refused("the agents' share", response.send().await.unwrap(), 429, "too_many_claims").await;
    });
}

#[test]
fn what_is_refused_and_how() {
    test(async |world| {
        let pool = world.pool(0, 1, 5).await;
        let (person, token) = world.somebody().await;
        let claims = |token: &str| world.ask(0, Method::POST, "/v1/claims", token);
        let good = request(&pool).to_string();

        let kubernetes = world.entra.login("mediatore-cli", &person, "api://kubernetes/access").await.unwrap();
        let own_api = world.entra.login("agent-app", &person, "api://agent/access").await.unwrap();
        let (front, _) = token.rsplit_once('.').unwrap();
        let none = format!("eyJhbGciOiJub25lIn0.{}.", front.split('.').nth(1).unwrap());
        for (what, token) in [
            ("no token", String::new()),
            ("nonsense", "nonsense".into()),
            ("for Kubernetes", kubernetes.access_token),
            ("for the agent's API", own_api.access_token),
            ("no signature", format!("{front}.")),
            ("alg none", none),
        ] {
            refused(what, claims(&token).body(good.clone()).send().await.unwrap(), 401, "unauthorized").await;
        }
        let two = claims(&token).header("authorization", "Bearer x").body(good.clone());
        refused("two tokens", two.send().await.unwrap(), 401, "unauthorized").await;
        let basic = world.ask(0, Method::GET, "/v1/claims", "").header("authorization", "Basic eDp5");
        refused("no bearer", basic.send().await.unwrap(), 401, "unauthorized").await;
        let stranger = world.entra.client_credentials("stranger", "api://mediatore/.default").await.unwrap();
        let response = claims(&stranger.access_token).body(good.clone()).send().await.unwrap();
        // A 403 of a bearer check has a challenge too (RFC 6750, 3.1).
        assert_eq!((response.status().as_u16(), body(response).await["error"].clone()), (403, json!("forbidden")));

        let edited = |pointer: &str, value: Value| {
            let mut edited = request(&pool);
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            edited.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.into(), value);
            edited.to_string()
        };
        for (what, text, status, code) in [
            ("empty", String::new(), 400, "invalid_request"),
            ("no JSON", "{".into(), 400, "invalid_request"),
            ("a form", "pool_ref=p".into(), 400, "invalid_request"),
            ("an unknown field", edited("/nonsense", json!(1)), 400, "invalid_request"),
            ("an unknown field below", edited("/workload/nonsense", json!(1)), 400, "invalid_request"),
            ("too long", " ".repeat(300_000), 413, "payload_too_large"),
            ("too long a life", edited("/ttl_seconds", json!(7201)), 400, "invalid_ttl"),
            ("no life", edited("/ttl_seconds", json!(0)), 400, "invalid_ttl"),
            ("an image", edited("/workload/image", json!("docker.io/library/x")), 400, "image_denied"),
            ("an audience", edited("/audiences", json!(["api://nobody"])), 400, "unknown_audience"),
            ("a reserved one", edited("/audiences", json!(["mediatore"])), 400, "unknown_audience"),
            ("no such pool", edited("/pool_ref", json!("none")), 404, "pool_not_found"),
            ("another namespace", edited("/pool_ref", json!("kube-system/p")), 404, "pool_not_found"),
            ("a path", edited("/pool_ref", json!("../p")), 404, "pool_not_found"),
        ] {
            refused(what, claims(&token).body(text).send().await.unwrap(), status, code).await;
        }
        let key = claims(&token).header("Idempotency-Key", "a b").body(good.clone());
        refused("a key with a space", key.send().await.unwrap(), 400, "invalid_request").await;
        refused("no such route", world.ask(0, Method::GET, "/v2", "").send().await.unwrap(), 404, "not_found").await;
        let response = world.ask(0, Method::PUT, "/v1/claims", &token).send().await.unwrap();
        assert_eq!(response.headers()["allow"], "POST, GET");
        refused("no such method", response, 405, "method_not_allowed").await;
        for name in ["x", "..", "%ff", "a%2fb", &"c-0".repeat(200)] {
            let response = world.ask(0, Method::GET, &format!("/v1/claims/{name}"), &token).send().await.unwrap();
            assert_eq!(response.status(), 404, "{name}");
        }
        assert_eq!(claims_of(world, &person.id).await.len(), 0);
        assert_eq!(slots_of(world, &person).await, Vec::<String>::new(), "nothing refused holds a slot");
    });
}

#[test]
fn an_operator_takes_rights_away() {
    test(async |world| {
        let pool = world.pool(0, 1, 2).await;
        let (person, token) = world.somebody().await;
        let (status, made) = post(world, 0, &token, None, &request(&pool)).await;
        assert_eq!(status, 201, "{made}");
        let key = SubjectKey::of(&world.entra.issuer, &person.id).to_string();
        let program = programs::binary("mediatore").unwrap();
        let kubeconfig = world.cluster.kubeconfig(&Identity::Broker).await.unwrap();
        let config = world.config.display().to_string();
        let revoke = async || {
            let output = tokio::process::Command::new(&program)
                .args(["revoke", "--config", &config, "--subject", &key, "--reason", "left the company"])
                .env("KUBECONFIG", &kubeconfig)
                .output()
                .await
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let name = made["name"].as_str().unwrap();
        let said = revoke().await;
        assert!(said.contains(&format!("subject {key}: denied in {NAMESPACE}")), "{said}");
        assert!(said.contains(&format!("claim {NAMESPACE}/{name}: released")), "{said}");
        let said = revoke().await;
        assert!(said.contains("was denied already") && said.contains("0 claim(s) released, none lives"), "{said}");
        for replica in 0..3 {
            eventually("every replica denies the subject", async || {
                let response = world.ask(replica, Method::GET, "/v1/claims", &token).send().await.unwrap();
                response.status() == 403
            })
            .await;
        }
        eventually("the claim is released", async || {
            world.claim(name).await.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
        })
        .await;
        // Whoever makes more for that subject, past mediatore: none lives.
        let later: VirtualMachineClaim = serde_json::from_value(json!({
            "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachineClaim",
            "metadata": { "name": format!("later-{pool}") },
            "spec": {
                "poolRef": { "name": pool }, "bindDeadlineSeconds": 600,
                "subject": { "issuer": world.entra.issuer, "id": person.id },
                "workload": { "image": broker::IMAGE },
            },
        }))
        .unwrap();
        let broker = world.cluster.kube(&Identity::Broker).await.unwrap();
        let claims: Api<VirtualMachineClaim> = Api::namespaced(broker, NAMESPACE);
        claims.create(&PostParams::default(), &later).await.unwrap();
        eventually("the later claim is released", async || {
            world.claim(&format!("later-{pool}")).await.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
        })
        .await;
        let checked = std::process::Command::new(&program).args(["check-config", &config]).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    });
}

#[test]
fn what_anybody_may_read() {
    test(async |world| {
        let get = async |path: &str| body(world.ask(0, Method::GET, path, "").send().await.unwrap()).await;
        let issuer = get("/.well-known/openid-configuration").await;
        assert_eq!(issuer["issuer"], "https://mediatore.example");
        let keys = get("/.well-known/jwks.json").await;
        assert_eq!(keys["keys"][0]["alg"], "ES256");
        assert!(keys["keys"][0].get("d").is_none());
        assert_eq!(get("/openapi.json").await["openapi"], "3.1.0");
        assert_eq!(get("/healthz").await, json!({ "status": "ok" }));
    });
}
