//! What a pool's claim policy says to one claim. Admission says it first; the controller says it again at bind, since
//! admission may be absent.

use banlieue_crds::conditions::ClaimReason;
use banlieue_crds::{VirtualMachineClaim, VirtualMachinePool};
use jiff::Timestamp;

use super::after;

/// Why a claim is refused for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The stable word.
    pub reason: ClaimReason,
    /// A sentence that says what is allowed.
    pub message: String,
}

/// Judges a claim by its pool's policy. `subject_before` counts claims of the same subject that hold or wait and come
/// before it.
pub fn admit(claim: &VirtualMachineClaim, pool: &VirtualMachinePool, subject_before: u32) -> Result<(), Denial> {
    let (spec, policy) = (&claim.spec, &pool.spec.claim_policy);
    let deny = |reason, message| Err(Denial { reason, message });
    if spec.ttl_seconds > policy.max_ttl_seconds {
        return deny(
            ClaimReason::TtlExceedsPool,
            format!("ttlSeconds is {}, the pool allows {}", spec.ttl_seconds, policy.max_ttl_seconds),
        );
    }
    if spec.priority > policy.max_priority {
        return deny(
            ClaimReason::TtlExceedsPool,
            format!("priority is {}, the pool allows {}", spec.priority, policy.max_priority),
        );
    }
    if !policy.allows_image(&spec.workload.image) {
        let digest = if policy.require_digest { ", by digest" } else { "" };
        let allowed = if policy.allowed_images.is_empty() { "none".into() } else { policy.allowed_images.join(", ") };
        return deny(
            ClaimReason::ImageDenied,
            format!("the image {} is not allowed; the pool allows {allowed}{digest}", spec.workload.image),
        );
    }
    if let Some(audience) = policy.denied_audience(&spec.audiences) {
        return deny(ClaimReason::AudienceDenied, format!("the pool does not allow the audience {audience}"));
    }
    if subject_before >= policy.max_claims_per_subject {
        return deny(
            ClaimReason::TooManyClaims,
            format!(
                "the subject has {subject_before} claims on this pool that hold or wait; it allows {}",
                policy.max_claims_per_subject
            ),
        );
    }
    Ok(())
}

/// When the wait ends: the claim's own deadline, or the pool's longest when that is shorter.
pub fn bind_deadline(claim: &VirtualMachineClaim, pool: Option<&VirtualMachinePool>) -> Option<Timestamp> {
    let created = claim.metadata.creation_timestamp.as_ref()?.0;
    let wanted = claim.spec.bind_deadline_seconds;
    let seconds = pool.map_or(wanted, |pool| wanted.min(pool.spec.claim_policy.max_bind_deadline_seconds));
    Some(after(created, seconds))
}

/// Seconds that the finished claim stays: its own wish, or the pool's longest when that is shorter.
pub fn retention(claim: &VirtualMachineClaim, pool: Option<&VirtualMachinePool>) -> u32 {
    let wanted = claim.spec.retention_seconds;
    pool.map_or(wanted, |pool| wanted.min(pool.spec.claim_policy.max_retention_seconds))
}

/// The deadline of a claim that is bound at this moment.
pub fn expires_at(claim: &VirtualMachineClaim, bound_at: Timestamp) -> Timestamp {
    after(bound_at, claim.spec.ttl_seconds)
}
