//! Claim entries in SPIRE: who gets `spiffe://<td>/banlieue/claim/<claim uid>`, on which member.
//!
//! Made once the claim is bound, granted and latched; deleted as soon as it is ending. Creating is idempotent, so every
//! replica may do both, and an entry that an earlier process made is adopted by making it again. Deleting never comes
//! before refusing: tokens are refused by the claim's own state, whatever SPIRE does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use banlieue_crds::{PoolMember, VirtualMachineClaim};
use banlieue_protocol::names::{self, Cluster, Named, Namespace, SpiffeId, TrustDomain, Uid, Writer};
use banlieue_spire::{
    Client,
    entries::{Created, Entry, NewEntry, is_of},
    sweep::{Plan, Record, plan},
};
use tokio_util::sync::CancellationToken;

use crate::{
    broker::Broker,
    claims::{lend, record::subject_key},
};

/// Life of a claim's SVIDs, in seconds.
const SVID_TTL: i32 = 300;
/// The one user that jails run as.
const JAIL_UID: &str = "uid:20000";
/// Pause between sweeps.
const SWEEP: Duration = Duration::from_secs(20);
/// Entries that one call deletes at most.
const AT_ONCE: usize = 100;
/// How long an entry must have had no living claim: longer than a watch lags.
const MISSING_FOR: Duration = Duration::from_secs(30);

