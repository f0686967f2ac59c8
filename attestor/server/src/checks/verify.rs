//! Whether evidence proves what it must: all checks after M3, in their order.

use banlieue_crds::pool::Endorsement;
use banlieue_policy::{Digest, Evidence, Latch, Refusal as PolicyRefusal, evaluate};
use banlieue_protocol::{
    log_codec::unpack,
    message::M3,
    names::{TrustDomain, Uid},
    reason::Reason,
    transcript::{QuoteInput, extra_data_matches, latched_pcr},
};
use banlieue_tpm::{
    Attest, ClockInfo, Name, PcrSelection, Signature, attest::AttestError, eventlog::EventLog, pcr::quote_digest,
};
use subtle::ConstantTimeEq;

use super::{
    Refusal,
    admit::{Admitted, Mode},
    challenge::Challenged,
};
use crate::facts::Record;

/// Mismatching PCRs that a message names; the rest is counted.
const NAMED_MISMATCHES: usize = 3;

/// Evidence that proves its member. What is to be recorded, and what SPIRE is told.
#[derive(Debug, Clone)]
pub struct Verified {
    /// What was admitted.
    pub admitted: Admitted,
    /// Name of the attestation key, hexadecimal.
    pub ak_name: String,
    /// The quote's clock and counters.
    pub clock: ClockInfo,
    /// Whether PCR 15 holds the latch.
    pub latched: bool,
    /// Whether firmware measured Secure Boot as on.
    pub secure_boot: bool,
    /// The kernel's boot id, as the guest says.
    pub boot_id: Uid,
}

/// A quote that is surely the member's: everything before this may be anybody's.
struct Quoted {
    challenged: Challenged,
    m3: M3,
    attest: Attest,
}

/// Judges the bytes of M3.
///
/// # Errors
/// The first check that refuses.
pub fn verify(challenged: Challenged, bytes: &[u8], trust_domain: &TrustDomain) -> Result<Verified, Refusal> {
    let quoted = signed(challenged, bytes, trust_domain)?;
    // From here on the key is proved, whatever else is wrong.
    quoted.challenged.admitted.alone()?;
    judge(quoted)
}

/// Signature to extraData. An attestation key that was activated on the pinned key and signed this stream's secret is
/// what makes a re-attestation the member's own; a first one is that already, by its enrolment proof.
fn signed(challenged: Challenged, bytes: &[u8], trust_domain: &TrustDomain) -> Result<Quoted, Refusal> {
    let admitted = &challenged.admitted;
    let own = admitted.mode == Mode::First;
    let m1 = &admitted.hello.m1;
    let m3 = M3::decode(bytes).map_err(|error| Refusal::new(own, Reason::from(&error), error))?;

    let signature = Signature::parse(&m3.signature).map_err(|error| Refusal::new(own, Reason::from(&error), error))?;
    signature.verify(&m1.ak, &m3.attest).map_err(|error| Refusal::new(own, Reason::from(&error), error))?;
    let attest =
        Attest::parse(&m3.attest).map_err(|error: AttestError| Refusal::new(own, Reason::from(&error), error))?;
    // The attestation key is a child of the endorsement key, which is a primary of the endorsement hierarchy.
    let signer = m1.ak.qualified_name(&m1.ek.qualified_name(&Name::endorsement()));
    if attest.qualified_signer != signer {
        return Err(Refusal::new(own, Reason::SignerMismatch, "the signer is not M1's key under M1's endorsement key"));
    }
    let input = QuoteInput {
        server_nonce: &challenged.server_nonce,
        secret: challenged.secret.as_slice(),
        m1: &admitted.hello.hash,
        m2: &challenged.m2,
        seed: &m3.seed_digest,
        trust_domain,
    };
    if !extra_data_matches(&input, &attest.extra_data) {
        return Err(Refusal::new(
            own,
            Reason::ExtraDataMismatch,
            "the quote is not over this stream's nonce, secret, messages, seed and trust domain",
        ));
    }
    Ok(Quoted { challenged, m3, attest })
}

