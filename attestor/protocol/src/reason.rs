//! Why an attestation is refused: one closed list, used as metric label, log field and event reason.
//!
//! The guest hears none of it, only [`GENERIC_REFUSAL`] or [`GENERIC_RETRY`].

use std::fmt;

use banlieue_tpm::attest::AttestError;
use banlieue_tpm::public::Attributes;
use banlieue_tpm::signature::SignatureError;
use banlieue_tpm::template::TemplateError;

use crate::message::MessageError;

/// What a guest is told when it may not come back.
pub const GENERIC_REFUSAL: &str = "attestation refused";
/// What a guest is told when it may try again.
pub const GENERIC_RETRY: &str = "attestation not possible now";

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why an attestation is refused. The names are stable: dashboards and runbooks use them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The label.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

reasons! {
    /// A message does not parse, has unknown fields, trailing bytes or values out of range.
    MessageMalformed,
    /// A message, or the unpacked event log, is above its limit.
    MessageTooLarge,
    /// A message of another protocol version.
    VersionUnknown,
    /// A message that is not due, or one more than the protocol has.
    ProtocolOrder,
    /// A name with characters that may not enter a SPIFFE path.
    NameInvalid,
    /// M3 came after the deadline of its stream.
    DeadlineExceeded,
    /// No such member.
    MemberNotFound,
    /// The member is being deleted, failed or quarantined.
    MemberEnding,
    /// The member's claim is Releasing or past its deadline.
    ClaimEnding,
    /// The member was not made for mode VTPM.
    ModeNotVtpm,
    /// The instance under the member's name is not the recorded one.
    InstanceMismatch,
    /// The recorded instance does not run, or is not recorded yet.
    InstanceNotRunning,
    /// The enrolment proof is missing or wrong: another secret, member, EK, AK or nonce.
    EnrolmentProofInvalid,
    /// The enrolment secret is past its time.
    EnrolmentExpired,
    /// The enrolment was used before.
    EnrolmentConsumed,
    /// The endorsement key does not parse.
    EkMalformed,
    /// The endorsement key is not of an allowed template.
    EkTemplate,
    /// The endorsement key is no sound key.
    EkUnsound,
    /// The host reports no endorsement key for the instance yet.
    EkReportMissing,
    /// The host of the instance reports other endorsement keys.
    EkNotReported,
    /// Only another node reports the key, whose word counts for nothing: the own node's is waited for.
    EkReportedElsewhere,
    /// Another key than the one pinned to the member.
    EkNotPinned,
    /// The key was proved by another living member.
    DuplicateEndorsementKey,
    /// The key belonged to a member that ended.
    EkTombstoned,
    /// The member was made for HostReported, the pin is FirstUse.
    EndorsementTooWeak,
    /// The attestation key does not parse.
    AkMalformed,
    /// The attestation key is not restricted.
    AkNotRestricted,
    /// The attestation key is not fixed to its TPM and parent.
    AkNotFixed,
    /// The attestation key was made outside the TPM.
    AkImported,
    /// The attestation key may decrypt.
    AkDecrypts,
    /// Other attributes of the attestation key differ.
    AkAttributes,
    /// The attestation key has another type, curve, hash or scheme.
    AkAlgorithm,
    /// The attestation key has a policy.
    AkPolicy,
    /// The attestation key is no sound key.
    AkUnsound,
    /// The quote does not parse.
    QuoteMalformed,
    /// The quote was not made by a TPM.
    QuoteMagic,
    /// An attestation structure of another type.
    QuoteType,
    /// The signature does not parse, or is of another algorithm.
    SignatureMalformed,
    /// The signature is degenerate.
    SignatureDegenerate,
    /// The signature is not by the attestation key of M1, or over other bytes.
    SignatureInvalid,
    /// The signer is not the attestation key under the endorsement key of M1.
    SignerMismatch,
    /// The quote does not carry this stream's nonce, secret, messages, seed and trust domain.
    ExtraDataMismatch,
    /// The quote covers other PCRs than asked for.
    SelectionMismatch,
    /// The PCR values are not the quoted ones.
    PcrDigestMismatch,
    /// The event log does not parse.
    LogMalformed,
    /// The event log does not replay to the PCR values.
    LogReplay,
    /// PCRs or events differ from the measurements.
    PolicyMismatch,
    /// PCR 15 is extended though the member has no claim, or for another claim.
    LatchUnexpected,
    /// PCR 15 is untouched though the latch was recorded.
    LatchMissing,
    /// The TPM's clock is not safe.
    ClockUnsafe,
    /// The TPM's clock went back.
    ClockBackwards,
    /// The VM was reset.
    ResetCountChanged,
    /// The TPM was restarted.
    RestartCountChanged,
    /// The seed the guest read is not the one the controller wrote.
    SeedMismatch,
    /// The measurements document that the member names is missing, or has other content.
    MeasurementsNotFound,
    /// The policy is revoked.
    PolicyRevoked,
    /// The image is revoked.
    ImageRevoked,
    /// The agent is banned.
    AgentBanned,
    /// Another stream for the member won.
    LostRace,
    /// The member has no attempts left.
    BudgetSpent,
    /// Too many attempts from this source.
    SourceLimited,
    /// Too many attempts in flight.
    Busy,
    /// The verifier cannot reach its data.
    StoreUnavailable,
    /// A fault of the verifier itself.
    Internal,
}

