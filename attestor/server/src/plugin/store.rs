//! What a session needs from the cluster.

use async_trait::async_trait;
use banlieue_protocol::{reason::Reason, seed::EnrolmentSecret};
use jiff::Timestamp;

use crate::{
    checks::{Refusal, hello::Hello, verify::Verified},
    facts::{Facts, Member},
};

/// What can be said about a first message without asking anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glance {
    /// No such member: nothing is worth a call.
    Unknown,
    /// A member without a pinned key.
    Unpinned,
    /// A member, and this is its pinned key.
    Pinned,
    /// A member, and this is not its pinned key.
    OtherKey,
}

/// Why the cluster could not be asked or told.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// It is not there.
    #[error("there is no member {0}")]
    NotFound(String),
    /// It cannot be asked now.
    #[error("cannot {what}: {why}")]
    Unavailable {
        /// What was tried.
        what: String,
        /// What went wrong.
        why: String,
    },
    /// Somebody wrote the member since it was read.
    #[error("member {0} changed meanwhile")]
    Conflict(String),
}

impl StoreError {
    /// As the refusal that ends the stream: a verifier that cannot reach its data denies.
    #[must_use]
    pub fn refusal(&self, authenticated: bool) -> Refusal {
        let reason = match self {
            Self::NotFound(_) => Reason::MemberNotFound,
            Self::Unavailable { .. } => Reason::StoreUnavailable,
            Self::Conflict(_) => Reason::LostRace,
        };
        Refusal::new(authenticated, reason, self)
    }
}

/// The cluster, as a session sees it.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// A first look from memory.
    fn glance(&self, hello: &Hello) -> Result<Glance, StoreError>;

    /// The enrolment secret of an unpinned member, perhaps some seconds old: what a proof must be made with to be worth
    /// a call. The decision itself reads again.
    async fn enrolment(&self, hello: &Hello) -> Result<Option<EnrolmentSecret>, StoreError>;

    /// Everything a decision rests on, read now.
    async fn facts(&self, hello: &Hello) -> Result<Facts, StoreError>;

    /// The one write of a successful attestation: pin, record, consumed enrolment, guarded by the version of `member`.
    async fn record(&self, member: &Member, verified: &Verified, now: Timestamp) -> Result<(), StoreError>;

    /// Puts a refusal of the member's own evidence on the member, guarded by its version.
    async fn refuse(&self, member: &Member, refusal: &Refusal, now: Timestamp) -> Result<(), StoreError>;

    /// Tells people, without waiting.
    fn event(&self, member: &Member, refusal: &Refusal);

    /// Whether decisions can be made now.
    async fn ready(&self) -> Result<(), StoreError>;
}
