//! What is done without being asked: slots of claims that are over are freed, slots that nobody uses are swept, claims
//! that a crash left without a grant are released, and so are those of denied subjects.
//!
//! Every replica does all of it. Nothing here needs a leader: each act names the exact object that was judged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use banlieue_crds::VirtualMachineClaim;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    cluster::{CallError, place, taken},
    grants::Finding,
    lend, record,
    slots::{self, Taken, UNUSED_FOR},
};
use crate::broker::Broker;

/// Pause between sweeps.
const SWEEP: Duration = Duration::from_secs(15);
/// After how long a claim that had a grant is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// Frees the slots of claims that are over, as the watch tells it.
pub async fn free(
    broker: Arc<Broker>,
    mut over: mpsc::UnboundedReceiver<VirtualMachineClaim>,
    stop: CancellationToken,
) {
    while let Some(Some(claim)) = stop.run_until_cancelled(over.recv()).await {
        let (namespace, name) = place(&claim);
        let slots = broker.store.slots(namespace);
        let freed = |lease: &Lease| taken(lease).filter(|slot| slots::is_freed_by(&claim, slot, holder(lease)));
        let Some(slot) = slots.iter().find_map(|lease| freed(lease)) else { continue };
        match broker.cluster.free_slot(namespace, &slot).await {
            Ok(()) => broker.metrics.kept("slot_freed"),
            // The sweep will find it.
            Err(error) => tracing::warn!(claim = name, %error, "a slot is not freed yet"),
        }
    }
}

/// Since when something has been as it should not be, exactly as it is.
struct Since<K>(BTreeMap<K, Instant>);

impl<K: Ord + Clone> Since<K> {
    /// Notes what is so now; gives what has been for longer than [`UNUSED_FOR`].
    fn note(&mut self, now: BTreeSet<K>, at: Instant) -> Vec<K> {
        self.0.retain(|key, _| now.contains(key));
        for key in now {
            self.0.entry(key).or_insert(at);
        }
        let long = |since: &Instant| at.saturating_duration_since(*since) > UNUSED_FOR;
        self.0.iter().filter(|(_, since)| long(since)).map(|(key, _)| key.clone()).collect()
    }
}

/// A slot in one exact state: namespace, name, uid, version, holder.
type SlotState = (String, String, String, String, String);
/// A claim in one exact state: uid, version.
type ClaimState = (String, String);

