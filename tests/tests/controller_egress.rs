//! What members may reach: the pool's NetworkPolicy for every way to configure SPIRE and the broker, as the API server
//! keeps it. Nothing comes in, no names are resolved, and what a policy cannot say stays closed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod lending;

use banlieue_cluster::{Cluster, Identity};
use banlieue_crds::{PoolMember, VirtualMachinePool, conditions};
use banlieue_supervisor::Spec;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::{ListParams, Patch};
use lending::{eventually, pool_object};
use serde_json::{Value, json};

/// A controller of one namespace, with those endpoints.
async fn controller(cluster: &Cluster, namespace: &str, endpoints: &[&str]) {
    cluster.pool_namespace(namespace).await.unwrap();
    let program = banlieue_cluster::programs::binary("banlieue-controller").unwrap();
    let mut argv = vec![program.display().to_string()];
    let fixed = ["run", "--trust-domain", "banlieue.local", "--cluster", "local", "--metrics", "127.0.0.1:0"];
    argv.extend(fixed.iter().chain(endpoints).map(|arg| (*arg).to_owned()));
    argv.extend(["--leader-elect=false".to_owned(), format!("--namespace={namespace}")]);
    let name = format!("controller-{namespace}");
    let kubeconfig = cluster.kubeconfig(&Identity::Controller).await.unwrap().display().to_string();
    let env = [("KUBECONFIG".to_owned(), kubeconfig)].into();
    let log = cluster.log(&name);
    cluster.supervisor().spawn(Spec { name, argv, env, log, ..Spec::default() }).await.unwrap();
    let pools: Api<VirtualMachinePool> = Api::namespaced(cluster.admin(), namespace);
    pools.create(&Default::default(), &pool_object("p", 1, 2, 1)).await.unwrap();
}

async fn egress(cluster: &Cluster, namespace: &str) -> Value {
    let policies: Api<NetworkPolicy> = Api::namespaced(cluster.admin(), namespace);
    let mut found = None;
    eventually("the pool has its policy", async || {
        found = policies.get_opt("p-members").await.unwrap();
        found.is_some()
    })
    .await;
    let spec = found.unwrap().spec.unwrap();
    let selected = json!(spec.pod_selector);
    assert_eq!(selected, json!({ "matchLabels": { "banlieue.io/pool": "p" } }));
    assert_eq!(spec.policy_types.unwrap(), ["Ingress", "Egress"]);
    assert!(spec.ingress.unwrap_or_default().is_empty(), "nothing comes in");
    let rules = json!(spec.egress.unwrap_or_default());
    for rule in rules.as_array().unwrap() {
        assert!(rule["to"].as_array().is_some_and(|to| !to.is_empty()), "open to anywhere: {rule}");
        for port in rule["ports"].as_array().unwrap() {
            assert!(port["port"] != json!(53) && port["protocol"] == json!("TCP"), "{port}");
        }
    }
    rules
}

async fn members(cluster: &Cluster, namespace: &str) -> usize {
    let api: Api<PoolMember> = Api::namespaced(cluster.admin(), namespace);
    api.list(&ListParams::default()).await.unwrap().items.len()
}

fn rule(to: Value, port: u16) -> Value {
    json!({ "to": [to], "ports": [{ "protocol": "TCP", "port": port }] })
}

fn block(cidr: &str, port: u16) -> Value {
    rule(json!({ "ipBlock": { "cidr": cidr } }), port)
}

#[tokio::test(flavor = "multi_thread")]
async fn members_reach_spire_and_the_broker_and_nothing_else() {
    let cluster = Cluster::builder().kubevirt().start().await.unwrap_or_else(|error| panic!("{error}"));

    controller(&cluster, "address", &["--spire-server=10.0.2.100:8081", "--broker=[fd00::7]:8443"]).await;
    let host_names = ["--spire-server=spire.example:443", "--broker=broker.example:8443"];
    let peers =
        ["--spire-peer=10.1.0.0/16", "--spire-peer=spire/app=spire-server,tier=a@8081", "--broker-peer=10.2.0.0/16"];
    controller(&cluster, "peers", &[host_names.as_slice(), &peers].concat()).await;
    controller(&cluster, "names", &["--spire-server=10.0.2.100:8081", "--broker=broker.example:8443"]).await;

    let pods = json!({
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "spire" } },
        "podSelector": { "matchLabels": { "app": "spire-server", "tier": "a" } },
    });
    let by_address = json!([block("10.0.2.100/32", 8081), block("fd00::7/128", 8443)]);
    assert_eq!(egress(&cluster, "address").await, by_address);
    let by_peers = json!([block("10.1.0.0/16", 443), rule(pods, 8081), block("10.2.0.0/16", 8443)]);
    assert_eq!(egress(&cluster, "peers").await, by_peers);
    for namespace in ["address", "peers"] {
        eventually("members are made", async || members(&cluster, namespace).await > 0).await;
    }

    // A host name alone: its rule is left out, no member is made, and the pool says what to configure.
    assert_eq!(egress(&cluster, "names").await, json!([block("10.0.2.100/32", 8081)]));
    let pools: Api<VirtualMachinePool> = Api::namespaced(cluster.admin(), "names");
    eventually("the pool says what is missing", async || {
        let status = pools.get("p").await.unwrap().status.unwrap_or_default();
        conditions::find(&status.conditions, "Ready").is_some_and(|ready| {
            ready.reason == "EgressUndefined"
                && ["broker.example", "--broker-peer"].iter().all(|word| ready.message.contains(word))
        })
    })
    .await;
    assert_eq!(members(&cluster, "names").await, 0);
    let alone = Patch::Merge(json!({ "spec": { "networkPolicy": "Unmanaged" } }));
    pools.patch("p", &Default::default(), &alone).await.unwrap();
    eventually("somebody else keeps members apart", async || members(&cluster, "names").await > 0).await;

    // Opened by hand (which the chart's policy allows to nobody but the controller's account), it is closed again.
    let ours: Api<NetworkPolicy> = Api::namespaced(cluster.kube(&Identity::Controller).await.unwrap(), "address");
    let open = Patch::Merge(json!({ "spec": { "egress": [{}], "ingress": [{}] } }));
    ours.patch("p-members", &Default::default(), &open).await.unwrap();
    eventually("the policy is what it must be", async || {
        let spec = ours.get("p-members").await.unwrap().spec.unwrap();
        json!(spec.egress) == by_address && spec.ingress.unwrap_or_default().is_empty()
    })
    .await;
    cluster.stop().await.unwrap();
}
