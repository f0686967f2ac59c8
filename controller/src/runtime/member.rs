//! The PoolMember object as it is created, and owner references.

use banlieue_crds::member::MemberAttestation;
use banlieue_crds::names::{self, MemberState, finalizers, labels};
use banlieue_crds::{PoolMember, VirtualMachinePool};
use kube::ResourceExt;
use serde_json::{Value, json};

/// A new member of a pool: owner, finalizer and labels are in the create call, so none exists without them.
pub fn member_object(pool: &VirtualMachinePool, name: &str, revision: &str) -> Value {
    json!({
        "apiVersion": names::API_VERSION,
        "kind": "PoolMember",
        "metadata": {
            "name": name,
            "namespace": pool.namespace(),
            "finalizers": [finalizers::DESTROY],
            "ownerReferences": [pool_owner(pool)],
            "labels": {
                labels::POOL: pool.name_any(),
                labels::REVISION: revision,
                labels::STATE: MemberState::Provisioning.as_str(),
                labels::MANAGED_BY: labels::MANAGED_BY_VALUE,
            },
        },
        "spec": {
            "poolRef": { "name": pool.name_any(), "uid": pool.uid() },
            "revision": revision,
            "attestation": MemberAttestation::from(&pool.spec.attestation),
        },
    })
}

/// The owner reference to a pool.
pub fn pool_owner(pool: &VirtualMachinePool) -> Value {
    owner("VirtualMachinePool", &pool.name_any(), pool.uid())
}

/// The owner reference to a member.
pub fn member_owner(member: &PoolMember) -> Value {
    owner("PoolMember", &member.name_any(), member.uid())
}

fn owner(kind: &str, name: &str, uid: Option<String>) -> Value {
    json!({
        "apiVersion": names::API_VERSION, "kind": kind, "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}
