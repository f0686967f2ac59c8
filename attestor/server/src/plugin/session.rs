//! One attestation stream, from its first message to its end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lc_rs::rand::SecureRandom;
use banlieue_protocol::{
    message::DEADLINE_SECONDS,
    names::{Cluster, TrustDomain, agent},
    reason::Reason,
};
use jiff::Timestamp;

use super::{
    limits::Limits,
    metrics::Metrics,
    store::{Glance, Store, StoreError},
};
use crate::{
    checks::{
        Refusal,
        admit::{Admitted, Mode, admit, prove},
        challenge::Challenged,
        hello::Hello,
        verify::{Verified, selectors, verify},
    },
    facts::{Facts, Member},
};

/// The longest that a stream may take from its first message; the challenge says so to the guest.
pub const STREAM_LIMIT: Duration = Duration::from_secs(DEADLINE_SECONDS as u64);
/// How often the last write is tried again when something unrelated changed the member meanwhile.
const WRITE_TRIES: usize = 4;

/// What SPIRE is told about an admitted agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its SPIFFE id.
    pub id: String,
    /// Values of its selectors.
    pub selectors: Vec<String>,
}

/// The other side of a stream: takes a challenge and gives the answer.
#[async_trait::async_trait]
pub trait Peer: Send {
    /// Sends M2 and waits for M3.
    async fn challenge(&mut self, m2: Vec<u8>) -> Result<Vec<u8>, Refusal>;
}

/// What all sessions share.
#[derive(Clone)]
pub struct Sessions {
    /// The cluster.
    pub store: Arc<dyn Store>,
    /// Bounds.
    pub limits: Limits,
    /// Counters.
    pub metrics: Metrics,
    /// Trust domain of the ids.
    pub trust_domain: TrustDomain,
    /// Cluster of the ids.
    pub cluster: Cluster,
    /// Where nonces and secrets come from.
    pub random: Arc<dyn SecureRandom + Send + Sync>,
    /// How long a stream may take.
    pub stream_limit: Duration,
    /// The time of day.
    pub now: fn() -> Timestamp,
}