impl Reason {
    /// Whether the guest may try again: SPIRE's `Unavailable` in place of `PermissionDenied`.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::InstanceNotRunning
                | Self::EkReportMissing
                | Self::EkReportedElsewhere
                | Self::MeasurementsNotFound
                | Self::LostRace
                | Self::SourceLimited
                | Self::Busy
                | Self::StoreUnavailable
                | Self::DeadlineExceeded
                | Self::Internal
        )
    }

    /// What the guest hears.
    pub fn guest_message(self) -> &'static str {
        if self.is_transient() { GENERIC_RETRY } else { GENERIC_REFUSAL }
    }

    /// Why an endorsement key is refused.
    pub fn of_endorsement(error: &TemplateError) -> Self {
        match error {
            TemplateError::Key { .. } => Self::EkUnsound,
            TemplateError::Attributes { .. } | TemplateError::Policy(_) | TemplateError::Algorithm { .. } => {
                Self::EkTemplate
            }
        }
    }

    /// Why an attestation key is refused; of several faults the gravest.
    pub fn of_attestation_key(error: &TemplateError) -> Self {
        match error {
            TemplateError::Attributes { missing, .. } if missing.contains(Attributes::RESTRICTED) => {
                Self::AkNotRestricted
            }
            TemplateError::Attributes { missing, .. }
                if missing.contains(Attributes::FIXED_TPM) || missing.contains(Attributes::FIXED_PARENT) =>
            {
                Self::AkNotFixed
            }
            TemplateError::Attributes { missing, .. } if missing.contains(Attributes::SENSITIVE_DATA_ORIGIN) => {
                Self::AkImported
            }
            TemplateError::Attributes { extra, .. } if extra.contains(Attributes::DECRYPT) => Self::AkDecrypts,
            TemplateError::Attributes { .. } => Self::AkAttributes,
            TemplateError::Policy(_) => Self::AkPolicy,
            TemplateError::Algorithm { .. } => Self::AkAlgorithm,
            TemplateError::Key { .. } => Self::AkUnsound,
        }
    }
}

impl From<&MessageError> for Reason {
    fn from(error: &MessageError) -> Self {
        match error {
            MessageError::TooLarge { .. } => Self::MessageTooLarge,
            MessageError::Version { .. } => Self::VersionUnknown,
            MessageError::Name(_) => Self::NameInvalid,
            MessageError::Key { which: "ek_public", .. } => Self::EkMalformed,
            MessageError::Key { .. } => Self::AkMalformed,
            MessageError::Encoding(_)
            | MessageError::NotCanonical(_)
            | MessageError::Size(_)
            | MessageError::Value(_) => Self::MessageMalformed,
        }
    }
}

impl From<&AttestError> for Reason {
    fn from(error: &AttestError) -> Self {
        match error {
            AttestError::Magic => Self::QuoteMagic,
            AttestError::Type(_) => Self::QuoteType,
            AttestError::Wire(_) => Self::QuoteMalformed,
        }
    }
}

impl From<&SignatureError> for Reason {
    fn from(error: &SignatureError) -> Self {
        match error {
            SignatureError::Degenerate => Self::SignatureDegenerate,
            SignatureError::Mismatch => Self::SignatureInvalid,
            SignatureError::Algorithm | SignatureError::Wire(_) => Self::SignatureMalformed,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_distinct_words() {
        let mut labels: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert!(labels.iter().all(|label| label.bytes().all(|c| c.is_ascii_alphanumeric())));
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), Reason::ALL.len());
    }

    #[test]
    fn a_guest_hears_one_of_two_sentences() {
        for reason in Reason::ALL {
            assert!([GENERIC_REFUSAL, GENERIC_RETRY].contains(&reason.guest_message()));
        }
    }
}
