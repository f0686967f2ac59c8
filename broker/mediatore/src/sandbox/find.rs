//! The live two-way check: which claim a member is lent to, read from the API server at this moment.

use std::sync::Arc;

use banlieue_crds::{PoolMember, VirtualMachineClaim};
use banlieue_protocol::names::Uid;

use crate::{
    broker::Broker,
    claims::{
        cluster::place,
        grant::Grant,
        lend::{self, Standing},
    },
    http::answer::{Code, Failure},
};

/// A member and its claim, which name each other, with the claim's grant.
pub struct Lent {
    /// The member.
    pub member: PoolMember,
    /// The claim.
    pub claim: VirtualMachineClaim,
    /// What was granted.
    pub grant: Arc<Grant>,
}

/// How a member stands, as far as the watches know: for waiting, never for giving.
#[must_use]
pub fn seen(broker: &Broker, member: &Uid) -> Option<Standing> {
    let member = broker.store.member_of(member.as_str())?;
    let namespace = member.metadata.namespace.as_deref()?;
    let claim = member.spec.claim_ref.as_ref().and_then(|named| broker.store.claim(namespace, &named.name));
    // The claim's watch may lag behind the member's: what is not seen yet is not gone.
    if member.spec.claim_ref.is_some() && claim.is_none() {
        return None;
    }
    Some(lend::standing(&member, claim.as_deref()))
}

fn revoked() -> Failure {
    Failure::new(Code::MemberRevoked, "this member was taken out; power off")
}

fn released() -> Failure {
    Failure::new(Code::Released, "this claim is over; power off")
}

/// What the member of this uid is lent for, now.
///
/// # Errors
/// `no_claim`, `released`, `member_revoked`, or `unavailable` when nobody can tell.
pub async fn by_member(broker: &Broker, uid: &Uid, now: i64) -> Result<Lent, Failure> {
    let Some(known) = broker.store.member_of(uid.as_str()) else {
        return Err(unknown_member(broker, uid).await);
    };
    let (namespace, name) =
        (known.metadata.namespace.as_deref().unwrap_or_default(), known.metadata.name.as_deref().unwrap_or_default());
    let member = broker.cluster.member(namespace, name).await?;
    let member = member.filter(|member| member.metadata.uid.as_deref() == Some(uid.as_str())).ok_or_else(revoked)?;
    let claim = match &member.spec.claim_ref {
        Some(named) => broker.cluster.claim(namespace, &named.name).await?,
        None => None,
    };
    judge(broker, member, claim, now).await
}

/// What the claim of this uid is, now.
///
/// # Errors
/// As [`by_member`].
pub async fn by_claim(broker: &Broker, uid: &Uid, now: i64) -> Result<Lent, Failure> {
    // Neither claims nor denied subjects are known before everything is listed.
    if let Some(why) = broker.store.unfilled() {
        return Err(Failure::new(Code::Unavailable, why).because("not_ready"));
    }
    let Some(known) = broker.store.claim_of(uid.as_str()) else {
        return Err(unknown_claim(broker, uid).await);
    };
    let (namespace, name) = place(&known);
    let claim = broker.cluster.claim(namespace, name).await?;
    let claim = claim.filter(|claim| claim.metadata.uid.as_deref() == Some(uid.as_str())).ok_or_else(released)?;
    let named = claim.status.as_ref().and_then(|status| status.member_ref.clone());
    let named = named.ok_or_else(|| Failure::new(Code::NoClaim, "this claim has no member"))?;
    let member = broker.cluster.member(namespace, &named.name).await?;
    let member = member.filter(|member| member.metadata.uid.as_deref() == Some(&named.uid)).ok_or_else(released)?;
    if member.spec.claim_ref.as_ref().map(|named| named.uid.as_str()) != Some(uid.as_str()) {
        return Err(released());
    }
    judge(broker, member, Some(claim), now).await
}

async fn judge(
    broker: &Broker,
    member: PoolMember,
    claim: Option<VirtualMachineClaim>,
    now: i64,
) -> Result<Lent, Failure> {
    match (lend::standing(&member, claim.as_ref()), claim) {
        (Standing::Lent, Some(claim)) => {
            if lend::deadline(&claim).is_none_or(|deadline| now >= deadline) {
                return Err(released().because("deadline"));
            }
            match broker.grants.of(&broker.cluster, &claim).await? {
                Some(grant) => Ok(Lent { member, claim, grant }),
                None => {
                    let detail = "this member's claim was not made by mediatore, so it gets nothing";
                    Err(Failure::new(Code::NoClaim, detail).because("no_grant"))
                }
            }
        }
        (Standing::Unbound, _) => Err(Failure::new(Code::NoClaim, "this member has no claim yet")),
        (Standing::Revoked, _) => Err(revoked()),
        _ => Err(released()),
    }
}

/// A claim that no watch knows is over, or known to other replicas only as yet; that is told apart first.
async fn unknown_claim(broker: &Broker, uid: &Uid) -> Failure {
    for namespace in broker.store.namespaces() {
        match broker.cluster.has_claim(namespace, uid.as_str()).await {
            Ok(true) => return Failure::new(Code::Unavailable, "this claim is very new here; try again"),
            Ok(false) => {}
            Err(error) => return error.into(),
        }
    }
    released()
}

/// A member that no watch knows is very new, or gone; that is told apart before its guest is told to power off.
async fn unknown_member(broker: &Broker, uid: &Uid) -> Failure {
    if let Some(why) = broker.store.unfilled() {
        return Failure::new(Code::Unavailable, why);
    }
    for namespace in broker.store.namespaces() {
        match broker.cluster.has_member(namespace, uid.as_str()).await {
            Ok(true) => return Failure::new(Code::Unavailable, "this member is very new; try again"),
            Ok(false) => {}
            Err(error) => return error.into(),
        }
    }
    revoked()
}
