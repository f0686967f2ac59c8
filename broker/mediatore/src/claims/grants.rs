//! Grants as they stand in the cluster, read live whenever they count: what is taken away there is gone here.
//!
//! There are three ways to have none that counts, and only the first says that nobody granted anything:
//!
//! | finding | means | who acts on it |
//! |---|---|---|
//! | [`Finding::Absent`] | there is no Secret | the [keeper](super::keeper) releases the claim |
//! | [`Finding::Unreadable`] | its key is not configured here, by a mistake or for a while | nobody: the claim waits for the key |
//! | [`Finding::Mismatch`] | it was changed, has a wrong key, or says other than the claim | nobody: the claim gets nothing |

use std::sync::Arc;

use banlieue_crds::VirtualMachineClaim;

use super::{
    cluster::{CallError, Cluster, place},
    grant::{Grant, SealError, SealingKeys},
};
use crate::{http::reload::Reloaded, tokens::material::Kept};

/// What stands under the name of a claim's grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A grant that covers the claim.
    Valid(Arc<Grant>),
    /// Nothing.
    Absent,
    /// A grant under a key that is not configured: its id.
    Unreadable(String),
    /// Something that is no grant of this claim as it is.
    Mismatch(&'static str),
}

impl Finding {
    /// What is found in `sealed` for this claim. Pure.
    #[must_use]
    pub fn of(keys: &SealingKeys, claim: &VirtualMachineClaim, sealed: Option<&[u8]>) -> Self {
        let (Some(uid), Some(sealed)) = (claim.metadata.uid.as_deref(), sealed) else { return Self::Absent };
        match keys.open(uid, sealed) {
            Ok(grant) if grant.covers(claim) => Self::Valid(Arc::new(grant)),
            Ok(_) => Self::Mismatch("the claim is not what was granted"),
            Err(SealError::Key(id)) => Self::Unreadable(id),
            Err(SealError::Format) => Self::Mismatch("the grant is damaged"),
            Err(SealError::Seal) => {
                Self::Mismatch("the grant is of another claim, was changed, or its key's file has another key")
            }
        }
    }

    /// Fixed word for metrics and audit.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Valid(_) => "valid",
            Self::Absent => "no_grant",
            Self::Unreadable(_) => "sealing_key_unknown",
            Self::Mismatch(_) => "grant_mismatch",
        }
    }
}

/// Why nobody can tell whether there is a grant.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The API server.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The key.
    #[error("the grant of claim {claim} is sealed with the key {key:?}, which is not among sealing_keys: put it back")]
    Key {
        /// Name of the claim.
        claim: String,
        /// Id of the key.
        key: String,
    },
}

/// Grants, under the newest keys.
pub struct Grants {
    keys: Arc<Reloaded<SealingKeys>>,
}

impl Grants {
    /// Under these keys.
    #[must_use]
    pub fn new(keys: Arc<Reloaded<SealingKeys>>) -> Self {
        Self { keys }
    }

    /// What a claim has for a grant, now.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn find(&self, cluster: &Cluster, claim: &VirtualMachineClaim) -> Result<Finding, CallError> {
        let Some(uid) = claim.metadata.uid.as_deref() else { return Ok(Finding::Absent) };
        let sealed = cluster.sealed_grant(place(claim).0, uid).await?;
        Ok(Finding::of(&self.keys.get(), claim, sealed.as_deref()))
    }

    /// The grant of a claim, if it has a valid one that covers what the claim says.
    ///
    /// # Errors
    /// When nobody can tell, for want of an answer or of a key.
    pub async fn of(&self, cluster: &Cluster, claim: &VirtualMachineClaim) -> Result<Option<Arc<Grant>>, GrantError> {
        match self.find(cluster, claim).await? {
            Finding::Valid(grant) => Ok(Some(grant)),
            Finding::Unreadable(key) => Err(GrantError::Key { claim: place(claim).1.to_owned(), key }),
            Finding::Absent => Ok(None),
            Finding::Mismatch(why) => {
                tracing::warn!(claim = place(claim).1, why, "a claim has a grant that is not valid");
                Ok(None)
            }
        }
    }

    /// Gives a claim its grant, with the refresh tokens that its tokens are made of. One that was there before stays, and
    /// counts if it is for the same caller; it is what comes back.
    ///
    /// # Errors
    /// When the grant may not be there.
    pub async fn give(
        &self,
        cluster: &Cluster,
        claim: &VirtualMachineClaim,
        grant: &Grant,
        kept: &Kept,
    ) -> Result<Arc<Grant>, GrantError> {
        let wrong = |what: String| CallError::Unknown { call: format!("granting claim {}", place(claim).1), what };
        let sealed = self.keys.get().seal(grant).map_err(|error| wrong(error.to_string()))?;
        let bound_to = Kept::bound_to(&grant.claim_uid);
        let kept = kept.text().map(|text| self.keys.get().seal_text(&bound_to, text)).transpose();
        cluster.create_grant(claim, sealed, kept.map_err(|error| wrong(error.to_string()))?).await?;
        match self.of(cluster, claim).await? {
            Some(found) if found.is_for_the_caller_of(grant) => Ok(found),
            _ => Err(wrong("there is another grant under its name".to_owned()).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
    use crate::claims::grant::tests::{claim, grant, keys};

    #[test]
    fn only_nothing_at_all_is_absent() {
        let (ours, claim) = (keys(&["a"]), claim());
        let sealed = ours.seal(&grant()).unwrap();
        assert_eq!(Finding::of(&ours, &claim, Some(&sealed)), Finding::Valid(Arc::new(grant())));
        assert_eq!(Finding::of(&ours, &claim, None), Finding::Absent);
        // The key was taken away too early, or is not here yet.
        assert_eq!(Finding::of(&keys(&["b"]), &claim, Some(&sealed)), Finding::Unreadable("a".to_owned()));
        let wrong = SealingKeys::new(vec![("a".into(), Zeroizing::new([9; 32]))]).unwrap();
        assert!(matches!(Finding::of(&wrong, &claim, Some(&sealed)), Finding::Mismatch(_)), "a key of that name only");
        assert!(matches!(Finding::of(&ours, &claim, Some(b"")), Finding::Mismatch(_)));
        assert!(matches!(Finding::of(&ours, &claim, Some(&sealed[..20])), Finding::Mismatch(_)));
        let mut other = claim;
        other.spec.audiences.push("more".into());
        assert!(matches!(Finding::of(&ours, &other, Some(&sealed)), Finding::Mismatch(_)));
    }
}
