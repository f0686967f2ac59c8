//! Every name that more than one program must spell alike: labels, annotations, finalizers, field managers, service
//! accounts, and the names of objects that are derived from others.

use std::fmt;

/// API group of our kinds.
pub const GROUP: &str = "banlieue.io";
/// API version of our kinds.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of our kinds.
pub const API_VERSION: &str = "banlieue.io/v1alpha1";
/// What our label, annotation and finalizer keys begin with. Templates may not set such keys.
pub const KEY_PREFIX: &str = "banlieue.io/";

/// Labels on members, instances and what belongs to them.
pub mod labels {
    /// Name of the pool.
    pub const POOL: &str = "banlieue.io/pool";
    /// Revision of the pool that the member was made from.
    pub const REVISION: &str = "banlieue.io/revision";
    /// [`MemberState`](super::MemberState) of a member.
    pub const STATE: &str = "banlieue.io/state";
    /// Name of the member, on its instance (and so on its launcher pod), its Secret and other objects made for it.
    pub const MEMBER: &str = "banlieue.io/member";
    /// uid of the member, on the same objects.
    pub const MEMBER_UID: &str = "banlieue.io/member-uid";
    /// Kubernetes' own label for who made an object; ours say [`MANAGED_BY_VALUE`].
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Value of [`MANAGED_BY`] on what the controller makes.
    pub const MANAGED_BY_VALUE: &str = "banlieue";
}

/// Annotations that people or programs set on our objects.
pub mod annotations {
    /// On a pool, `"true"`: mode None is meant.
    pub const ALLOW_UNATTESTED: &str = "banlieue.io/allow-unattested";
    /// On a pool, [`DRAIN_NOW`]: its deletion ends bound members too.
    pub const DRAIN: &str = "banlieue.io/drain";
    /// Value of [`DRAIN`] that ends bound members.
    pub const DRAIN_NOW: &str = "now";
    /// On a member, a reason: quarantines it and ends its claim.
    pub const QUARANTINE: &str = "banlieue.io/quarantine";
    /// On a claim, set by an operator: stop waiting for the member to be verified gone.
    pub const FORCE_RELEASE: &str = "banlieue.io/force-release";
}

/// Finalizers, each removed by the controller alone.
pub mod finalizers {
    /// On a pool until its members are gone.
    pub const DRAIN: &str = "banlieue.io/drain";
    /// On a member until instance, launcher pod and Secret are verified gone and its identity is revoked.
    pub const DESTROY: &str = "banlieue.io/destroy";
    /// On a claim until its member is verified gone.
    pub const CLAIM_PROTECTION: &str = "banlieue.io/claim-protection";
}

/// Field managers, one for each writer of `docs/reference/api.md`, "Who writes what".
pub mod managers {
    /// Controller: members, instances, Secrets, network policies, state labels, pool and claim status.
    pub const CONTROLLER: &str = "banlieue-controller";
    /// Controller: a member's claimRef with its label.
    pub const BINDER: &str = "banlieue-binder";
    /// Controller: member status.
    pub const STATUS: &str = "banlieue-status";
    /// Server plugin: endorsement, attestation, consumed enrolment.
    pub const ATTESTOR: &str = "banlieue-attestor";
    /// Attestor controller: Attested, IdentityRevoked, AttestorReachable, ended reports.
    pub const ATTESTOR_CONTROLLER: &str = "banlieue-attestor-controller";
    /// mediatore: claims, workload state, IdentityReady, WorkloadRunning.
    pub const MEDIATORE: &str = "mediatore";
    /// The node's daemon or the local hypervisor: endorsement reports.
    pub const NODE_REPORTER: &str = "banlieue-node-reporter";
}

/// Service accounts of the system namespace, as the chart makes them.
pub mod accounts {
    /// Namespace of our programs by default.
    pub const SYSTEM_NAMESPACE: &str = "banlieue-system";
    /// The controller.
    pub const CONTROLLER: &str = "banlieue-controller";
    /// The server plugin in spire-server's pod.
    pub const ATTESTOR: &str = "banlieue-attestor";
    /// The attestor controller.
    pub const ATTESTOR_CONTROLLER: &str = "banlieue-attestor-controller";
    /// The writer of endorsement reports; its tokens are bound to a Node.
    pub const NODE_REPORTER: &str = "banlieue-node-reporter";
    /// The broker.
    pub const MEDIATORE: &str = "mediatore";
    /// Every account, for charts and tests.
    pub const ALL: [&str; 5] = [CONTROLLER, ATTESTOR, ATTESTOR_CONTROLLER, NODE_REPORTER, MEDIATORE];

    /// User name that a service account has towards the API server.
    pub fn username(namespace: &str, account: &str) -> String {
        format!("system:serviceaccount:{namespace}:{account}")
    }
}

/// Value of the label [`labels::STATE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// On its way.
    Provisioning,
    /// Ready and unbound.
    Warm,
    /// Has a claimRef. Set in the same write, never taken back.
    Bound,
    /// Failed or quarantined.
    Failed,
}

impl MemberState {
    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "provisioning",
            Self::Warm => "warm",
            Self::Bound => "bound",
            Self::Failed => "failed",
        }
    }

    /// Reads the label's value; anything else is no state of ours.
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "provisioning" => Some(Self::Provisioning),
            "warm" => Some(Self::Warm),
            "bound" => Some(Self::Bound),
            "failed" => Some(Self::Failed),
            _ => None,
        }
    }
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Ending of an enrolment Secret's name.
pub const ENROLMENT_SUFFIX: &str = "-enrol";
/// Volume, disk and file-system label of the seed in an instance.
pub const ENROLMENT_VOLUME: &str = "banlieue-enrol";
/// Key of a measurements ConfigMap that holds the document.
pub const MEASUREMENTS_KEY: &str = "measurements.yaml";
/// Key of the trust bundle's ConfigMap that holds the PEM bundle.
pub const BUNDLE_KEY: &str = "bundle.crt";

/// Name of a member's enrolment Secret.
pub fn enrolment_secret(member: &str) -> String {
    format!("{member}{ENROLMENT_SUFFIX}")
}

/// Name of the immutable ConfigMap that keeps a pool's policy: `<pool>-policy-<first 12 hex of its SHA-256>`.
pub fn policy_config_map(pool: &str, sha256: &str) -> String {
    let digits: String = sha256.chars().take(12).collect();
    format!("{pool}-policy-{digits}")
}

/// Name of the report that one node makes about one instance.
pub fn endorsement_report(instance_uid: &str, node: &str) -> String {
    format!("{instance_uid}.{node}")
}

/// Name of the NetworkPolicy that the controller keeps for a pool's members.
pub fn network_policy(pool: &str) -> String {
    format!("{pool}-members")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_names() {
        assert_eq!(enrolment_secret("demo-x2x4z"), "demo-x2x4z-enrol");
        assert_eq!(policy_config_map("demo", &"ab".repeat(32)), "demo-policy-abababababab");
        assert_eq!(endorsement_report("u", "n"), "u.n");
        assert_eq!(
            accounts::username("banlieue-system", "mediatore"),
            "system:serviceaccount:banlieue-system:mediatore"
        );
    }

    #[test]
    fn states_read_back() {
        for state in [MemberState::Provisioning, MemberState::Warm, MemberState::Bound, MemberState::Failed] {
            assert_eq!(MemberState::parse(state.as_str()), Some(state));
        }
        assert_eq!(MemberState::parse("Warm"), None);
    }
}
