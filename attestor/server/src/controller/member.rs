//! One member: from objects and SPIRE to a snapshot, from intents to acts.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use banlieue_crds::{
    PoolMember, VirtualMachinePool,
    conditions::{self, MemberCondition, MemberReason, Status},
    member::MemberPhase,
    names::managers,
    received::Received,
};
use banlieue_leader::Leadership;
use banlieue_protocol::names::{Namespace, Uid};
use banlieue_spire::{Client as SpireClient, entries::Created};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    decide::{Agent, DUPLICATE, Intent, Pool, Record, Refused, Settings, Snapshot, Spire, Stands, decide},
    metrics::Metrics,
};
use crate::{
    cluster::{CALL_LIMIT, Store, Watched},
    plugin::read as facts,
    policies::Policies,
    unread::read,
};

/// Rounds of deciding and acting in one pass. Two are usual: ask or make, then judge.
const MOST_ROUNDS: usize = 6;

/// Why a pass did not end. All are tried again.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// SPIRE.
    #[error(transparent)]
    Spire(#[from] banlieue_spire::Error),
    /// The API server.
    #[error("cannot {act}: {why}")]
    Kubernetes {
        /// What was tried.
        act: String,
        /// What went wrong.
        why: String,
    },
    /// Another leads by now, and does it.
    #[error("this process does not lead any more")]
    Resting,
    /// Intents that lead nowhere: a fault of ours.
    #[error("member {0} does not settle")]
    Unsettled(String),
}

impl MemberError {
    /// Fixed word for metrics.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self {
            Self::Spire(error) => error.category(),
            Self::Kubernetes { .. } => "kubernetes",
            Self::Resting => "resting",
            Self::Unsettled(_) => "unsettled",
        }
    }
}

/// What all passes share.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// SPIRE.
    pub spire: SpireClient,
    /// Where and how identities are made.
    pub settings: Settings,
    /// Whether this process may write; asked before every write.
    pub leadership: Leadership,
    /// All members.
    pub members: Store<PoolMember>,
    /// All pools.
    pub pools: Watched<VirtualMachinePool>,
    /// Documents.
    pub policies: Policies,
    /// Counters.
    pub metrics: Metrics,
    /// Asks for a pass over every member.
    pub again: mpsc::UnboundedSender<()>,
    /// Ids of entries that surely exist, by member uid: from making them, and from each sweep's list.
    pub entries: Mutex<HashMap<String, BTreeSet<String>>>,
}

impl Context {
    fn known_entries(&self) -> std::sync::MutexGuard<'_, HashMap<String, BTreeSet<String>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a write.
    ///
    /// # Errors
    /// When this process does not lead.
    pub fn may_write(&self) -> Result<(), MemberError> {
        if self.leadership.works() { Ok(()) } else { Err(MemberError::Resting) }
    }

    /// Forgets what is known about entries and takes this complete list instead.
    pub fn replace_entries(&self, entries: HashMap<String, BTreeSet<String>>) {
        *self.known_entries() = entries;
    }

    /// One pass over one member. Says when to look again, if nothing happens before.
    ///
    /// # Errors
    /// When SPIRE or the API server fail.
    pub async fn pass(&self, object: &PoolMember) -> Result<Option<Timestamp>, MemberError> {
        let Some(mut snapshot) = self.snapshot(object).await? else { return Ok(None) };
        for _ in 0..MOST_ROUNDS {
            let intents = decide(&snapshot, &self.settings, Timestamp::now());
            let (mut asked, mut wake, mut said) = (false, None, Vec::new());
            for intent in intents {
                match intent {
                    Intent::Wake(at) => wake = Some(at),
                    Intent::Say(kind, status, reason, message) => said.push((kind, status, reason, message)),
                    other => {
                        asked = true;
                        self.act(&mut snapshot, other).await?;
                    }
                }
            }
            // What was asked changes what is to be said: only the last round speaks.
            if asked {
                continue;
            }
            if !said.is_empty() {
                let shared = said.iter().any(|(.., reason, _)| reason == DUPLICATE);
                self.say(object, said).await?;
                if shared {
                    // The other member of the key is to be looked at as well; nothing about it has changed.
                    let _ = self.again.send(());
                }
            }
            return Ok(wake);
        }
        Err(MemberError::Unsettled(object.name_any()))
    }

