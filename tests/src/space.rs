//! One runtime for all tests of a program, on which their one cluster lives, and a namespace for each test.

use std::future::Future;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use banlieue_cluster::Cluster;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource};
use tokio::runtime::Runtime;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Runs one test on the program's runtime, which the clients of a shared cluster live on.
pub fn run<F: Future>(test: F) -> F::Output {
    RUNTIME.block_on(test)
}

/// A pool namespace of a cluster. A cluster that tests share is never dropped: it ends with the test process, whose end
/// closes the lifeline.
#[derive(Clone)]
pub struct Space {
    /// The cluster.
    pub cluster: &'static Cluster,
    /// The namespace.
    pub namespace: String,
}

impl Space {
    /// A new namespace.
    ///
    /// # Panics
    /// It cannot be made.
    pub async fn new(cluster: &'static Cluster) -> Self {
        let namespace = format!("t{}", COUNT.fetch_add(1, Ordering::Relaxed));
        cluster.pool_namespace(&namespace).await.unwrap();
        Self { cluster, namespace }
    }

    /// Objects of this namespace, as cluster admin: for looking.
    #[must_use]
    pub fn all<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.cluster.admin(), &self.namespace)
    }
}
