//! Whether the plugin answers, asked through SPIRE as an agent would, and told to every pool that needs it.

use banlieue_crds::{
    VirtualMachinePool,
    conditions::{self, PoolCondition, PoolReason},
    names::managers,
    pool::AttestationMode,
};
use banlieue_spire::{Client as SpireClient, agents::Probe};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{cluster::CALL_LIMIT, plugin::service::PROBE};

/// What the last probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whether it answers.
    pub answering: bool,
    /// For the condition.
    pub message: String,
}

/// Asks once.
pub async fn probe(spire: &SpireClient) -> Finding {
    match spire.probe_plugin(PROBE).await {
        Ok(Probe::Serving) => Finding { answering: true, message: "the plugin answers".to_owned() },
        Ok(Probe::Down(why)) => Finding { answering: false, message: format!("the plugin does not answer: {why}") },
        Err(error) => Finding { answering: false, message: format!("SPIRE cannot be asked: {error}") },
    }
}

/// Tells one pool, if it needs to know and does not yet.
///
/// # Errors
/// The API server's words.
pub async fn tell(client: &Client, pool: &VirtualMachinePool, finding: &Finding) -> Result<bool, String> {
    if pool.spec.attestation.mode != AttestationMode::Vtpm {
        return Ok(false);
    }
    let reason = if finding.answering { PoolReason::Answering } else { PoolReason::NotAnswering };
    let standing = pool.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let old = conditions::find(standing, PoolCondition::AttestorReachable);
    // Messages quote addresses and times; a new one alone is no news.
    let same =
        old.is_some_and(|old| old.reason == reason.as_str() && old.observed_generation == pool.metadata.generation);
    if same {
        return Ok(false);
    }
    let mut list = old.cloned().into_iter().collect();
    conditions::set(
        &mut list,
        conditions::condition(
            PoolCondition::AttestorReachable,
            finding.answering,
            reason,
            finding.message.as_str(),
            pool.metadata.generation,
            Timestamp::now(),
        ),
    );
    let name = pool.name_any();
    let body = json!({
        "apiVersion": VirtualMachinePool::api_version(&()),
        "kind": VirtualMachinePool::kind(&()),
        // As it was seen: what changed is looked at again.
        "metadata": { "name": name, "uid": pool.metadata.uid, "resourceVersion": pool.metadata.resource_version },
        "status": { "conditions": list },
    });
    let api = Api::<VirtualMachinePool>::namespaced(client.clone(), &pool.namespace().unwrap_or_default());
    let params = PatchParams::apply(managers::ATTESTOR_CONTROLLER).force();
    match tokio::time::timeout(CALL_LIMIT, api.patch_status(&name, &params, &Patch::Apply(body))).await {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(false),
        Ok(Err(error)) => Err(format!("cannot write the condition of pool {name}: {error}")),
        Err(_) => Err(format!("cannot write the condition of pool {name}: no answer in time")),
    }
}
