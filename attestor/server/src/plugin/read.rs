//! Kubernetes objects to facts. Pure.

use banlieue_crds::{
    EndorsementReport, PoolMember, VirtualMachineClaim, VirtualMachinePool,
    claim::ClaimPhase,
    kubevirt::{InstancePhase, VirtualMachineInstance},
    member::MemberPhase,
    names::annotations,
};
use banlieue_policy::Digest;
use banlieue_protocol::{
    names::Uid,
    seed::{Seed, SeedMap, seed_digest},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;

use crate::facts::{Claim, Enrolment, Instance, Member, Pin, Pool, Record, Report};

/// A member's own facts.
#[must_use]
pub fn member(object: &PoolMember) -> Member {
    let status = object.status.clone().unwrap_or_default();
    let enrolment = status.enrolment.unwrap_or_default();
    Member {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        resource_version: object.resource_version().unwrap_or_default(),
        pool: object.spec.pool_ref.name.clone(),
        needs_evidence: object.needs_evidence(),
        endorsement: object.spec.attestation.endorsement,
        ending: ending(object),
        instance: status.instance_ref.map(|instance| (instance.name, instance.uid)),
        seed_digest: enrolment.seed_digest.as_deref().and_then(Digest::parse),
        enrolment_expires: enrolment.expires_at.map(|at| at.0),
        enrolment_consumed: enrolment.consumed_at.is_some(),
        pin: status
            .endorsement
            .as_ref()
            .and_then(|pinned| Some(Pin { source: pinned.source, ek: Digest::parse(&pinned.ek_digest)? })),
        record: status.attestation.as_ref().and_then(|evidence| {
            Some(Record {
                verified_at: evidence.verified_at.as_ref()?.0,
                policy: Digest::parse(evidence.policy_digest.as_deref()?)?,
                reset_count: evidence.reset_count?,
                restart_count: evidence.restart_count?,
                clock: evidence.clock?,
                latched: evidence.latched?,
            })
        }),
    }
}

/// Why a member is on its way out.
#[must_use]
pub fn ending(object: &PoolMember) -> Option<&'static str> {
    if object.metadata.deletion_timestamp.is_some() {
        return Some("the member is being deleted");
    }
    if object.annotations().contains_key(annotations::QUARANTINE) {
        return Some("the member is quarantined");
    }
    // A bound member's phase is not touched any more, so it says nothing about it.
    match object.status.as_ref().and_then(|status| status.phase) {
        Some(MemberPhase::Failed) if object.spec.claim_ref.is_none() => Some("the member failed"),
        Some(MemberPhase::Quarantined) if object.spec.claim_ref.is_none() => Some("the member is quarantined"),
        _ => None,
    }
}

/// The claim of a member, given what stands under its claimRef's name.
#[must_use]
pub fn claim(object: &PoolMember, found: Option<&VirtualMachineClaim>, now: Timestamp) -> Claim {
    let Some(reference) = &object.spec.claim_ref else { return Claim::None };
    let Some(claim) = found.filter(|claim| claim.uid().as_deref() == Some(&reference.uid)) else {
        return Claim::Ending("its claim is gone");
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return Claim::Ending("its claim is being deleted");
    }
    let status = claim.status.clone().unwrap_or_default();
    match status.phase.unwrap_or_default() {
        ClaimPhase::Releasing => return Claim::Ending("its claim is being released"),
        ClaimPhase::Released | ClaimPhase::Failed => return Claim::Ending("its claim has ended"),
        // Pending: committed on the member, not acknowledged on the claim yet.
        ClaimPhase::Pending | ClaimPhase::Bound => {}
    }
    let other =
        status.member_ref.as_ref().is_some_and(|member| Some(member.uid.as_str()) != object.metadata.uid.as_deref());
    if other {
        return Claim::Ending("its claim is served by another member");
    }
    if deadline(claim).is_some_and(|deadline| now >= deadline) {
        return Claim::Ending("its claim is past its deadline");
    }
    Uid::parse(&reference.uid).map_or(Claim::Ending("its claim's uid is no uid"), Claim::Serving)
}

/// When a claim's time is over: the smaller of what its status says and what follows from its bind.
#[must_use]
pub fn deadline(claim: &VirtualMachineClaim) -> Option<Timestamp> {
    let status = claim.status.as_ref()?;
    let written = status.expires_at.as_ref().map(|at| at.0);
    let computed = status
        .bound_at
        .as_ref()
        .and_then(|at| at.0.checked_add(SignedDuration::from_secs(i64::from(claim.spec.ttl_seconds))).ok());
    match (written, computed) {
        (Some(written), Some(computed)) => Some(written.min(computed)),
        (one, other) => one.or(other),
    }
}

/// An instance.
#[must_use]
pub fn instance(object: &VirtualMachineInstance) -> Instance {
    Instance {
        uid: object.uid().unwrap_or_default(),
        running: object.phase() == Some(InstancePhase::Running),
        deleting: object.metadata.deletion_timestamp.is_some(),
        node: object.node_name().map(str::to_owned),
    }
}

/// A pool.
#[must_use]
pub fn pool(object: &VirtualMachinePool) -> Pool {
    Pool { revoked: object.spec.attestation.revoked.iter().map(|revoked| revoked.digest.clone()).collect() }
}

/// The digest of the document that a member is judged by, for its whole life: what its pool named when it was made.
#[must_use]
pub fn policy_digest(member: &PoolMember) -> Option<Digest> {
    Digest::parse(member.spec.attestation.policy_digest.as_deref()?)
}

/// A report.
#[must_use]
pub fn report(object: &EndorsementReport) -> Report {
    Report {
        node: object.spec.node_name.clone(),
        keys: object.spec.ek_digests.iter().filter_map(|digest| Digest::parse(digest)).collect(),
        ended: object.status.as_ref().is_some_and(|status| status.ended_at.is_some()),
    }
}

/// An enrolment Secret; `None` when it holds no seed.
#[must_use]
pub fn enrolment(secret: &Secret) -> Option<Enrolment> {
    let map: SeedMap = secret.data.as_ref()?.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect();
    let digest = Digest(seed_digest(&map));
    let seed = Seed::parse(&map).ok()?;
    Some(Enrolment {
        secret: seed.secret.clone(),
        seed_digest: digest,
        member: seed.uid.clone(),
        expires_at: seed.expires_at,
    })
}
