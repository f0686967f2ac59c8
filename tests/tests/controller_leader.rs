//! Two controllers: one leads, the other keeps its stores warm and takes over when the first is killed, frozen or ends.
//! Nothing is bound twice, `maxReplicas` holds, and a claim costs no more writes than with one.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod lending;

use banlieue_cluster::{Cluster, Identity, Signal, component};
use banlieue_crds::claim::ClaimPhase;
use banlieue_supervisor::Spec;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt};
use lending::{Bindings, CONTROLLER, Fixture, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const FIRST: &str = component::CONTROLLER;
const SECOND: &str = "controller-2";

/// A second controller, and the port of its metrics.
async fn second(cluster: &Cluster) -> u16 {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let program = cluster.dir().join("bin").join(component::CONTROLLER);
    let mut argv = vec![program.display().to_string()];
    let fixed = ["run", "--trust-domain", "banlieue.local", "--cluster", "local", "--spire-server", "10.0.2.100:8081"];
    argv.extend(fixed.iter().map(|arg| (*arg).to_owned()));
    argv.extend([
        format!("--identity={SECOND}"),
        format!("--metrics=127.0.0.1:{port}"),
        "--lease-seconds=9".to_owned(),
    ]);
    let kubeconfig = cluster.kubeconfig(&Identity::Controller).await.unwrap().display().to_string();
    let env = [("KUBECONFIG".to_owned(), kubeconfig)].into();
    let log = cluster.log(SECOND);
    cluster.supervisor().spawn(Spec { name: SECOND.into(), argv, env, log, ..Spec::default() }).await.unwrap();
    port
}

/// Whether a controller answers on a path, and with what.
async fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    answer.starts_with("HTTP/1.0 200").then_some(answer)
}

async fn leads(cluster: &Cluster, who: &str) {
    let leases: Api<Lease> = Api::namespaced(cluster.admin(), "banlieue-system");
    eventually(&format!("{who} leads"), async || {
        let lease = leases.get_opt("banlieue-controller").await.unwrap();
        lease.and_then(|lease| lease.spec?.holder_identity).as_deref() == Some(who)
    })
    .await;
}

async fn metric(port: u16, line: &str) {
    eventually(&format!("metrics say {line}"), async || {
        get(port, "/metrics").await.is_some_and(|text| text.lines().any(|found| found == line))
    })
    .await;
}

async fn see(at: &Fixture, bindings: &mut Bindings) {
    let members = at.members().await;
    assert!(members.len() <= 6, "{} members live, 6 are allowed", members.len());
    bindings.see(&members, &at.claims().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_and_the_other_takes_over() {
    let builder = Cluster::builder().nodes("w-1=weightless").controller().args(FIRST, ["--lease-seconds", "9"]);
    let cluster: &'static Cluster =
        Box::leak(Box::new(builder.start().await.unwrap_or_else(|error| panic!("{error}"))));
    let at = Fixture::of(cluster).await;
    let mut bindings = Bindings::default();
    at.pool("p", 2, 6, 2).await;
    at.pool_is_warm("p").await;
    leads(cluster, FIRST).await;
    let port = second(cluster).await;
    eventually("the second one's stores are warm", async || get(port, "/readyz").await.is_some()).await;
    metric(port, "banlieue_leading 0").await;

    // With both there, a claim costs what it costs with one. The lease is another object.
    at.claim("p", "calm", 3600).await;
    let bound = at.phase_is("calm", ClaimPhase::Bound).await;
    let member = bound.status.unwrap().member_ref.unwrap();
    let audit = cluster.audit().unwrap();
    let created = audit
        .events
        .iter()
        .find(|event| event.verb == "create" && event.object_ref.as_ref().is_some_and(|object| object.name == "calm"))
        .map(|event| event.request_received_timestamp.clone())
        .unwrap();
    let to_bound: Vec<String> = audit
        .writes(CONTROLLER)
        .filter(|event| event.request_received_timestamp >= created)
        .filter_map(|event| Some((event.verb.clone(), event.object_ref.clone()?)))
        .filter(|(_, object)| object.name == member.name || object.name == "calm")
        .map(|(verb, object)| format!("{verb} {}/{}", object.resource, object.subresource))
        .collect();
    let acknowledged = to_bound.iter().position(|line| line == "patch virtualmachineclaims/status").unwrap();
    assert!(acknowledged < 2, "more than two writes to Bound: {to_bound:?}");
    see(&at, &mut bindings).await;

    // Killed in the middle of binding: the other finishes what was begun.
    for n in 0..4 {
        at.claim("p", &format!("k{n}"), 3600).await;
    }
    cluster.kill(FIRST, Signal::Kill).await.unwrap();
    leads(cluster, SECOND).await;
    metric(port, "banlieue_leading 1").await;
    metric(port, "banlieue_leader_changes_total 1").await;
    for n in 0..4 {
        at.phase_is(&format!("k{n}"), ClaimPhase::Bound).await;
        see(&at, &mut bindings).await;
    }

    // Frozen for longer than its lease, then awake again: it finds that it leads no more.
    cluster.restart(FIRST).await.unwrap();
    cluster.kill(SECOND, Signal::Stop).await.unwrap();
    leads(cluster, FIRST).await;
    at.release("calm").await;
    at.claim_is_gone("calm").await;
    see(&at, &mut bindings).await;
    at.claim("p", "after", 3600).await;
    cluster.kill(SECOND, Signal::Cont).await.unwrap();
    metric(port, "banlieue_leading 0").await;
    at.phase_is("after", ClaimPhase::Bound).await;
    see(&at, &mut bindings).await;

    // Ended in peace: the lease is given back, nobody waits for it.
    cluster.kill(FIRST, Signal::Term).await.unwrap();
    leads(cluster, SECOND).await;
    let log = std::fs::read_to_string(cluster.log(FIRST)).unwrap();
    assert!(log.contains("lease given back"), "{log}");
    for claim in at.claims().await {
        at.release(&claim.name_any()).await;
        at.claim_is_gone(&claim.name_any()).await;
        see(&at, &mut bindings).await;
    }
    at.pool_is_warm("p").await;
    assert_eq!(bindings.claims(), 6);
}
