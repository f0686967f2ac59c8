//! What is wanted, given what is seen: pure functions from a snapshot and the time to intents.
//!
//! Nothing here has a client, a clock or randomness of its own, so every rule is tested as a table.

mod attestor;
mod budget;
mod claim;
mod destroy;
mod gate;
mod member;
mod news;
mod policy;
mod pool;
mod pool_status;
mod population;
mod queue;
mod revision;
mod status;
mod template;

pub use budget::Budget;
pub use claim::{ClaimIntent, ClaimPlan, claim, counts_for_subject, is_waiting, subject_place};
pub use destroy::{Destroy, Identity, destroy};
pub use gate::{Attested, NotLendable, attested, lendable, pick};
pub use member::{MemberIntent, MemberPlan, member, needs_identity};
pub use news::{News, member_news, pool_news};
pub use policy::{Denial, admit, bind_deadline, expires_at, retention};
pub use pool::{PoolIntent, PoolPlan, pool};
pub use pool_status::Trouble;
pub use population::{Population, Shortage};
pub use queue::{Waiting, order};
pub use revision::revision;
pub use status::{MemberDraft, Times};
pub use template::{Allowed, PolicyState, TemplateFault, TemplateVerdict, check_template};

#[cfg(test)]
mod lifetime_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};

/// Settings of decisions that are not the pool's.
#[derive(Debug, Clone)]
pub struct Tuning {
    /// How long a node may be cordoned or not ready before its unbound members are replaced.
    pub node_grace: SignedDuration,
    /// How close to its deadline an instance may end by itself and still count as expired: the guest powers off by
    /// its own clock.
    pub expiry_slack: SignedDuration,
    /// How long an end may take before it is reported as stalled.
    pub destroy_patience: SignedDuration,
    /// How long a claim waits before its place in the queue is written, and between two such writes.
    pub queue_report: SignedDuration,
    /// Pause after the first failure of a member; it doubles with every further one.
    pub failure_pause: SignedDuration,
    /// How long a Ready member must live to show that its kind works: longer than a guest lives without an identity,
    /// which is the agent TTL.
    pub proof_of_life: SignedDuration,
    /// Why members could not reach what they need through the pool's NetworkPolicy, and what to configure.
    pub egress_gap: Option<String>,
    /// What the operator adds to the template's allow-list.
    pub allowed: Allowed,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            node_grace: SignedDuration::from_secs(60),
            expiry_slack: SignedDuration::from_secs(5),
            destroy_patience: SignedDuration::from_secs(60),
            queue_report: SignedDuration::from_secs(5),
            failure_pause: SignedDuration::from_secs(2),
            proof_of_life: SignedDuration::from_secs(630),
            egress_gap: None,
            allowed: Allowed::default(),
        }
    }
}

/// `time + seconds`, saturating.
pub(crate) fn after(time: Timestamp, seconds: u32) -> Timestamp {
    plus(time, SignedDuration::from_secs(i64::from(seconds)))
}

/// `time + duration`, saturating.
pub(crate) fn plus(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// The time without its fraction of a second.
pub(crate) fn whole(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The earlier of two optional times.
pub(crate) fn sooner(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
