//! A pool's steps as writes.

use aws_lc_rs::digest;
use banlieue_crds::names::{self, finalizers, labels, managers};
use banlieue_crds::pool::VirtualMachinePoolStatus;
use banlieue_crds::{PoolMember, VirtualMachinePool};
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use serde_json::json;

use super::world::suffix;
use super::{ActError, Controller, Event, Outcome};
use crate::api::{ApiError, Kind, Refusal};
use crate::decide::{self, News, PolicyState, PoolIntent, Shortage, TemplateVerdict};
use crate::runtime;
use crate::schedule::{Key, Pace};
use crate::store::{ObjectKey, PoolSnapshot};

/// Creates of one pool at once.
const CREATES: usize = 8;

impl Controller {
    /// One pass over a pool.
    pub(super) async fn pool(&self, key: &ObjectKey) -> Outcome {
        let now = self.now();
        let Some(snapshot) = self.index().pool_snapshot(key, now) else {
            self.metrics.forget_pool(&key.namespace, &key.name, &STATES);
            return Ok(None);
        };
        let plan = decide::pool(&snapshot, now, &self.settings.tuning);
        // One step that fails does not keep the others from being tried, nor the status from being written.
        let mut first_error = None;
        let mut wake = plan.wake;
        // What was decided is written before it is acted on: a failed member may only go once it is counted.
        match self.write_pool_status(&snapshot, &plan.status, now).await {
            Ok(again) => wake = decide::sooner(wake, again),
            Err(error) => first_error = Some(error),
        }
        for intent in plan.intents {
            match self.pool_step(&snapshot, intent, now).await {
                Ok(again) => wake = decide::sooner(wake, again),
                // Somebody else was faster: what it is now has woken us already.
                Err(ActError::Api(ApiError::Conflict { .. })) => {}
                Err(error) => {
                    tracing::debug!(pool = %key, %error, "step failed");
                    first_error.get_or_insert(error);
                }
            }
        }
        match first_error {
            Some(error) => Err(error),
            // Events wake a pool; this is for what no event tells.
            None => Ok(decide::sooner(wake, Some(decide::plus(now, SignedDuration::from_secs(60))))),
        }
    }

    async fn pool_step(&self, snapshot: &PoolSnapshot, intent: PoolIntent, now: Timestamp) -> Outcome {
        let pool = &snapshot.pool;
        match intent {
            PoolIntent::AddFinalizer => {
                let with_ours = |list: &[String]| {
                    let others = list.iter().filter(|name| *name != finalizers::DRAIN).cloned();
                    others.chain([finalizers::DRAIN.to_owned()]).collect()
                };
                self.write_pool_finalizers(pool, with_ours).await.map(|()| None)
            }
            PoolIntent::RemoveFinalizer => {
                let without_ours =
                    |list: &[String]| list.iter().filter(|name| *name != finalizers::DRAIN).cloned().collect();
                self.write_pool_finalizers(pool, without_ours).await.map(|()| None)
            }
            PoolIntent::CopyPolicy => self.copy_policy(snapshot).await.map(|()| None),
            PoolIntent::CheckBundle => self.check_bundle(snapshot).await.map(|()| None),
            PoolIntent::ValidateTemplate { revision } => {
                self.validate_template(snapshot, revision, now).await.map(|()| None)
            }
            PoolIntent::ApplyNetworkPolicy => {
                let object = runtime::network_policy(pool, &self.settings.egress);
                let written: NetworkPolicy =
                    self.api.apply(Kind::NetworkPolicy, managers::CONTROLLER, false, object).await?;
                let is = (written.uid().unwrap_or_default(), written.metadata.generation.unwrap_or_default());
                let uid = pool.uid().unwrap_or_default();
                self.index().update_facts(&uid, |facts| facts.network_policy = Some(is));
                Ok(None)
            }
            PoolIntent::Create { count, revision } => self.create_members(snapshot, count, &revision, now).await,
            PoolIntent::DeleteMember { member, why } => {
                let Some(object) = self.index().member(&member) else { return Ok(None) };
                if object.spec.claim_ref.is_some() || self.index().is_held(&member) {
                    return Ok(None);
                }
                self.tell_member(&object, false, "Deleting", why.to_owned());
                let uid = object.uid().unwrap_or_default();
                // With its version: the binder's commit and this race on it, and one of them loses cleanly.
                self.delete_member(&member, &uid, object.metadata.resource_version.clone()).await.map(|()| None)
            }
            PoolIntent::DeletePolicyCopy { name, uid } => {
                let namespace = &snapshot.key.namespace;
                self.api.delete::<ConfigMap>(Kind::ConfigMap, namespace, &name, &uid, None).await?;
                Ok(None)
            }
        }
    }

