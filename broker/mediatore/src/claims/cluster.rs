//! Calls to the API server, each with a deadline, each naming what it does.

use std::{collections::BTreeMap, time::Duration};

use banlieue_crds::{
    PoolMember, VirtualMachineClaim, VirtualMachineClaimStatus,
    conditions::{self, ClaimCondition},
    names::{API_VERSION, labels, managers},
};
use k8s_openapi::{
    ByteString,
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Secret,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    grant::SECRET_KEY,
    record::{MANAGED_BY_VALUE, SLOT},
    slots::Taken,
};

/// Longest time of one call.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Attempts at a write that others overtake.
const ATTEMPTS: usize = 5;
/// Key of a grant's Secret under which refresh tokens stand.
const MATERIAL_KEY: &str = "material";
/// Value of the component label on slots.
pub const SLOT_COMPONENT: &str = "slot";
/// Kubernetes' own label for what an object is for.
pub const COMPONENT: &str = "app.kubernetes.io/component";

/// Why a call did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server said no.
    #[error("{call}: {message}")]
    Refused {
        /// What was asked.
        call: String,
        /// The HTTP status.
        code: u16,
        /// The API server's words.
        message: String,
    },
    /// Nobody knows whether it was done.
    #[error("{call}: no usable answer: {what}")]
    Unknown {
        /// What was asked.
        call: String,
        /// What happened.
        what: String,
    },
}

impl CallError {
    /// The HTTP status of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Unknown { .. } => None,
        }
    }

    /// Fixed word for metrics.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self.code() {
            None => "unknown",
            Some(403) => "denied",
            Some(404) => "absent",
            Some(409) => "conflict",
            Some(422) => "invalid",
            Some(_) => "refused",
        }
    }

    /// Whether the same call may go well later without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.code().is_none_or(|code| code == 429 || code >= 500)
    }
}

/// The API server. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

pub(crate) async fn limited<T>(call: &str, future: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match tokio::time::timeout(CALL_LIMIT, future).await {
        Err(_) => Err(CallError::Unknown { call: call.to_owned(), what: format!("none within {CALL_LIMIT:?}") }),
        Ok(Ok(done)) => Ok(done),
        Ok(Err(kube::Error::Api(status))) => {
            Err(CallError::Refused { call: call.to_owned(), code: status.code, message: status.message.clone() })
        }
        Ok(Err(other)) => Err(CallError::Unknown { call: call.to_owned(), what: other.to_string() }),
    }
}

/// Turns one refusal into an answer.
pub(crate) fn unless<T>(code: u16, outcome: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match outcome {
        Err(error) if error.code() == Some(code) => Ok(None),
        other => other.map(Some),
    }
}

pub(crate) fn post() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(managers::MEDIATORE.to_owned()) }
}

pub(crate) fn exactly(uid: Option<&str>, version: Option<&str>) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions {
        uid: uid.map(ToOwned::to_owned),
        resource_version: version.map(ToOwned::to_owned),
    })
}

