//! A person, an agent for a person and a service, each from login to the call of a downstream service that knows nothing
//! but mediatore's issuer. On attested members, a real SPIRE, a real provider and the real downstream example.
//!
//! This program plays guests and workloads, started again inside the cluster, where SPIRE's agent can see who it is.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test with a `main` of its own

mod broker;
mod downstream;
mod guest;
mod inside;
mod light;

use banlieue_cluster::idp::{MEDIATORE, OidcConfig, Person, Provider, SANDBOX_ACCESS, decode};
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool, conditions};
use banlieue_identity::SubjectKey;
use banlieue_tests::members;
use downstream::Downstream;
use guest::Sandbox;
use kube::api::{Patch, PatchParams};
use light::{Fixture, HONEST, eventually, test};
use serde_json::{Value, json};

/// What the workload calls.
const TRADING: &str = "api://trading-data";
/// What it may call too, elsewhere.
const OTHER: &str = "api://people-only";

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if inside::role().is_some() {
        tokio::runtime::Runtime::new().unwrap().block_on(guest::play());
        return;
    }
    test(paths);
}

/// Everything between a person and the downstream service.
struct World {
    at: Fixture,
    entra: Provider,
    setup: broker::Setup,
    mediatore: broker::Listening,
    downstream: Downstream,
}

/// A claim whose workload has its identity, and a token for [`TRADING`].
struct Working {
    uid: String,
    workload: String,
    token: String,
}

impl World {
    async fn start(at: Fixture) -> Self {
        let mut provider = OidcConfig::entra();
        for application in &mut provider.applications {
            if ["mediatore-cli", "agent"].contains(&application.client_id.as_str()) {
                *application = application.clone().delegated(TRADING, "read");
            }
        }
        let entra = at.cluster.start_oidc(provider).await.unwrap();
        let spire = at.cluster.spire().unwrap();
        // Discovery is at the issuer, so mediatore must listen where its issuer says.
        let address = format!("127.0.0.1:{}", at.cluster.port().unwrap());
        let more = json!({
            "spire": {
                "server": format!("127.0.0.1:{}", spire.port),
                "workload_api": format!("unix://{}", spire.workload_api.display()),
            },
            "limits": { "claim_tokens_per_minute": 100_000 },
        });
        let setup = broker::Setup::new(at.cluster, &entra, &[&at.namespace], more);
        setup.edit(|config| {
            config["listeners"]["user"]["address"] = json!(address);
            config["listeners"]["sandbox"] = json!({ "address": "127.0.0.1:0" });
            config["sts"]["issuer"] = json!(format!("https://{address}"));
        });
        let mediatore = setup.start(at.cluster, "mediatore").await;
        let downstream = Downstream::start(at.cluster, &setup, &mediatore.user, &entra).await;
        at.pool_on("p", "light", 2, HONEST, json!({})).await;
        let policy = json!({ "spec": { "claimPolicy": {
            "allowedAudiences": [TRADING, OTHER], "maxClaimsPerSubject": 4,
        } } });
        let pools = at.all::<VirtualMachinePool>();
        pools.patch("p", &PatchParams::default(), &Patch::Merge(policy)).await.unwrap();
        Self { at, entra, setup, mediatore, downstream }
    }

    fn sandbox(&self) -> Sandbox<'_> {
        Sandbox { cluster: self.at.cluster, address: self.mediatore.sandbox.clone().unwrap() }
    }

    /// From a caller's token to a workload that has one of its own.
    async fn claim(&self, token: &str, audiences: &[&str]) -> Working {
        let is_free = |member: &PoolMember| {
            let ready = member.status.as_ref().is_some_and(|it| conditions::is_true(&it.conditions, "Ready"));
            ready && member.spec.claim_ref.is_none()
        };
        eventually("a member is free", async || members::first(&self.at.all(), "p", is_free).await.is_some()).await;
        let mut request = broker::request("p");
        request["workload"]["image"] = json!("registry.local/job:1");
        request["audiences"] = json!(audiences);
        let mut made = Value::Null;
        eventually("the pool is known with its audiences", async || {
            let asking = self.setup.client.post(format!("{}/v1/claims", self.mediatore.user)).bearer_auth(token);
            let response = asking.body(request.to_string()).send().await.unwrap();
            let status = response.status();
            made = broker::body(response).await;
            assert!(
                status == 201 || matches!(made["error"].as_str(), Some("pool_not_found" | "unknown_audience")),
                "{made}"
            );
            status == 201
        })
        .await;
        let (name, uid) = (made["name"].as_str().unwrap(), made["uid"].as_str().unwrap().to_owned());
        let claims = self.at.all::<VirtualMachineClaim>();
        let mut member = None;
        eventually("the claim has its member", async || {
            member = claims.get(name).await.unwrap().status.and_then(|status| status.member_ref);
            member.is_some()
        })
        .await;
        let node = format!("/banlieue/node/{}", member.unwrap().uid);
        inside::admit(self.at.cluster, &node, &[]);
        let me = self.sandbox().ask(&node, ("GET", "/v1/me?wait=30"), None, 200).await;
        assert_eq!(me["claim_uid"], json!(uid));
        self.sandbox().latch(&node).await;
        let workload = format!("/banlieue/claim/{uid}");
        eventually("the identity is reported", async || {
            let status = claims.get(name).await.unwrap().status.unwrap();
            status.spiffe_id.is_some_and(|id| id.ends_with(&workload))
        })
        .await;
        inside::admit(self.at.cluster, &workload, &[]);
        let token = self.token(&workload, TRADING).await;
        Working { uid, workload, token }
    }

    async fn token(&self, workload: &str, audience: &str) -> String {
        let answer = self.sandbox().token(workload, audience, 200).await;
        answer["access_token"].as_str().unwrap().to_owned()
    }
}

