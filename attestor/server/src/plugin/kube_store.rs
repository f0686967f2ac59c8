//! [`Store`] over the API server: watches for the first look and for who else has a key, live reads for the decision.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use banlieue_crds::{
    EndorsementReport, PoolMember, VirtualMachineClaim, VirtualMachinePool,
    kubevirt::VirtualMachineInstance,
    names::{enrolment_secret, managers},
    pool::Endorsement,
    received::Received,
};
use banlieue_policy::Digest;
use banlieue_protocol::seed::EnrolmentSecret;
use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Secret};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    runtime::{
        events::{Event, EventType, Recorder, Reporter},
        reflector::ObjectRef,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    enrolments::Enrolments,
    read,
    store::{Glance, Store, StoreError},
};
use crate::{
    checks::{Refusal, admit::Mode, hello::Hello, verify::Verified},
    cluster::{CALL_LIMIT, Store as Memory, Watched, client},
    controller::reports::is_tombstone_of,
    facts::{Facts, KeyElsewhere, Member, Pin, Policy},
    policies::Policies,
    unread::{self, Unread},
};

/// How long an answer to "ready?" is good.
const READY_FOR: Duration = Duration::from_secs(2);
/// Events carry at most a kibibyte.
const MOST_NOTE: usize = 1000;
/// Messages on members.
const MOST_MESSAGE: usize = 2000;

/// The cluster.
pub struct KubeStore {
    client: Client,
    members: Watched<PoolMember>,
    reports: Watched<EndorsementReport>,
    policies: Policies,
    enrolments: Enrolments,
    ready: Mutex<Option<(Instant, Result<(), StoreError>)>>,
    recorder: Recorder,
}

fn filled<K>(watched: &Watched<K>) -> Result<&Memory<K>, StoreError>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    watched.filled().ok_or_else(|| unavailable(&format!("list {}", K::plural(&())), "the first list is not complete"))
}

fn unavailable(what: &str, why: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable { what: what.to_owned(), why: why.to_string() }
}

impl KubeStore {
    /// Starts the watches; does not wait for them, for SPIRE ends when its plugin cannot be configured.
    ///
    /// # Errors
    /// When the configuration is wrong.
    pub async fn connect(kubeconfig: Option<&str>, unread: Unread) -> Result<Self, String> {
        Ok(Self::new(client(kubeconfig).await?, unread))
    }

    /// With a client.
    #[must_use]
    pub fn new(client: Client, unread: Unread) -> Self {
        Self {
            members: Watched::start(Api::all(client.clone()), unread.clone()),
            reports: Watched::start(Api::all(client.clone()), unread),
            policies: Policies::new(client.clone()),
            enrolments: Enrolments::default(),
            ready: Mutex::default(),
            recorder: Recorder::new(
                client.clone(),
                Reporter { controller: managers::ATTESTOR.to_owned(), instance: None },
            ),
            client,
        }
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn get<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, StoreError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let what = format!("read {} {namespace}/{name}", K::plural(&()));
        bounded(&what, self.api::<K>(namespace).get_opt(name)).await
    }

    async fn policy(&self, namespace: &str, pool: &str, digest: Digest) -> Result<Option<Arc<Policy>>, StoreError> {
        self.policies
            .get(namespace, pool, digest)
            .await
            .map_err(|why| unavailable(&format!("read the policy of pool {namespace}/{pool}"), why))
    }

    fn key_elsewhere(&self, hello: &Hello) -> Result<KeyElsewhere, StoreError> {
        let key = hello.ek.to_string();
        let own = hello.m1.uid.as_str();
        let members = filled(&self.members)?;
        let other = |ending: bool| {
            let found = members.find(|member| {
                let pinned = unread::read(member)
                    .and_then(|member| member.status.as_ref())
                    .and_then(|status| status.endorsement.as_ref());
                member.uid().as_deref() != Some(own)
                    && member.meta().deletion_timestamp.is_some() == ending
                    && pinned.is_some_and(|pinned| pinned.ek_digest == key)
            })?;
            Some(format!("{}/{}", found.namespace().unwrap_or_default(), found.name_any()))
        };
        let pinned_to = other(false);
        let ending = other(true).map(|member| format!("member {member}"));
        let tombstone = filled(&self.reports)?
            .find(|report| unread::read(report).is_some_and(|report| is_tombstone_of(report, &key)))
            .map(|report| format!("report {}/{}", report.namespace().unwrap_or_default(), report.name_any()));
        Ok(KeyElsewhere { pinned_to, tombstone: ending.or(tombstone) })
    }

