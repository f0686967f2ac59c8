//! Condition types and reasons, which are stable API, and the few operations on condition lists.
//!
//! A condition list is a map by type. Several programs write one list, each its own types, by server-side apply.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Declares an enum whose variants are words of the API, spelled as the variant is.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every word, in the order of the reference.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as it stands in the API.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl From<$name> for String {
            fn from(word: $name) -> String {
                word.as_str().to_owned()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }
    };
}

words! {
    /// Condition types of a pool.
    PoolCondition {
        /// The warm target is met.
        Ready,
        /// Members are being made or replaced.
        Progressing,
        /// The template and what it names are usable.
        TemplateValid,
        /// There is room for the members that are wanted.
        Capacity,
        /// The attestor's plugin answers. Written by the attestor controller.
        AttestorReachable,
        /// The failure budget is spent; nothing new is tried for a while.
        ProvisioningHalted,
    }
}

words! {
    /// Reasons of a pool's conditions.
    PoolReason {
        /// The warm target is met.
        Warm,
        /// Members are on their way.
        Filling,
        /// `maxReplicas` leaves no room for what is wanted.
        MaxReplicasReached,
        /// A ResourceQuota or the cluster's cap refused a member.
        QuotaExceeded,
        /// No node takes the members.
        Unschedulable,
        /// A node cannot pull an image of the template. Members wait; none is replaced for it.
        ImagePullFailed,
        /// The template, or KubeVirt's judgement of it, is at fault.
        TemplateInvalid,
        /// The measurements are missing or have other content than the pool says.
        MeasurementsNotFound,
        /// Too many failures in a row.
        FailureBudgetSpent,
        /// `spec.paused`.
        Paused,
        /// The pool is being deleted.
        Draining,
        /// TemplateValid=True: everything the template names is there and allowed.
        Accepted,
        /// Capacity=True: every wanted member found a node, or none is waiting.
        Sufficient,
        /// ProvisioningHalted=False: the budget is not spent.
        WithinBudget,
        /// Progressing=False: nothing is being made or replaced.
        Settled,
        /// AttestorReachable=True.
        Answering,
        /// AttestorReachable=False, and Ready=False of a pool whose members therefore cannot be attested.
        NotAnswering,
        /// SPIRE or the broker is configured by a host name and without the peers that stand behind it, so that the
        /// pool's NetworkPolicy cannot let members reach it. None are made.
        EgressUndefined,
    }
}

words! {
    /// Condition types of a member.
    MemberCondition {
        /// Its Secret and instance exist.
        Provisioned,
        /// Its evidence is accepted, fresh, and SPIRE lists its agent. Written by the attestor controller.
        Attested,
        /// It may be lent.
        Ready,
        /// Its agent is banned and its entries are gone. Written by the attestor controller.
        IdentityRevoked,
        /// Its instance, launcher pod and Secret are verified gone.
        Destroyed,
    }
}

words! {
    /// Reasons of a member's conditions.
    MemberReason {
        /// Secret or instance is being made.
        Provisioning,
        /// No node takes it.
        Unschedulable,
        /// Its node cannot pull an image of it.
        ImagePullFailed,
        /// The instance starts.
        Booting,
        /// The instance runs and its evidence is awaited or judged.
        Attesting,
        /// It may be lent, or the thing the condition speaks of is done.
        Ready,
        /// `Provisioned=True`.
        InstanceCreated,
        /// KubeVirt or a policy refused the instance.
        InstanceRefused,
        /// The instance failed or ended by itself.
        InstanceFailed,
        /// Another uid stands under the instance's name.
        InstanceReplaced,
        /// The instance vanished.
        InstanceGone,
        /// Longer on its way than `provisioningTimeoutSeconds`.
        ProvisioningTimeout,
        /// Its Secret is not the one that was made for it.
        SeedMismatch,
        /// Evidence accepted.
        Verified,
        /// The pool asks for no evidence.
        NotRequired,
        /// Evidence refused; the message names PCR and event, or the check.
        AttestationRefused,
        /// The newest evidence is older than `maxAgeSeconds`.
        AttestationStale,
        /// Its policy or image is revoked by the pool.
        PolicyRevoked,
        /// Its node is cordoned, draining or not ready.
        NodeUnavailable,
        /// An operator took it out.
        Quarantined,
        /// Agent banned, entries deleted.
        Revoked,
        /// It never attested, so there is nothing to revoke.
        NeverAttested,
        /// It ends; something is not verified gone yet. The message says what.
        Ending,
    }
}

