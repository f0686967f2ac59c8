//! The way from an `Authorization` header to a sandbox. All that must be configured is in [`Expected`]: keys come by
//! discovery, are kept for ten minutes, and are looked for again at most every ten seconds whatever tokens name.

use std::path::PathBuf;
use std::time::SystemTime;

use banlieue_identity::discovery::Failure;
use banlieue_identity::token::Unverified;
use banlieue_identity::{Algorithm, Limits, Provider, Status, bearer};

use crate::refusal::Refusal;
use crate::sandbox::{Expected, Sandbox, judge};

/// What mediatore signs with.
const ALGORITHMS: &[Algorithm] = &[Algorithm::ES256];

/// Verifies tokens of one mediatore for one audience.
#[derive(Debug, Clone)]
pub struct Verifier {
    expected: Expected,
    provider: Provider,
}

impl Verifier {
    /// Nothing is fetched yet. `ca_file` has authorities besides the system's.
    ///
    /// # Errors
    /// When `ca_file` is not usable.
    pub fn new(expected: Expected, ca_file: Option<PathBuf>) -> Result<Self, Failure> {
        let provider = Provider::new("mediatore", &expected.issuer, ca_file, Limits::default())?;
        Ok(Self { expected, provider })
    }

    /// Which sandbox sends this `Authorization` header.
    ///
    /// # Errors
    /// The refusal, ready to be answered: 401 for what is no token of a sandbox for us, 503 when mediatore's keys cannot
    /// be had.
    pub async fn sandbox(&self, authorization: Option<&str>, now: SystemTime) -> Result<Sandbox, Refusal> {
        let token = Unverified::parse(bearer(authorization)?)?;
        // Before anything is fetched: `iss` says only whose keys to try, and there is one whose we would.
        if token.issuer()? != self.expected.issuer {
            let detail = format!("the token is not of issuer {}", self.expected.issuer);
            return Err(Refusal::token("issuer_unknown", detail));
        }
        let verified = self.provider.verified(token, ALGORITHMS).await?;
        judge(&self.expected, &verified, now)
    }

    /// How many keys are held, and how often they were fetched.
    #[must_use]
    pub fn status(&self) -> Status {
        self.provider.status()
    }
}
