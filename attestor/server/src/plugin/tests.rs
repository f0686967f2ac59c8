//! Sessions over a cluster that behaves, and over the gRPC service.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use aws_lc_rs::test::rand::FixedByteRandom;
use banlieue_goplugin::server::{
    AttestRequest, attest_request, attest_response, node_attestor_client::NodeAttestorClient,
    node_attestor_server::NodeAttestorServer,
};
use banlieue_protocol::{
    message::M2,
    names::{Cluster, TrustDomain, Uid},
    reason::{GENERIC_REFUSAL, GENERIC_RETRY, Reason},
    seed::EnrolmentSecret,
    transcript::{m1_hash, m2_hash},
};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::sync::Barrier;
use tonic::Code;

use super::{
    limits::{Bounds, Limits},
    metrics::Metrics,
    service::{PROBE, Plugin},
    session::{Identity, Peer, Sessions},
    store::{Glance, Store, StoreError},
};
use crate::{
    checks::{
        Refusal,
        admit::Mode,
        hello::Hello,
        testing::{Attempt, CLAIM, UID},
        verify::Verified,
    },
    facts::{Claim, Facts, Member, Pin, Record},
};

type Change = fn(&mut Facts);

/// One member in a cluster that refuses stale writes.
struct Fake {
    facts: Mutex<Facts>,
    writes: AtomicUsize,
    refusals: Mutex<Vec<Reason>>,
    events: AtomicUsize,
    reads: AtomicUsize,
    down: AtomicBool,
    /// Happens once, just before a write arrives.
    meanwhile: Mutex<Option<Change>>,
}

impl Fake {
    fn new(attempt: &Attempt) -> Arc<Self> {
        Arc::new(Self {
            facts: Mutex::new(attempt.facts.clone()),
            writes: AtomicUsize::new(0),
            refusals: Mutex::default(),
            events: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            down: AtomicBool::new(false),
            meanwhile: Mutex::default(),
        })
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.down.load(Ordering::SeqCst) {
            true => Err(StoreError::Unavailable { what: "ask".to_owned(), why: "down".to_owned() }),
            false => Ok(()),
        }
    }

    fn member(&self) -> Member {
        self.facts.lock().unwrap().member.clone()
    }
}

fn bump(member: &mut Member) {
    member.resource_version = (member.resource_version.parse::<u32>().unwrap() + 1).to_string();
}

#[async_trait]
impl Store for Fake {
    fn glance(&self, hello: &Hello) -> Result<Glance, StoreError> {
        let member = self.member();
        Ok(match (&member.pin, member.uid == hello.m1.uid.as_str()) {
            (_, false) => Glance::Unknown,
            (None, _) => Glance::Unpinned,
            (Some(pin), _) if pin.ek == hello.ek => Glance::Pinned,
            _ => Glance::OtherKey,
        })
    }

    async fn enrolment(&self, _: &Hello) -> Result<Option<EnrolmentSecret>, StoreError> {
        self.check()?;
        Ok(self.facts.lock().unwrap().enrolment.as_ref().map(|enrolment| enrolment.secret.clone()))
    }

    async fn facts(&self, _: &Hello) -> Result<Facts, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.check()?;
        Ok(self.facts.lock().unwrap().clone())
    }

    async fn record(&self, member: &Member, verified: &Verified, now: Timestamp) -> Result<(), StoreError> {
        self.check()?;
        let mut facts = self.facts.lock().unwrap();
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().take() {
            meanwhile(&mut facts);
            bump(&mut facts.member);
        }
        let stored = &mut facts.member;
        if stored.resource_version != member.resource_version {
            return Err(StoreError::Conflict(member.name.clone()));
        }
        if verified.admitted.mode == Mode::First {
            stored.pin = Some(Pin { source: verified.admitted.endorsement, ek: verified.admitted.hello.ek });
            stored.enrolment_consumed = true;
        }
        stored.record = Some(Record {
            verified_at: now,
            policy: verified.admitted.policy.digest,
            reset_count: verified.clock.reset_count,
            restart_count: verified.clock.restart_count,
            clock: verified.clock.clock,
            latched: verified.latched,
        });
        bump(stored);
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn refuse(&self, _: &Member, refusal: &Refusal, _: Timestamp) -> Result<(), StoreError> {
        self.refusals.lock().unwrap().push(refusal.reason);
        let stored = &mut self.facts.lock().unwrap().member;
        stored.pin = stored.pin.take().or_else(|| refusal.proved.clone());
        Ok(())
    }

    fn event(&self, _: &Member, _: &Refusal) {
        self.events.fetch_add(1, Ordering::SeqCst);
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.check()
    }
}

/// The secret in every challenge: all bytes alike.
const SECRET: [u8; 32] = [7; 32];