words! {
    /// Condition types of a claim.
    ClaimCondition {
        /// It has its member.
        Bound,
        /// Its workload's identity exists. Written by mediatore.
        IdentityReady,
        /// Its workload runs. Written by mediatore.
        WorkloadRunning,
        /// Its member is verified gone, with the time of each step in the message.
        Destroyed,
    }
}

words! {
    /// Why a claim waits, or why it ended.
    ClaimReason {
        /// The pool does not exist.
        PoolNotFound,
        /// No member is warm.
        NoMemberAvailable,
        /// Other claims of the same subject are served first.
        QueuedBehindSubject,
        /// It waited longer than `bindDeadlineSeconds`.
        BindDeadlineExceeded,
        /// `ttlSeconds`, `retentionSeconds`, `bindDeadlineSeconds` or `priority` exceeds what the pool allows.
        TtlExceedsPool,
        /// The pool does not allow the image.
        ImageDenied,
        /// The pool does not allow an audience.
        AudienceDenied,
        /// The subject has as many claims as the pool allows.
        TooManyClaims,
        /// Its member or instance died or was deleted.
        MemberLost,
        /// Its member is no longer attested.
        AttestationLost,
        /// The deadline passed.
        Expired,
        /// Its owner released it.
        Released,
        /// The workload finished.
        WorkloadFinished,
        /// The pool was deleted with `banlieue.io/drain: now`.
        PoolDeleted,
    }
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody knows.
    Unknown,
}

impl Status {
    /// The word as it stands in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Status {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// Longest message that a condition may carry, in bytes.
pub const MESSAGE_LIMIT: usize = 4096;

/// Builds a condition. `generation` is the object's own `metadata.generation`. Longer messages are cut at a character
/// border: they may quote foreign text.
pub fn condition(
    type_: impl AsRef<str>,
    status: impl Into<Status>,
    reason: impl AsRef<str>,
    message: impl Into<String>,
    generation: Option<i64>,
    now: jiff::Timestamp,
) -> Condition {
    let mut message = message.into();
    if message.len() > MESSAGE_LIMIT {
        message.truncate(message.floor_char_boundary(MESSAGE_LIMIT));
    }
    Condition {
        type_: type_.as_ref().to_owned(),
        status: status.into().as_str().to_owned(),
        reason: reason.as_ref().to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: Time(now),
    }
}

/// The condition of a type, if the list has it.
pub fn find(conditions: &[Condition], type_: impl AsRef<str>) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == type_.as_ref())
}

/// Whether the condition of a type is there and True.
pub fn is_true(conditions: &[Condition], type_: impl AsRef<str>) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// Puts a condition in its place in the list. The transition time of the old one stays while the status stays, so that
/// an unchanged condition is an unchanged object. Says whether anything changed.
pub fn set(conditions: &mut Vec<Condition>, mut new: Condition) -> bool {
    match conditions.iter_mut().find(|old| old.type_ == new.type_) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time.clone();
            }
            let changed = *old != new;
            *old = new;
            changed
        }
        None => {
            conditions.push(new);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn transition_time_follows_the_status_alone() {
        let mut list = vec![];
        assert!(set(&mut list, condition(PoolCondition::Ready, false, PoolReason::Filling, "1 of 2", Some(1), at(10))));
        assert!(!set(
            &mut list,
            condition(PoolCondition::Ready, false, PoolReason::Filling, "1 of 2", Some(1), at(20))
        ));
        assert!(set(&mut list, condition(PoolCondition::Ready, false, PoolReason::Paused, "", Some(1), at(30))));
        assert_eq!(find(&list, "Ready").unwrap().last_transition_time, Time(at(10)));
        assert!(set(&mut list, condition(PoolCondition::Ready, true, PoolReason::Warm, "", Some(1), at(40))));
        assert_eq!(find(&list, "Ready").unwrap().last_transition_time, Time(at(40)));
        assert!(is_true(&list, PoolCondition::Ready) && !is_true(&list, PoolCondition::Capacity));
        assert_eq!(list.len(), 1);
    }

    #[test]
    fn long_messages_are_cut_at_a_character_border() {
        let cut = condition("T", true, "R", "é".repeat(4096), None, at(0)).message;
        assert!(cut.len() <= MESSAGE_LIMIT && cut.chars().all(|c| c == 'é'));
    }

    #[test]
    fn every_word_is_spelled_as_it_serialises() {
        for reason in ClaimReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
    }
}
