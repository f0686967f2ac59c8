//! What every route works with.

use std::{net::IpAddr, sync::Arc, time::Duration};

use banlieue_crds::VirtualMachineClaim;
use banlieue_identity::{Caller, Issuers, Path};
use banlieue_protocol::names::Uid;

pub use crate::claims::{grants::Grants, releasing::Releasing};
use crate::{
    audit::Audit,
    claims::{
        cluster::{Cluster, place},
        grants::GrantError,
        name,
        slots::UNUSED_FOR,
        store::Store,
    },
    config::Config,
    entries::Entries,
    http::{
        answer::{Code, Failure},
        body::BodyLimits,
        rate::Rate,
        reload::Reloaded,
    },
    metrics::Metrics,
    sandbox::polls::Polls,
    tokens::{backends::Upstreams, keys::SigningKeys},
};

/// One running mediatore.
pub struct Broker {
    /// As configured.
    pub config: Config,
    /// Whose tokens are accepted.
    pub issuers: Issuers,
    /// The API server.
    pub cluster: Cluster,
    /// What is watched.
    pub store: Store,
    /// Sealed grants.
    pub grants: Grants,
    /// Issuers that make or confirm tokens.
    pub upstreams: Upstreams,
    /// Keys of the tokens that mediatore signs.
    pub signing: Option<Arc<Reloaded<SigningKeys>>>,
    /// The audit record.
    pub audit: Audit,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Requests without an acceptable token, of an address; nothing behind a proxy.
    pub failure_rate: Option<Rate<IpAddr>>,
    /// Requests of a subject.
    pub subject_rate: Rate<[u8; 32]>,
    /// Token requests of a claim.
    pub claim_rate: Rate<Uid>,
    /// Requests of a member's guest.
    pub member_rate: Rate<Uid>,
    /// Guests that wait for news.
    pub polls: Polls,
    /// SPIRE entries; nothing without SPIRE.
    pub entries: Option<Entries>,
    /// Claims whose release this replica was asked for: no token of theirs leaves it any more, whatever a read that
    /// was on its way then said.
    pub releasing: Releasing,
}

impl Broker {
    /// How large a body may be.
    #[must_use]
    pub fn body_limits(&self) -> BodyLimits {
        BodyLimits { bytes: self.config.limits.body_bytes, time: Duration::from_secs(self.config.limits.body_seconds) }
    }

    /// Whether a claim is this caller's to see. An agent sees what it asked for itself; the person sees all. What has no
    /// name of ours was made past mediatore and is seen there.
    #[must_use]
    pub fn is_of(caller: &Caller, claim: &VirtualMachineClaim) -> bool {
        let subject = &claim.spec.subject;
        name::is_name(place(claim).1)
            && subject.issuer == caller.issuer
            && subject.id == caller.id
            && (caller.path != Path::AgentForPerson || caller.azp.as_deref() == Some(subject.azp.as_str()))
    }
}

/// Longest time of a change as a whole. Shorter than what the keeper waits before it tidies up after one
/// ([`UNUSED_FOR`]), so that nothing is swept from under a change that is still on its way.
const CHANGE_LIMIT: Duration = Duration::from_secs(50);
const _: () = assert!(CHANGE_LIMIT.as_secs() < UNUSED_FOR.as_secs(), "a change must end before the keeper tidies up");

/// Makes a change to its end, with its audit line, whether or not anybody still waits for the answer: a caller that goes
/// away, or a request that takes too long, cuts nothing in half.
///
/// # Errors
/// The change's own, and when it came to no end.
pub async fn to_the_end<T: Send + 'static>(
    change: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::spawn(tokio::time::timeout(CHANGE_LIMIT, change)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Failure::new(Code::Unavailable, "this took too long; try again").because("deadline")),
        // The panic itself is in the log.
        Err(_) => Err(Failure::new(Code::Internal, "mediatore has a defect here; see its log")),
    }
}

impl From<GrantError> for Failure {
    fn from(error: GrantError) -> Self {
        match error {
            GrantError::Call(error) => error.into(),
            GrantError::Key { .. } => {
                // Which key it is, is the operators' own.
                tracing::error!(%error, "a grant cannot be read");
                let detail = "what this claim was granted cannot be read now; try again, or ask your operators";
                Self::new(Code::Unavailable, detail).because("sealing_key_unknown")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_change_ends_though_nobody_waits() {
        let (go, going) = oneshot::channel::<()>();
        let (ended, end) = oneshot::channel();
        let change = to_the_end(async move {
            let _ = going.await;
            let _ = ended.send("whole");
            Ok(())
        });
        let mut change = Box::pin(change);
        assert!(futures::poll!(&mut change).is_pending());
        // The caller goes away in the middle.
        drop(change);
        go.send(()).unwrap();
        assert_eq!(end.await.unwrap(), "whole");
    }

    #[tokio::test]
    async fn a_defect_is_answered() {
        let change = to_the_end(async { std::future::ready(None::<()>).await.ok_or_else(|| panic!("a defect")) });
        assert_eq!(change.await.unwrap_err().code, Code::Internal);
    }
}
