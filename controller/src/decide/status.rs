//! The part of a member's status that the controller owns, as one draft that is written or skipped as a whole.

use banlieue_crds::conditions::{self, MemberCondition, MemberReason, condition};
use banlieue_crds::member::{InstanceRef, MemberPhase};
use banlieue_crds::{Address, PoolMember};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube::ResourceExt;
use serde_json::{Value, json};

/// What a member says before anything is known of it.
const BEING_MADE: &str = "its Secret and instance are being made";

/// When a member reached each stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// Member object made.
    pub created: Option<Timestamp>,
    /// Instance running.
    pub running: Option<Timestamp>,
    /// Evidence accepted for the first time.
    pub attested: Option<Timestamp>,
    /// Ready for the first time.
    pub ready: Option<Timestamp>,
}

/// What the controller says about a member (field manager `banlieue-status`).
#[derive(Debug, Clone, PartialEq)]
pub struct MemberDraft {
    /// Phase.
    pub phase: MemberPhase,
    /// Its one instance.
    pub instance_ref: Option<InstanceRef>,
    /// Its node.
    pub node_name: Option<String>,
    /// Its addresses.
    pub addresses: Vec<Address>,
    /// Digest of its seed.
    pub seed_digest: Option<String>,
    /// When its enrolment secret stops counting.
    pub enrolment_expires: Option<Timestamp>,
    /// When it reached each stage.
    pub phase_times: Times,
    /// Condition Provisioned.
    pub provisioned: Condition,
    /// Condition Ready.
    pub ready_condition: Condition,
    /// Condition Destroyed: written only when an end has stalled.
    pub destroyed: Option<Condition>,
    /// When to look at the member again. Not written.
    pub wake: Option<Timestamp>,
    generation: Option<i64>,
}

impl MemberDraft {
    /// What stands on the member now.
    pub fn of(member: &PoolMember) -> Self {
        let status = member.status.clone().unwrap_or_default();
        let generation = member.metadata.generation;
        let created = member.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let at = created.unwrap_or(Timestamp::UNIX_EPOCH);
        let times = status.phase_times.clone().unwrap_or_default();
        let time = |value: Option<MicroTime>| value.map(|time| time.0);
        let standing = |type_: MemberCondition| conditions::find(&status.conditions, type_).cloned();
        Self {
            phase: status.phase.unwrap_or(MemberPhase::Provisioning),
            provisioned: standing(MemberCondition::Provisioned).unwrap_or_else(|| {
                condition(MemberCondition::Provisioned, false, MemberReason::Provisioning, BEING_MADE, generation, at)
            }),
            ready_condition: standing(MemberCondition::Ready).unwrap_or_else(|| {
                condition(MemberCondition::Ready, false, MemberReason::Provisioning, BEING_MADE, generation, at)
            }),
            destroyed: standing(MemberCondition::Destroyed),
            instance_ref: status.instance_ref,
            node_name: status.node_name,
            addresses: status.addresses,
            seed_digest: status.enrolment.as_ref().and_then(|enrolment| enrolment.seed_digest.clone()),
            enrolment_expires: status.enrolment.and_then(|enrolment| time(enrolment.expires_at)),
            phase_times: Times {
                created: time(times.created).or(created),
                running: time(times.running),
                attested: time(times.attested),
                ready: time(times.ready),
            },
            wake: None,
            generation,
        }
    }

    /// It may be lent, and by what.
    pub fn ready(&mut self, why: &str, now: Timestamp) {
        self.phase = MemberPhase::Ready;
        self.phase_times.ready.get_or_insert(now);
        self.set_ready(true, MemberReason::Ready, why.to_owned(), now);
    }

    /// Phase Ready stays, but it may not be lent for now.
    pub fn unready(&mut self, reason: MemberReason, message: String, now: Timestamp) {
        self.set_ready(false, reason, message, now);
    }

