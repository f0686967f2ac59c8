//! A "no", with what the guest hears, what the log says, and whether the member may be touched by it.

use std::fmt;

use banlieue_protocol::reason::Reason;

use crate::facts::Pin;

/// Why an attestation goes no further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The check.
    pub reason: Reason,
    /// What exactly differs. For log and event; never for the guest.
    pub detail: String,
    /// Whether it is certain that the member itself sent this: only then may it count against it.
    pub authenticated: bool,
    /// The key that was surely used, when that has to be known of a member that is not admitted: it is pinned then, so
    /// that both members of one key are seen.
    pub proved: Option<Pin>,
}

impl Refusal {
    /// A refusal of somebody unknown.
    pub fn stranger(reason: Reason, detail: impl fmt::Display) -> Self {
        Self::new(false, reason, detail)
    }

    /// A refusal, of the member itself when `authenticated`.
    pub fn new(authenticated: bool, reason: Reason, detail: impl fmt::Display) -> Self {
        Self { reason, detail: detail.to_string(), authenticated, proved: None }
    }

    /// Whether it stands on the member and in its budget: surely its own, and not a mere "not yet".
    ///
    /// A member that is on its way out is refused for that alone: it says nothing about its evidence, and must not
    /// overwrite what does.
    /// A policy that is not there may come back, so the guest may ask again; but it was there before the member was, so
    /// whoever looks at the member has to see it.
    #[must_use]
    pub fn counts(&self) -> bool {
        let ending = matches!(self.reason, Reason::MemberEnding | Reason::ClaimEnding);
        let passing = self.reason.is_transient() && self.reason != Reason::MeasurementsNotFound;
        self.authenticated && !passing && !ending
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.detail)
    }
}