    /// New members, each name registered before its call; creates whose reply was lost first, under their own names.
    async fn create_members(&self, snapshot: &PoolSnapshot, count: usize, revision: &str, now: Timestamp) -> Outcome {
        let uid = snapshot.pool.uid().unwrap_or_default();
        let wanted = u32::try_from(count).unwrap_or(u32::MAX);
        let (names, again) = {
            let mut index = self.index();
            let mut names = index.expectations.take_lost(&uid);
            let (burst, per_second) = self.settings.pace;
            let pace = index.pace(&uid, || Pace::new(burst, per_second));
            let granted = pace.take(wanted, now);
            let again = (granted < wanted).then(|| pace.next(now));
            for _ in 0..granted {
                let name = loop {
                    let name = format!("{}-{}", snapshot.key.name, suffix(self.random.as_ref()));
                    let at = snapshot.key.sibling(&name);
                    if index.member(&at).is_none() && !index.expectations.contains(&uid, &name) {
                        break name;
                    }
                };
                index.expectations.expect(&uid, &name, revision, now);
                names.push((name, revision.to_owned()));
            }
            (names, again)
        };
        let results: Vec<Result<(), ActError>> = futures::stream::iter(names)
            .map(|(name, revision)| self.create_member(snapshot, name, revision, now))
            .buffer_unordered(CREATES)
            .collect()
            .await;
        results.into_iter().collect::<Result<(), ActError>>()?;
        Ok(again)
    }

    async fn create_member(
        &self,
        snapshot: &PoolSnapshot,
        name: String,
        revision: String,
        now: Timestamp,
    ) -> Result<(), ActError> {
        let uid = snapshot.pool.uid().unwrap_or_default();
        let at = snapshot.key.sibling(&name);
        let object = runtime::member_object(&snapshot.pool, &name, &revision);
        let answer = match self.api.create::<PoolMember>(Kind::Member, managers::CONTROLLER, object).await {
            Err(ApiError::AlreadyExists { .. }) => {
                match self.api.get::<PoolMember>(Kind::Member, &at.namespace, &at.name).await {
                    // Our own create, whose reply was lost.
                    Ok(Some(member)) if member.spec.pool_ref.uid == uid => Ok(member),
                    // Another pool's, or gone again: the name was used, so nothing can arrive under it later.
                    Ok(_) => {
                        self.index().expectations.settle(&uid, &name);
                        return Ok(());
                    }
                    Err(error) => {
                        self.index().expectations.lost(&uid, &name, now);
                        return Err(error.into());
                    }
                }
            }
            answer => answer,
        };
        match answer {
            Ok(member) => {
                let keys = self.index().put_member(member);
                self.wake(keys);
                Ok(())
            }
            Err(error) if error.outcome_unknown() => {
                self.index().expectations.lost(&uid, &name, now);
                Err(error.into())
            }
            Err(error) => {
                let mut index = self.index();
                index.expectations.refused(&uid, &name, now);
                if let ApiError::Refused { refusal: Refusal::QuotaExceeded, message, .. } = &error {
                    let until = decide::plus(now, SignedDuration::from_secs(30));
                    let shortage = Shortage { message: message.clone() };
                    index.update_facts(&uid, |facts| facts.shortage = Some((until, shortage)));
                    drop(index);
                    self.wake(vec![Key::Pool(snapshot.key.clone())]);
                    return Ok(());
                }
                Err(error.into())
            }
        }
    }

