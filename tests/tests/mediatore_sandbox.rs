//! mediatore's members' side, on attested members and a real SPIRE: a guest learns what it is lent for, latches, and its
//! workload gets tokens, until the claim is released.
//!
//! This program plays guest and workload, started again inside the cluster, where SPIRE's agent can see who it is.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test with a `main` of its own

mod broker;
mod guest;
mod inside;
mod light;

use banlieue_cluster::idp::{OidcConfig, Person, Provider, SANDBOX_ACCESS};
use banlieue_crds::{VirtualMachineClaim, VirtualMachinePool};
use banlieue_identity::SubjectKey;
use guest::{Sandbox, told};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use light::{Fixture, HONEST, eventually, test};
use reqwest::Method;
use serde_json::{Value, json};

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match inside::role() {
        Some(role) => tokio::runtime::Runtime::new()
            .unwrap()
            .block_on(async { if role == "racer" { race().await } else { guest::play().await } }),
        None => {
            test(from_login_to_token);
            println!("test mediatore_sandbox ... ok");
        }
    }
}

/// Asks for tokens until the claim is over. A request that began after the release was answered gets none.
async fn race() {
    let client = guest::client(&told("IDENTITY")).await;
    let (begun, released) = (told("BEGUN"), told("RELEASED"));
    let mut tokens = 0;
    for _ in 0..100_000 {
        let late = std::path::Path::new(&released).exists();
        let (status, said) = guest::ask(&client, Method::POST, "/v1/token", Some(told("BODY"))).await;
        match status {
            200 if !late => {
                tokens += 1;
                if tokens == 3 {
                    std::fs::write(&begun, "").unwrap();
                }
            }
            // Released: the release may be known here before it is answered there.
            410 if tokens >= 3 => {
                assert_eq!(said["error"], "released");
                if late {
                    return;
                }
            }
            503 => {}
            _ => panic!("late: {late}, tokens: {tokens}, {status} {said}"),
        }
    }
    panic!("it was never refused");
}