    async fn snapshot(&self, object: &PoolMember) -> Result<Option<Snapshot>, MemberError> {
        let (Some(uid), Some(namespace)) = (object.uid(), object.namespace()) else { return Ok(None) };
        let (Ok(uid), Ok(namespace)) = (Uid::parse(&uid), Namespace::parse(&namespace)) else { return Ok(None) };
        let Some(pools) = self.pools.filled() else { return Ok(None) };
        let pool = pools
            .get(&ObjectRef::new(&object.spec.pool_ref.name).within(namespace.as_str()))
            .filter(|pool| pool.uid().as_deref() == Some(object.spec.pool_ref.uid.as_str()));
        let pool = pool.as_deref().and_then(read);
        // Revoking needs none, and where the namespace goes as a whole it may not be read any more.
        let deleting = object.metadata.deletion_timestamp.is_some();
        let policy = match facts::policy_digest(object).filter(|_| !deleting) {
            Some(digest) => {
                self.policies.get(namespace.as_str(), &object.spec.pool_ref.name, digest).await.map_err(|why| {
                    MemberError::Kubernetes { act: format!("read the policy of member {}", object.name_any()), why }
                })?
            }
            None => None,
        };
        let status = object.status.clone().unwrap_or_default();
        let image = policy.as_ref().map(|policy| {
            let digest = &policy.document.image.digest;
            digest.strip_prefix("sha256:").unwrap_or(digest).to_owned()
        });
        let evidence = status.attestation.unwrap_or_default();
        let stands = |kind: MemberCondition| {
            conditions::find(&status.conditions, kind).map(|condition| Stands {
                holds: condition.status == "True",
                reason: condition.reason.clone(),
                message: condition.message.clone(),
            })
        };
        let key = status.endorsement.as_ref().map(|pinned| pinned.ek_digest.as_str());
        Ok(Some(Snapshot {
            deleting,
            claim: object.spec.claim_ref.as_ref().and_then(|claim| Uid::parse(&claim.uid).ok()),
            record: evidence.verified_at.map(|at| Record {
                verified_at: at.0,
                policy: evidence.policy_digest.unwrap_or_default(),
                image,
            }),
            refusal: evidence.refusal.and_then(|refusal| {
                Some(Refused { at: refusal.at?.0, reason: refusal.reason, message: refusal.message })
            }),
            duplicate: key.and_then(|key| self.duplicate(object, key)),
            needs_evidence: object.needs_evidence(),
            max_age: SignedDuration::from_secs(i64::from(object.spec.attestation.max_age_seconds)),
            dead: dead(object),
            pool: pool.map(|pool| {
                let revoked = pool.spec.attestation.revoked.iter();
                Pool { revoked: revoked.map(|revoked| (revoked.digest.clone(), revoked.reason.clone())).collect() }
            }),
            programs: policy.map(|policy| policy.document.programs.clone()),
            attested: stands(MemberCondition::Attested),
            revoked: stands(MemberCondition::IdentityRevoked),
            spire: Spire {
                // What is known of a living member's own two entries says nothing about all that an ending one may have.
                entries: match object.metadata.deletion_timestamp {
                    None => self.known_entries().get(uid.as_str()).cloned(),
                    Some(_) => None,
                },
                agent: Agent::Unknown,
            },
            uid,
            namespace,
        }))
    }

    fn duplicate(&self, object: &PoolMember, key: &str) -> Option<String> {
        let other = self.members.find(|other| {
            other.meta().uid != object.metadata.uid
                && other.meta().deletion_timestamp.is_none()
                && read(other)
                    .and_then(|other| other.status.as_ref())
                    .and_then(|status| status.endorsement.as_ref())
                    .is_some_and(|pinned| pinned.ek_digest == key)
        })?;
        Some(format!("{}/{}", other.namespace().unwrap_or_default(), other.name_any()))
    }

    async fn act(&self, snapshot: &mut Snapshot, intent: Intent) -> Result<(), MemberError> {
        self.may_write()?;
        let outcome = self.try_act(snapshot, &intent).await;
        let act = match intent {
            Intent::CreateEntries(_) => "create-entry",
            Intent::DeleteEntries(_) => "delete-entry",
            Intent::Ban(_) => "ban",
            Intent::ReadAgent(_) => "read-agent",
            Intent::Say(..) | Intent::Wake(_) => "condition",
        };
        self.metrics.count(act, outcome.as_ref().err().map_or("ok", banlieue_spire::Error::category));
        Ok(outcome?)
    }

