//! A member's life until its deletion is asked for.

use banlieue_crds::PoolMember;
use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::conditions::MemberReason;
use banlieue_crds::kubevirt::InstancePhase;
use banlieue_crds::member::MemberPhase;
use banlieue_crds::names::{MemberState, labels};
use jiff::Timestamp;
use kube::ResourceExt;

use super::attestor;
use super::gate::{Attested, attested, node_trouble, quarantine_reason};
use super::status::MemberDraft;
use super::{after, revision, sooner};
use crate::store::{InstanceFacts, MemberSnapshot};

/// Why a member may be lent. Without times: evidence comes again and again, and each would be another write.
pub(super) const LENDABLE_ATTESTED: &str = "its instance runs and its evidence is accepted: a claim may have it";
/// The same of a pool that asks for no evidence.
pub(super) const LENDABLE_UNATTESTED: &str = "its instance runs and its pool asks for no evidence: a claim may have it";

/// The next step for a member.
#[derive(Debug, Clone, PartialEq)]
pub enum MemberIntent {
    /// Make its Secret and instance, and record both.
    Provision,
    /// Write its status.
    Status(Box<MemberDraft>),
    /// Write its state label.
    Label(MemberState),
    /// Its seed has been read: delete the Secret.
    DeleteSecret,
    /// Ask the API server whether its recorded instance is really gone, then fail it.
    VerifyInstance,
    /// Ask the API server whether its claim is really gone, then delete it.
    VerifyClaim,
    /// Delete it: it serves no claim that counts, or can never be made.
    Delete {
        /// Why, for the log and the event.
        why: String,
    },
}

/// The steps, in order, and when to look again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MemberPlan {
    /// The steps.
    pub intents: Vec<MemberIntent>,
    /// When to look again if nothing happens.
    pub wake: Option<Timestamp>,
}

/// Whether a member's identity must be revoked before it may go: it was given a seed, so it may have attested.
/// The seed's digest is recorded before the instance exists.
pub fn needs_identity(member: &PoolMember) -> bool {
    member.has_seed()
}

/// Decides the next steps of a member whose deletion was not asked for.
pub fn member(snapshot: &MemberSnapshot, now: Timestamp) -> MemberPlan {
    if snapshot.is_bound() { bound(snapshot) } else { unbound(snapshot, now) }
}

/// A bound member is not touched, but one that serves no claim that counts is spent and goes.
fn bound(snapshot: &MemberSnapshot) -> MemberPlan {
    let step = |intent| MemberPlan { intents: vec![intent], wake: None };
    let Some(claim) = snapshot.claim.as_deref() else { return step(MemberIntent::VerifyClaim) };
    let status = claim.status.clone().unwrap_or_default();
    let named = status.member_ref.as_ref().map(|member| member.uid.as_str());
    let ours = named == snapshot.member.metadata.uid.as_deref();
    match (status.phase.unwrap_or_default(), named) {
        // Its claim's, or about to be: the claim's own life ends it.
        (ClaimPhase::Bound | ClaimPhase::Releasing, Some(_)) if ours => MemberPlan::default(),
        (ClaimPhase::Pending, None) if claim.metadata.deletion_timestamp.is_none() => MemberPlan::default(),
        (ClaimPhase::Pending, None) => {
            step(MemberIntent::Delete { why: "its claim was deleted before it was bound".into() })
        }
        (_, Some(_)) if !ours => step(MemberIntent::Delete { why: "its claim has another member".into() }),
        _ => step(MemberIntent::Delete { why: "its claim has ended".into() }),
    }
}

fn unbound(snapshot: &MemberSnapshot, now: Timestamp) -> MemberPlan {
    let member = &snapshot.member;
    let phase = member.status.as_ref().and_then(|status| status.phase);
    if matches!(phase, Some(MemberPhase::Failed | MemberPhase::Quarantined)) {
        return settle(snapshot, MemberDraft::of(member), now);
    }
    if snapshot.own_instance().is_none() && snapshot.recorded_instance().is_none() {
        let pool_revision = snapshot.pool.as_deref().map(revision);
        return match pool_revision {
            // What it should be made of is not known any more.
            Some(revision) if revision != member.spec.revision => MemberPlan {
                intents: vec![MemberIntent::Delete { why: "its revision was replaced before it was made".into() }],
                wake: None,
            },
            Some(_) if quarantine_reason(member).is_none() && snapshot.instance.is_none() => {
                MemberPlan { intents: vec![MemberIntent::Provision], wake: None }
            }
            // A foreign instance under its name, or a quarantine: judged below. Without its pool it is collected.
            Some(_) => settle(snapshot, judge(snapshot, now), now),
            None => MemberPlan::default(),
        };
    }
    if snapshot.recorded_instance().is_none() {
        // Its instance is there but not recorded: the process that made it died between the two.
        return MemberPlan { intents: vec![MemberIntent::Provision], wake: None };
    }
    if snapshot.instance.is_none() {
        return MemberPlan { intents: vec![MemberIntent::VerifyInstance], wake: None };
    }
    settle(snapshot, judge(snapshot, now), now)
}