fn sessions(store: Arc<Fake>) -> Sessions {
    Sessions {
        store,
        limits: Limits::new(Bounds { attempts: 3, ..Bounds::default() }),
        metrics: Metrics::default(),
        trust_domain: TrustDomain::parse("banlieue.local").unwrap(),
        cluster: Cluster::parse("local").unwrap(),
        random: Arc::new(FixedByteRandom { byte: 7 }),
        stream_limit: Duration::from_secs(30),
        now: || "2026-11-30T20:00:00Z".parse().unwrap(),
    }
}

/// Answers a challenge with an attempt's evidence.
struct Guest<'a> {
    attempt: &'a Attempt,
    together: Option<&'a Barrier>,
}

fn evidence(attempt: &Attempt, m2: &[u8]) -> Vec<u8> {
    let nonce = M2::decode(m2).unwrap().server_nonce;
    let domain = TrustDomain::parse("banlieue.local").unwrap();
    attempt.answer(&nonce, &SECRET, &m1_hash(&attempt.hello()), &m2_hash(m2), &domain)
}

#[async_trait]
impl Peer for Guest<'_> {
    async fn challenge(&mut self, m2: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        if let Some(barrier) = self.together {
            barrier.wait().await;
        }
        Ok(evidence(self.attempt, &m2))
    }
}

async fn run(sessions: &Sessions, attempt: &Attempt) -> Result<Identity, Refusal> {
    sessions.run(&attempt.hello(), &mut Guest { attempt, together: None }).await
}

#[tokio::test]
async fn first_pins_and_again_needs_no_enrolment() {
    let mut attempt = Attempt::first();
    let store = Fake::new(&attempt);
    let sessions = sessions(store.clone());
    let identity = run(&sessions, &attempt).await.unwrap();
    assert_eq!(identity.id, format!("spiffe://banlieue.local/spire/agent/banlieue_vtpm/local/sandboxes/{UID}"));
    let member = store.member();
    assert!(member.pin.is_some() && member.enrolment_consumed);
    assert_eq!(member.record.unwrap().clock, attempt.clock.clock);

    // SPIRE may fail after our write: the very next try passes, by the rules of a pinned key.
    store.facts.lock().unwrap().enrolment = None;
    attempt.secret = None;
    attempt.clock.clock += 1;
    assert_eq!(run(&sessions, &attempt).await.unwrap(), identity);
    assert_eq!(store.writes.load(Ordering::SeqCst), 2);
    // And a copy of the state from before does not.
    let refusal = run(&sessions, &attempt).await.unwrap_err();
    assert_eq!(refusal.reason, Reason::ClockBackwards);
}

#[tokio::test]
async fn of_two_streams_at_once_one_wins() {
    for base in [Attempt::first, Attempt::again] {
        let attempt = base();
        let store = Fake::new(&attempt);
        let sessions = sessions(store.clone());
        let barrier = Barrier::new(2);
        let hello = attempt.hello();
        let one = async { sessions.run(&hello, &mut Guest { attempt: &attempt, together: Some(&barrier) }).await };
        let other = async { sessions.run(&hello, &mut Guest { attempt: &attempt, together: Some(&barrier) }).await };
        let (one, other) = tokio::join!(one, other);
        let lost = match (one, other) {
            (Ok(_), Err(refusal)) | (Err(refusal), Ok(_)) => refusal,
            both => panic!("not exactly one won: {both:?}"),
        };
        assert_eq!(lost.reason, Reason::LostRace);
        assert!(lost.reason.is_transient());
        assert_eq!(store.writes.load(Ordering::SeqCst), 1);
        assert!(store.refusals.lock().unwrap().is_empty(), "losing is no failure of the member");
    }
}

#[tokio::test]
async fn what_changes_meanwhile_is_judged_again() {
    let cases: [(&str, Change, Option<Reason>); 5] = [
        ("something unrelated", |_| {}, None),
        ("it ends", |facts| facts.member.ending = Some("the member is being deleted"), Some(Reason::MemberEnding)),
        ("it is bound", |facts| facts.claim = Claim::Serving(Uid::parse(CLAIM).unwrap()), Some(Reason::LostRace)),
        ("its claim ends", |facts| facts.claim = Claim::Ending("over"), Some(Reason::ClaimEnding)),
        ("its report goes", |facts| facts.reports.clear(), Some(Reason::EkReportMissing)),
    ];
    for (what, meanwhile, expected) in cases {
        let attempt = Attempt::again();
        let store = Fake::new(&attempt);
        *store.meanwhile.lock().unwrap() = Some(meanwhile);
        let outcome = run(&sessions(store.clone()), &attempt).await;
        assert_eq!(outcome.as_ref().err().map(|refusal| refusal.reason), expected, "{what}");
        assert_eq!(store.writes.load(Ordering::SeqCst), usize::from(expected.is_none()), "{what}");
    }
}

