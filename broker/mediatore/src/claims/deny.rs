//! Calls to the API server that take rights away for good: denied subjects, quarantined members.
//!
//! A subject is denied by a key of the ConfigMap [`DENIED`], in each namespace. mediatore alone may write that object: the
//! admission policy `denied-subjects` keeps everybody else from it.

use banlieue_crds::{PoolMember, names::annotations};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams};
use serde_json::json;

use super::cluster::{CallError, Cluster, limited, ours, post, unless};

/// Name of the ConfigMap whose keys are the subjects that may not claim.
pub const DENIED: &str = "mediatore-denied";

impl Cluster {
    /// Quarantines a member. Whether it was there.
    ///
    /// # Errors
    /// When it may not be done.
    pub async fn quarantine(&self, namespace: &str, member: &str, reason: &str) -> Result<bool, CallError> {
        let call = format!("quarantining member {namespace}/{member}");
        let patch = json!({ "metadata": { "annotations": { annotations::QUARANTINE: reason } } });
        let api = self.api::<PoolMember>(namespace);
        let outcome = limited(&call, api.patch(member, &PatchParams::default(), &Patch::Merge(patch))).await;
        unless(404, outcome).map(|found| found.is_some())
    }

    /// Denies a subject in a namespace, by its key. Whether it was not denied there before.
    ///
    /// # Errors
    /// When it may not be done.
    pub async fn deny(&self, namespace: &str, subject: &str, reason: &str) -> Result<bool, CallError> {
        if self.is_denied(namespace, subject).await? {
            return Ok(false);
        }
        let api = self.api::<ConfigMap>(namespace);
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(DENIED.to_owned()),
                labels: Some(ours("denied-subjects")),
                ..ObjectMeta::default()
            },
            data: Some([(subject.to_owned(), reason.to_owned())].into()),
            ..ConfigMap::default()
        };
        let call = format!("denying a subject in {namespace}");
        if unless(409, limited(&call, api.create(&post(), &map)).await)?.is_some() {
            return Ok(true);
        }
        let patch = json!({ "data": { subject: reason } });
        limited(&call, api.patch(DENIED, &PatchParams::default(), &Patch::Merge(patch))).await.map(|_| true)
    }

    /// Whether a subject is denied in a namespace, now.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn is_denied(&self, namespace: &str, subject: &str) -> Result<bool, CallError> {
        let map: Option<ConfigMap> = self.get(namespace, DENIED).await?;
        Ok(map.and_then(|map| map.data).is_some_and(|data| data.contains_key(subject)))
    }
}