async fn paths(at: Fixture) {
    let world = World::start(at).await;
    let ada = Person::ada();
    let scope = format!("openid {SANDBOX_ACCESS}");

    let login = world.entra.login("mediatore-cli", &ada, &scope).await.unwrap().access_token;
    let person = world.claim(&login, &[TRADING, OTHER]).await;
    world.downstream.takes(&person, &world.entra.issuer, &ada.id, None).await;
    println!("test a_person_from_login_to_the_call ... ok");

    let own = world.entra.login("agent-app", &ada, "api://agent/access").await.unwrap().access_token;
    let for_ada = world.entra.on_behalf_of("agent", &own, SANDBOX_ACCESS).await.unwrap().access_token;
    let agent = world.claim(&for_ada, &[TRADING]).await;
    world.downstream.takes(&agent, &world.entra.issuer, &ada.id, Some("agent")).await;
    // What the agent did not ask for at claim time, its sandbox never gets.
    world.sandbox().ask(&agent.workload, ("POST", "/v1/token"), Some(json!({ "audience": OTHER })), 400).await;
    println!("test an_agent_from_exchange_to_the_call ... ok");

    let service = world.entra.client_credentials("pipeline", &format!("{MEDIATORE}/.default")).await.unwrap();
    let said = decode(&service.access_token).unwrap().1;
    let alone = world.claim(&service.access_token, &[TRADING]).await;
    world.downstream.takes(&alone, &world.entra.issuer, said["oid"].as_str().unwrap(), None).await;
    println!("test a_service_from_credentials_to_the_call ... ok");

    refused(&world, &login, &person).await;
    println!("test what_is_no_token_of_a_sandbox_is_refused ... ok");
    world.downstream.conversation(&world.entra, &agent, &person).await;
    println!("test a_conversation_over_the_relay ... ok");
    rotated(&world, &person).await;
    println!("test keys_rotate_under_a_running_service ... ok");
}

/// Each of these is signed by somebody, or was once good.
async fn refused(world: &World, login: &str, person: &Working) {
    let downstream = &world.downstream;
    assert_eq!(downstream.refuses("").await, "token_missing");
    assert_eq!(downstream.refuses(login).await, "issuer_unknown", "the person's own token");
    assert_eq!(downstream.refuses(&world.token(&person.workload, OTHER).await).await, "audience_wrong");
    let key = SubjectKey::of(&world.entra.issuer, &Person::grace().id).to_string();
    let forge = |edit: &dyn Fn(&mut Value)| world.setup.forge(&person.token, edit);
    assert_eq!(downstream.refuses(&forge(&|it| it["sub"] = json!(key))).await, "subject");
    assert_eq!(downstream.refuses(&forge(&|it| it["exp"] = json!(1000))).await, "expired");
    assert_eq!(downstream.refuses(&forge(&|it| drop(it.as_object_mut().unwrap().remove("act")))).await, "actor");
    let elsewhere = format!("spiffe://elsewhere{}", person.workload);
    assert_eq!(downstream.refuses(&forge(&|it| it["act"]["sub"] = json!(elsewhere))).await, "actor");
    // Nothing was wrong with the forging itself.
    downstream.accepts(&forge(&|_| {})).await;
    // In the middle of the signature, where every bit counts.
    let (signed, signature) = person.token.rsplit_once('.').unwrap();
    let other = if signature.as_bytes()[40] == b'A' { 'B' } else { 'A' };
    let tampered = format!("{signed}.{}{other}{}", &signature[..40], &signature[41..]);
    assert_eq!(downstream.refuses(&tampered).await, "signature_invalid");
    // Keys that nobody has: they are looked for once in a while, and keep nobody else from being served.
    for n in 0..200 {
        let unknown = world.setup.forge_with_kid(&person.token, &format!("nobody-{n}"));
        assert_eq!(downstream.refuses(&unknown).await, "key_unknown");
    }
    downstream.accepts(&person.token).await;
}

async fn rotated(world: &World, person: &Working) {
    let before = decode(&person.token).unwrap().0["kid"].clone();
    world.setup.rotate_signing_key();
    let mut token = String::new();
    eventually("mediatore signs with the new key", async || {
        token = world.token(&person.workload, TRADING).await;
        decode(&token).unwrap().0["kid"] != before
    })
    .await;
    eventually("the service has fetched the new key", async || world.downstream.reports(&token).await.status() == 202)
        .await;
}
