//! Tokens that rest on a provider: sessions at Dex that are refreshed before each token, and Entra-shaped tokens on
//! behalf of a person. On attested members, a real SPIRE and two replicas of mediatore.
//!
//! This program plays guests and workloads, started again inside the cluster, where SPIRE's agent can see who it is.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test with a `main` of its own

mod broker;
mod guest;
mod inside;
mod light;

use banlieue_cluster::idp::{CROSS_CLIENT, DexConfig, MEDIATORE, OidcConfig, Person, Provider, SANDBOX_ACCESS};
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool, conditions};
use banlieue_identity::SubjectKey;
use banlieue_tests::members;
use guest::Sandbox;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Secret};
use kube::api::{Patch, PatchParams};
use light::{Fixture, HONEST, eventually, test};
use serde_json::{Value, json};

/// Rests on a session at Dex.
const BY_SESSION: &str = "api://by-session";
/// Made by the Entra-shaped provider.
const ON_BEHALF: &str = "api://on-behalf";

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if inside::role().is_some() {
        tokio::runtime::Runtime::new().unwrap().block_on(guest::play());
        return;
    }
    test(both);
}

async fn both(at: Fixture) {
    let world = World::start(at).await;
    let unused = sessions_at_dex(&world).await;
    println!("test sessions_at_dex ... ok");
    tokens_on_behalf(&world).await;
    println!("test tokens_on_behalf ... ok");
    eventually("a session that no claim needs is deleted, and its lock after it", async || {
        let lock = world.at.all::<Lease>().get_opt(&unused).await.unwrap();
        lock.is_none() && world.secret(&unused).await.is_none()
    })
    .await;
    println!("test unused_session ... ok");
}

/// mediatore beside both providers, and a pool.
struct World {
    at: Fixture,
    dex: Provider,
    entra: Provider,
    setup: broker::Setup,
    replicas: Vec<broker::Listening>,
}

/// A claim whose member is latched and whose workload has its identity.
struct Lent {
    name: String,
    workload: String,
}

impl World {
    async fn start(at: Fixture) -> Self {
        let dex = at.cluster.start_dex(DexConfig::default()).await.unwrap();
        let entra = at.cluster.start_oidc(OidcConfig::entra()).await.unwrap();
        let (certificate, key) = entra.certificate("mediatore").unwrap();
        let spire = at.cluster.spire().unwrap();
        let more = json!({
            "listeners": { "sandbox": { "address": "127.0.0.1:0" } },
            "spire": {
                "server": format!("127.0.0.1:{}", spire.port),
                "workload_api": format!("unix://{}", spire.workload_api.display()),
            },
            "issuers": [{
                "name": "entra", "url": entra.issuer, "client_id": "mediatore", "ca_file": entra.ca_file,
                "accepts": "access_token", "subject_claim": "oid", "require": { "scope": "sandbox.access" },
                "clients": ["mediatore-cli"], "peers": ["agent"],
                "apps": { "allowed": true, "role": "Sandbox.Access" },
            }, {
                "name": "dex", "url": dex.issuer, "client_id": "mediatore", "ca_file": dex.ca_file,
                "accepts": "id_token", "display_claim": "name", "clients": ["mediatore-cli"], "peers": ["agent"],
            }],
            "audiences": [
                { "id": BY_SESSION, "backend": "dex-refresh" },
                {
                    "id": ON_BEHALF, "backend": "entra-obo", "scope": "api://trading-data/.default",
                    "apps": [{ "issuer": "entra", "ids": ["pipeline"] }],
                },
            ],
            "upstreams": [
                { "issuer": "dex", "backend": "dex-refresh", "client_id": "mediatore-cli" },
                { "issuer": "entra", "backend": "entra-obo", "certificate_file": certificate, "key_file": key },
            ],
        });
        let setup = broker::Setup::new(at.cluster, &entra, &[&at.namespace], more);
        let mut replicas = Vec::new();
        for n in 1..=2 {
            replicas.push(setup.start(at.cluster, &format!("mediatore-{n}")).await);
        }
        at.pool_on("p", "light", 2, HONEST, json!({})).await;
        let policy = json!({ "spec": { "claimPolicy": {
            "allowedAudiences": [BY_SESSION, ON_BEHALF], "maxClaimsPerSubject": 4,
        } } });
        let pools = at.all::<VirtualMachinePool>();
        pools.patch("p", &PatchParams::default(), &Patch::Merge(policy)).await.unwrap();
        Self { at, dex, entra, setup, replicas }
    }

    /// Waits until a member is free: a claim gives up on a pool that stays empty.
    async fn warm(&self) {
        let is_free = |member: &PoolMember| {
            let ready = member.status.as_ref().is_some_and(|it| conditions::is_true(&it.conditions, "Ready"));
            ready && member.spec.claim_ref.is_none()
        };
        eventually("a member is free", async || members::first(&self.at.all(), "p", is_free).await.is_some()).await;
    }