    async fn patch_status(&self, member: &Member, status: Value) -> Result<(), StoreError> {
        let name = format!("{}/{}", member.namespace, member.name);
        let patch = Patch::Merge(json!({
            "metadata": { "uid": member.uid, "resourceVersion": member.resource_version },
            "status": status,
        }));
        let params = PatchParams { field_manager: Some(managers::ATTESTOR.to_owned()), ..PatchParams::default() };
        let api = self.api::<PoolMember>(&member.namespace);
        let call = api.patch_status(&member.name, &params, &patch);
        match tokio::time::timeout(CALL_LIMIT, call).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(StoreError::Conflict(name)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Err(StoreError::NotFound(name)),
            Ok(Err(error)) => Err(unavailable(&format!("write member {name}"), error)),
            Err(_) => Err(unavailable(&format!("write member {name}"), "no answer in time")),
        }
    }
}

async fn bounded<T>(what: &str, call: impl Future<Output = kube::Result<T>>) -> Result<T, StoreError> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(result) => result.map_err(|error| unavailable(what, error)),
        Err(_) => Err(unavailable(what, "no answer in time")),
    }
}

#[async_trait]
impl Store for KubeStore {
    fn glance(&self, hello: &Hello) -> Result<Glance, StoreError> {
        let m1 = &hello.m1;
        let key = ObjectRef::<Received<PoolMember>>::new(m1.member.as_str()).within(m1.namespace.as_str());
        let Some(member) = filled(&self.members)?.get(&key) else { return Ok(Glance::Unknown) };
        if member.uid().as_deref() != Some(m1.uid.as_str()) {
            return Ok(Glance::Unknown);
        }
        let Some(member) = unread::read(&member) else {
            return Err(unavailable(&format!("read member {key}"), "it does not fit its type"));
        };
        // A pin never changes, so an old view of it is a right one.
        let pinned = member.status.as_ref().and_then(|status| status.endorsement.as_ref());
        Ok(match pinned {
            None => Glance::Unpinned,
            Some(pinned) if pinned.ek_digest == hello.ek.to_string() => Glance::Pinned,
            Some(_) => Glance::OtherKey,
        })
    }

    async fn enrolment(&self, hello: &Hello) -> Result<Option<EnrolmentSecret>, StoreError> {
        let (namespace, name) = (hello.m1.namespace.as_str(), enrolment_secret(hello.m1.member.as_str()));
        self.enrolments
            .get(hello.m1.uid.as_str(), async || {
                let secret = self.get::<Secret>(namespace, &name).await?;
                Ok(secret.as_ref().and_then(read::enrolment).map(|enrolment| enrolment.secret))
            })
            .await
    }

    async fn facts(&self, hello: &Hello) -> Result<Facts, StoreError> {
        let (namespace, name) = (hello.m1.namespace.as_str(), hello.m1.member.as_str());
        let object = self
            .get::<PoolMember>(namespace, name)
            .await?
            .ok_or_else(|| StoreError::NotFound(format!("{namespace}/{name}")))?;
        let member = read::member(&object);
        let instance_name = member.instance.as_ref().map(|(name, _)| name.clone());
        let instance_uid = member.instance.as_ref().map(|(_, uid)| uid.clone());

        let instance = async {
            match &instance_name {
                Some(name) => self.get::<VirtualMachineInstance>(namespace, name).await,
                None => Ok(None),
            }
        };
        let claim = async {
            match &object.spec.claim_ref {
                Some(claim) => self.get::<VirtualMachineClaim>(namespace, &claim.name).await,
                None => Ok(None),
            }
        };
        let secret = async {
            match &member.pin {
                None => self.get::<Secret>(namespace, &enrolment_secret(name)).await,
                Some(_) => Ok(None),
            }
        };
        let reports = async {
            let Some(uid) = &instance_uid else { return Ok(Vec::new()) };
            let params = ListParams::default().fields(&format!("spec.instanceUid={uid}"));
            let what = format!("list the reports on instance {uid}");
            // One that cannot be read speaks for nobody, and keeps no other from speaking.
            Ok(bounded(&what, self.api::<Received<EndorsementReport>>(namespace).list(&params)).await?.items)
        };
        let pool = self.get::<VirtualMachinePool>(namespace, &object.spec.pool_ref.name);
        let (instance, claim, secret, reports, pool) = tokio::try_join!(instance, claim, secret, reports, pool)?;
        let pool = pool.filter(|pool| pool.uid().as_deref() == Some(object.spec.pool_ref.uid.as_str()));

        let policy = match read::policy_digest(&object) {
            Some(digest) => self.policy(namespace, &object.spec.pool_ref.name, digest).await?,
            None => None,
        };
        Ok(Facts {
            claim: read::claim(&object, claim.as_ref(), Timestamp::now()),
            instance: instance.as_ref().map(read::instance),
            pool: pool.as_ref().map(read::pool),
            policy,
            reports: reports.iter().filter_map(unread::read).map(read::report).collect(),
            enrolment: secret.as_ref().and_then(read::enrolment),
            key_elsewhere: self.key_elsewhere(hello)?,
            member,
        })
    }

