//! Attestation is open to the network: what strangers send changes nothing about a warm, a bound or a booting member.
//!
//! The strangers are this program, started again inside the cluster: our client of SPIRE needs an SVID, and they have one
//! that grants nothing.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test with a `main` of its own

mod inside;
mod light;

use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool, conditions};
use banlieue_protocol::message::M1;
use banlieue_protocol::names::{MemberName, Namespace, TrustDomain, Uid};
use banlieue_spire::{Client, Config};
use banlieue_tpm::Public;
use banlieue_tpm::public::Key;
use banlieue_tpm::template::{EndorsementKind, attestation_key};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use light::{Fixture, HONEST, eventually, test};

const MESSAGES: u32 = 10_000;

fn main() {
    match inside::role().as_deref() {
        Some("stranger") => tokio::runtime::Runtime::new().unwrap().block_on(stranger()),
        Some(other) => panic!("no such role: {other}"),
        None => {
            test(ten_thousand_messages_change_nothing);
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

/// A first message with the member's names, sound keys of nobody, and a proof out of the air.
fn hello(n: u32) -> Vec<u8> {
    let told = |name| std::env::var(name).unwrap();
    // The curve's base point is a sound public key.
    let x = hex::decode("6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296").unwrap();
    let y = hex::decode("4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5").unwrap();
    let with_point = |mut public: Public| {
        if let Key::Ecc { x: to_x, y: to_y, .. } = &mut public.key {
            (*to_x, *to_y) = (x.clone(), y.clone());
        }
        public
    };
    let mut proof = [7; 32];
    proof[..4].copy_from_slice(&n.to_be_bytes());
    M1 {
        namespace: Namespace::parse(&told("NAMESPACE")).unwrap(),
        member: MemberName::parse(&told("MEMBER")).unwrap(),
        uid: Uid::parse(&told("UID_OF_MEMBER")).unwrap(),
        ek: with_point(EndorsementKind::P256.template()),
        ek_certificate: vec![],
        ak: with_point(attestation_key()),
        guest_nonce: [1; 32],
        enrolment_proof: Some(proof),
    }
    .encode()
}