    /// On its way, or not any more for now.
    pub fn not_ready(&mut self, phase: MemberPhase, reason: MemberReason, message: String, now: Timestamp) {
        self.phase = phase;
        self.set_ready(false, reason, message, now);
    }

    /// It will never be lent.
    pub fn end(&mut self, phase: MemberPhase, reason: MemberReason, message: String, now: Timestamp) {
        self.phase = phase;
        self.wake = None;
        self.set_ready(false, reason, message, now);
    }

    /// Its Secret and instance are there, or why not.
    pub fn set_provisioned(&mut self, holds: bool, reason: MemberReason, message: String, now: Timestamp) {
        let new = condition(MemberCondition::Provisioned, holds, reason, message, self.generation, now);
        self.provisioned = keep_time(&self.provisioned, new);
    }

    /// Its end takes too long, and why.
    pub fn set_stalled(&mut self, message: String, now: Timestamp) {
        let new = condition(MemberCondition::Destroyed, false, MemberReason::Ending, message, self.generation, now);
        self.destroyed = Some(match &self.destroyed {
            Some(old) => keep_time(old, new),
            None => new,
        });
    }

    fn set_ready(&mut self, holds: bool, reason: MemberReason, message: String, now: Timestamp) {
        let new = condition(MemberCondition::Ready, holds, reason, message, self.generation, now);
        self.ready_condition = keep_time(&self.ready_condition, new);
    }

    /// Whether it says anything else than the member does.
    pub fn differs_from(&self, member: &PoolMember) -> bool {
        let mut standing = Self::of(member);
        standing.wake = self.wake;
        let written = member.status.as_ref().is_some_and(|status| {
            status.phase.is_some()
                && conditions::find(&status.conditions, MemberCondition::Ready).is_some()
                && conditions::find(&status.conditions, MemberCondition::Provisioned).is_some()
        });
        !written || *self != standing
    }

    /// The status apply, conditional on the version that the draft was made from. Every field that we own is in it:
    /// an apply that leaves one out would remove it.
    pub fn body(&self, member: &PoolMember) -> Value {
        let mut status = json!({
            "phase": self.phase,
            "phaseTimes": stamps(&self.phase_times),
            "conditions": conditions_of(self),
        });
        let mut put = |name: &str, value: Value| {
            if let Some(map) = status.as_object_mut() {
                map.insert(name.to_owned(), value);
            }
        };
        if let Some(instance) = &self.instance_ref {
            put("instanceRef", json!(instance));
        }
        if let Some(node) = &self.node_name {
            put("nodeName", json!(node));
        }
        if !self.addresses.is_empty() {
            put("addresses", json!(self.addresses));
        }
        if self.seed_digest.is_some() {
            let enrolment = match self.enrolment_expires {
                Some(expires) => json!({ "seedDigest": self.seed_digest, "expiresAt": MicroTime(expires) }),
                None => json!({ "seedDigest": self.seed_digest }),
            };
            put("enrolment", enrolment);
        }
        json!({
            "metadata": {
                "name": member.name_any(),
                "namespace": member.namespace(),
                "uid": member.metadata.uid,
                "resourceVersion": member.metadata.resource_version,
            },
            "status": status,
        })
    }
}

fn conditions_of(draft: &MemberDraft) -> Vec<&Condition> {
    [Some(&draft.provisioned), Some(&draft.ready_condition), draft.destroyed.as_ref()].into_iter().flatten().collect()
}

fn keep_time(old: &Condition, mut new: Condition) -> Condition {
    if old.status == new.status {
        new.last_transition_time = old.last_transition_time.clone();
    }
    new
}

fn stamps(times: &Times) -> Value {
    let mut map = serde_json::Map::new();
    let all =
        [("created", times.created), ("running", times.running), ("attested", times.attested), ("ready", times.ready)];
    for (name, time) in all {
        if let Some(time) = time {
            map.insert(name.to_owned(), json!(MicroTime(time)));
        }
    }
    Value::Object(map)
}
