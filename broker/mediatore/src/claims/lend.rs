//! The two-way check: a claim has a member only when each names the other by uid, at this moment. Pure.
//!
//! A surplus commit, which a paused leader can make, names its claim from one side only and is never served
//! (`binding.md`, invariant 2).

use banlieue_crds::{PoolMember, VirtualMachineClaim, claim::ClaimPhase, member::MemberPhase, names::annotations};

/// What a member is to whoever serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No claim yet.
    Unbound,
    /// It has its claim, both ways.
    Lent,
    /// Its claim is over or ending, or it was never acknowledged: nothing will come any more.
    Released,
    /// It was taken out, or ends without ever having had a claim.
    Revoked,
}

/// What a member is, given the claim that it names, if that still exists.
#[must_use]
pub fn standing(member: &PoolMember, claim: Option<&VirtualMachineClaim>) -> Standing {
    let Some(named) = &member.spec.claim_ref else {
        return if is_out(member) { Standing::Revoked } else { Standing::Unbound };
    };
    let Some(claim) = claim.filter(|claim| claim.metadata.uid.as_deref() == Some(named.uid.as_str())) else {
        return Standing::Released;
    };
    let status = claim.status.clone().unwrap_or_default();
    if is_ending(claim) {
        return Standing::Released;
    }
    if is_quarantined(member) {
        return Standing::Revoked;
    }
    match &status.member_ref {
        // Committed and not yet acknowledged.
        None => Standing::Unbound,
        Some(acknowledged) if Some(acknowledged.uid.as_str()) != member.metadata.uid.as_deref() => Standing::Released,
        Some(_) if member.metadata.deletion_timestamp.is_some() => Standing::Released,
        Some(_) if status.phase == Some(ClaimPhase::Bound) => Standing::Lent,
        Some(_) => Standing::Unbound,
    }
}

/// Whether a claim's end has been asked for or has come, whoever asked.
#[must_use]
pub fn is_ending(claim: &VirtualMachineClaim) -> bool {
    let phase = claim.status.as_ref().and_then(|status| status.phase);
    claim.metadata.deletion_timestamp.is_some()
        || matches!(phase, Some(ClaimPhase::Releasing | ClaimPhase::Released | ClaimPhase::Failed))
}

fn is_quarantined(member: &PoolMember) -> bool {
    let phase = member.status.as_ref().and_then(|status| status.phase);
    let annotated = member.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(annotations::QUARANTINE));
    annotated || phase == Some(MemberPhase::Quarantined)
}

fn is_out(member: &PoolMember) -> bool {
    let phase = member.status.as_ref().and_then(|status| status.phase);
    member.metadata.deletion_timestamp.is_some() || phase == Some(MemberPhase::Failed) || is_quarantined(member)
}

/// Whether the guest said that it is marked as used.
#[must_use]
pub fn is_latched(claim: &VirtualMachineClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.workload.as_ref()?.latched_at.as_ref()).is_some()
}

/// A claim's deadline in seconds since 1970: the earlier of what the controller wrote and what its parts say, so that
/// nobody moves it by writing one of them.
#[must_use]
pub fn deadline(claim: &VirtualMachineClaim) -> Option<i64> {
    let status = claim.status.as_ref()?;
    let written = status.expires_at.as_ref()?.0.as_second();
    let computed = status.bound_at.as_ref()?.0.as_second().checked_add(i64::from(claim.spec.ttl_seconds))?;
    Some(written.min(computed))
}

#[cfg(test)]
pub(crate) mod tests {
    use banlieue_crds::{ObjectRef, PoolMemberSpec, VirtualMachineClaimStatus, member::PoolMemberStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};

    use super::*;
    use crate::claims::record;

    pub(crate) fn pair() -> (PoolMember, VirtualMachineClaim) {
        let reference = |name: &str| ObjectRef { name: name.into(), uid: format!("uid-{name}") };
        let spec = PoolMemberSpec {
            pool_ref: reference("p"),
            revision: "r".into(),
            claim_ref: Some(reference("c")),
            ..Default::default()
        };
        let mut member = PoolMember::new("m", spec);
        member.metadata.uid = Some("uid-m".into());
        member.status = Some(PoolMemberStatus { phase: Some(MemberPhase::Ready), ..Default::default() });
        let mut claim = record::claim("c", &record::tests::wanted(), record::tests::alice(), "s");
        claim.metadata.uid = Some("uid-c".into());
        let at = |second| Some(MicroTime(jiff::Timestamp::from_second(second).unwrap()));
        claim.status = Some(VirtualMachineClaimStatus {
            phase: Some(ClaimPhase::Bound),
            member_ref: Some(reference("m")),
            bound_at: at(1000),
            expires_at: at(1600),
            ..Default::default()
        });
        (member, claim)
    }

    type Edit = fn(&mut PoolMember, &mut VirtualMachineClaim);

    fn now() -> Option<Time> {
        Some(Time(jiff::Timestamp::UNIX_EPOCH))
    }

    const CASES: &[(&str, Edit, Standing)] = &[
        ("as it should be", |_, _| (), Standing::Lent),
        ("no claim", |m, _| m.spec.claim_ref = None, Standing::Unbound),
        ("not acknowledged", |_, c| c.status = None, Standing::Unbound),
        ("another life of the claim", |_, c| c.metadata.uid = Some("other".into()), Standing::Released),
        (
            "surplus",
            |_, c| c.status.as_mut().unwrap().member_ref.as_mut().unwrap().uid = "other".into(),
            Standing::Released,
        ),
        ("claim being deleted", |_, c| c.metadata.deletion_timestamp = now(), Standing::Released),
        ("releasing", |_, c| c.status.as_mut().unwrap().phase = Some(ClaimPhase::Releasing), Standing::Released),
        ("failed", |_, c| c.status.as_mut().unwrap().phase = Some(ClaimPhase::Failed), Standing::Released),
        ("member being deleted", |m, _| m.metadata.deletion_timestamp = now(), Standing::Released),
        (
            "quarantined",
            |m, _| m.metadata.annotations = Some([("banlieue.io/quarantine".into(), "x".into())].into()),
            Standing::Revoked,
        ),
        (
            "quarantined phase",
            |m, _| m.status.as_mut().unwrap().phase = Some(MemberPhase::Quarantined),
            Standing::Revoked,
        ),
        (
            "unbound and going",
            |m, _| {
                m.spec.claim_ref = None;
                m.metadata.deletion_timestamp = now();
            },
            Standing::Revoked,
        ),
        (
            "unbound and failed",
            |m, _| {
                m.spec.claim_ref = None;
                m.status.as_mut().unwrap().phase = Some(MemberPhase::Failed);
            },
            Standing::Revoked,
        ),
    ];

    #[test]
    fn standings() {
        for (what, edit, expected) in CASES {
            let (mut member, mut claim) = pair();
            edit(&mut member, &mut claim);
            assert_eq!(standing(&member, Some(&claim)), *expected, "{what}");
        }
    }

    #[test]
    fn a_claim_that_is_gone_released_its_member() {
        assert_eq!(standing(&pair().0, None), Standing::Released);
    }

    #[test]
    fn the_deadline_is_the_earlier_word() {
        let (_, mut claim) = pair();
        assert_eq!(deadline(&claim), Some(1600));
        claim.spec.ttl_seconds = 60;
        assert_eq!(deadline(&claim), Some(1060));
        claim.spec.ttl_seconds = 6000;
        assert_eq!(deadline(&claim), Some(1600));
        claim.status.as_mut().unwrap().expires_at = None;
        assert_eq!(deadline(&claim), None);
    }
}
