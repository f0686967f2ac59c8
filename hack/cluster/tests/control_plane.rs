//! Kubernetes' control plane from its own binaries: up, side by side, restarted, gone.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use std::time::Duration;

use banlieue_cluster::{Cluster, Error, Identity, Signal, component, progress};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client};

async fn user(client: Client) -> String {
    let api: Api<SelfSubjectReview> = Api::all(client);
    let answer = api.create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
    answer.status.unwrap().user_info.unwrap().username.unwrap()
}

fn map(name: &str) -> ConfigMap {
    ConfigMap { metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() }, ..ConfigMap::default() }
}

async fn until(what: &str, done: impl AsyncFn() -> bool) {
    let looking = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(120), looking).await.is_ok(), "never saw: {what}");
}

/// Processes of the whole machine that name this directory.
fn living(dir: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let texts = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let texts = texts.map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "));
    texts.filter(|text| text.contains(dir.to_str().unwrap())).collect()
}

#[tokio::test]
async fn two_side_by_side_and_nothing_left() {
    let (one, two) = tokio::join!(Cluster::builder().progress(progress::print).start(), Cluster::builder().start());
    let (one, two) = (one.unwrap(), two.unwrap());
    let maps = |cluster: &Cluster| Api::<ConfigMap>::namespaced(cluster.admin(), "sandboxes");
    maps(&one).create(&PostParams::default(), &map("here")).await.unwrap();
    assert!(maps(&two).get_opt("here").await.unwrap().is_none());

    // The controllers work: service accounts appear, namespaces vanish with what is in them.
    let accounts: Api<ServiceAccount> = Api::namespaced(one.admin(), "sandboxes");
    until("the default service account", async || accounts.get_opt("default").await.unwrap().is_some()).await;
    let namespaces: Api<Namespace> = Api::all(one.admin());
    namespaces.delete("sandboxes", &DeleteParams::default()).await.unwrap();
    until("the namespace to be gone", async || namespaces.get_opt("sandboxes").await.unwrap().is_none()).await;

    let dirs = [one.dir().to_owned(), two.dir().to_owned()];
    one.stop().await.unwrap();
    drop(two);
    for dir in dirs {
        assert_eq!(living(&dir), Vec::<String>::new());
        assert!(!dir.exists());
    }
}

#[tokio::test]
async fn each_identity_is_who_it_says_and_may_do_only_its_part() {
    let cluster = Cluster::builder().start().await.unwrap();
    let kube = async |who: &Identity| cluster.kube(who).await.unwrap();
    assert_eq!(user(kube(&Identity::Admin).await).await, "admin");
    assert_eq!(user(kube(&Identity::Alice).await).await, "alice");
    assert_eq!(user(kube(&Identity::Scheduler).await).await, "system:kube-scheduler");
    let stranger: Api<ConfigMap> = Api::namespaced(kube(&Identity::Stranger).await, "sandboxes");
    let error = stranger.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");

    // Policies act from the first moment, on the admin too.
    let mut ours = map("a-policy");
    ours.metadata.labels = Some([("banlieue.io/pool".to_owned(), "p".to_owned())].into());
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin(), "sandboxes");
    let error = maps.create(&PostParams::default(), &ours).await.unwrap_err();
    assert!(error.to_string().contains("written by banlieue-controller"), "{error}");

    // What was refused and what was granted is told apart in the audit log.
    let admin: Api<ConfigMap> = Api::namespaced(cluster.admin(), "sandboxes");
    admin.create(&PostParams::default(), &map("a")).await.unwrap();
    assert!(stranger.create(&PostParams::default(), &map("b")).await.is_err());
    let audit = cluster.audit().unwrap();
    assert_eq!(audit.count_writes("admin", "configmaps", "sandboxes", "a"), 1);
    assert_eq!(audit.writes("stranger").count(), 0);
    assert!(audit.events.iter().any(|it| it.user.username == "stranger" && it.is_write() && !it.succeeded()));
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn killed_and_restarted_it_goes_on_where_it_was() {
    let cluster = Cluster::builder().start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin(), "sandboxes");
    maps.create(&PostParams::default(), &map("kept")).await.unwrap();
    for component in [component::API_SERVER, component::ETCD] {
        cluster.kill(component, Signal::Kill).await.unwrap();
        cluster.restart(component).await.unwrap();
    }
    until("the object again", async || maps.get_opt("kept").await.is_ok_and(|it| it.is_some())).await;
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_component_that_cannot_start_is_named_with_its_log() {
    let error = Cluster::builder().args(component::SCHEDULER, ["--no-such-flag"]).start().await.err().unwrap();
    let text = error.to_string();
    let Error::Component { component, log, .. } = error else { panic!("{text}") };
    assert_eq!(component, "kube-scheduler");
    assert!(text.contains("exited with status 1 before it was ready"), "{text}");
    assert!(text.contains("unknown flag: --no-such-flag"), "{text}");
    let dir = log.parent().unwrap().parent().unwrap();
    assert!(log.exists() && !dir.join("etcd").exists(), "logs stay, and only they");
    assert_eq!(living(dir), Vec::<String>::new());
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn a_kept_cluster_lives_until_it_is_taken_down() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.admin();
    let dir = cluster.keep().await.unwrap();
    assert!(client.apiserver_version().await.is_ok());
    banlieue_cluster::down(&dir).await.unwrap();
    assert_eq!(living(&dir), Vec::<String>::new());
    assert!(!dir.exists());
}

#[test]
fn missing_tools_are_named_with_the_command_that_builds_them() {
    let error = Error::Tool { program: "target/tools/bin/etcd".into() };
    assert_eq!(error.to_string(), "target/tools/bin/etcd is missing: run `cargo xtask tools`");
    assert!(matches!(banlieue_cluster::programs::tool("no-such-tool"), Err(Error::Tool { .. })));
}
