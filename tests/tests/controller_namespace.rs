//! A pool namespace is deleted as a whole: its role bindings go at once and with them our rights on its Secrets, and yet
//! every member ends, and the namespace goes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod lending;

use banlieue_crds::claim::ClaimPhase;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::DeleteParams;
use lending::{Fixture, eventually, test};

#[test]
fn a_namespace_with_pool_members_and_a_bound_claim_goes() {
    test(async |at: Fixture| {
        at.pool("p", 2, 6, 2).await;
        at.pool_is_warm("p").await;
        at.claim("p", "c", 3600).await;
        at.phase_is("c", ClaimPhase::Bound).await;
        at.pool_is_warm("p").await;
        let namespaces: Api<Namespace> = Api::all(at.cluster.admin());
        namespaces.delete(&at.namespace, &DeleteParams::default()).await.unwrap();
        eventually("the namespace is gone", async || namespaces.get_opt(&at.namespace).await.unwrap().is_none()).await;

        // The name may come back, and is served again.
        at.cluster.pool_namespace(&at.namespace).await.unwrap();
        at.pool("p", 1, 3, 1).await;
        at.pool_is_warm("p").await;
    });
}
