//! Attestation is open to the network: what strangers send changes nothing about a warm, a bound or a booting member, and
//! thieves of enrolments who open streams and never answer keep nobody out.
//!
//! The strangers are this program, started again inside the cluster: our client of SPIRE needs an SVID, and they have one
//! that grants nothing.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test with a `main` of its own

mod inside;
mod light;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use banlieue_crds::member::MemberPhase;
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool, conditions};
use banlieue_protocol::message::M1;
use banlieue_protocol::names::{MemberName, Namespace, TrustDomain, Uid};
use banlieue_protocol::seed::{EnrolmentSecret, Seed};
use banlieue_protocol::transcript::{ProofInput, enrolment_proof};
use banlieue_spire::proto::spire::api::server::agent::v1::agent_client::AgentClient;
use banlieue_spire::proto::spire::api::server::agent::v1::{
    AgentX509svidParams, AttestAgentRequest, attest_agent_request,
};
use banlieue_spire::proto::spire::api::types::AttestationData;
use banlieue_spire::{Client, Config};
use banlieue_tests::members;
use banlieue_tpm::Public;
use banlieue_tpm::public::Key;
use banlieue_tpm::template::{EndorsementKind, attestation_key};
use futures::StreamExt;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use light::{Fixture, HONEST, eventually, test};

const MESSAGES: u32 = 10_000;
/// Members whose enrolments are stolen, and streams for each at once: more than there are places.
const STOLEN: u32 = 16;
const EACH: usize = 6;

fn main() {
    match inside::role().as_deref() {
        Some("stranger") => tokio::runtime::Runtime::new().unwrap().block_on(stranger()),
        Some("thief") => tokio::runtime::Runtime::new().unwrap().block_on(thief()),
        Some(other) => panic!("no such role: {other}"),
        None => {
            test(ten_thousand_messages_change_nothing);
            test(streams_that_never_answer_keep_nobody_out);
            println!("test strangers ... ok");
        }
    }
}

async fn ten_thousand_messages_change_nothing(at: Fixture) {
    at.pool("p", HONEST).await;
    let member = at.attested("p").await;
    eventually("it is warm", async || at.condition(&member, "Ready").await.is_some_and(|c| c.status == "True")).await;
    at.claim("p", "c").await;
    eventually("it is bound", async || at.member(&member).await.unwrap().spec.claim_ref.is_some()).await;
    let before = at.member(&member).await.unwrap();

    // Its successor boots while the junk arrives, and is warm in the end.
    inside::admit(at.cluster, "/stranger", &[]);
    let (name, uid) = (member.name_any(), member.uid().unwrap());
    let told = [("NAMESPACE", at.namespace.as_str()), ("MEMBER", &name), ("UID_OF_MEMBER", &uid)];
    inside::run(at.cluster, "stranger", &told).await;

    let after = at.member(&member).await.unwrap();
    let (old, new) = (before.status.unwrap(), after.status.unwrap());
    assert_eq!(old.endorsement, new.endorsement);
    assert_eq!(old.enrolment, new.enrolment);
    assert_eq!(before.spec, after.spec);
    let record = new.attestation.unwrap();
    assert_eq!(record.refusal, None);
    assert_eq!(record.reset_count, old.attestation.unwrap().reset_count);
    assert!(conditions::is_true(&new.conditions, "Attested"));
    eventually("the successor is warm", async || {
        let members = at.all::<PoolMember>().list(&ListParams::default()).await.unwrap();
        members.iter().any(|other| {
            let conditions = other.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            other.uid() != member.uid() && conditions::is_true(conditions, "Ready")
        })
    })
    .await;
    at.all::<VirtualMachineClaim>().delete("c", &DeleteParams::default()).await.unwrap();
    at.all::<VirtualMachinePool>().delete("p", &DeleteParams::default()).await.unwrap();
    eventually("the member is gone", async || at.member(&member).await.is_none()).await;
}

async fn stranger() {
    let at = inside::Place::ours();
    let config = Config {
        server: at.server,
        workload_api: at.workload_api,
        trust_domain: TrustDomain::parse(&at.trust_domain).unwrap(),
    };
    let client = Client::connect(config).await.unwrap();
    for n in 0..MESSAGES {
        let message = match n % 3 {
            0 => hello(n),
            1 => n.to_be_bytes().repeat(usize::try_from(1 + n % 3000).unwrap()),
            _ => b"BV1".to_vec(),
        };
        // Refused, and by a plugin that still answers.
        client.probe_plugin(&message).await.unwrap_or_else(|error| panic!("message {n}: {error}"));
    }
}

/// What a thief knows of a member.
#[derive(serde::Serialize, serde::Deserialize)]
struct Loot {
    namespace: String,
    member: String,
    uid: String,
    secret: Vec<u8>,
}