async fn from_login_to_token(at: Fixture) {
    let entra: Provider = at.cluster.start_oidc(OidcConfig::entra()).await.unwrap();
    let spire = at.cluster.spire().unwrap();
    let more = json!({
        "listeners": { "sandbox": { "address": "127.0.0.1:0" } },
        "limits": { "claim_tokens_per_minute": 100_000 },
        "spire": {
            "server": format!("127.0.0.1:{}", spire.port),
            "workload_api": format!("unix://{}", spire.workload_api.display()),
        },
    });
    let setup = broker::Setup::new(at.cluster, &entra, &[&at.namespace], more);
    let listening = setup.start(at.cluster, "mediatore").await;
    let sandbox = Sandbox { cluster: at.cluster, address: listening.sandbox.unwrap() };
    let other = setup.start(at.cluster, "mediatore-other").await.sandbox.unwrap();

    at.pool("p", HONEST).await;
    let policy =
        json!({ "spec": { "claimPolicy": { "allowedAudiences": ["api://trading-data", "api://people-only"] } } });
    let pools = at.all::<VirtualMachinePool>();
    pools.patch("p", &PatchParams::default(), &Patch::Merge(policy)).await.unwrap();
    let member = at.attested("p").await;
    eventually("it is warm", async || at.condition(&member, "Ready").await.is_some_and(|c| c.status == "True")).await;
    let node = format!("/banlieue/node/{}", member.uid().unwrap());
    inside::admit(at.cluster, &node, &[]);
    let early = sandbox.ask(&node, ("GET", "/v1/me"), None, 404).await;
    assert_eq!(early["error"], "no_claim");
    let document = sandbox.ask(&node, ("GET", "/openapi.json"), None, 200).await;
    assert_eq!(document["paths"]["/v1/token"]["post"]["security"], json!([{ "svid": [] }]));
    let wrong = sandbox.ask(&node, ("POST", "/v1/token"), Some(json!({ "audience": "x" })), 403).await;
    assert_eq!(wrong["error"], "forbidden", "a node SVID gets no token");

    let ada = Person::ada();
    let login = entra.login("mediatore-cli", &ada, &format!("openid {SANDBOX_ACCESS}")).await.unwrap();
    let mut request = broker::request("p");
    request["workload"]["image"] = json!("registry.local/job:1");
    let mut made = Value::Null;
    eventually("the pool is known with its audiences", async || {
        let asking = setup.client.post(format!("{}/v1/claims", listening.user)).bearer_auth(&login.access_token);
        let response = asking.body(request.to_string()).send().await.unwrap();
        let status = response.status();
        made = broker::body(response).await;
        status == 201
    })
    .await;
    let (name, uid) = (made["name"].as_str().unwrap(), made["uid"].as_str().unwrap());

    let key = SubjectKey::of(&entra.issuer, &ada.id);
    let me = sandbox.ask(&node, ("GET", "/v1/me?wait=30"), None, 200).await;
    assert_eq!((&me["claim_uid"], &me["subject"]), (&json!(uid), &json!(key.to_string())));
    assert_eq!(me["username"], key.username());
    assert_eq!(me["egress"], json!([{ "name": "trading.example", "port": 443 }]));
    assert_eq!(me["workload"]["args"][0], "/usr/bin/claude");

    let workload = format!("/banlieue/claim/{uid}");
    inside::admit(at.cluster, &workload, &[]);
    let audience = |audience: &str| Some(json!({ "audience": audience }));
    let before = sandbox.ask(&workload, ("POST", "/v1/token"), audience("api://trading-data"), 403).await;
    assert_eq!(before["error"], "forbidden", "no token before the latch");
    let running = json!({ "latched": true, "workload_state": "running" });
    sandbox.ask(&node, ("POST", "/v1/me/status"), Some(running), 204).await;
    let claims = at.all::<VirtualMachineClaim>();
    eventually("the identity is reported", async || {
        claims.get(name).await.unwrap().status.unwrap().spiffe_id.is_some_and(|id| id.ends_with(&workload))
    })
    .await;
    let identity = format!("spiffe://{}{workload}", at.cluster.settings().trust_domain);
    let entry = format!("{}.mediatore.claim.{uid}", at.cluster.settings().cluster);
    let shown = at.spire(&["entry", "show", "-entryID", &entry]).await;
    assert!(shown.contains(&format!("unix:user:{}", key.username())) && shown.contains("unix:uid:20000"), "{shown}");

    let token = sandbox.ask(&workload, ("POST", "/v1/token"), audience("api://trading-data"), 200).await;
    let (_, said) = banlieue_cluster::idp::decode(token["access_token"].as_str().unwrap()).unwrap();
    assert_eq!((&said["aud"], &said["sub"]), (&json!("api://trading-data"), &json!(key.to_string())));
    assert!(said["act"]["sub"].as_str().unwrap().ends_with(&workload), "{said}");
    assert_eq!(said["upstream_sub"], ada.id.as_str());
    for other in ["api://people-only", "api://nobody"] {
        let refused = sandbox.ask(&workload, ("POST", "/v1/token"), audience(other), 400).await;
        assert_eq!(refused["error"], "unknown_audience", "{other}");
    }
    let wrong = sandbox.ask(&workload, ("GET", "/v1/me"), None, 403).await;
    assert_eq!(wrong["error"], "forbidden", "a claim SVID learns nothing");
    eventually("both wrong identities are in the audit record", async || {
        let record = std::fs::read_to_string(setup.config.with_file_name("audit.jsonl")).unwrap();
        let lines = record.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["action"] == "authenticate" && line["outcome"] == "denied").count() == 2
    })
    .await;

    // Beside the one by which this program plays the workload.
    at.spire(&["entry", "delete", "-entryID", &entry]).await;
    eventually("an entry that was lost is made again", async || {
        let shown = at.spire(&["entry", "show", "-spiffeID", &identity]).await;
        shown.contains("Found 2 entries") && shown.contains(&entry)
    })
    .await;

    let (begun, released) = (at.cluster.dir().join("begun"), at.cluster.dir().join("released"));
    let (begun_at, released_at) = (begun.display().to_string(), released.display().to_string());
    let wanted = audience("api://trading-data").unwrap().to_string();
    let told = [
        ("SANDBOX", other.as_str()),
        ("IDENTITY", workload.as_str()),
        ("BODY", wanted.as_str()),
        ("BEGUN", begun_at.as_str()),
        ("RELEASED", released_at.as_str()),
    ];
    let releasing = async {
        eventually("the other replica gives tokens", async || begun.exists()).await;
        let release = setup.client.delete(format!("{}/v1/claims/{name}", listening.user));
        assert_eq!(release.bearer_auth(&login.access_token).send().await.unwrap().status(), 204);
        std::fs::write(&released, "").unwrap();
    };
    tokio::join!(inside::run(at.cluster, "racer", &told), releasing);
    let late = sandbox.ask(&workload, ("POST", "/v1/token"), audience("api://trading-data"), 410).await;
    assert_eq!(late["error"], "released");
    eventually("its entry is gone", async || {
        let shown = at.spire(&["entry", "show", "-spiffeID", &identity]).await;
        shown.contains("Found 1 entry") && !shown.contains(&entry)
    })
    .await;
}
