//! What is done without being asked: slots of claims that are over are freed, slots that nobody uses are swept, claims
//! that a crash left without a grant are released.
//!
//! Every replica does all of it. Nothing here needs a leader: each act names the exact object that was judged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use banlieue_crds::VirtualMachineClaim;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    cluster::{CallError, place, taken},
    lend, record,
    slots::{self, Taken, UNUSED_FOR},
};
use crate::broker::Broker;

/// Pause between sweeps.
const SWEEP: Duration = Duration::from_secs(15);

/// Frees the slots of claims that are over, as the watch tells it.
pub async fn free(
    broker: Arc<Broker>,
    mut over: mpsc::UnboundedReceiver<VirtualMachineClaim>,
    stop: CancellationToken,
) {
    while let Some(Some(claim)) = stop.run_until_cancelled(over.recv()).await {
        let (namespace, name) = place(&claim);
        let Some(slot) = slots::freed_by(&claim) else { continue };
        // Seen often, since every list of a watch shows it again: ask the memory first.
        let held = broker.store.slots(namespace);
        if !held.iter().any(|lease| taken(lease).as_ref() == Some(&slot)) {
            continue;
        }
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

/// Sweeps until `stop`.
pub async fn sweep(broker: Arc<Broker>, stop: CancellationToken) {
    let (mut unused, mut ungranted) = (Since(BTreeMap::new()), Since(BTreeMap::new()));
    while stop.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_some() {
        // A list that is not complete would make everything look unused.
        if broker.store.unfilled().is_some() {
            continue;
        }
        for slot in unused.note(unused_slots(&broker), Instant::now()) {
            if let Err(error) = sweep_slot(&broker, &slot).await {
                tracing::warn!(slot = slot.1, %error, "a slot that nobody uses is not swept yet");
            }
        }
        let claims = broker.store.claims();
        broker.grants.keep(&claims.iter().filter_map(|claim| claim.metadata.uid.clone()).collect());
        let mut without = BTreeSet::new();
        for claim in &claims {
            if record::says_ours(claim)
                && !lend::is_ending(claim)
                && matches!(broker.grants.of(&broker.cluster, claim).await, Ok(None))
            {
                without.insert(claim.metadata.uid.clone().unwrap_or_default());
            }
        }
        for uid in ungranted.note(without, Instant::now()) {
            if let Err(error) = release_ungranted(&broker, &uid).await {
                tracing::warn!(%error, "a claim without a grant is not released yet");
            }
        }
    }
}

fn unused_slots(broker: &Broker) -> BTreeSet<SlotState> {
    let mut unused = BTreeSet::new();
    for namespace in broker.store.namespaces() {
        for lease in broker.store.slots(namespace) {
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
            let Some(slot) = taken(&lease) else { continue };
            let claim = broker.store.claim(namespace, &holder);
            if !slots::justifies(claim.as_deref(), &slot.name) {
                unused.insert((namespace.to_owned(), slot.name, slot.uid, slot.version, holder));
            }
        }
    }
    unused
}

async fn sweep_slot(broker: &Broker, slot: &SlotState) -> Result<(), CallError> {
    let (namespace, name, uid, version, holder) = slot.clone();
    // One watch may lag behind the other: the claim is asked for once more.
    let claim = broker.cluster.claim(&namespace, &holder).await?;
    if slots::justifies(claim.as_ref(), &name) {
        return Ok(());
    }
    broker.cluster.free_slot(&namespace, &Taken { name, uid, version }).await?;
    broker.metrics.kept("slot_swept");
    Ok(())
}

async fn release_ungranted(broker: &Broker, uid: &str) -> Result<(), CallError> {
    let Some(seen) = broker.store.claim_of(uid) else { return Ok(()) };
    let (namespace, name) = place(&seen);
    tracing::warn!(namespace, claim = name, "releasing a claim that was left without a grant");
    broker.cluster.release(namespace, name, uid).await?;
    broker.metrics.kept("claim_without_grant");
    Ok(())
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