    async fn record(&self, member: &Member, verified: &Verified, now: Timestamp) -> Result<(), StoreError> {
        self.patch_status(member, recorded(verified, now)).await
    }

    async fn refuse(&self, member: &Member, refusal: &Refusal, now: Timestamp) -> Result<(), StoreError> {
        match self.patch_status(member, refused(member, refusal, now)).await {
            Err(StoreError::Conflict(_)) => {}
            other => return other,
        }
        // The refusal is true of the member whatever else changed, as long as it is this life of the name.
        let Some(fresh) = self.get::<PoolMember>(&member.namespace, &member.name).await? else { return Ok(()) };
        if fresh.uid().as_deref() != Some(member.uid.as_str()) {
            return Ok(());
        }
        let newest =
            fresh.status.as_ref().and_then(|status| status.attestation.as_ref()?.verified_at.as_ref().map(|at| at.0));
        if newest != member.record.as_ref().map(|record| record.verified_at) {
            // Evidence was accepted since: the refusal is of the past.
            return Ok(());
        }
        let fresh = read::member(&fresh);
        self.patch_status(&fresh, refused(&fresh, refusal, now)).await
    }

    fn event(&self, member: &Member, refusal: &Refusal) {
        let mut reference = PoolMember::new(&member.name, Default::default()).object_ref(&());
        reference.namespace = Some(member.namespace.clone());
        reference.uid = Some(member.uid.clone());
        let event = Event {
            type_: EventType::Warning,
            reason: "AttestationRefused".to_owned(),
            note: Some(cut(&refusal.to_string(), MOST_NOTE)),
            action: "Attest".to_owned(),
            secondary: None,
        };
        let recorder = self.recorder.clone();
        tokio::spawn(async move {
            let published = tokio::time::timeout(CALL_LIMIT, recorder.publish(&event, &reference)).await;
            if !matches!(published, Ok(Ok(()))) {
                tracing::debug!("an event could not be written");
            }
        });
    }

    async fn ready(&self) -> Result<(), StoreError> {
        filled(&self.members)?;
        filled(&self.reports)?;
        if let Some((at, answer)) = &*self.ready.lock().unwrap_or_else(PoisonError::into_inner)
            && at.elapsed() < READY_FOR
        {
            return answer.clone();
        }
        let pools = Api::<VirtualMachinePool>::all(self.client.clone());
        let answer =
            bounded("ask the API server", pools.list_metadata(&ListParams::default().limit(1))).await.map(|_| ());
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), answer.clone()));
        answer
    }
}

/// The status that a refusal of the member's own evidence writes.
fn refused(member: &Member, refusal: &Refusal, now: Timestamp) -> Value {
    let mut status = json!({ "attestation": { "refusal": {
        "at": time(now),
        "reason": refusal.reason.as_str(),
        "message": cut(&refusal.detail, MOST_MESSAGE),
    }}});
    if let (None, Some(proved), Some(status)) = (&member.pin, &refusal.proved, status.as_object_mut()) {
        status.insert("endorsement".to_owned(), pin(proved, now));
        status.insert("enrolment".to_owned(), json!({ "consumedAt": time(now) }));
    }
    status
}

fn pin(pin: &Pin, now: Timestamp) -> Value {
    let source = match pin.source {
        Endorsement::HostReported => "HostReported",
        Endorsement::FirstUse => "FirstUse",
    };
    json!({ "source": source, "ekDigest": pin.ek.to_string(), "pinnedAt": time(now) })
}

/// The status that a successful attestation writes.
fn recorded(verified: &Verified, now: Timestamp) -> Value {
    let admitted = &verified.admitted;
    let mut status = json!({
        "attestation": {
            "verifiedAt": time(now),
            "policyDigest": admitted.policy.digest.to_string(),
            "akName": verified.ak_name,
            "resetCount": verified.clock.reset_count,
            "restartCount": verified.clock.restart_count,
            "clock": verified.clock.clock,
            "latched": verified.latched,
            // A merge patch removes what is null: good evidence ends an old refusal.
            "refusal": null,
        },
    });
    if admitted.mode == Mode::First
        && let Some(status) = status.as_object_mut()
    {
        let key = Pin { source: admitted.endorsement, ek: admitted.hello.ek };
        status.insert("endorsement".to_owned(), pin(&key, now));
        status.insert("enrolment".to_owned(), json!({ "consumedAt": time(now) }));
    }
    status
}

/// RFC 3339 with microseconds, as all our fields.
fn time(at: Timestamp) -> String {
    format!("{at:.6}")
}

fn cut(text: &str, most: usize) -> String {
    let end = text.floor_char_boundary(most);
    match text.get(..end) {
        Some(start) if end < text.len() => format!("{start}…"),
        _ => text.to_owned(),
    }
}