impl Cluster {
    /// Over this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The client, for watches.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn get<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, CallError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let call = format!("reading {} {namespace}/{name}", K::kind(&()));
        limited(&call, self.api::<K>(namespace).get_opt(name)).await
    }

    /// A claim as it is now.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn claim(&self, namespace: &str, name: &str) -> Result<Option<VirtualMachineClaim>, CallError> {
        self.get(namespace, name).await
    }

    /// A member as it is now.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn member(&self, namespace: &str, name: &str) -> Result<Option<PoolMember>, CallError> {
        self.get(namespace, name).await
    }

    /// Whether the API server has a member of this uid: a list, for the rare peer that no watch knows.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn has_member(&self, namespace: &str, uid: &str) -> Result<bool, CallError> {
        self.has::<PoolMember>(namespace, uid).await
    }

    async fn has<K>(&self, namespace: &str, uid: &str) -> Result<bool, CallError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let call = format!("listing every {} in {namespace}", K::kind(&()));
        let list = limited(&call, self.api::<K>(namespace).list_metadata(&Default::default())).await?;
        Ok(list.items.iter().any(|object| object.metadata.uid.as_deref() == Some(uid)))
    }

    /// Whether the API server has a claim of this uid: a list, for the rare workload whose claim no watch knows.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn has_claim(&self, namespace: &str, uid: &str) -> Result<bool, CallError> {
        self.has::<VirtualMachineClaim>(namespace, uid).await
    }

    /// Makes a claim; nothing when one of that name is there.
    ///
    /// # Errors
    /// When the API server refuses, or nobody knows.
    pub async fn create_claim(&self, claim: &VirtualMachineClaim) -> Result<Option<VirtualMachineClaim>, CallError> {
        let (namespace, name) = place(claim);
        let call = format!("creating claim {namespace}/{name}");
        unless(409, limited(&call, self.api::<VirtualMachineClaim>(namespace).create(&post(), claim)).await)
    }

    /// Asks for a claim's end, in exactly this life of its name. Being gone already is fine.
    ///
    /// # Errors
    /// When it may still be there.
    pub async fn release(&self, namespace: &str, name: &str, uid: &str) -> Result<(), CallError> {
        self.end(namespace, name, uid).await.map(drop)
    }

    /// The same, and whether it was there to be asked.
    ///
    /// # Errors
    /// As [`Cluster::release`].
    pub async fn end(&self, namespace: &str, name: &str, uid: &str) -> Result<bool, CallError> {
        let call = format!("releasing claim {namespace}/{name}");
        let mut refusal = None;
        for _ in 0..ATTEMPTS {
            match self.delete_claim(&call, namespace, name, &exactly(Some(uid), None)).await {
                Err(error) if error.code() == Some(404) => return Ok(false),
                // Another life of the name, so this one is gone; or another write came in between.
                Err(error) if error.code() == Some(409) => match self.claim(namespace, name).await? {
                    Some(found) if found.metadata.uid.as_deref() == Some(uid) => {
                        if found.metadata.deletion_timestamp.is_some() {
                            return Ok(true);
                        }
                        refusal = Some(error);
                    }
                    _ => return Ok(false),
                },
                other => return other.map(|()| true),
            }
        }
        Err(refusal.unwrap_or(CallError::Unknown { call, what: "others write it at the same time".to_owned() }))
    }

    /// Asks for a claim's end if it is still exactly as it was read. Whether it was.
    ///
    /// # Errors
    /// When nobody knows.
    pub async fn release_unchanged(&self, claim: &VirtualMachineClaim) -> Result<bool, CallError> {
        let (namespace, name) = place(claim);
        let call = format!("releasing claim {namespace}/{name}");
        let meta = &claim.metadata;
        let params = exactly(meta.uid.as_deref(), meta.resource_version.as_deref());
        match self.delete_claim(&call, namespace, name, &params).await {
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(false),
            other => other.map(|()| true),
        }
    }

    async fn delete_claim(
        &self,
        call: &str,
        namespace: &str,
        name: &str,
        params: &DeleteParams,
    ) -> Result<(), CallError> {
        limited(call, self.api::<VirtualMachineClaim>(namespace).delete(name, params)).await.map(drop)
    }

    /// Notes on a claim, in exactly this life of its name, which slot it holds now. Nothing when it is gone.
    ///
    /// # Errors
    /// When the API server refuses, or nobody knows.
    pub async fn note_slot(
        &self,
        claim: &VirtualMachineClaim,
        slot: &Taken,
    ) -> Result<Option<VirtualMachineClaim>, CallError> {
        let (namespace, name) = place(claim);
        let call = format!("noting the slot of claim {namespace}/{name}");
        let patch = json!({ "metadata": { "uid": claim.metadata.uid, "annotations": { SLOT: slot.note() } } });
        let api = self.api::<VirtualMachineClaim>(namespace);
        let outcome = limited(&call, api.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await;
        unless(404, unless(409, outcome)).map(Option::flatten)
    }

    /// The sealed grant of a claim, if there is one.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn sealed_grant(&self, namespace: &str, claim_uid: &str) -> Result<Option<Vec<u8>>, CallError> {
        self.sealed(namespace, claim_uid, SECRET_KEY).await
    }

    /// The sealed refresh tokens that stand beside a claim's grant, if there are any.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn sealed_material(&self, namespace: &str, claim_uid: &str) -> Result<Option<Vec<u8>>, CallError> {
        self.sealed(namespace, claim_uid, MATERIAL_KEY).await
    }

    async fn sealed(&self, namespace: &str, claim_uid: &str, key: &str) -> Result<Option<Vec<u8>>, CallError> {
        let secret: Option<Secret> = self.get(namespace, &grant_name(claim_uid)).await?;
        Ok(secret.and_then(|secret| secret.data?.remove(key)).map(|ByteString(bytes)| bytes))
    }

    /// Stores the sealed grant of a claim, which owns it, with the sealed refresh tokens of its audiences, if there are
    /// any. One that is there stays, and is for the caller to look at.
    ///
    /// # Errors
    /// When it may not be there.
    pub async fn create_grant(
        &self,
        claim: &VirtualMachineClaim,
        sealed: Vec<u8>,
        material: Option<Vec<u8>>,
    ) -> Result<(), CallError> {
        let data = [(SECRET_KEY, Some(sealed)), (MATERIAL_KEY, material)];
        let data = data.into_iter().filter_map(|(key, bytes)| Some((key.to_owned(), ByteString(bytes?)))).collect();
        let (namespace, name) = place(claim);
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(grant_name(&uid)),
                labels: Some(ours("grant")),
                owner_references: Some(vec![OwnerReference {
                    api_version: API_VERSION.to_owned(),
                    kind: "VirtualMachineClaim".to_owned(),
                    name: name.to_owned(),
                    uid,
                    controller: Some(true),
                    block_owner_deletion: None,
                }]),
                ..ObjectMeta::default()
            },
            data: Some(data),
            immutable: Some(true),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        let call = format!("storing the grant of claim {namespace}/{name}");
        unless(409, limited(&call, self.api::<Secret>(namespace).create(&post(), &secret)).await).map(drop)
    }

    /// Takes a slot for a claim; nothing when somebody has it.
    ///
    /// # Errors
    /// When nobody knows; then the slot may be taken.
    pub async fn take_slot(&self, namespace: &str, slot: &str, claim: &str) -> Result<Option<Taken>, CallError> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(slot.to_owned()),
                labels: Some(ours(SLOT_COMPONENT)),
                ..ObjectMeta::default()
            },
            spec: Some(holder(claim)),
        };
        let call = format!("taking slot {namespace}/{slot}");
        let made = unless(409, limited(&call, self.api::<Lease>(namespace).create(&post(), &lease)).await)?;
        Ok(made.and_then(|lease| taken(&lease)))
    }

    /// Takes over the slot that an earlier attempt for the same claim left; nothing when it is not that claim's (any
    /// more). It has a new version afterwards, so whoever is about to sweep it does not.
    ///
    /// # Errors
    /// When nobody knows.
    pub async fn retake_slot(&self, namespace: &str, slot: &str, claim: &str) -> Result<Option<Taken>, CallError> {
        let call = format!("retaking slot {namespace}/{slot}");
        loop {
            let Some(mut lease) = self.get::<Lease>(namespace, slot).await? else { return Ok(None) };
            if lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) != Some(claim) {
                return Ok(None);
            }
            lease.spec = Some(holder(claim));
            match limited(&call, self.api::<Lease>(namespace).replace(slot, &post(), &lease)).await {
                Err(error) if error.code() == Some(404) => return Ok(None),
                // Another attempt for the same claim wrote it in between: it is as much ours as before. Of those that
                // write at once one succeeds each time, so this ends.
                Err(error) if error.code() == Some(409) => {}
                other => return other.map(|lease| taken(&lease)),
            }
        }
    }

    /// Frees a slot, if it is still as it was taken.
    ///
    /// # Errors
    /// When it may still be there.
    pub async fn free_slot(&self, namespace: &str, slot: &Taken) -> Result<(), CallError> {
        let call = format!("freeing slot {namespace}/{}", slot.name);
        let params = exactly(Some(&slot.uid), Some(&slot.version));
        match limited(&call, self.api::<Lease>(namespace).delete(&slot.name, &params)).await {
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Writes mediatore's part of a claim's status as `status` has it, on exactly the version that was read. Nothing
    /// when another write came first.
    ///
    /// # Errors
    /// When the API server refuses, or nobody knows.
    pub async fn report(
        &self,
        claim: &VirtualMachineClaim,
        status: &VirtualMachineClaimStatus,
    ) -> Result<Option<VirtualMachineClaim>, CallError> {
        let (namespace, name) = place(claim);
        let mine = [ClaimCondition::IdentityReady, ClaimCondition::WorkloadRunning];
        let kept: Vec<_> =
            mine.iter().filter_map(|kind| conditions::find(&status.conditions, kind.as_str()).cloned()).collect();
        let mut part = json!({ "workload": status.workload, "conditions": kept });
        if let (Some(id), Some(part)) = (&status.spiffe_id, part.as_object_mut()) {
            part.insert("spiffeId".to_owned(), Value::from(id.as_str()));
        }
        let patch = json!({
            "apiVersion": API_VERSION, "kind": "VirtualMachineClaim",
            "metadata": { "name": name, "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version },
            "status": part,
        });
        let call = format!("reporting on claim {namespace}/{name}");
        let params = PatchParams::apply(managers::MEDIATORE).force();
        let api = self.api::<VirtualMachineClaim>(namespace);
        unless(409, limited(&call, api.patch_status(name, &params, &Patch::Apply(patch))).await)
    }

    /// All claims of a namespace, live.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn claims(&self, namespace: &str) -> Result<Vec<VirtualMachineClaim>, CallError> {
        let call = format!("listing claims in {namespace}");
        Ok(limited(&call, self.api::<VirtualMachineClaim>(namespace).list(&Default::default())).await?.items)
    }
}

/// Name of the Secret with a claim's grant. By uid: a name's earlier life may have left one.
#[must_use]
pub fn grant_name(claim_uid: &str) -> String {
    format!("grant-{claim_uid}")
}

/// Namespace and name.
pub(crate) fn place(claim: &VirtualMachineClaim) -> (&str, &str) {
    (claim.metadata.namespace.as_deref().unwrap_or_default(), claim.metadata.name.as_deref().unwrap_or_default())
}

pub(crate) fn ours(component: &str) -> BTreeMap<String, String> {
    [(labels::MANAGED_BY.to_owned(), MANAGED_BY_VALUE.to_owned()), (COMPONENT.to_owned(), component.to_owned())].into()
}

fn holder(claim: &str) -> LeaseSpec {
    let now = MicroTime(jiff::Timestamp::now());
    LeaseSpec { holder_identity: Some(claim.to_owned()), renew_time: Some(now), ..LeaseSpec::default() }
}

/// A slot as its Lease is now.
pub(crate) fn taken(lease: &Lease) -> Option<Taken> {
    Some(Taken {
        name: lease.metadata.name.clone()?,
        uid: lease.metadata.uid.clone()?,
        version: lease.metadata.resource_version.clone()?,
    })
}