fn judge(quoted: Quoted) -> Result<Verified, Refusal> {
    let Quoted { challenged: Challenged { admitted, .. }, m3, attest } = quoted;
    let no = |reason: Reason, detail: String| Refusal::new(true, reason, detail);
    if attest.selection != [PcrSelection::QUOTED] {
        return Err(no(Reason::SelectionMismatch, format!("the quote covers {:?}", attest.selection)));
    }
    if !bool::from(quote_digest(&m3.pcr_values).as_slice().ct_eq(&attest.pcr_digest)) {
        return Err(no(Reason::PcrDigestMismatch, "the PCR values are not the quoted ones".to_owned()));
    }
    let log = unpack(&m3.event_log).map_err(|error| no(Reason::MessageTooLarge, error.to_string()))?;
    let log = EventLog::parse(&log).map_err(|error| no(Reason::LogMalformed, error.to_string()))?;
    let evidence = Evidence { pcrs: &m3.pcr_values, log: &log, latch: expected_latch(&admitted) };
    let verdict = evaluate(&admitted.policy.document, &evidence).map_err(of_policy)?;

    if !attest.clock.safe {
        return Err(no(Reason::ClockUnsafe, "the TPM says that its clock is not safe".to_owned()));
    }
    if let Mode::Again { record, .. } = &admitted.mode {
        counters(record, &attest.clock)?;
    }
    // Last, because it is the controller's word against the guest's, and all of the guest's is proved by now.
    if Digest(m3.seed_digest) != admitted.seed_digest {
        return Err(no(
            Reason::SeedMismatch,
            format!("the guest read seed {}, the member's is {}", Digest(m3.seed_digest), admitted.seed_digest),
        ));
    }
    Ok(Verified {
        ak_name: hex::encode(admitted.hello.m1.ak.name().as_bytes()),
        clock: attest.clock,
        latched: verdict.latched,
        secure_boot: verdict.secure_boot,
        boot_id: m3.boot_id,
        admitted,
    })
}

/// Without a claim PCR 15 must be untouched; with one it may hold the claim's latch; once that was seen, it must.
fn expected_latch(admitted: &Admitted) -> Latch {
    let recorded = matches!(&admitted.mode, Mode::Again { record, .. } if record.latched);
    match &admitted.claim {
        None => Latch::Untouched,
        Some(claim) if recorded => Latch::Set(latched_pcr(claim)),
        Some(claim) => Latch::Either(latched_pcr(claim)),
    }
}

/// A reset clears the latch and a restart may hide one, so both counts stay for a member's whole life.
fn counters(record: &Record, now: &ClockInfo) -> Result<(), Refusal> {
    let no = |reason, detail| Err(Refusal::new(true, reason, detail));
    if now.reset_count != record.reset_count {
        return no(
            Reason::ResetCountChanged,
            format!("the reset count is {}, recorded was {}", now.reset_count, record.reset_count),
        );
    }
    if now.restart_count != record.restart_count {
        return no(
            Reason::RestartCountChanged,
            format!("the restart count is {}, recorded was {}", now.restart_count, record.restart_count),
        );
    }
    if now.clock <= record.clock {
        return no(Reason::ClockBackwards, format!("the clock is {} ms, recorded was {}", now.clock, record.clock));
    }
    Ok(())
}

fn of_policy(refusal: PolicyRefusal) -> Refusal {
    let detail = match &refusal {
        PolicyRefusal::Policy(mismatches) => mismatches.summary(NAMED_MISMATCHES),
        other => other.to_string(),
    };
    let reason = match refusal {
        PolicyRefusal::Replay(_) => Reason::LogReplay,
        PolicyRefusal::Policy(_) => Reason::PolicyMismatch,
        PolicyRefusal::LatchUnexpected(_) => Reason::LatchUnexpected,
        PolicyRefusal::LatchMissing => Reason::LatchMissing,
    };
    Refusal::new(true, reason, detail)
}

/// Values of the agent's selectors, for entries that want to name more than one member.
#[must_use]
pub fn selectors(verified: &Verified, member: &crate::facts::Member) -> Vec<String> {
    let admitted = &verified.admitted;
    let endorsement = match admitted.endorsement {
        Endorsement::HostReported => "HostReported",
        Endorsement::FirstUse => "FirstUse",
    };
    vec![
        format!("member:{}", member.uid),
        format!("pool:{}/{}", member.namespace, member.pool),
        format!("image:{}", admitted.policy.document.image.digest),
        format!("policy:{}", admitted.policy.digest),
        format!("endorsement:{endorsement}"),
        format!("ek:{}", admitted.hello.ek),
        format!("secureboot:{}", verified.secure_boot),
        format!("latched:{}", verified.latched),
    ]
}
