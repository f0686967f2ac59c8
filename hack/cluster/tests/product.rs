//! Everything at once: our programs under their own accounts, and nothing left when one of them is killed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use banlieue_cluster::{Cluster, Identity, Signal, component, progress};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;

#[tokio::test]
async fn the_whole_product_starts_under_its_own_accounts() {
    let builder = Cluster::builder().nodes("w-1=weightless,w-2=weightless").attestor().controller();
    let cluster = builder.progress(progress::print).start().await.unwrap();

    let nodes: Api<Node> = Api::all(cluster.admin());
    let mut names: Vec<_> =
        nodes.list(&ListParams::default()).await.unwrap().items.into_iter().filter_map(|it| it.metadata.name).collect();
    names.sort();
    assert_eq!(names, ["w-1", "w-2"]);

    // A reporter's token speaks for its node alone: the API server says so of itself.
    let reporter = cluster.kube(&Identity::NodeReporter("w-1".into())).await.unwrap();
    let review: Api<k8s_openapi::api::authentication::v1::SelfSubjectReview> = Api::all(reporter);
    let user =
        review.create(&Default::default(), &Default::default()).await.unwrap().status.unwrap().user_info.unwrap();
    assert_eq!(user.username.unwrap(), "system:serviceaccount:banlieue-system:banlieue-node-reporter");
    assert_eq!(user.extra.unwrap()["authentication.kubernetes.io/node-name"], ["w-1"]);

    // No program of ours is cluster admin, and none was refused anything while it started.
    let audit = cluster.audit().unwrap();
    for account in ["banlieue-controller", "banlieue-attestor", "banlieue-attestor-controller"] {
        let user = format!("system:serviceaccount:banlieue-system:{account}");
        let refused = audit.events.iter().find(|it| {
            it.user.username == user && it.response_status.as_ref().is_some_and(|answer| answer.code == 403)
        });
        assert!(refused.is_none(), "{account} lacks a right: {refused:?}");
    }
    assert!(audit.events.iter().any(|it| it.user.username.ends_with(":banlieue-controller")));

    for name in [component::CONTROLLER, component::HYPERVISOR, component::ATTESTOR_CONTROLLER] {
        cluster.kill(name, Signal::Kill).await.unwrap();
        cluster.restart(name).await.unwrap();
    }
    cluster.stop().await.unwrap();
}