impl Sessions {
    /// Takes a stream to its end. The refusal is for the log: the guest hears only `reason.guest_message()`.
    ///
    /// # Errors
    /// Whatever refused first, or the stream's deadline.
    pub async fn run(&self, payload: &[u8], peer: &mut dyn Peer) -> Result<Identity, Refusal> {
        let began = Instant::now();
        let mut seen = None;
        let outcome = match tokio::time::timeout(self.stream_limit, self.steps(payload, peer, &mut seen)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Refusal::stranger(Reason::DeadlineExceeded, "the stream took too long")),
        };
        match &outcome {
            Ok(identity) => {
                self.metrics.count("Admitted", true);
                self.metrics.stream.observe(began.elapsed().as_secs_f64());
                tracing::info!(agent = %identity.id, "attested");
            }
            Err(refusal) => self.refused(refusal, seen.as_ref()).await,
        }
        outcome
    }

    async fn steps(&self, payload: &[u8], peer: &mut dyn Peer, seen: &mut Option<Member>) -> Result<Identity, Refusal> {
        let hello = Hello::parse(payload)?;
        let member_name = || format!("{}/{}", hello.m1.namespace, hello.m1.member);
        let pinned = match self.store.glance(&hello).map_err(|error| error.refusal(false))? {
            Glance::Unknown => {
                return Err(Refusal::stranger(Reason::MemberNotFound, format!("no member {}", member_name())));
            }
            Glance::OtherKey => {
                return Err(Refusal::stranger(
                    Reason::EkNotPinned,
                    format!("key {} is not pinned to {}", hello.ek, member_name()),
                ));
            }
            Glance::Unpinned => {
                // Before it takes a place: who names a member without its secret must not take the member's own.
                let secret = self.store.enrolment(&hello).await.map_err(|error| error.refusal(false))?;
                prove(&hello, secret.as_ref())?;
                false
            }
            Glance::Pinned => true,
        };
        let uid = hello.m1.uid.to_string();
        let place = self.limits.enter(&uid, pinned)?;

        let facts = self.store.facts(&hello).await.map_err(|error| error.refusal(false))?;
        *seen = Some(facts.member.clone());
        let admitted = admit(hello.clone(), &facts, (self.now)())?;
        self.limits.budget(&uid, Instant::now())?;
        let (challenged, m2) = Challenged::draw(admitted, self.random.as_ref())?;
        let m3 = place.waits(peer.challenge(m2)).await??;

        let arrived = Instant::now();
        let trust_domain = self.trust_domain.clone();
        // Parsing up to a mebibyte and three signatures' worth of arithmetic: not on the threads that move messages.
        let verified = tokio::task::spawn_blocking(move || verify(challenged, &m3, &trust_domain))
            .await
            .map_err(|error| Refusal::stranger(Reason::Internal, error))??;
        self.metrics.verification.observe(arrived.elapsed().as_secs_f64());
        let facts = self.write(&hello, facts, &verified).await?;
        tracing::debug!(member = %facts.member.name, boot = %verified.boot_id, "evidence accepted");
        Ok(Identity {
            id: agent(&self.trust_domain, &self.cluster, &hello.m1.namespace, &hello.m1.uid).to_string(),
            selectors: selectors(&verified, &facts.member),
        })
    }

    /// The guarded write. The member may have changed since it was read: then everything before M2 is judged again on
    /// what it is now, and what changed must not concern the evidence.
    async fn write(&self, hello: &Hello, mut facts: Facts, verified: &Verified) -> Result<Facts, Refusal> {
        for _ in 0..WRITE_TRIES {
            match self.store.record(&facts.member, verified, (self.now)()).await {
                Ok(()) => return Ok(facts),
                Err(StoreError::Conflict(_)) => {}
                Err(error) => return Err(error.refusal(true)),
            }
            facts = self.store.facts(hello).await.map_err(|error| error.refusal(true))?;
            let again = admit(hello.clone(), &facts, (self.now)())
                .map_err(|refusal| self.lost(&verified.admitted, &facts, refusal))?;
            again.alone()?;
            unchanged(&verified.admitted, &again)?;
        }
        Err(Refusal::new(true, Reason::LostRace, "the member keeps changing"))
    }

    /// Of two streams for one member exactly one wins; the other is no failure of the member.
    fn lost(&self, before: &Admitted, facts: &Facts, refusal: Refusal) -> Refusal {
        let won = facts.member.pin.as_ref().is_some_and(|pin| pin.ek == before.hello.ek);
        if before.mode == Mode::First && won {
            return Refusal::new(true, Reason::LostRace, "another stream of the member won");
        }
        // A copy that was deleted ends no member that was judged by it.
        let authenticated = refusal.reason != Reason::MeasurementsNotFound;
        Refusal { authenticated, ..refusal }
    }

    async fn refused(&self, refusal: &Refusal, member: Option<&Member>) {
        self.metrics.count(refusal.reason.as_str(), refusal.authenticated);
        let name = member.map(|member| format!("{}/{}", member.namespace, member.name)).unwrap_or_default();
        tracing::warn!(
            reason = refusal.reason.as_str(),
            detail = %refusal.detail,
            authenticated = refusal.authenticated,
            member = %name,
            "attestation refused"
        );
        let Some(member) = member.filter(|_| refusal.counts()) else { return };
        self.limits.spend(&member.uid, Instant::now());
        self.store.event(member, refusal);
        // Two tries: the version that was read may be old by now. If both fail the refusal is in log and event, and
        // the member simply does not attest.
        if self.store.refuse(member, refusal, (self.now)()).await.is_err() {
            tracing::debug!(member = %name, "the refusal could not be put on the member");
        }
    }
}

/// A concurrent write must leave the evidence's ground as it was.
fn unchanged(before: &Admitted, now: &Admitted) -> Result<(), Refusal> {
    let no = |reason, detail: &str| Err(Refusal::new(true, reason, detail));
    if before.mode != now.mode {
        return no(Reason::LostRace, "another stream of the member won");
    }
    if before.claim != now.claim {
        // Its latch may be due or not be allowed; the next attempt is judged by what holds then.
        return no(Reason::LostRace, "the member's claim changed during the attestation");
    }
    if before.policy.digest != now.policy.digest || before.seed_digest != now.seed_digest {
        return no(Reason::LostRace, "the member's policy or seed changed during the attestation");
    }
    Ok(())
}