/// Sweeps until `stop`.
pub async fn sweep(broker: Arc<Broker>, stop: CancellationToken) {
    let (mut unused, mut ungranted) = (Since(BTreeMap::new()), Since(BTreeMap::new()));
    let mut granted = BTreeMap::new();
    while stop.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_some() {
        // A list that is not complete would make everything look unused.
        if broker.store.unfilled().is_some() {
            continue;
        }
        for slot in unused.note(unused_slots(&broker).await, Instant::now()) {
            if let Err(error) = sweep_slot(&broker, &slot).await {
                tracing::warn!(slot = slot.1, %error, "a slot that nobody uses is not swept yet");
            }
        }
        for claim in ungranted.note(without_grant(&broker, &mut granted).await, Instant::now()) {
            if let Err(error) = release_ungranted(&broker, &claim).await {
                tracing::warn!(%error, "a claim without a grant is not released yet");
            }
        }
        release_denied(&broker).await;
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

async fn unused_slots(broker: &Broker) -> BTreeSet<SlotState> {
    let mut unused = BTreeSet::new();
    for namespace in broker.store.namespaces() {
        let slots = broker.store.slots(namespace);
        let mut held: BTreeMap<&str, usize> = BTreeMap::new();
        for lease in &slots {
            *held.entry(holder(lease)).or_default() += 1;
        }
        for lease in &slots {
            let Some(slot) = taken(lease) else { continue };
            let claim = broker.store.claim(namespace, holder(lease));
            let several = held.get(holder(lease)).is_some_and(|count| *count > 1);
            let granted = match claim.as_deref().filter(|_| several) {
                Some(claim) => granted_slot(broker, claim).await.ok().flatten(),
                None => None,
            };
            if !slots::justifies(claim.as_deref(), &slot.name, granted.as_deref()) {
                unused.insert((namespace.to_owned(), slot.name, slot.uid, slot.version, holder(lease).to_owned()));
            }
        }
    }
    unused
}

/// Which of its slots a claim keeps: the one that its grant names. Nothing when it does not say.
async fn granted_slot(broker: &Broker, claim: &VirtualMachineClaim) -> Result<Option<String>, CallError> {
    match broker.grants.find(&broker.cluster, claim).await? {
        Finding::Valid(grant) => Ok(grant.slot.clone()),
        _ => Ok(None),
    }
}

async fn sweep_slot(broker: &Broker, slot: &SlotState) -> Result<(), CallError> {
    let (namespace, name, uid, version, holder) = slot.clone();
    // One watch may lag behind the other: the claim is asked for once more.
    let claim = broker.cluster.claim(&namespace, &holder).await?;
    let granted = match &claim {
        Some(claim) if !slots::is_over(claim) => granted_slot(broker, claim).await?,
        _ => None,
    };
    if slots::justifies(claim.as_ref(), &name, granted.as_deref()) {
        return Ok(());
    }
    broker.cluster.free_slot(&namespace, &Taken { name, uid, version }).await?;
    broker.metrics.kept("slot_swept");
    Ok(())
}

/// Claims of ours that nobody granted anything. `granted` remembers, for a while, which had a grant: that a claim got one
/// is what this looks for, and whoever gives rights reads it again.
async fn without_grant(broker: &Broker, granted: &mut BTreeMap<String, Instant>) -> BTreeSet<ClaimState> {
    let (now, mut without, mut keys) = (Instant::now(), BTreeSet::new(), BTreeMap::<String, usize>::new());
    granted.retain(|_, since| now.saturating_duration_since(*since) < LOOK_AGAIN);
    for claim in broker.store.claims() {
        let (Some(uid), Some(version)) = (&claim.metadata.uid, &claim.metadata.resource_version) else { continue };
        if !record::says_ours(&claim) || lend::is_ending(&claim) || granted.contains_key(uid) {
            continue;
        }
        let found = match broker.grants.find(&broker.cluster, &claim).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(claim = place(&claim).1, %error, "nobody can tell whether a claim has a grant");
                continue;
            }
        };
        if !matches!(found, Finding::Valid(_)) {
            broker.metrics.decided("grant", "denied", found.word());
        }
        match found {
            Finding::Valid(_) => drop(granted.insert(uid.clone(), now)),
            Finding::Absent => drop(without.insert((uid.clone(), version.clone()))),
            Finding::Unreadable(key) => *keys.entry(key).or_default() += 1,
            Finding::Mismatch(why) => {
                tracing::error!(claim = place(&claim).1, why, "a claim has a grant that is not valid")
            }
        }
    }
    for (key, claims) in keys {
        tracing::error!(
            key,
            claims,
            "grants are sealed with a key that is not among sealing_keys: their claims get nothing until it is put back"
        );
    }
    without
}

async fn release_ungranted(broker: &Broker, (uid, version): &ClaimState) -> Result<(), CallError> {
    let Some(seen) = broker.store.claim_of(uid) else { return Ok(()) };
    let (namespace, name) = place(&seen);
    // What the watch and the memory said is asked for once more. A request that still makes up for the grant writes the
    // claim before, so it is another version then.
    let Some(claim) = broker.cluster.claim(namespace, name).await? else { return Ok(()) };
    let same = claim.metadata.uid.as_ref() == Some(uid) && claim.metadata.resource_version.as_ref() == Some(version);
    if !same || lend::is_ending(&claim) || broker.grants.find(&broker.cluster, &claim).await? != Finding::Absent {
        return Ok(());
    }
    tracing::warn!(namespace, claim = name, "releasing a claim that was left without a grant");
    if broker.cluster.release_unchanged(&claim).await? {
        broker.metrics.kept("claim_without_grant");
    }
    Ok(())
}

/// Claims of subjects that an operator denied, whenever and by whomever they were made.
async fn release_denied(broker: &Broker) {
    for claim in broker.store.claims() {
        let Some(uid) = claim.metadata.uid.as_deref() else { continue };
        if lend::is_ending(&claim) || broker.store.denied(&record::subject_key(&claim)).is_none() {
            continue;
        }
        let (namespace, name) = place(&claim);
        match broker.cluster.release(namespace, name, uid).await {
            Ok(()) => broker.metrics.kept("claim_of_denied_subject"),
            Err(error) => tracing::warn!(claim = name, %error, "a denied subject's claim is not released yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_as_it_is_counts() {
        let start = Instant::now();
        let mut since = Since(BTreeMap::new());
        assert_eq!(since.note(["a", "b"].into(), start), Vec::<&str>::new());
        let half = start + UNUSED_FOR / 2;
        assert_eq!(since.note(["a"].into(), half), Vec::<&str>::new());
        let whole = start + UNUSED_FOR + Duration::from_secs(1);
        assert_eq!(since.note(["a", "b"].into(), whole), ["a"], "b was used in between");
    }
}