    /// The answer to a request for a claim; waits until the pool is known with its audiences.
    async fn post(&self, token: &str, audience: &str, refresh_token: Option<&str>) -> (u16, Value) {
        let mut request = broker::request("p");
        request["audiences"] = json!([audience]);
        request["workload"]["image"] = json!("registry.local/job:1");
        if let Some(refresh_token) = refresh_token {
            request["refresh_token"] = json!(refresh_token);
        }
        self.warm().await;
        let mut answer = (0, Value::Null);
        eventually("the pool is known with its audiences", async || {
            let asking = self.setup.client.post(format!("{}/v1/claims", self.replicas[0].user)).bearer_auth(token);
            let response = asking.body(request.to_string()).send().await.unwrap();
            answer = (response.status().as_u16(), broker::body(response).await);
            !matches!(answer.1["error"].as_str(), Some("pool_not_found" | "unknown_audience" | "unavailable"))
        })
        .await;
        answer
    }

    fn sandbox(&self, replica: usize) -> Sandbox<'_> {
        Sandbox { cluster: self.at.cluster, address: self.replicas[replica].sandbox.clone().unwrap() }
    }

    async fn token(&self, replica: usize, lent: &Lent, audience: &str, times: usize, status: u16) -> Value {
        let body = Some(json!({ "audience": audience }));
        self.sandbox(replica).ask_often(&lent.workload, ("POST", "/v1/token"), body, times, status).await
    }

    async fn claim(&self, name: &str) -> Option<VirtualMachineClaim> {
        self.at.all::<VirtualMachineClaim>().get_opt(name).await.unwrap()
    }

    /// What a guest does for a claim that was made, up to the identity of its workload.
    async fn lend(&self, made: (u16, Value)) -> Lent {
        assert_eq!(made.0, 201, "{}", made.1);
        let (name, uid) = (made.1["name"].as_str().unwrap().to_owned(), made.1["uid"].as_str().unwrap().to_owned());
        let mut member = None;
        eventually("the claim has its member", async || {
            member = self.claim(&name).await.and_then(|claim| claim.status?.member_ref);
            member.is_some()
        })
        .await;
        let node = format!("/banlieue/node/{}", member.unwrap().uid);
        inside::admit(self.at.cluster, &node, &[]);
        self.sandbox(0).latch(&node).await;
        let workload = format!("/banlieue/claim/{uid}");
        eventually("the identity is reported", async || {
            let claim = self.claim(&name).await.unwrap();
            claim.status.unwrap().spiffe_id.is_some_and(|id| id.ends_with(&workload))
        })
        .await;
        inside::admit(self.at.cluster, &workload, &[]);
        Lent { name, workload }
    }

    async fn is_ending(&self, lent: &Lent) -> bool {
        self.claim(&lent.name).await.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
    }

    async fn secret(&self, name: &str) -> Option<Secret> {
        self.at.all::<Secret>().get_opt(name).await.unwrap()
    }

    fn logs(&self) -> String {
        let logs = ["mediatore-1", "mediatore-2"].map(|name| self.at.cluster.log(name));
        let all = logs.into_iter().chain([self.setup.config.with_file_name("audit.jsonl")]);
        all.map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }
}

