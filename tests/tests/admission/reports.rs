//! Endorsement reports: a node's own word, by a token that is bound to the node.

use banlieue_cluster::Identity;
use banlieue_crds::EndorsementReport;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;

use crate::api::objects::{WHEN, report};
use crate::api::{Fixture, merge_status, no_right, post, refused, test};

#[test]
fn a_node_reports_for_itself_alone() {
    test(async |at: Fixture| {
        let nodes: Api<Node> = Api::all(at.cluster.admin());
        for name in ["adm-1", "adm-2"] {
            nodes
                .create(&post(), &serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap())
                .await
                .unwrap();
        }
        let one: Api<EndorsementReport> = at.api(Identity::NodeReporter("adm-1".into())).await;
        refused(one.create(&post(), &report("adm-2")).await, "a token of node adm-1 cannot report for node adm-2");
        let made = one.create(&post(), &report("adm-1")).await.unwrap().metadata.name.unwrap();
        // The same account with a token that is bound to no node.
        let loose: Api<EndorsementReport> = Api::namespaced(loose_reporter(&at).await, &at.namespace);
        refused(
            loose.create(&post(), &report("adm-2")).await,
            "the token is not bound to a node: request it with boundObjectRef of kind Node",
        );
        for who in
            [Identity::Controller, Identity::AttestorPlugin, Identity::Broker, Identity::PoolAuthor, Identity::Operator]
        {
            no_right(at.api::<EndorsementReport>(who).await.create(&post(), &report("adm-2")).await);
        }
        let admin: Api<EndorsementReport> = at.api(Identity::Admin).await;
        refused(admin.create(&post(), &report("adm-2")).await, "endorsement reports are written by node reporters");
        refused(
            admin.delete(&made, &DeleteParams::default()).await,
            "only the attestor controller ends and deletes it",
        );
        refused(
            merge_status(&admin, &made, json!({ "endedAt": WHEN })).await,
            "only the attestor controller ends and deletes it",
        );
        no_right(one.delete(&made, &DeleteParams::default()).await);
        let ends: Api<EndorsementReport> = at.api(Identity::AttestorController).await;
        merge_status(&ends, &made, json!({ "endedAt": WHEN })).await.unwrap();
        ends.delete(&made, &DeleteParams::default()).await.unwrap();
    });
}

/// A client of the reporter's account without a node.
async fn loose_reporter(at: &Fixture) -> kube::Client {
    use k8s_openapi::api::authentication::v1::TokenRequest;
    use k8s_openapi::api::core::v1::ServiceAccount;
    let accounts: Api<ServiceAccount> = Api::namespaced(at.cluster.admin(), "banlieue-system");
    let request: TokenRequest = serde_json::from_value(json!({ "spec": { "audiences": [] } })).unwrap();
    let answer = accounts.create_token_request("banlieue-node-reporter", &post(), &request).await.unwrap();
    at.client(Identity::Broker).await; // makes the kubeconfig that is read here
    let path = at.cluster.kubeconfig(&Identity::Broker).await.unwrap();
    let mut kubeconfig = kube::config::Kubeconfig::read_from(path).unwrap();
    kubeconfig.auth_infos[0].auth_info =
        serde_json::from_value(json!({ "token": answer.status.unwrap().token })).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}
