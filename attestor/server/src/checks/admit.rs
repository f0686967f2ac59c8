//! Whether a first message may get a challenge.

use std::sync::Arc;

use banlieue_crds::pool::Endorsement;
use banlieue_policy::Digest;
use banlieue_protocol::{
    names::Uid,
    reason::Reason,
    seed::EnrolmentSecret,
    transcript::{ProofInput, verify_proof},
};
use banlieue_tpm::template::{check_attestation, check_endorsement};
use jiff::Timestamp;

use super::{Refusal, hello::Hello};
use crate::facts::{Claim, Facts, Instance, Pin, Policy, Record};

/// Which rules a stream follows: the server's decision, from the member's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// No key is pinned; the enrolment was proved.
    First,
    /// A key is pinned; the enrolment plays no part any more.
    Again {
        /// The pinned key.
        pin: Pin,
        /// The evidence accepted last.
        record: Record,
    },
}

/// A first message that gets a challenge.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// The message.
    pub hello: Hello,
    /// Its rules.
    pub mode: Mode,
    /// Who vouches for the endorsement key.
    pub endorsement: Endorsement,
    /// The document its evidence is judged by.
    pub policy: Arc<Policy>,
    /// The claim whose latch PCR 15 may or must hold.
    pub claim: Option<Uid>,
    /// The seed its instance got.
    pub seed_digest: Digest,
    /// Another living member that the key is pinned to. Counts only once the key is proved: anybody can name one.
    pub shared_with: Option<String>,
}

impl Admitted {
    /// Whether the key, which is proved by now, belongs to this member alone. If not, both of its members are out: nobody
    /// can tell which is the copy.
    ///
    /// # Errors
    /// `DuplicateEndorsementKey`, with the key as proved.
    pub fn alone(&self) -> Result<(), Refusal> {
        let Some(other) = &self.shared_with else { return Ok(()) };
        let key = self.hello.ek;
        let detail = format!("key {key} is also pinned to living member {other}");
        let proved = Some(Pin { source: self.endorsement, ek: key });
        Err(Refusal { proved, ..Refusal::new(true, Reason::DuplicateEndorsementKey, detail) })
    }
}

/// All checks before M2, in their order.
///
/// # Errors
/// The first check that refuses. A failure counts as the member's own only after a valid enrolment proof.
pub fn admit(hello: Hello, facts: &Facts, now: Timestamp) -> Result<Admitted, Refusal> {
    let mode = authenticate(&hello, facts, now)?;
    let own = matches!(mode, Mode::First);
    let no = |reason: Reason, detail: &str| Refusal::new(own, reason, detail);

    let instance = running(facts, &no)?;
    let claim = alive(facts, instance, &no)?;
    // Nobody can say any more what is revoked; the member goes with its pool.
    let pool = facts.pool.as_ref().ok_or_else(|| no(Reason::MemberEnding, "the member's pool is gone"))?;
    if !facts.member.needs_evidence {
        return Err(no(Reason::ModeNotVtpm, "the member was not made for mode VTPM"));
    }

    check_endorsement(&hello.m1.ek).map_err(|error| Refusal::new(own, Reason::of_endorsement(&error), error))?;
    check_attestation(&hello.m1.ak).map_err(|error| Refusal::new(own, Reason::of_attestation_key(&error), error))?;
    let endorsement = endorsed(&hello, &mode, instance, facts, &no)?;

    let policy = facts
        .policy
        .clone()
        .ok_or_else(|| no(Reason::MeasurementsNotFound, "the policy copy for this member is not there"))?;
    not_revoked(&policy, &pool.revoked, &no)?;
    let seed_digest = facts
        .member
        .seed_digest
        .ok_or_else(|| no(Reason::InstanceNotRunning, "the member's seed is not recorded yet"))?;
    let shared_with = facts.key_elsewhere.pinned_to.clone();
    Ok(Admitted { hello, mode, endorsement, policy, claim, seed_digest, shared_with })
}

/// The enrolment proof or, once a key is pinned, that key. Knowing a pinned key proves nothing: it only chooses the
/// rules, and the member is certain when its quote is.
fn authenticate(hello: &Hello, facts: &Facts, now: Timestamp) -> Result<Mode, Refusal> {
    let member = &facts.member;
    let stranger = |reason, detail: &str| Err(Refusal::stranger(reason, detail));
    let m1 = &hello.m1;
    if m1.uid.as_str() != member.uid || m1.member.as_str() != member.name || m1.namespace.as_str() != member.namespace {
        return stranger(Reason::MemberNotFound, "namespace, name and uid are not of one member");
    }
    match (&member.pin, &member.record) {
        (Some(pin), Some(record)) => {
            if pin.ek != hello.ek {
                return stranger(Reason::EkNotPinned, &format!("key {} is not the pinned {}", hello.ek, pin.ek));
            }
            Ok(Mode::Again { pin: pin.clone(), record: record.clone() })
        }
        (None, _) => {
            let Some(enrolment) = &facts.enrolment else { return Err(no_enrolment()) };
            prove(hello, Some(&enrolment.secret))?;
            // From here on it is the member, or somebody who holds its secret.
            let no = |reason, detail: &str| Err(Refusal::new(true, reason, detail));
            if enrolment.member != m1.uid || member.seed_digest != Some(enrolment.seed_digest) {
                return no(Reason::SeedMismatch, "the Secret is not the one that was recorded for the member");
            }
            if member.enrolment_consumed {
                return no(Reason::EnrolmentConsumed, "the enrolment was used before");
            }
            let expires = member.enrolment_expires.map_or(enrolment.expires_at, |at| at.min(enrolment.expires_at));
            if now >= expires {
                return no(Reason::EnrolmentExpired, &format!("the enrolment expired at {expires}"));
            }
            Ok(Mode::First)
        }
        // Pin and record are written together, but for a member whose key turned out to be another's as well.
        (Some(_), None) => stranger(Reason::EkNotPinned, "the member has a pinned key but no record of evidence"),
    }
}