#[tokio::test]
async fn a_verifier_without_its_data_denies() {
    let attempt = Attempt::again();
    let store = Fake::new(&attempt);
    store.down.store(true, Ordering::SeqCst);
    let refusal = run(&sessions(store.clone()), &attempt).await.unwrap_err();
    assert_eq!(refusal.reason, Reason::StoreUnavailable);
    assert!(refusal.reason.is_transient());
    assert_eq!(store.writes.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_members_own_failures_count_and_end() {
    let mut attempt = Attempt::again();
    attempt.pcrs[10] = [1; 32];
    let store = Fake::new(&attempt);
    let sessions = sessions(store.clone());
    for _ in 0..3 {
        assert_eq!(run(&sessions, &attempt).await.unwrap_err().reason, Reason::PolicyMismatch);
    }
    assert_eq!(run(&sessions, &attempt).await.unwrap_err().reason, Reason::BudgetSpent);
    assert_eq!(*store.refusals.lock().unwrap(), [Reason::PolicyMismatch; 3]);
    assert_eq!(store.events.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn ten_thousand_messages_from_strangers_change_nothing() {
    for base in [Attempt::first, Attempt::again] {
        let member = base();
        let store = Fake::new(&member);
        let sessions = sessions(store.clone());
        let mut liar = base();
        liar.facts = member.facts.clone();
        liar.secret = Some(EnrolmentSecret::new([1; 32]));
        // The member's own public keys, which a stranger may know, without its TPM.
        let mut knows = base();
        (knows.ek, knows.opened, knows.secret) = (member.ek.clone(), Some([0; 32]), None);
        let whole = liar.hello();
        for n in 0..10_000_usize {
            let outcome = match n % 4 {
                0 => sessions.run(&whole[..n % whole.len()], &mut Guest { attempt: &liar, together: None }).await,
                1 => {
                    let mut junk = whole.clone();
                    let at = n % junk.len();
                    junk[at] ^= 0x55;
                    sessions.run(&junk, &mut Guest { attempt: &liar, together: None }).await
                }
                2 => run(&sessions, &liar).await,
                _ if n % 100 == 3 => run(&sessions, &knows).await,
                _ => {
                    sessions.run(&n.to_be_bytes().repeat(n % 700), &mut Guest { attempt: &liar, together: None }).await
                }
            };
            assert!(outcome.is_err(), "message {n} was believed");
        }
        assert_eq!(store.writes.load(Ordering::SeqCst), 0);
        assert!(store.refusals.lock().unwrap().is_empty());
        assert_eq!(store.events.load(Ordering::SeqCst), 0);
        assert_eq!(store.member().resource_version, "1");
        // The member itself is as welcome as before.
        assert!(run(&sessions, &member).await.is_ok());
    }
}

/// Opens streams that never answer.
async fn hold(sessions: &Sessions, hello: &[u8]) {
    let streams = (0..40).map(|_| async { sessions.run(hello, &mut Silent).await });
    futures::future::join_all(streams).await;
}

#[tokio::test]
async fn who_names_a_member_takes_nothing_from_it() {
    for (base, knows_key) in [(Attempt::first as fn() -> Attempt, false), (Attempt::again, true)] {
        let member = base();
        let store = Fake::new(&member);
        let sessions = sessions(store.clone());
        let mut stranger = base();
        stranger.secret = Some(EnrolmentSecret::new([1; 32]));
        if knows_key {
            // A pinned key is no secret: these get a challenge that they cannot answer.
            (stranger.ek, stranger.secret) = (member.ek.clone(), None);
        }
        let hello = stranger.hello();
        let honest = async {
            tokio::task::yield_now().await;
            run(&sessions, &member).await
        };
        tokio::select! {
            outcome = honest => assert!(outcome.is_ok(), "{outcome:?}"),
            () = hold(&sessions, &hello) => assert!(!knows_key, "strangers with the key wait"),
        }
        if !knows_key {
            assert!(run(&sessions, &member).await.is_ok());
            assert_eq!(store.reads.load(Ordering::SeqCst), 1, "a wrong proof is not worth a call");
        }
        assert!(store.refusals.lock().unwrap().is_empty());
        assert_eq!(store.writes.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn a_key_of_two_members_counts_once_it_is_proved() {
    for base in [Attempt::first, Attempt::again] {
        let mut member = base();
        member.facts.key_elsewhere.pinned_to = Some("sandboxes/other".to_owned());
        let store = Fake::new(&member);
        let sessions = sessions(store.clone());
        // It was only named: the quote is not made with this stream's secret.
        member.opened = Some([0; 32]);
        let first = store.member().pin.is_none();
        let refusal = run(&sessions, &member).await.unwrap_err();
        assert_eq!(refusal.reason, Reason::ExtraDataMismatch);
        assert_eq!(store.member().pin.is_none(), first, "nothing is pinned by a mere name");
        // Now it is proved, and even bad evidence does not hide it.
        member.opened = None;
        member.pcrs[10] = [1; 32];
        let refusal = run(&sessions, &member).await.unwrap_err();
        assert_eq!(refusal.reason, Reason::DuplicateEndorsementKey);
        assert!(refusal.authenticated && !refusal.reason.is_transient());
        assert_eq!(store.refusals.lock().unwrap().last(), Some(&Reason::DuplicateEndorsementKey));
        let ek = Hello::parse(&member.hello()).unwrap().ek;
        assert!(store.member().pin.is_some_and(|pin| pin.ek == ek), "its controller sees both");
        assert_eq!(store.writes.load(Ordering::SeqCst), 0);
    }
}

struct Silent;

#[async_trait]
impl Peer for Silent {
    async fn challenge(&mut self, _: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn evidence_after_the_deadline_is_none() {
    let attempt = Attempt::again();
    let store = Fake::new(&attempt);
    let mut sessions = sessions(store.clone());
    sessions.stream_limit = Duration::from_millis(20);
    let refusal = sessions.run(&attempt.hello(), &mut Silent).await.unwrap_err();
    assert_eq!(refusal.reason, Reason::DeadlineExceeded);
    assert_eq!(sessions.limits.open(), 0, "its place is free again");
    assert_eq!(store.writes.load(Ordering::SeqCst), 0);
}

async fn client(sessions: Sessions) -> NodeAttestorClient<tonic::transport::Channel> {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move {
        tonic::transport::Server::builder()
            .add_service(NodeAttestorServer::new(Plugin::with(sessions)))
            .serve_with_incoming(tokio_stream::StreamExt::chain(
                tokio_stream::iter([Ok::<_, std::io::Error>(theirs)]),
                tokio_stream::pending(),
            ))
            .await
    });
    let mut ours = Some(TokioIo::new(ours));
    let connect =
        tower::service_fn(move |_| std::future::ready(ours.take().ok_or_else(|| std::io::Error::other("once"))));
    let endpoint = tonic::transport::Endpoint::from_static("http://plugin.invalid");
    NodeAttestorClient::new(endpoint.connect_with_connector(connect).await.unwrap())
}

fn payload(bytes: &[u8]) -> AttestRequest {
    AttestRequest { request: Some(attest_request::Request::Payload(bytes.to_vec())) }
}

fn response(bytes: Vec<u8>) -> AttestRequest {
    AttestRequest { request: Some(attest_request::Request::ChallengeResponse(bytes)) }
}

#[tokio::test]
async fn spire_gets_an_identity_or_one_of_two_sentences() {
    let attempt = Attempt::again();
    let store = Fake::new(&attempt);
    let mut client = client(sessions(store.clone())).await;

    let (sender, outbound) = tokio::sync::mpsc::channel(4);
    sender.send(payload(&attempt.hello())).await.unwrap();
    let stream = tokio_stream::wrappers::ReceiverStream::new(outbound);
    let mut answers = client.attest(stream).await.unwrap().into_inner();
    let Some(attest_response::Response::Challenge(m2)) = answers.message().await.unwrap().unwrap().response else {
        panic!("no challenge")
    };
    sender.send(response(evidence(&attempt, &m2))).await.unwrap();
    let Some(attest_response::Response::AgentAttributes(agent)) = answers.message().await.unwrap().unwrap().response
    else {
        panic!("not admitted")
    };
    assert!(agent.can_reattest && agent.spiffe_id.ends_with(UID));
    assert!(answers.message().await.unwrap().is_none(), "the stream ends");

    let mut refused = async |messages: Vec<AttestRequest>| {
        let mut answers = client.attest(tokio_stream::iter(messages)).await.unwrap().into_inner();
        loop {
            match answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("neither admitted nor refused"),
                Err(status) => return (status.code(), status.message().to_owned()),
            }
        }
    };
    let no = (Code::PermissionDenied, GENERIC_REFUSAL.to_owned());
    assert_eq!(refused(vec![payload(b"junk")]).await, no);
    assert_eq!(refused(vec![response(vec![1])]).await, no, "evidence first");
    assert_eq!(refused(vec![]).await, no, "nothing at all");
    assert_eq!(refused(vec![payload(&attempt.hello())]).await, no, "the stream ends where evidence is due");
    assert_eq!(refused(vec![payload(&attempt.hello()); 2]).await, no, "a second payload");
    assert_eq!(refused(vec![payload(PROBE)]).await, (Code::Aborted, "serving".to_owned()));
    store.down.store(true, Ordering::SeqCst);
    assert_eq!(refused(vec![payload(&attempt.hello())]).await, (Code::Unavailable, GENERIC_RETRY.to_owned()));
    assert_eq!(refused(vec![payload(PROBE)]).await.0, Code::Unavailable);
}