/// Compares what should be written with what stands.
fn settle(snapshot: &MemberSnapshot, draft: MemberDraft, now: Timestamp) -> MemberPlan {
    let member = &snapshot.member;
    let mut intents = Vec::new();
    let state = match draft.phase {
        MemberPhase::Ready => MemberState::Warm,
        MemberPhase::Failed | MemberPhase::Quarantined => MemberState::Failed,
        _ => MemberState::Provisioning,
    };
    let wake = draft.wake.filter(|wake| *wake > now);
    let first_ready = draft.phase == MemberPhase::Ready && draft.phase_times.ready.is_some();
    let had_seed = draft.seed_digest.is_some();
    let written = draft.differs_from(member);
    if written {
        intents.push(MemberIntent::Status(Box::new(draft)));
    }
    if member.labels().get(labels::STATE).map(String::as_str) != Some(state.as_str()) {
        // The Secret goes before the label, so that a crash between the two does it again.
        if first_ready && had_seed {
            intents.push(MemberIntent::DeleteSecret);
        }
        intents.push(MemberIntent::Label(state));
    }
    MemberPlan { intents, wake }
}

/// What the member is, given what is seen.
pub(super) fn judge(snapshot: &MemberSnapshot, now: Timestamp) -> MemberDraft {
    let member = &snapshot.member;
    let mut draft = MemberDraft::of(member);
    if let Some(instance) = snapshot.own_instance() {
        draft.node_name = instance.node_name.clone().or(draft.node_name);
        if !instance.addresses.is_empty() {
            draft.addresses = instance.addresses.clone();
        }
    }
    if let Some(why) = quarantine_reason(member) {
        draft.end(MemberPhase::Quarantined, MemberReason::Quarantined, why.to_owned(), now);
        return draft;
    }
    let fail = |mut draft: MemberDraft, reason: MemberReason, message: String| {
        draft.end(MemberPhase::Failed, reason, message, now);
        draft
    };
    let Some(instance) = snapshot.own_instance() else {
        return match snapshot.instance.as_deref() {
            Some(other) => {
                let message = match snapshot.recorded_instance() {
                    Some(uid) => format!("instance {} stands under its name, recorded is {uid}", other.uid),
                    None => format!("instance {} stands under its name and is not its own", other.uid),
                };
                fail(draft, MemberReason::InstanceReplaced, message)
            }
            None => draft,
        };
    };
    // A refusal first: a guest that is refused powers off, and the reason must not be that.
    match attested(member, snapshot.pool.as_deref(), now) {
        Attested::Refused { reason, message } if reason == "DuplicateEndorsementKey" => {
            draft.end(MemberPhase::Quarantined, MemberReason::Quarantined, format!("{reason}: {message}"), now);
            draft
        }
        Attested::Refused { reason, message } => {
            let text = if reason == MemberReason::AttestationRefused.as_str() {
                message
            } else {
                format!("{reason}: {message}")
            };
            fail(draft, MemberReason::AttestationRefused, text)
        }
        evidence => {
            if instance.deleting {
                return fail(draft, MemberReason::InstanceGone, "somebody deleted its instance".into());
            }
            if instance.is_over() {
                let how = if instance.phase == Some(InstancePhase::Succeeded) { "powered off" } else { "failed" };
                let trouble = instance.trouble.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
                let since = draft.phase_times.ready.map(|ready| now.duration_since(ready).as_secs());
                let since = since.map(|seconds| format!(" by itself {seconds} s after Ready")).unwrap_or_default();
                // Ready says that its agent attested. What the guest lives by is its node identity, and nobody but the
                // guest sees that it never came.
                let hint = if member.needs_evidence() && instance.phase == Some(InstancePhase::Succeeded) {
                    ". Did the guest find no node identity? Compare `programs` of the measurements document with what \
                     the image runs (path, uid, sha256), and look at the guest's log"
                } else {
                    ""
                };
                let text = format!("its instance {how}{since}{trouble}{hint}");
                return fail(draft, MemberReason::InstanceFailed, text);
            }
            progress(snapshot, instance, evidence, &mut draft, now);
            draft
        }
    }
}