    /// KubeVirt's own judgement, by a dry run: a template that its webhooks refuse makes no member.
    async fn validate_template(
        &self,
        snapshot: &PoolSnapshot,
        revision: String,
        now: Timestamp,
    ) -> Result<(), ActError> {
        let pool = &snapshot.pool;
        let mut member = runtime::member_object(pool, &format!("{}-check", snapshot.key.name), &revision);
        if let Some(metadata) = member.get_mut("metadata").and_then(serde_json::Value::as_object_mut) {
            metadata.insert("uid".into(), json!("00000000-0000-4000-8000-000000000000"));
        }
        let Ok(member) = serde_json::from_value::<PoolMember>(member) else { return Ok(()) };
        let mut object = runtime::instance(pool, &member);
        // The member does not exist, so nothing may be owned by it.
        if let Some(metadata) = object.get_mut("metadata").and_then(serde_json::Value::as_object_mut) {
            metadata.remove("ownerReferences");
        }
        let verdict = match self.api.validate(Kind::Instance, managers::CONTROLLER, object).await {
            Ok(()) => TemplateVerdict::Accepted,
            // Room is judged when a member is made.
            Err(ApiError::Refused { refusal: Refusal::QuotaExceeded, .. }) => TemplateVerdict::Accepted,
            Err(ApiError::Refused { message, .. }) => {
                TemplateVerdict::Refused { message, ask_again: decide::plus(now, SignedDuration::from_secs(60)) }
            }
            Err(error) => return Err(error.into()),
        };
        let uid = pool.uid().unwrap_or_default();
        self.index().update_facts(&uid, |facts| facts.template = Some((revision, verdict)));
        self.wake(vec![Key::Pool(snapshot.key.clone())]);
        Ok(())
    }

    async fn check_bundle(&self, snapshot: &PoolSnapshot) -> Result<(), ActError> {
        let at = &self.settings.bundle;
        let live: Option<ConfigMap> = self.api.get(Kind::ConfigMap, &at.namespace, &at.name).await?;
        let there =
            live.and_then(|map| map.data?.remove(names::BUNDLE_KEY)).is_some_and(|text| !text.trim().is_empty());
        let uid = snapshot.pool.uid().unwrap_or_default();
        let before = self.index().pool_facts(&uid).bundle;
        self.index().update_facts(&uid, |facts| facts.bundle = Some(there));
        if before != Some(there) {
            self.wake(vec![Key::Pool(snapshot.key.clone())]);
        }
        Ok(())
    }

    /// The immutable copy of the measurements. Its name holds half of its digest, its content is checked whole.
    async fn copy_policy(&self, snapshot: &PoolSnapshot) -> Result<(), ActError> {
        let pool = &snapshot.pool;
        let Some(wanted) = &pool.spec.attestation.measurements else { return Ok(()) };
        let namespace = &snapshot.key.namespace;
        let name = names::policy_config_map(&snapshot.key.name, &wanted.sha256);
        let state = match self.api.get::<ConfigMap>(Kind::ConfigMap, namespace, &name).await? {
            Some(copy) => judge_copy(&copy, pool, &wanted.sha256, &snapshot.measurements_version),
            None => {
                let source_name = &wanted.config_map_ref.name;
                let source: Option<ConfigMap> = self.api.get(Kind::ConfigMap, namespace, source_name).await?;
                let looked_at = snapshot.measurements_version.clone();
                match document(source.as_ref(), &snapshot.key.sibling(source_name), &wanted.sha256) {
                    Err(message) => PolicyState::Missing { message, looked_at },
                    Ok(text) => {
                        let object = json!({
                            "apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
                            "metadata": {
                                "name": name, "namespace": namespace,
                                "labels": {
                                    labels::POOL: snapshot.key.name,
                                    labels::MANAGED_BY: labels::MANAGED_BY_VALUE,
                                },
                                "ownerReferences": [runtime::pool_owner(pool)],
                            },
                            "data": { names::MEASUREMENTS_KEY: text },
                        });
                        match self.api.create::<ConfigMap>(Kind::ConfigMap, managers::CONTROLLER, object).await {
                            Ok(_) => PolicyState::Copied,
                            Err(ApiError::AlreadyExists { what }) => return Err(ActError::NotYet(what)),
                            Err(error) => return Err(error.into()),
                        }
                    }
                }
            }
        };
        let uid = pool.uid().unwrap_or_default();
        let found = Some((wanted.sha256.clone(), state));
        if self.index().pool_facts(&uid).policy == found {
            return Ok(());
        }
        self.index().update_facts(&uid, |facts| facts.policy = found);
        self.wake(vec![Key::Pool(snapshot.key.clone())]);
        Ok(())
    }