    async fn try_act(&self, snapshot: &mut Snapshot, intent: &Intent) -> Result<(), banlieue_spire::Error> {
        match intent {
            Intent::CreateEntries(entries) => {
                let results = self.spire.create_entries(entries).await?;
                let mut known = snapshot.spire.entries.clone().unwrap_or_default();
                for (entry, result) in entries.iter().zip(results) {
                    match result? {
                        Created::New => {}
                        Created::Existed(id) if id == entry.id => {}
                        // Somebody else's entry for the same thing grants the same thing, but is not ours to keep or
                        // delete: it is replaced when it goes.
                        Created::Existed(id) => {
                            tracing::warn!(%id, wanted = %entry.id, "SPIRE has a like entry under another id");
                        }
                    }
                    known.insert(entry.id.clone());
                }
                self.known_entries().insert(snapshot.uid.to_string(), known.clone());
                snapshot.spire.entries = Some(known);
            }
            Intent::DeleteEntries(ids) => {
                for result in self.spire.delete_entries(ids).await? {
                    result?;
                }
                self.known_entries().insert(snapshot.uid.to_string(), BTreeSet::new());
                snapshot.spire.entries = Some(BTreeSet::new());
            }
            Intent::ReadAgent(id) => {
                snapshot.spire.agent = match self.spire.get_agent(id).await? {
                    None => Agent::Absent,
                    Some(agent) if agent.banned => Agent::Banned,
                    Some(_) => Agent::Present,
                };
            }
            Intent::Ban(id) => {
                if self.spire.ban_agent(id).await? {
                    tracing::info!(agent = %id, "banned");
                }
                // Read back: what counts is what SPIRE shows.
                snapshot.spire.agent = Agent::Unknown;
            }
            Intent::Say(..) | Intent::Wake(_) => {}
        }
        Ok(())
    }

    /// One apply with all conditions that are ours: what an apply leaves out, it removes.
    async fn say(
        &self,
        object: &PoolMember,
        said: Vec<(MemberCondition, Status, String, String)>,
    ) -> Result<(), MemberError> {
        self.may_write()?;
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let standing = object.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let ours = [MemberCondition::Attested, MemberCondition::IdentityRevoked];
        let mut list: Vec<Condition> =
            ours.iter().filter_map(|kind| conditions::find(&standing, kind)).cloned().collect();
        for (kind, status, reason, message) in said {
            tracing::info!(member = %format!("{namespace}/{name}"), condition = %kind, status = status.as_str(), %reason, "says");
            let generation = object.metadata.generation;
            conditions::set(
                &mut list,
                conditions::condition(kind, status, reason, message, generation, Timestamp::now()),
            );
        }
        let body = json!({
            "apiVersion": PoolMember::api_version(&()),
            "kind": PoolMember::kind(&()),
            // Of this life of the name, and as it was judged: nobody's older view overwrites a newer one.
            "metadata": { "name": name, "uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version },
            "status": { "conditions": list },
        });
        let api = Api::<PoolMember>::namespaced(self.client.clone(), &namespace);
        let params = PatchParams::apply(managers::ATTESTOR_CONTROLLER).force();
        let patch = Patch::Apply(body);
        let outcome = match tokio::time::timeout(CALL_LIMIT, api.patch_status(&name, &params, &patch)).await {
            Ok(Ok(_)) => Ok(()),
            // Gone, another life of the name, or changed: the watch brings it, and with it the next pass.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        };
        self.metrics.count("condition", if outcome.is_ok() { "ok" } else { "kubernetes" });
        outcome.map_err(|why| MemberError::Kubernetes { act: format!("write the conditions of member {name}"), why })
    }
}

/// Why an unbound member will never be lent, in its controller's words. A bound member's phase is not touched any more.
pub(super) fn dead(object: &PoolMember) -> Option<(MemberReason, String)> {
    let status = object.status.as_ref().filter(|_| object.spec.claim_ref.is_none())?;
    let or = match status.phase? {
        MemberPhase::Failed => MemberReason::InstanceFailed,
        MemberPhase::Quarantined => MemberReason::Quarantined,
        _ => return None,
    };
    let ready = conditions::find(&status.conditions, MemberCondition::Ready);
    let said = ready.and_then(|ready| MemberReason::ALL.iter().find(|word| word.as_str() == ready.reason).copied());
    Some((said.unwrap_or(or), ready.map(|ready| ready.message.clone()).unwrap_or_default()))
}

/// Members by uid, for sweeps.
#[must_use]
pub fn by_uid(members: &[Arc<Received<PoolMember>>]) -> HashMap<String, Arc<Received<PoolMember>>> {
    members.iter().filter_map(|member| Some((member.uid()?, member.clone()))).collect()
}
