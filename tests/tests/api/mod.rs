//! What the tests of rules and policies share: one cluster for the test binary, namespaces of their own, objects to
//! start from, and the two ways an attempt may end.
#![allow(dead_code)] // each test binary uses its part

pub mod objects;

use std::fmt::Debug;
use std::future::Future;
use std::ops::Deref;

use banlieue_cluster::{Cluster, Identity};
use banlieue_tests::space::{self, Space};
pub use banlieue_tests::wait::eventually;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell};

/// Never dropped: it ends with the test process, whose end closes the lifeline.
static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
static MINTING: Mutex<()> = Mutex::const_new(());

/// Runs one test in a namespace of its own.
pub fn test<F: Future<Output = ()>>(body: impl FnOnce(Fixture) -> F) {
    space::run(async { body(Fixture::new().await).await });
}

/// A pool namespace of the shared cluster.
pub struct Fixture(Space);

impl Deref for Fixture {
    type Target = Space;

    fn deref(&self) -> &Space {
        &self.0
    }
}

impl Fixture {
    async fn new() -> Self {
        Self(Space::new(CLUSTER.get_or_init(start).await).await)
    }

    /// A client that acts as `who`.
    pub async fn client(&self, who: Identity) -> Client {
        // Kubeconfigs are made when first asked for; two tests that ask for one at once must not write it twice.
        let _one_at_a_time = MINTING.lock().await;
        self.cluster.kube(&who).await.unwrap()
    }

    /// Objects of this namespace, seen and written as `who`.
    pub async fn api<K>(&self, who: Identity) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client(who).await, &self.namespace)
    }
}

/// A control plane with our definitions, roles and policies, the latter in force.
async fn start() -> Cluster {
    let cluster = Cluster::builder().start().await.unwrap_or_else(|error| panic!("{error}"));
    // The API server takes policies up about a second after they were made. All of them at once: one probe is enough.
    let admin = cluster.admin();
    let members: Api<banlieue_crds::PoolMember> = Api::namespaced(admin, "sandboxes");
    let attempt = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the admission policies are in force", async || {
        members.create(&attempt, &objects::member("probe")).await.is_err()
    })
    .await;
    cluster
}

pub fn post() -> PostParams {
    PostParams::default()
}

/// Changes an object by a merge patch.
pub async fn merge<K>(api: &Api<K>, name: &str, patch: Value) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

/// Changes an object's status by a merge patch.
pub async fn merge_status<K>(api: &Api<K>, name: &str, status: Value) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await
}

/// The attempt was refused as invalid or forbidden by a rule or policy, in these words.
#[track_caller]
pub fn refused<T: Debug>(result: kube::Result<T>, says: &str) {
    match result {
        Err(kube::Error::Api(status)) if [403, 422].contains(&status.code) => {
            assert!(
                status.message.contains(says),
                "refused in other words.\nwanted: {says}\nfound:  {}",
                status.message
            );
        }
        other => panic!("not refused ({says}): {other:?}"),
    }
}

/// The attempt was refused by RBAC.
#[track_caller]
pub fn no_right<T: Debug>(result: kube::Result<T>) {
    match result {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            assert!(!status.message.contains("ValidatingAdmissionPolicy"), "{}", status.message);
            assert!(status.message.contains("cannot"), "{}", status.message);
        }
        other => panic!("RBAC let it pass: {other:?}"),
    }
}