    /// Of the newest version: the status write before it in the same pass made a new one. What was decided does not
    /// depend on the version; that nobody else's finalizer is lost does.
    async fn write_pool_finalizers(
        &self,
        decided_on: &VirtualMachinePool,
        change: impl Fn(&[String]) -> Vec<String>,
    ) -> Result<(), ActError> {
        let key = ObjectKey::of(decided_on);
        let uid = decided_on.uid().unwrap_or_default();
        let Some(pool) = self.index().pool(&key).filter(|pool| pool.uid().as_deref() == Some(&uid)) else {
            return Ok(());
        };
        let list = change(pool.finalizers());
        let patch = json!({
            "metadata": {
                "uid": uid, "resourceVersion": pool.metadata.resource_version, "finalizers": list,
            },
        });
        let answer = self
            .api
            .merge::<VirtualMachinePool>(Kind::Pool, &key.namespace, &key.name, managers::CONTROLLER, false, patch)
            .await;
        let keys = match answer {
            Ok(written) if written.metadata.deletion_timestamp.is_some() && written.finalizers().is_empty() => {
                self.index().drop_pool(&key, &uid)
            }
            Ok(written) => self.index().put_pool(written),
            Err(error) if error.is_not_found() => self.index().drop_pool(&key, &uid),
            Err(error) if error.is_conflict() => {
                let live: Option<VirtualMachinePool> = self.api.get(Kind::Pool, &key.namespace, &key.name).await?;
                let mut keys = match live {
                    Some(live) => self.index().put_pool(live),
                    None => self.index().drop_pool(&key, &uid),
                };
                keys.push(Key::Pool(key));
                keys
            }
            Err(error) => return Err(error.into()),
        };
        self.wake(keys);
        Ok(())
    }