/// Gives the name of a session whose only claim was released.
async fn sessions_at_dex(world: &World) -> String {
    let (ada, scope) = (Person::ada(), format!("openid profile offline_access {CROSS_CLIENT}"));
    let login = async |person: &Person| {
        let tokens = world.dex.login("mediatore-cli", person, &scope).await.unwrap();
        (tokens.id_token.unwrap(), tokens.refresh_token.unwrap())
    };
    let (id_token, refresh_token) = login(&ada).await;
    let subject = banlieue_cluster::idp::decode(&id_token).unwrap().1["sub"].as_str().unwrap().to_owned();
    let session = format!("session-{}", SubjectKey::of(&world.dex.issuer, &subject));

    // What is no session of the caller's own gives nothing and leaves nothing.
    let (status, none) = world.post(&id_token, BY_SESSION, None).await;
    assert_eq!((status, &none["error"]), (400, &json!("invalid_request")), "{none}");
    let (_, of_grace) = login(&Person::grace()).await;
    let (status, foreign) = world.post(&id_token, BY_SESSION, Some(&of_grace)).await;
    assert_eq!((status, &foreign["error"]), (403, &json!("forbidden")), "{foreign}");
    let (status, made_up) = world.post(&id_token, BY_SESSION, Some("made-up")).await;
    assert_eq!((status, &made_up["error"]), (403, &json!("forbidden")), "{made_up}");
    assert!(world.secret(&session).await.is_none());

    let first = world.lend(world.post(&id_token, BY_SESSION, Some(&refresh_token)).await).await;
    // The session is the subject's: the next claim needs to bring none, and one that was used up is no harm.
    let second = world.lend(world.post(&id_token, BY_SESSION, Some(&refresh_token)).await).await;
    let stored = world.secret(&session).await.unwrap();
    let sealed = stored.data.unwrap().remove("session").unwrap().0;
    assert!(!String::from_utf8_lossy(&sealed).contains(&refresh_token));

    // Two replicas, two claims, many at once: each token needs a refresh that replaces the one session's token.
    let both = [world.token(0, &first, BY_SESSION, 10, 200), world.token(1, &second, BY_SESSION, 10, 200)];
    for answer in futures::future::join_all(both).await {
        let said = banlieue_cluster::idp::decode(answer["access_token"].as_str().unwrap()).unwrap().1;
        assert_eq!((&said["aud"], &said["upstream_sub"]), (&json!(BY_SESSION), &json!(subject)));
    }

    // Nobody can tell whether the session lives: no token, and the claims stay.
    world.dex.outage(true).await.unwrap();
    assert_eq!(world.token(0, &first, BY_SESSION, 1, 503).await["error"], "unavailable");
    assert!(!world.is_ending(&first).await && !world.is_ending(&second).await);
    world.dex.outage(false).await.unwrap();
    world.token(1, &first, BY_SESSION, 1, 200).await;

    // The provider ends the session: the next token is refused, and every claim that rested on it is over.
    assert_eq!(world.dex.end_sessions(&ada).await.unwrap(), 1);
    assert_eq!(world.token(1, &second, BY_SESSION, 1, 410).await["error"], "released");
    eventually("both claims end", async || world.is_ending(&first).await && world.is_ending(&second).await).await;
    assert!(world.secret(&session).await.is_none(), "the session is deleted with its end");
    let logs = world.logs();
    assert!(logs.contains("upstream_refused") && !logs.contains(&refresh_token) && !logs.contains(&of_grace));

    // A claim that is released in good order leaves its session to be deleted.
    let (id_token, refresh_token) = login(&ada).await;
    let (status, made) = world.post(&id_token, BY_SESSION, Some(&refresh_token)).await;
    assert_eq!(status, 201, "{made}");
    assert!(world.secret(&session).await.is_some());
    let url = format!("{}/v1/claims/{}", world.replicas[1].user, made["name"].as_str().unwrap());
    assert_eq!(world.setup.client.delete(url).bearer_auth(&id_token).send().await.unwrap().status(), 204);
    session
}

async fn tokens_on_behalf(world: &World) {
    let (entra, ada) = (&world.entra, Person::ada());
    let login = entra.login("mediatore-cli", &ada, &format!("openid {SANDBOX_ACCESS}")).await.unwrap().access_token;

    // Another issuer's people have no such tokens.
    let dex_login = world.dex.login("mediatore-cli", &ada, &format!("openid {CROSS_CLIENT}")).await.unwrap();
    let (status, other) = world.post(&dex_login.id_token.unwrap(), ON_BEHALF, None).await;
    assert_eq!((status, &other["error"]), (403, &json!("forbidden")), "{other}");

    let lent = world.lend(world.post(&login, ON_BEHALF, None).await).await;
    let token = world.token(0, &lent, ON_BEHALF, 3, 200).await;
    let said = entra.verified(token["access_token"].as_str().unwrap()).await.unwrap();
    assert_eq!((&said["aud"], &said["oid"], &said["scp"]), (&json!("trading-data"), &json!(ada.id), &json!("read")));
    assert_eq!((&said["azp"], &said["azpacr"]), (&json!("mediatore"), &json!("2")), "proved by certificate");

    // A service that is listed gets a token of mediatore's own.
    let service = entra.client_credentials("pipeline", &format!("{MEDIATORE}/.default")).await.unwrap().access_token;
    let alone = world.lend(world.post(&service, ON_BEHALF, None).await).await;
    let token = world.token(1, &alone, ON_BEHALF, 1, 200).await;
    let said = entra.verified(token["access_token"].as_str().unwrap()).await.unwrap();
    assert_eq!(
        (&said["aud"], &said["idtyp"], &said["azp"]),
        (&json!("trading-data"), &json!("app"), &json!("mediatore"))
    );

    entra.outage(true).await.unwrap();
    assert_eq!(world.token(1, &lent, ON_BEHALF, 1, 503).await["error"], "unavailable");
    entra.outage(false).await.unwrap();
    world.token(0, &lent, ON_BEHALF, 1, 200).await;
    entra.end_sessions(&ada).await.unwrap();
    assert_eq!(world.token(0, &lent, ON_BEHALF, 1, 410).await["error"], "released");
    assert!(world.is_ending(&lent).await && !world.is_ending(&alone).await);
    // A token from before buys nothing more.
    let (status, late) = world.post(&login, ON_BEHALF, None).await;
    assert_eq!((status, &late["error"]), (403, &json!("forbidden")), "{late}");
    assert!(!world.logs().contains(&login));
}
