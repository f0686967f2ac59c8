//! spire-server and the agent beside it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use std::collections::BTreeMap;

use banlieue_cluster::{Cluster, Identity, Signal, component, progress};
use banlieue_supervisor::{Spec, State};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

#[tokio::test]
async fn the_trust_bundle_is_in_its_config_map_and_infrastructure_gets_identities() {
    let cluster = Cluster::builder().spire().progress(progress::print).start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin(), "banlieue-system");
    let bundle = maps.get("spire-bundle").await.unwrap().data.unwrap().remove("bundle.crt").unwrap();
    assert!(bundle.starts_with("-----BEGIN CERTIFICATE-----"), "{bundle}");

    // The notifier did that under an account that may touch this one map and nothing else.
    let user = "system:serviceaccount:banlieue-system:spire-server";
    assert!(cluster.audit().unwrap().count_writes(user, "configmaps", "banlieue-system", "spire-bundle") >= 1);
    let notifier: Api<ConfigMap> =
        Api::namespaced(cluster.kube(&Identity::SpireServer).await.unwrap(), "banlieue-system");
    assert!(notifier.get("kube-root-ca.crt").await.is_err());

    // A program at the path of an entry gets that entry's identity, any other none.
    let bin = cluster.dir().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let agent = banlieue_cluster::programs::tool("spire-agent").unwrap();
    std::fs::copy(&agent, bin.join("mediatore")).unwrap();
    // The agent learns of a new entry at its next sync with the server.
    let mut tries = 0;
    let fetched = loop {
        match fetch(&cluster, "fetch", &bin.join("mediatore")).await {
            Ok(fetched) => break fetched,
            Err(text) => {
                tries += 1;
                assert!(tries < 100 && text.contains("no identity issued"), "{text}");
                tokio::time::sleep(std::time::Duration::from_millis(250)).await;
            }
        }
    };
    assert!(fetched.contains("spiffe://banlieue.local/mediatore"), "{fetched}");
    let refused = fetch(&cluster, "fetch-other", &agent).await.unwrap_err();
    assert!(refused.contains("no identity issued"), "{refused}");

    // The server comes back with what it knew, and so does the agent.
    cluster.kill(component::SPIRE_SERVER, Signal::Kill).await.unwrap();
    cluster.kill(component::SPIRE_AGENT, Signal::Kill).await.unwrap();
    cluster.restart(component::SPIRE_SERVER).await.unwrap();
    cluster.restart(component::SPIRE_AGENT).await.unwrap();
    let mut tries = 0;
    while let Err(text) = fetch(&cluster, "fetch", &bin.join("mediatore")).await {
        tries += 1;
        assert!(tries < 100, "{text}");
        cluster.restart(component::SPIRE_AGENT).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    cluster.stop().await.unwrap();
}

/// Asks the Workload API as a program at that path.
async fn fetch(cluster: &Cluster, name: &str, program: &std::path::Path) -> Result<String, String> {
    let socket = cluster.spire().unwrap().workload_api.display().to_string();
    let log = cluster.log(name);
    let _ = std::fs::remove_file(&log);
    let argv = [&program.display().to_string(), "api", "fetch", "x509", "-timeout", "10s", "-socketPath", &socket];
    let spec = Spec {
        name: name.into(),
        argv: argv.map(Into::into).into(),
        env: BTreeMap::new(),
        log: log.clone(),
        ..Spec::default()
    };
    cluster.supervisor().spawn(spec).await.unwrap();
    let status = cluster.supervisor().wait(name).await.unwrap();
    let text = std::fs::read_to_string(&log).unwrap();
    // An ended process with another status than 0 counts as a crash at the end of the cluster.
    cluster.supervisor().forget(name).await.unwrap();
    if status.state == (State::Exited { code: 0 }) { Ok(text) } else { Err(text) }
}