async fn streams_that_never_answer_keep_nobody_out(at: Fixture) {
    at.pool("p", HONEST).await;
    let warm = at.attested("p").await;
    // Members that run no guest, whose key nobody has to vouch for: a stolen enrolment is all that it takes.
    let more = serde_json::json!({ "endorsement": "FirstUse" });
    at.pool_on("robbed", "weightless", STOLEN, "registry.local/nobody:1", more).await;
    let secrets = members::enrolments(at.cluster, &at.namespace).await;
    let mut loot = Vec::new();
    eventually("enough members run", async || {
        let all = at.all::<PoolMember>().list(&ListParams::default()).await.unwrap();
        let running = all.items.into_iter().filter(|it| {
            let phase = it.status.as_ref().and_then(|status| status.phase);
            it.spec.pool_ref.name == "robbed" && phase == Some(MemberPhase::Booting)
        });
        loot.clear();
        for member in running {
            if let Some(secret) = secrets.get_opt(&members::enrolment(&member)).await.unwrap() {
                let map = secret.data.unwrap().into_iter().map(|(name, value)| (name, value.0)).collect();
                let seed = Seed::parse(&map).unwrap();
                let (member, uid) = (member.name_any(), member.uid().unwrap());
                loot.push(Loot { namespace: at.namespace.clone(), member, uid, secret: seed.secret.expose().to_vec() });
            }
        }
        loot.len() >= STOLEN as usize
    })
    .await;

    inside::admit(at.cluster, "/stranger", &[]);
    let (full, over) = (at.cluster.dir().join("places-are-full"), at.cluster.dir().join("thief-may-go"));
    let (loot, paths) = (serde_json::to_string(&loot).unwrap(), [&full, &over].map(|path| path.display().to_string()));
    let told = [("LOOT", loot.as_str()), ("FULL", &paths[0]), ("OVER", &paths[1])];
    let honest = async {
        eventually("no place is left", async || full.exists()).await;
        for turn in 0..2 {
            let verified = at.verified_at(&warm).await;
            eventually(&format!("the warm one proves itself again ({turn})"), async || {
                at.verified_at(&warm).await > verified
            })
            .await;
        }
        at.pool("q", HONEST).await;
        at.attested("q").await;
        std::fs::write(&over, "").unwrap();
    };
    tokio::join!(inside::run(at.cluster, "thief", &told), honest);
    for pool in ["p", "q", "robbed"] {
        at.all::<VirtualMachinePool>().delete(pool, &DeleteParams::default()).await.unwrap();
    }
    eventually("the member is gone", async || at.member(&warm).await.is_none()).await;
}

/// Opens streams that get as far as a challenge and then say nothing more; opens others for those that end.
async fn thief() {
    let at = inside::Place::ours();
    let config = Config {
        server: at.server,
        workload_api: at.workload_api,
        trust_domain: TrustDomain::parse(&at.trust_domain).unwrap(),
    };
    let client = Client::connect(config).await.unwrap();
    let told = |name| std::env::var(name).unwrap();
    let loot: Vec<Loot> = serde_json::from_str(&told("LOOT")).unwrap();
    let challenged = Arc::new(AtomicUsize::new(0));
    for one in loot {
        for _ in 0..EACH {
            let (client, challenged, message) = (client.clone(), challenged.clone(), stolen_hello(&one));
            tokio::spawn(async move {
                loop {
                    let params = attest_agent_request::Params {
                        data: Some(AttestationData { r#type: "banlieue_vtpm".to_owned(), payload: message.clone() }),
                        params: Some(AgentX509svidParams { csr: vec![0] }),
                    };
                    let first = AttestAgentRequest { step: Some(attest_agent_request::Step::Params(params)) };
                    let silent = futures::stream::iter([first]).chain(futures::stream::pending());
                    let mut agent = AgentClient::new(client.channel());
                    let Ok(answers) = agent.attest_agent(silent).await else { continue };
                    let mut answers = answers.into_inner();
                    if let Ok(Some(_)) = answers.message().await {
                        challenged.fetch_add(1, Ordering::Relaxed);
                        // Until the plugin has enough of it.
                        let _ = answers.message().await;
                    }
                    // A loop that is refused at once would measure this machine, not the bounds.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            });
        }
    }
    let (full, over) = (PathBuf::from(told("FULL")), PathBuf::from(told("OVER")));
    while !over.exists() {
        // As many as there are places for first attestations.
        if challenged.load(Ordering::Relaxed) >= 48 && !full.exists() {
            std::fs::write(&full, "").unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A first message as the member itself might send it, but for the keys, which are nobody's.
fn stolen_hello(loot: &Loot) -> Vec<u8> {
    let (ek, ak) = keys();
    let uid = Uid::parse(&loot.uid).unwrap();
    let secret = EnrolmentSecret::new(loot.secret.clone().try_into().unwrap());
    let input = ProofInput { member: &uid, ek: &ek, ak_name: &ak.name(), guest_nonce: &[1; 32] };
    let enrolment_proof = Some(enrolment_proof(&secret, &input));
    M1 {
        namespace: Namespace::parse(&loot.namespace).unwrap(),
        member: MemberName::parse(&loot.member).unwrap(),
        uid,
        ek,
        ek_certificate: vec![],
        ak,
        guest_nonce: [1; 32],
        enrolment_proof,
    }
    .encode()
}

/// Sound keys of nobody.
fn keys() -> (Public, Public) {
    // The curve's base point is a sound public key.
    let x = hex::decode("6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296").unwrap();
    let y = hex::decode("4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5").unwrap();
    let with_point = |mut public: Public| {
        if let Key::Ecc { x: to_x, y: to_y, .. } = &mut public.key {
            (*to_x, *to_y) = (x.clone(), y.clone());
        }
        public
    };
    (with_point(EndorsementKind::P256.template()), with_point(attestation_key()))
}

/// A first message with the member's names, sound keys of nobody, and a proof out of the air.
fn hello(n: u32) -> Vec<u8> {
    let told = |name| std::env::var(name).unwrap();
    let (ek, ak) = keys();
    let mut proof = [7; 32];
    proof[..4].copy_from_slice(&n.to_be_bytes());
    M1 {
        namespace: Namespace::parse(&told("NAMESPACE")).unwrap(),
        member: MemberName::parse(&told("MEMBER")).unwrap(),
        uid: Uid::parse(&told("UID_OF_MEMBER")).unwrap(),
        ek,
        ek_certificate: vec![],
        ak,
        guest_nonce: [1; 32],
        enrolment_proof: Some(proof),
    }
    .encode()
}
