//! What every route works with.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use banlieue_crds::VirtualMachineClaim;
use banlieue_identity::{Caller, Issuers, Path};
use banlieue_protocol::names::Uid;

use crate::{
    audit::Audit,
    claims::{
        cluster::{CallError, Cluster, place},
        grant::{Grant, SealingKeys},
        store::Store,
    },
    config::Config,
    entries::Entries,
    http::{body::BodyLimits, rate::Rate, reload::Reloaded},
    metrics::Metrics,
    tokens::keys::SigningKeys,
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

    /// Whether a claim is this caller's to see. An agent sees what it asked for itself; the person sees all.
    #[must_use]
    pub fn is_of(caller: &Caller, claim: &VirtualMachineClaim) -> bool {
        let subject = &claim.spec.subject;
        subject.issuer == caller.issuer
            && subject.id == caller.id
            && (caller.path != Path::AgentForPerson || caller.azp.as_deref() == Some(subject.azp.as_str()))
    }
}

/// Grants, opened. What was opened once is remembered, since a grant never changes.
pub struct Grants {
    keys: Arc<Reloaded<SealingKeys>>,
    opened: Mutex<BTreeMap<String, Arc<Grant>>>,
    /// The keys that the remembered ones were opened with.
    opened_with: Mutex<Option<Arc<SealingKeys>>>,
}

impl Grants {
    /// None opened yet.
    #[must_use]
    pub fn new(keys: Arc<Reloaded<SealingKeys>>) -> Self {
        Self { keys, opened: Mutex::default(), opened_with: Mutex::default() }
    }

    /// The grant of a claim, if it has a valid one that covers what the claim says.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn of(&self, cluster: &Cluster, claim: &VirtualMachineClaim) -> Result<Option<Arc<Grant>>, CallError> {
        let Some(uid) = claim.metadata.uid.as_deref() else { return Ok(None) };
        let keys = self.current();
        if let Some(known) = self.known(uid) {
            return Ok(Some(known).filter(|grant| grant.covers(claim)));
        }
        let Some(sealed) = cluster.sealed_grant(place(claim).0, uid).await? else { return Ok(None) };
        let grant = match keys.open(uid, &sealed) {
            Ok(grant) => Arc::new(grant),
            Err(error) => {
                tracing::warn!(claim = place(claim).1, %error, "a claim has a grant that is not valid");
                return Ok(None);
            }
        };
        if !grant.covers(claim) {
            tracing::warn!(claim = place(claim).1, "a claim is not what was granted");
            return Ok(None);
        }
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), grant.clone());
        Ok(Some(grant))
    }

    /// Grants what a caller was given. Doing it again for the same claim and caller is no error.
    ///
    /// # Errors
    /// When the grant may not be there.
    pub async fn give(&self, cluster: &Cluster, caller: &Caller, claim: &VirtualMachineClaim) -> Result<(), CallError> {
        let wrong = |what: &str| CallError::Unknown {
            call: format!("granting claim {}", place(claim).1),
            what: what.to_owned(),
        };
        let grant = Grant::of(caller, claim).ok_or_else(|| wrong("the claim has no uid"))?;
        let sealed = self.current().seal(&grant).map_err(|error| wrong(&error.to_string()))?;
        cluster.create_grant(claim, sealed).await?;
        // One that was there before stays: it counts only if it is the same.
        match self.of(cluster, claim).await? {
            Some(found) if *found == grant => Ok(()),
            _ => Err(wrong("there is another grant under its name")),
        }
    }

    fn known(&self, uid: &str) -> Option<Arc<Grant>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned()
    }

    /// The newest keys. When they changed, nothing that the old ones opened is remembered: taking a key away takes away
    /// what it sealed.
    fn current(&self) -> Arc<SealingKeys> {
        let keys = self.keys.get();
        let mut with = self.opened_with.lock().unwrap_or_else(PoisonError::into_inner);
        if !with.as_ref().is_some_and(|before| Arc::ptr_eq(before, &keys)) {
            self.opened.lock().unwrap_or_else(PoisonError::into_inner).clear();
            *with = Some(keys.clone());
        }
        keys
    }

    /// Forgets grants of claims that are gone.
    pub fn keep(&self, uids: &BTreeSet<String>) {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| uids.contains(uid));
    }
}

/// Uids of claims whose release was asked for here. Remembered for longer than any request takes; the claim itself says
/// it from then on.
#[derive(Default)]
pub struct Releasing(RwLock<BTreeMap<String, Instant>>);

impl Releasing {
    const REMEMBER: Duration = Duration::from_secs(120);

    /// From now on no token of this claim leaves this replica.
    pub fn add(&self, uid: &str) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        all.retain(|_, since| now.saturating_duration_since(*since) < Self::REMEMBER);
        all.insert(uid.to_owned(), now);
    }

    /// Takes it back: the release was not done.
    pub fn remove(&self, uid: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// Whether it was asked for.
    #[must_use]
    pub fn contains(&self, uid: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(uid)
    }
}
