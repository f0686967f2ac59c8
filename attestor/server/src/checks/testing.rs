//! A guest in software: keys, log, quote and messages that pass every check, each part of which a test may spoil.

use std::sync::Arc;

use aws_lc_rs::{
    rand::{SecureRandom, SystemRandom},
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use banlieue_crds::pool::Endorsement;
use banlieue_policy::{
    Digest,
    document::{API_VERSION, Image, Program, Programs},
    record::{Predictions, record},
};
use banlieue_protocol::{
    log_codec::pack,
    message::{M1, M3},
    names::{MemberName, Namespace, TrustDomain, Uid},
    seed::EnrolmentSecret,
    transcript::{ProofInput, QuoteInput, enrolment_proof, extra_data},
};
use banlieue_tpm::{
    ClockInfo, Name, PcrSelection, PcrValue, Public, Signature,
    eventlog::{Event, EventKind, EventLog},
    hash::sha256,
    pcr::{QUOTED, quote_digest},
    public::Key,
    template::{EndorsementKind, attestation_key},
};
use jiff::Timestamp;

use super::{
    Refusal,
    admit::admit,
    challenge::Challenged,
    hello::Hello,
    verify::{Verified, verify},
};
use crate::facts::{Claim, Enrolment, Facts, Instance, KeyElsewhere, Member, Pin, Policy, Pool, Record, Report};

pub(crate) const UID: &str = "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab";
pub(crate) const CLAIM: &str = "11111111-2222-3333-4444-555555555555";
pub(crate) const INSTANCE: &str = "99999999-8888-7777-6666-555555555555";
const MAGIC: u32 = 0xff54_4347;
const QUOTE: u16 = 0x8018;

type Edit<T> = Option<Box<dyn Fn(&mut T) + Send + Sync>>;

/// A quote's parts before they are marshalled.
pub(crate) struct Quote {
    pub(crate) magic: u32,
    pub(crate) kind: u16,
    pub(crate) signer: Vec<u8>,
    pub(crate) extra: Vec<u8>,
    pub(crate) clock: ClockInfo,
    pub(crate) safe: u8,
    pub(crate) selection: Vec<u8>,
    pub(crate) digest: Vec<u8>,
    pub(crate) rest: Vec<u8>,
}

impl Quote {
    fn marshal(&self) -> Vec<u8> {
        let mut out = self.magic.to_be_bytes().to_vec();
        let sized = |out: &mut Vec<u8>, bytes: &[u8]| {
            out.extend(u16::try_from(bytes.len()).unwrap().to_be_bytes());
            out.extend(bytes);
        };
        out.extend(self.kind.to_be_bytes());
        sized(&mut out, &self.signer);
        sized(&mut out, &self.extra);
        out.extend(self.clock.clock.to_be_bytes());
        out.extend(self.clock.reset_count.to_be_bytes());
        out.extend(self.clock.restart_count.to_be_bytes());
        out.push(self.safe);
        out.extend(7_u64.to_be_bytes());
        out.extend(&self.selection);
        sized(&mut out, &self.digest);
        out.extend(&self.rest);
        out
    }
}

/// One attempt, valid until spoiled.
pub(crate) struct Attempt {
    pub(crate) now: Timestamp,
    pub(crate) facts: Facts,
    pub(crate) ek: Public,
    pub(crate) ak: Public,
    /// The key that signs.
    pub(crate) signing: EcdsaKeyPair,
    /// The enrolment secret that the guest has.
    pub(crate) secret: Option<EnrolmentSecret>,
    /// What the guest believes to be read from its seed.
    pub(crate) seed: Digest,
    pub(crate) log: EventLog,
    pub(crate) pcrs: [PcrValue; QUOTED],
    pub(crate) clock: ClockInfo,
    /// The secret that the guest's TPM gets out of the credential, if another.
    pub(crate) opened: Option<[u8; 32]>,
    pub(crate) m1: Edit<M1>,
    pub(crate) m1_bytes: Edit<Vec<u8>>,
    pub(crate) quote: Edit<Quote>,
    pub(crate) m3: Edit<M3>,
    pub(crate) m3_bytes: Edit<Vec<u8>>,
}

pub(crate) fn key_pair() -> EcdsaKeyPair {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()
}

/// A public area of this template with this key.
pub(crate) fn public(template: Public, pair: &EcdsaKeyPair) -> Public {
    let point = pair.public_key().as_ref().strip_prefix(&[4]).unwrap();
    let (new_x, new_y) = point.split_at(32);
    let mut public = template;
    if let Key::Ecc { x, y, .. } = &mut public.key {
        *x = new_x.to_vec();
        *y = new_y.to_vec();
    }
    public
}

pub(crate) fn attestation(pair: &EcdsaKeyPair) -> Public {
    public(attestation_key(), pair)
}

pub(crate) fn event(pcr: u8, text: &str) -> Event {
    Event { pcr, kind: EventKind::IPL, digest: sha256(&[text.as_bytes()]), data: text.as_bytes().to_vec() }
}

pub(crate) fn golden_log() -> EventLog {
    let events = (0..8).map(|pcr| event(pcr, &format!("firmware {pcr}")));
    let events = events.chain([event(9, "initrd"), event(11, "sections"), event(4, "image")]);
    EventLog { startup_locality: 0, events: events.collect() }
}

pub(crate) fn replay(log: &EventLog) -> [PcrValue; QUOTED] {
    let mut pcrs = [[0; 32]; QUOTED];
    pcrs.copy_from_slice(log.replay().get(..QUOTED).unwrap());
    // What the kernel's IMA leaves there has no firmware event.
    pcrs[10] = [10; 32];
    pcrs
}

pub(crate) fn policy() -> Policy {
    let log = golden_log();
    let predictions = Predictions {
        api_version: API_VERSION.to_owned(),
        image: Image {
            name: "guest".to_owned(),
            version: "1".to_owned(),
            digest: format!("sha256:{}", "ab".repeat(32)),
        },
        pcrs: Default::default(),
        programs: Programs {
            node: Program { path: "/usr/bin/banlieue-guest".to_owned(), sha256: Digest([1; 32]), uid: 0 },
            egress: Some(Program { path: "/usr/bin/egress".to_owned(), sha256: Digest([2; 32]), uid: 20 }),
        },
    };
    let document = record(&predictions, &replay(&log), &log).unwrap();
    Policy { digest: Digest::of(document.to_yaml().unwrap().as_bytes()), document }
}

impl Attempt {
    /// The member's first.
    pub(crate) fn first() -> Self {
        let now: Timestamp = "2026-11-30T20:00:00Z".parse().unwrap();
        let (endorsement, signing) = (key_pair(), key_pair());
        let ek = public(EndorsementKind::P256.template(), &endorsement);
        let secret = EnrolmentSecret::new([5; 32]);
        let seed = Digest([9; 32]);
        let log = golden_log();
        let key = Digest(ek.key_digest().unwrap());
        let facts = Facts {
            member: Member {
                namespace: "sandboxes".to_owned(),
                name: "guest-x7k2p".to_owned(),
                uid: UID.to_owned(),
                resource_version: "1".to_owned(),
                pool: "guest".to_owned(),
                needs_evidence: true,
                endorsement: Endorsement::HostReported,
                ending: None,
                instance: Some(("guest-x7k2p".to_owned(), INSTANCE.to_owned())),
                seed_digest: Some(seed),
                enrolment_expires: Some("2026-11-30T20:10:00Z".parse().unwrap()),
                enrolment_consumed: false,
                pin: None,
                record: None,
            },
            claim: Claim::None,
            instance: Some(Instance {
                uid: INSTANCE.to_owned(),
                running: true,
                deleting: false,
                node: Some("node-1".to_owned()),
            }),
            pool: Some(Pool { revoked: vec![] }),
            policy: Some(Arc::new(policy())),
            reports: vec![Report { node: "node-1".to_owned(), keys: vec![key], ended: false }],
            enrolment: Some(Enrolment {
                secret: secret.clone(),
                seed_digest: seed,
                member: Uid::parse(UID).unwrap(),
                expires_at: "2026-11-30T20:10:00Z".parse().unwrap(),
            }),
            key_elsewhere: KeyElsewhere::default(),
        };
        Self {
            now,
            facts,
            ak: attestation(&signing),
            ek,
            signing,
            secret: Some(secret),
            seed,
            pcrs: replay(&log),
            log,
            clock: ClockInfo { clock: 5000, reset_count: 3, restart_count: 0, safe: true },
            opened: None,
            m1: None,
            m1_bytes: None,
            quote: None,
            m3: None,
            m3_bytes: None,
        }
    }

    /// One after an accepted first: pinned, without any enrolment.
    pub(crate) fn again() -> Self {
        let mut attempt = Self::first();
        let ek = Digest(attempt.ek.key_digest().unwrap());
        attempt.facts.member.pin = Some(Pin { source: Endorsement::HostReported, ek });
        attempt.facts.member.record = Some(Record {
            verified_at: "2026-11-30T19:55:00Z".parse().unwrap(),
            policy: attempt.facts.policy.as_ref().unwrap().digest,
            reset_count: 3,
            restart_count: 0,
            clock: 4000,
            latched: false,
        });
        attempt.facts.member.enrolment_consumed = true;
        attempt.facts.enrolment = None;
        attempt.secret = None;
        attempt
    }

    /// With a claim that the member serves.
    pub(crate) fn bound(mut self) -> Self {
        self.facts.claim = Claim::Serving(Uid::parse(CLAIM).unwrap());
        self
    }

    /// The bytes of M1.
    pub(crate) fn hello(&self) -> Vec<u8> {
        let mut m1 = M1 {
            namespace: Namespace::parse("sandboxes").unwrap(),
            member: MemberName::parse("guest-x7k2p").unwrap(),
            uid: Uid::parse(UID).unwrap(),
            ek: self.ek.clone(),
            ek_certificate: vec![],
            ak: self.ak.clone(),
            guest_nonce: [3; 32],
            enrolment_proof: None,
        };
        if let Some(secret) = &self.secret {
            let name = m1.ak.name();
            let input = ProofInput { member: &m1.uid, ek: &m1.ek, ak_name: &name, guest_nonce: &m1.guest_nonce };
            m1.enrolment_proof = Some(enrolment_proof(secret, &input));
        }
        edit(&self.m1, &mut m1);
        let mut bytes = m1.encode();
        edit(&self.m1_bytes, &mut bytes);
        bytes
    }

    /// The bytes of M3 for this challenge.
    pub(crate) fn evidence(&self, challenged: &Challenged, trust_domain: &TrustDomain) -> Vec<u8> {
        let hello = challenged.admitted.hello.hash;
        self.answer(&challenged.server_nonce, &challenged.secret, &hello, &challenged.m2, trust_domain)
    }

    /// The bytes of M3 for a nonce, a secret and the hashes of M1 and M2.
    pub(crate) fn answer(
        &self,
        server_nonce: &[u8; 32],
        secret: &[u8; 32],
        m1: &[u8; 32],
        m2: &[u8; 32],
        trust_domain: &TrustDomain,
    ) -> Vec<u8> {
        let secret = self.opened.as_ref().unwrap_or(secret);
        let extra = extra_data(&QuoteInput { server_nonce, secret, m1, m2, seed: &self.seed.0, trust_domain });
        let mut quote = Quote {
            magic: MAGIC,
            kind: QUOTE,
            signer: self.ak.qualified_name(&self.ek.qualified_name(&Name::endorsement())).as_bytes().to_vec(),
            extra: extra.to_vec(),
            clock: self.clock,
            safe: u8::from(self.clock.safe),
            selection: PcrSelection::QUOTED.marshal_list(),
            digest: quote_digest(&self.pcrs).to_vec(),
            rest: vec![],
        };
        edit(&self.quote, &mut quote);
        let attest = quote.marshal();
        let signed = self.signing.sign(&SystemRandom::new(), &attest).unwrap();
        let mut m3 = M3 {
            signature: Signature::from_fixed(signed.as_ref()).unwrap().marshal(),
            attest,
            pcr_values: self.pcrs,
            event_log: pack(&self.log.marshal()).unwrap(),
            boot_id: Uid::parse(UID).unwrap(),
            seed_digest: self.seed.0,
        };
        edit(&self.m3, &mut m3);
        let mut bytes = m3.encode();
        edit(&self.m3_bytes, &mut bytes);
        bytes
    }

    /// Through every check.
    pub(crate) fn run(&self) -> Result<Verified, Refusal> {
        let trust_domain = TrustDomain::parse("banlieue.local").unwrap();
        let (challenged, _) = self.challenge()?;
        let bytes = self.evidence(&challenged, &trust_domain);
        verify(challenged, &bytes, &trust_domain)
    }

    /// Up to the challenge.
    pub(crate) fn challenge(&self) -> Result<(Challenged, Vec<u8>), Refusal> {
        let admitted = admit(Hello::parse(&self.hello())?, &self.facts, self.now)?;
        Challenged::draw(admitted, &SystemRandom::new())
    }
}

pub(crate) fn edit<T>(edit: &Edit<T>, value: &mut T) {
    if let Some(edit) = edit {
        edit(value);
    }
}

pub(crate) fn random32() -> [u8; 32] {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).unwrap();
    bytes
}