/// Whether a first message was made with this enrolment secret.
///
/// # Errors
/// A stranger's refusal.
pub fn prove(hello: &Hello, secret: Option<&EnrolmentSecret>) -> Result<(), Refusal> {
    let Some(secret) = secret else { return Err(no_enrolment()) };
    let m1 = &hello.m1;
    let name = m1.ak.name();
    let input = ProofInput { member: &m1.uid, ek: &m1.ek, ak_name: &name, guest_nonce: &m1.guest_nonce };
    match &m1.enrolment_proof {
        Some(proof) if verify_proof(secret, &input, proof) => Ok(()),
        _ => Err(Refusal::stranger(Reason::EnrolmentProofInvalid, "the enrolment proof is missing or wrong")),
    }
}

fn no_enrolment() -> Refusal {
    Refusal::stranger(Reason::EnrolmentProofInvalid, "the member has no enrolment any more")
}

fn running<'f>(facts: &'f Facts, no: &impl Fn(Reason, &str) -> Refusal) -> Result<&'f Instance, Refusal> {
    let Some((name, uid)) = &facts.member.instance else {
        return Err(no(Reason::InstanceNotRunning, "the member's instance is not recorded yet"));
    };
    let Some(instance) = &facts.instance else {
        return Err(no(Reason::InstanceMismatch, &format!("instance {name} is gone")));
    };
    if instance.uid != *uid {
        return Err(no(
            Reason::InstanceMismatch,
            &format!("instance {name} has uid {}, the member's is {uid}", instance.uid),
        ));
    }
    if instance.deleting {
        return Err(no(Reason::MemberEnding, "the instance is being deleted"));
    }
    if !instance.running {
        return Err(no(Reason::InstanceNotRunning, "the instance does not run"));
    }
    Ok(instance)
}

fn alive(facts: &Facts, _running: &Instance, no: &impl Fn(Reason, &str) -> Refusal) -> Result<Option<Uid>, Refusal> {
    if let Some(why) = facts.member.ending {
        return Err(no(Reason::MemberEnding, why));
    }
    match &facts.claim {
        Claim::None => Ok(None),
        Claim::Serving(uid) => Ok(Some(uid.clone())),
        Claim::Ending(why) => Err(no(Reason::ClaimEnding, why)),
    }
}

/// Who vouches for the key, and that nobody had it who ended.
fn endorsed(
    hello: &Hello,
    mode: &Mode,
    instance: &Instance,
    facts: &Facts,
    no: &impl Fn(Reason, &str) -> Refusal,
) -> Result<Endorsement, Refusal> {
    let (key, demanded) = (&hello.ek, facts.member.endorsement);
    let vouched = match mode {
        Mode::First => demanded,
        Mode::Again { pin, .. } => pin.source,
    };
    if demanded == Endorsement::HostReported && vouched == Endorsement::FirstUse {
        return Err(no(
            Reason::EndorsementTooWeak,
            "the member was made for HostReported, its key was pinned at first use",
        ));
    }
    if vouched == Endorsement::HostReported {
        let node = instance
            .node
            .as_ref()
            .ok_or_else(|| no(Reason::InstanceNotRunning, "the instance's node is not known yet"))?;
        // Another node's report neither pins nor blocks.
        let Some(own) = facts.reports.iter().find(|report| report.node == *node) else {
            if facts.reports.iter().any(|report| report.keys.contains(key)) {
                return Err(no(
                    Reason::EkReportedElsewhere,
                    &format!("key {key} is reported by another node than {node}"),
                ));
            }
            return Err(no(Reason::EkReportMissing, &format!("node {node} has not reported the instance's key yet")));
        };
        if !own.keys.contains(key) {
            return Err(no(Reason::EkNotReported, &format!("node {node} reports other keys than {key}")));
        }
        if own.ended {
            return Err(no(Reason::EkTombstoned, "the instance's own report says that it ended"));
        }
    }
    if let Some(whose) = &facts.key_elsewhere.tombstone {
        return Err(no(Reason::EkTombstoned, &format!("key {key} belonged to what ended: {whose}")));
    }
    Ok(vouched)
}

fn not_revoked(policy: &Policy, revoked: &[String], no: &impl Fn(Reason, &str) -> Refusal) -> Result<(), Refusal> {
    let digest = policy.digest.to_string();
    if revoked.contains(&digest) {
        return Err(no(Reason::PolicyRevoked, &format!("policy {digest} is revoked")));
    }
    let image = policy.document.image.digest.to_string();
    let image = image.strip_prefix("sha256:").unwrap_or(&image);
    if revoked.iter().any(|revoked| revoked == image) {
        return Err(no(Reason::ImageRevoked, &format!("image {image} is revoked")));
    }
    Ok(())
}
