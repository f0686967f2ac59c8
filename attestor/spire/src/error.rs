//! Why a call to SPIRE did not do what it was asked for.

use tonic::{Code, Status};

/// Errors of this crate. All messages name the call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No SVID of our own, so no call can be made.
    #[error("cannot get an SVID from the Workload API at {endpoint}: {source}")]
    Identity {
        /// The Workload API's address.
        endpoint: String,
        /// What the source said.
        source: Box<spiffe::x509_source::X509SourceError>,
    },
    /// The TLS configuration could not be built.
    #[error("cannot set up TLS towards SPIRE: {0}")]
    Tls(String),
    /// An address or trust domain that cannot be used.
    #[error("{0}")]
    Config(String),
    /// SPIRE answered a call with an error, or did not answer in time.
    #[error("{call} failed: {} ({})", status.message(), status.code())]
    Call {
        /// The method, as a person names it.
        call: &'static str,
        /// SPIRE's answer.
        status: Box<Status>,
    },
    /// SPIRE's answer does not fit the question.
    #[error("{call}: SPIRE's answer is not usable: {what}")]
    Answer {
        /// The method, as a person names it.
        call: &'static str,
        /// What is wrong.
        what: String,
    },
}

impl Error {
    pub(crate) fn call(call: &'static str) -> impl FnOnce(Status) -> Self {
        move |status| Self::Call { call, status: Box::new(status) }
    }

    /// Fixed word for metrics and conditions.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self {
            Self::Identity { .. } => "identity",
            Self::Tls(_) | Self::Config(_) => "config",
            Self::Answer { .. } => "answer",
            Self::Call { status, .. } => match status.code() {
                Code::PermissionDenied | Code::Unauthenticated => "denied",
                Code::Unavailable | Code::DeadlineExceeded => "unreachable",
                _ => "call",
            },
        }
    }

    /// Whether the same call may go well later without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Identity { .. } => true,
            Self::Tls(_) | Self::Config(_) | Self::Answer { .. } => false,
            Self::Call { status, .. } => !matches!(
                status.code(),
                Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument | Code::Unimplemented
            ),
        }
    }

    /// The gRPC code of SPIRE's answer, if there was one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Call { status, .. } => Some(status.code()),
            _ => None,
        }
    }
}