/// Why an entry could not be made.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// Claim or member lack what an entry is made of.
    #[error("no entry can be made: {0}")]
    Incomplete(&'static str),
    /// Somebody made one of the same meaning, which mediatore may not delete when the claim ends.
    #[error("SPIRE has entry {0} for this claim's identity, which mediatore did not make: delete that entry")]
    Foreign(String),
    /// SPIRE did not do it.
    #[error(transparent)]
    Spire(#[from] banlieue_spire::Error),
}

/// The entry of a claim on its member.
///
/// # Errors
/// When an object has no proper uid or namespace, or the claim no deadline.
pub fn entry(
    trust_domain: &TrustDomain,
    cluster: &Cluster,
    claim: &VirtualMachineClaim,
    member: &PoolMember,
) -> Result<NewEntry, EntryError> {
    let uid = |uid: Option<&String>| uid.and_then(|uid| Uid::parse(uid).ok());
    let claim_uid = uid(claim.metadata.uid.as_ref()).ok_or(EntryError::Incomplete("the claim has no uid"))?;
    let member_uid = uid(member.metadata.uid.as_ref()).ok_or(EntryError::Incomplete("the member has no uid"))?;
    let namespace = member.metadata.namespace.as_deref().and_then(|name| Namespace::parse(name).ok());
    let namespace = namespace.ok_or(EntryError::Incomplete("the member has no namespace"))?;
    Ok(NewEntry {
        id: names::claim_entry(cluster, &claim_uid),
        spiffe_id: names::claim(trust_domain, &claim_uid),
        parent: names::agent(trust_domain, cluster, &namespace, &member_uid),
        selectors: vec![
            ("unix".to_owned(), format!("user:{}", subject_key(claim).username())),
            ("unix".to_owned(), JAIL_UID.to_owned()),
        ],
        x509_svid_ttl: SVID_TTL,
        expires_at: lend::deadline(claim).ok_or(EntryError::Incomplete("the claim has no deadline"))?,
    })
}

/// SPIRE, and which entries this process knows to be there.
pub struct Entries {
    client: Client,
    trust_domain: TrustDomain,
    cluster: Cluster,
    made: Mutex<BTreeSet<String>>,
}

impl Entries {
    /// Over this client.
    #[must_use]
    pub fn new(client: Client, trust_domain: TrustDomain, cluster: Cluster) -> Self {
        Self { client, trust_domain, cluster, made: Mutex::default() }
    }

    /// Makes a claim's entry; gives the identity.
    ///
    /// # Errors
    /// When SPIRE does not do it.
    pub async fn make(&self, claim: &VirtualMachineClaim, member: &PoolMember) -> Result<SpiffeId, EntryError> {
        let entry = entry(&self.trust_domain, &self.cluster, claim, member)?;
        let made = self.client.create_entries(std::slice::from_ref(&entry)).await?;
        // The same identity, agent and selectors under another id; under ours it is the one that was made before.
        if let Created::Existed(id) =
            made.into_iter().next().ok_or(EntryError::Incomplete("SPIRE gave no result"))??
            && id != entry.id
        {
            return Err(EntryError::Foreign(id));
        }
        self.made.lock().unwrap_or_else(PoisonError::into_inner).insert(entry.id);
        Ok(entry.spiffe_id)
    }

    /// Deletes a claim's entry; one that is not there is no error.
    ///
    /// # Errors
    /// When SPIRE does not do it.
    pub async fn delete(&self, claim: &Uid) -> Result<(), EntryError> {
        let id = names::claim_entry(&self.cluster, claim);
        let done = self.client.delete_entries(std::slice::from_ref(&id)).await?;
        done.into_iter().collect::<Result<Vec<()>, _>>()?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        Ok(())
    }

    fn knows(&self, claim: &Uid) -> bool {
        let id = names::claim_entry(&self.cluster, claim);
        self.made.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// This cluster's claim entries, all of them. What was made before and is not among them was lost, and is no longer
    /// taken to be there.
    async fn ours(&self) -> Result<Vec<(Entry, String)>, EntryError> {
        let before = self.made.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let entries = self.client.list_entries().await?;
        let listed: BTreeSet<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        let lost = |id: &String| before.contains(id) && !listed.contains(id.as_str());
        self.made.lock().unwrap_or_else(PoisonError::into_inner).retain(|id| !lost(id));
        Ok(entries
            .into_iter()
            .filter(|entry| is_of(&entry.id, &self.cluster, Writer::Mediatore))
            .filter_map(|entry| match names::read_path(&entry.path) {
                Some(Named::Claim(uid)) => Some((entry, uid.as_str().to_owned())),
                _ => None,
            })
            .collect())
    }
}

/// Deletes entries of claims that are ending, as the watch tells it.
pub async fn follow(broker: Arc<Broker>, stop: CancellationToken) {
    let Some(entries) = &broker.entries else { return };
    let mut changes = broker.store.changes();
    let mut deleted: BTreeSet<String> = BTreeSet::new();
    while let Some(Ok(())) = stop.run_until_cancelled(changes.changed()).await {
        let claims = broker.store.claims();
        let ending: BTreeSet<String> = claims
            .iter()
            .filter(|claim| lend::is_ending(claim) && lend::is_latched(claim))
            .filter_map(|claim| claim.metadata.uid.clone())
            .collect();
        deleted.retain(|uid| ending.contains(uid));
        for uid in ending {
            if deleted.contains(&uid) {
                continue;
            }
            let Ok(parsed) = Uid::parse(&uid) else { continue };
            match entries.delete(&parsed).await {
                Ok(()) => {
                    broker.metrics.kept("entry_deleted");
                    deleted.insert(uid);
                }
                // Tokens are refused already; the sweep tries again.
                Err(error) => tracing::warn!(claim = uid, %error, "an entry is not deleted yet"),
            }
        }
    }
}

/// Makes what is missing and deletes what nothing stands for, until `stop`.
pub async fn sweep(broker: Arc<Broker>, stop: CancellationToken) {
    let Some(entries) = &broker.entries else { return };
    let mut missing: BTreeMap<String, Instant> = BTreeMap::new();
    while stop.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_some() {
        if broker.store.unfilled().is_some() {
            continue;
        }
        complete(&broker, entries).await;
        if let Err(error) = remove(&broker, entries, &mut missing).await {
            tracing::warn!(%error, "entries are not swept yet");
        }
    }
}

/// Entries that a crash kept from being made or reported.
async fn complete(broker: &Broker, entries: &Entries) {
    for claim in broker.store.claims() {
        let Some(member) = claim.status.as_ref().and_then(|status| status.member_ref.as_ref()) else { continue };
        let Some(namespace) = claim.metadata.namespace.as_deref() else { continue };
        let Some(member) = broker.store.member(namespace, &member.name) else { continue };
        let Some(uid) = claim.metadata.uid.as_deref().and_then(|uid| Uid::parse(uid).ok()) else { continue };
        let reported = claim.status.as_ref().is_some_and(|status| status.spiffe_id.is_some());
        if !lend::is_latched(&claim) || (reported && entries.knows(&uid)) {
            continue;
        }
        if let Err(error) = crate::sandbox::status::identify(broker, entries, &claim, &member).await {
            tracing::warn!(claim = uid.as_str(), error = error.detail, "an entry is not made yet");
        }
    }
}

async fn remove(broker: &Broker, entries: &Entries, missing: &mut BTreeMap<String, Instant>) -> Result<(), EntryError> {
    // Listed before the claims are looked at: an entry made in between is not in the list.
    let listed = entries.ours().await?;
    let claims = broker.store.claims();
    let uids = |over: bool| -> BTreeSet<String> {
        let those = claims.iter().filter(|claim| lend::is_ending(claim) == over);
        those.filter_map(|claim| claim.metadata.uid.clone()).collect()
    };
    let (mut living, over) = (uids(false), uids(true));
    let now = Instant::now();
    missing.retain(|uid, _| listed.iter().any(|(_, listed)| listed == uid) && !living.contains(uid));
    for (_, uid) in &listed {
        if !living.contains(uid) {
            let since = missing.entry(uid.clone()).or_insert(now);
            if now.saturating_duration_since(*since) < MISSING_FOR {
                living.insert(uid.clone());
            }
        }
    }
    let records: Vec<Record> = listed
        .into_iter()
        .map(|(entry, uid)| Record { id: entry.id, expected: over.contains(&uid), stands_for: uid })
        .collect();
    match plan(&records, &living) {
        Plan::Remove(ids) => {
            for some in ids.chunks(AT_ONCE) {
                for (id, done) in some.iter().zip(entries.client.delete_entries(some).await?) {
                    match done {
                        Ok(()) => broker.metrics.kept("entry_deleted"),
                        // One that cannot be deleted keeps none of the others.
                        Err(error) => tracing::warn!(entry = id, %error, "an entry is not deleted yet"),
                    }
                }
            }
        }
        Plan::Stop { surprising, of } => {
            tracing::error!(
                surprising,
                of,
                "too many entries have no claim: none is removed, look at SPIRE and the cluster's name"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_for_one_user_on_one_member() {
        let (member, mut claim) = lend::tests::pair();
        let (mut member, claim_uid, member_uid) =
            (member, "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab", "1b7a3a3e-8a8f-4f0e-9a0b-0123456789ab");
        let (domain, cluster) = (TrustDomain::parse("banlieue.local").unwrap(), Cluster::parse("local").unwrap());
        assert!(entry(&domain, &cluster, &claim, &member).is_err(), "these uids are none");
        claim.metadata.uid = Some(claim_uid.into());
        member.metadata.uid = Some(member_uid.into());
        member.metadata.namespace = Some("sandboxes".into());
        let made = entry(&domain, &cluster, &claim, &member).unwrap();
        assert_eq!(made.id, format!("local.mediatore.claim.{claim_uid}"));
        assert_eq!(made.spiffe_id.as_str(), format!("spiffe://banlieue.local/banlieue/claim/{claim_uid}"));
        assert_eq!(
            made.parent.as_str(),
            format!("spiffe://banlieue.local/spire/agent/banlieue_vtpm/local/sandboxes/{member_uid}")
        );
        let user = subject_key(&claim).username();
        assert_eq!(made.selectors, [("unix".into(), format!("user:{user}")), ("unix".into(), "uid:20000".into())]);
        assert_eq!((made.x509_svid_ttl, made.expires_at), (300, 1600));
    }
}