fn progress(
    snapshot: &MemberSnapshot,
    instance: &InstanceFacts,
    evidence: Attested,
    draft: &mut MemberDraft,
    now: Timestamp,
) {
    let member = &snapshot.member;
    let was_ready = draft.phase_times.ready.is_some();
    let status = member.status.clone().unwrap_or_default();
    if !instance.is_running() {
        if instance.phase == Some(InstancePhase::Unknown) && draft.phase != MemberPhase::Provisioning {
            draft.not_ready(draft.phase, MemberReason::InstanceFailed, "its instance is out of sight".into(), now);
            return;
        }
        let unschedulable = snapshot.pods.iter().find_map(|pod| pod.unschedulable.clone());
        let (reason, message) = match (image_trouble(snapshot), unschedulable, &instance.trouble) {
            (Some(text), ..) => (MemberReason::ImagePullFailed, text),
            (None, Some(text), _) => (MemberReason::Unschedulable, text),
            (None, None, Some(text)) => (MemberReason::Unschedulable, text.clone()),
            (None, None, None) => (MemberReason::Provisioning, "waits for its node".into()),
        };
        draft.not_ready(MemberPhase::Provisioning, reason, message, now);
    } else {
        draft.phase_times.running.get_or_insert(instance.running_at.unwrap_or(now));
        match evidence {
            Attested::NotRequired => draft.ready(LENDABLE_UNATTESTED, now),
            Attested::Until(until) => {
                let verified = status.attestation.as_ref().and_then(|evidence| evidence.verified_at.as_ref());
                draft.phase_times.attested.get_or_insert(verified.map_or(now, |time| time.0));
                draft.ready(LENDABLE_ATTESTED, now);
                draft.wake = Some(until);
            }
            Attested::NotYet { reason, message } => {
                // The attestor's own word for what it waits for is a reason of Attested, not of Ready: it goes along.
                let ours = MemberReason::ALL.iter().any(|word| word.as_str() == reason);
                let message = if ours { message } else { format!("{reason}: {message}") };
                let seen = status.attestation.is_some()
                    || status.endorsement.is_some()
                    || status.enrolment.as_ref().is_some_and(|enrolment| enrolment.consumed_at.is_some());
                if was_ready && reason == MemberReason::AttestationStale.as_str() {
                    draft.not_ready(MemberPhase::Attesting, MemberReason::AttestationStale, message, now);
                } else if seen {
                    draft.not_ready(MemberPhase::Attesting, MemberReason::Attesting, message, now);
                } else {
                    let text = "its instance starts; no evidence yet".to_owned();
                    draft.not_ready(MemberPhase::Booting, MemberReason::Booting, text, now);
                }
            }
            Attested::Refused { .. } => {}
        }
        // A node that goes takes its members out of the warm set at once (the binder looks itself); the phase stays,
        // for the node may come back.
        if draft.phase == MemberPhase::Ready
            && let Some(why) = node_trouble(snapshot)
        {
            draft.unready(MemberReason::NodeUnavailable, why, now);
        }
    }
    if !was_ready && draft.phase != MemberPhase::Ready {
        timeouts(snapshot, instance, draft, now);
    }
}

/// What keeps a member's node from pulling an image of it, in the words of KubeVirt or the kubelet.
pub(super) fn image_trouble(snapshot: &MemberSnapshot) -> Option<String> {
    let instance = snapshot.own_instance().filter(|instance| !instance.is_running())?;
    let told = instance.trouble.clone().filter(|_| instance.image_missing);
    told.or_else(|| snapshot.pods.iter().find_map(|pod| pod.image_missing.clone()))
}

/// Age counts from scheduled, and anew from running: a member that no node takes is held, not churned. So is one that
/// waits for what is not its own doing: an image that cannot be pulled, an attestor that does not answer, and the attestor
/// controller's word once its evidence was accepted.
fn timeouts(snapshot: &MemberSnapshot, instance: &InstanceFacts, draft: &mut MemberDraft, now: Timestamp) {
    let Some(pool) = snapshot.pool.as_deref() else { return };
    let member = &snapshot.member;
    if image_trouble(snapshot).is_some() {
        return;
    }
    let mut answers_since = None;
    if member.needs_evidence() && instance.is_running() {
        if let Some(until) = member.evidence_until().filter(|until| now < *until) {
            draft.wake = sooner(draft.wake, Some(until));
            return;
        }
        match attestor::answers(pool) {
            Some((false, _)) => return,
            Some((true, since)) => answers_since = Some(since),
            None => {}
        }
    }
    let began = |at: Timestamp, seconds: u32| after(answers_since.map_or(at, |since| at.max(since)), seconds);
    let scheduled = snapshot.pods.iter().find_map(|pod| pod.scheduled_at).or(instance.scheduled_at);
    let start = if instance.is_running() { draft.phase_times.running.or(scheduled) } else { scheduled };
    let limit = start.map(|at| began(at, pool.spec.provisioning_timeout_seconds));
    let consumed =
        member.status.as_ref().and_then(|status| status.enrolment.as_ref()?.consumed_at.as_ref()).map(|at| at.0);
    let judged = consumed.map(|at| began(at, pool.spec.attestation.timeout_seconds));
    if limit.is_some_and(|limit| limit <= now) {
        let since = if instance.is_running() { "running" } else { "being scheduled" };
        let text = format!(
            "not Ready within {} s of {since}; it was {:?}",
            pool.spec.provisioning_timeout_seconds, draft.phase
        );
        draft.end(MemberPhase::Failed, MemberReason::ProvisioningTimeout, text, now);
    } else if judged.is_some_and(|judged| judged <= now) {
        let text = format!("its attestation took more than {} s", pool.spec.attestation.timeout_seconds);
        draft.end(MemberPhase::Failed, MemberReason::ProvisioningTimeout, text, now);
    } else {
        draft.wake = sooner(limit, judged);
    }
}
