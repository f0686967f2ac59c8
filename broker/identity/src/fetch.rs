//! Discovery and keys over TLS, and the way from a token to a caller.

use std::time::SystemTime;

use crate::caller::Caller;
use crate::config::{Issuer, problems};
use crate::refusal::{Refusal, RefusalReason};

/// The issuers that are accepted, with their keys.
#[derive(Debug)]
pub struct Issuers {
    issuers: Vec<Issuer>,
}

/// The issuers cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// What is wrong with the entries, one sentence each.
    #[error("the issuers are not usable: {}", .0.join("; "))]
    Problems(Vec<String>),
}

impl Issuers {
    /// Takes these entries. Nothing is fetched yet.
    ///
    /// # Errors
    /// When [`problems`] finds any.
    pub fn new(issuers: Vec<Issuer>) -> Result<Self, SetupError> {
        let problems = problems(&issuers);
        if !problems.is_empty() {
            return Err(SetupError::Problems(problems));
        }
        Ok(Self { issuers })
    }

    /// Who sends this token, at this time.
    ///
    /// # Errors
    /// The refusal, ready to be answered.
    pub async fn validate(&self, _bearer: &str, _now: SystemTime) -> Result<Caller, Refusal> {
        let count = self.issuers.len();
        Err(Refusal::new(RefusalReason::ProviderUnreachable, format!("none of {count} issuers was asked yet")))
    }
}
