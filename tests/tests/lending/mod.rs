//! What the tests of lending share: one cluster with weightless nodes and our controller, pools and claims to start
//! from, and what must hold at every moment.
#![allow(dead_code)] // each test binary uses its part

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Deref;

use banlieue_cluster::Cluster;
use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::kubevirt::VirtualMachineInstance;
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool, conditions};
use banlieue_tests::objects::{self, template};
use banlieue_tests::space::{self, Space};
pub use banlieue_tests::wait::eventually;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;
use tokio::sync::OnceCell;

/// Never dropped: it ends with the test process, whose end closes the lifeline.
static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();

/// Nothing boots it.
const IMAGE: &str = "registry.local/banlieue/guest:dev";
/// User name of our controller in the audit log.
pub const CONTROLLER: &str = "system:serviceaccount:banlieue-system:banlieue-controller";

/// Runs one test in a namespace of its own.
pub fn test<F: Future<Output = ()>>(body: impl FnOnce(Fixture) -> F) {
    space::run(async { body(Fixture::new().await).await });
}

/// A pool namespace of a cluster that lends.
pub struct Fixture(Space);

impl Deref for Fixture {
    type Target = Space;

    fn deref(&self) -> &Space {
        &self.0
    }
}

async fn start() -> Cluster {
    let builder = Cluster::builder().nodes("w-1=weightless,w-2=weightless").controller();
    builder.start().await.unwrap_or_else(|error| panic!("{error}"))
}

/// A pool of mode None on weightless nodes.
pub fn pool_object(name: &str, warm: u32, max: u32, surge: u32) -> VirtualMachinePool {
    serde_json::from_value(json!({
        "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachinePool",
        "metadata": { "name": name, "annotations": { "banlieue.io/allow-unattested": "true" } },
        "spec": {
            "warmReplicas": warm, "maxReplicas": max, "maxSurge": surge,
            "template": { "kubeVirt": { "spec": template("weightless", "32Mi", IMAGE) } },
            "attestation": { "mode": "None" },
            "claimPolicy": {
                "allowedImages": ["*"], "maxClaimsPerSubject": 1000, "maxBindDeadlineSeconds": 3600,
            },
        },
    }))
    .unwrap()
}

impl Fixture {
    async fn new() -> Self {
        Self::of(CLUSTER.get_or_init(start).await).await
    }

    /// A namespace of a cluster that is a test's own.
    pub async fn of(cluster: &'static Cluster) -> Self {
        Self(Space::new(cluster).await)
    }

    /// Makes a pool.
    pub async fn pool(&self, name: &str, warm: u32, max: u32, surge: u32) -> VirtualMachinePool {
        let pool = pool_object(name, warm, max, surge);
        self.all::<VirtualMachinePool>().create(&PostParams::default(), &pool).await.unwrap()
    }

    /// Posts a claim for a subject of its own, as the broker does but without a finalizer.
    pub async fn claim(&self, pool: &str, name: &str, ttl: u32) -> VirtualMachineClaim {
        self.claim_for(&format!("subject-{name}"), pool, name, ttl).await
    }

    /// Posts a claim for a subject.
    pub async fn claim_for(&self, subject: &str, pool: &str, name: &str, ttl: u32) -> VirtualMachineClaim {
        let spec = json!({
            "ttlSeconds": ttl, "bindDeadlineSeconds": 3600, "retentionSeconds": 1,
            "subject": { "issuer": "https://issuer.example", "id": subject },
        });
        objects::claim(self.cluster, &self.namespace, pool, name, spec).await
    }

    /// Reasons of the events about one object, as `kind/name`.
    pub async fn told(&self, object: &str) -> Vec<String> {
        let events = self.all::<Event>().list(&ListParams::default()).await.unwrap();
        let about = |event: &Event| {
            event.regarding.as_ref().is_some_and(|it| {
                format!("{}/{}", it.kind.clone().unwrap_or_default(), it.name.clone().unwrap_or_default()) == object
            })
        };
        events.items.into_iter().filter(about).filter_map(|event| event.reason).collect()
    }

    /// Waits for an event about an object.
    pub async fn is_told(&self, object: &str, reason: &str) {
        eventually(&format!("{object} tells {reason}"), async || {
            self.told(object).await.iter().any(|told| told == reason)
        })
        .await;
    }

    pub async fn release(&self, name: &str) {
        self.all::<VirtualMachineClaim>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub async fn pool_is_warm(&self, name: &str) {
        let api = self.all::<VirtualMachinePool>();
        eventually(&format!("pool {name} is warm"), async || {
            let pool = api.get(name).await.unwrap();
            let status = pool.status.unwrap_or_default();
            status.observed_generation == pool.metadata.generation
                && status.warm >= pool.spec.warm_replicas
                && conditions::is_true(&status.conditions, "Ready")
        })
        .await;
    }

    pub async fn phase_is(&self, claim: &str, phase: ClaimPhase) -> VirtualMachineClaim {
        let api = self.all::<VirtualMachineClaim>();
        let mut found = None;
        eventually(&format!("claim {claim} is {phase:?}"), async || {
            found = api.get_opt(claim).await.unwrap();
            found.as_ref().and_then(|claim| claim.status.as_ref()?.phase) == Some(phase)
        })
        .await;
        found.unwrap()
    }

    pub async fn claim_is_gone(&self, claim: &str) {
        let api = self.all::<VirtualMachineClaim>();
        eventually(&format!("claim {claim} is gone"), async || api.get_opt(claim).await.unwrap().is_none()).await;
    }

    /// Nothing of a member is left.
    pub async fn member_is_gone(&self, name: &str) {
        assert!(self.all::<PoolMember>().get_opt(name).await.unwrap().is_none(), "member {name}");
        assert!(self.all::<VirtualMachineInstance>().get_opt(name).await.unwrap().is_none(), "instance {name}");
        let of_member = ListParams::default().labels(&format!("banlieue.io/member={name}"));
        let pods = self.all::<Pod>().list(&of_member).await.unwrap();
        assert_eq!(pods.items.len(), 0, "launcher pods of {name}");
    }

    pub async fn members(&self) -> Vec<PoolMember> {
        self.all::<PoolMember>().list(&ListParams::default()).await.unwrap().items
    }

    pub async fn claims(&self) -> Vec<VirtualMachineClaim> {
        self.all::<VirtualMachineClaim>().list(&ListParams::default()).await.unwrap().items
    }
}

/// What was ever seen bound to what. A member that is seen with two claims, or a claim with two members, is a defect.
#[derive(Default)]
pub struct Bindings {
    by_member: BTreeMap<String, String>,
    by_claim: BTreeMap<String, String>,
}

impl Bindings {
    pub fn see(&mut self, members: &[PoolMember], claims: &[VirtualMachineClaim]) {
        for member in members {
            if let Some(claim) = &member.spec.claim_ref {
                let uid = member.uid().unwrap();
                let before = self.by_member.entry(uid).or_insert_with(|| claim.uid.clone());
                assert_eq!(*before, claim.uid, "member {} has a second claim", member.name_any());
            }
        }
        let mut lent = BTreeSet::new();
        for claim in claims {
            let Some(member) = claim.status.as_ref().and_then(|status| status.member_ref.as_ref()) else { continue };
            let before = self.by_claim.entry(claim.uid().unwrap()).or_insert_with(|| member.uid.clone());
            assert_eq!(*before, member.uid, "claim {} has a second member", claim.name_any());
            assert!(lent.insert(member.uid.clone()), "member {} is lent twice", member.name);
        }
    }

    pub fn claims(&self) -> usize {
        self.by_claim.len()
    }
}