    /// One status apply, skipped when nothing differs and put off when only counters do and one was just written.
    /// Answers when to come back for one that was put off.
    async fn write_pool_status(
        &self,
        snapshot: &PoolSnapshot,
        status: &VirtualMachinePoolStatus,
        now: Timestamp,
    ) -> Outcome {
        let pool = &snapshot.pool;
        let counts = [
            ("warm", status.warm),
            ("provisioning", status.provisioning),
            ("attesting", status.attesting),
            ("bound", status.bound),
            ("terminating", status.terminating),
            ("failed", status.failed),
        ];
        self.metrics.members(&snapshot.key.namespace, &snapshot.key.name, &counts);
        let standing = pool.status.clone().unwrap_or_default();
        let mut comparable = standing.clone();
        comparable.conditions.retain(|condition| status.conditions.iter().any(|ours| ours.type_ == condition.type_));
        let mut new = status.clone();
        for list in [&mut comparable.conditions, &mut new.conditions] {
            list.sort_by(|a, b| a.type_.cmp(&b.type_));
        }
        if comparable == new {
            return Ok(None);
        }
        let uid = pool.uid().unwrap_or_default();
        // A count of failures or a condition's status is not put off: the next step may rest on it.
        let weighty = standing.failures != status.failures
            || new.conditions.iter().any(|condition| {
                !comparable.conditions.iter().any(|old| old.type_ == condition.type_ && old.status == condition.status)
            });
        if !weighty && let Some(last) = self.index().pool_facts(&uid).status_written {
            let due = decide::plus(last, self.settings.coalesce);
            if due > now {
                return Ok(Some(due));
            }
        }
        let body = json!({
            "metadata": { "name": snapshot.key.name, "namespace": snapshot.key.namespace, "uid": uid },
            "status": status,
        });
        match self.api.apply::<VirtualMachinePool>(Kind::Pool, managers::CONTROLLER, true, body).await {
            Ok(written) => {
                for news in decide::pool_news(&standing.conditions, &status.conditions) {
                    self.tell_pool(pool, news);
                }
                let keys = {
                    let mut index = self.index();
                    index.update_facts(&uid, |facts| facts.status_written = Some(now));
                    index.put_pool(written)
                };
                self.wake(keys);
                if standing.failures != status.failures {
                    // Failed members that are counted now may go.
                    self.wake(vec![Key::Pool(snapshot.key.clone())]);
                }
                Ok(None)
            }
            Err(error) if error.is_not_found() || error.is_conflict() => {
                let live: Option<VirtualMachinePool> =
                    self.api.get(Kind::Pool, &snapshot.key.namespace, &snapshot.key.name).await?;
                let keys = match live {
                    Some(live) => self.index().put_pool(live),
                    None => self.index().drop_pool(&snapshot.key, &uid),
                };
                self.wake(keys);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn tell_pool(&self, pool: &VirtualMachinePool, news: News<'_>) {
        self.events.send(Event {
            kind: Kind::Pool,
            object: ObjectKey::of(pool),
            uid: pool.uid().unwrap_or_default(),
            group: pool.uid().unwrap_or_default(),
            warning: news.warning,
            reason: news.condition.reason.clone(),
            action: "Reconcile",
            message: news.text(),
        });
    }
}

/// The states of the members metric.
const STATES: [&str; 6] = ["warm", "provisioning", "attesting", "bound", "terminating", "failed"];

/// The document of a measurements ConfigMap when its content is the one that was asked for.
fn document(source: Option<&ConfigMap>, at: &ObjectKey, sha256: &str) -> Result<String, String> {
    let (namespace, name, key) = (&at.namespace, &at.name, names::MEASUREMENTS_KEY);
    let make = format!("`kubectl -n {namespace} create configmap {name} --from-file={key}` (docs/build-an-image.md)");
    let Some(source) = source else {
        return Err(format!("there is no ConfigMap {name} in namespace {namespace}: make it with {make}"));
    };
    let Some(text) = source.data.as_ref().and_then(|data| data.get(key)) else {
        let found: Vec<&str> = source.data.iter().flatten().map(|(key, _)| key.as_str()).take(8).collect();
        let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
        return Err(format!("ConfigMap {namespace}/{name} has no key {key}, its keys: {found}; make it with {make}"));
    };
    let found = hex::encode(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
    if found != sha256 {
        return Err(format!(
            "ConfigMap {namespace}/{name} has under {key} a document with SHA-256 {found}, and the pool asks for {sha256}: \
             put in the document that is meant, or its digest into attestation.measurements.sha256"
        ));
    }
    Ok(text.clone())
}

fn judge_copy(copy: &ConfigMap, pool: &VirtualMachinePool, sha256: &str, looked_at: &str) -> PolicyState {
    let name = copy.name_any();
    let remake = format!("`kubectl -n {} delete configmap {name}`", copy.namespace().unwrap_or_default());
    let refuse = |message: String| PolicyState::Missing { message, looked_at: looked_at.to_owned() };
    if document(Some(copy), &ObjectKey::of(copy), sha256).is_err() {
        return refuse(format!(
            "the pool's own copy {name} is not what it was made as: {remake}, then it is made anew"
        ));
    }
    if copy.immutable != Some(true) {
        return refuse(format!("the pool's own copy {name} can be changed: {remake}, then it is made anew"));
    }
    if !copy.owner_references().iter().any(|owner| Some(&owner.uid) == pool.metadata.uid.as_ref()) {
        return refuse(format!(
            "ConfigMap {name}, the pool's own copy by its name, is somebody else's: {remake}, then it is made anew"
        ));
    }
    PolicyState::Copied
}
