//! Whether the attestor answers, by the attestor controller's word on the pool.

use banlieue_crds::VirtualMachinePool;
use banlieue_crds::conditions::{self, PoolCondition};
use banlieue_crds::pool::AttestationMode;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

fn word(pool: &VirtualMachinePool) -> Option<&Condition> {
    let conditions = pool.status.as_ref().map(|status| status.conditions.as_slice())?;
    conditions::find(conditions, PoolCondition::AttestorReachable)
}

/// Whether it answers, and since when.
pub(super) fn answers(pool: &VirtualMachinePool) -> Option<(bool, Timestamp)> {
    word(pool).map(|reachable| (reachable.status == "True", reachable.last_transition_time.0))
}

/// The word that nobody can be attested now, for a pool that asks for evidence.
pub(super) fn silent(pool: &VirtualMachinePool) -> Option<String> {
    let reachable = word(pool).filter(|_| pool.spec.attestation.mode != AttestationMode::None)?;
    (reachable.status == "False").then(|| format!("the attestor does not answer: {}", reachable.message))
}
