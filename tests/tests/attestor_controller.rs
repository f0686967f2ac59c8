//! The attestor controller on real parts: what it cannot read, two of it at once, namespaces that go, foreign reports,
//! quarantine.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod light;

use banlieue_cluster::{Cluster, Identity, Signal, component};
use banlieue_crds::names::{accounts, annotations};
use banlieue_crds::received::Received;
use banlieue_crds::{EndorsementReport, PoolMember, VirtualMachinePool, conditions, kubevirt};
use banlieue_supervisor::Spec;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use light::{Fixture, HONEST, eventually, test};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

const FIRST: &str = component::ATTESTOR_CONTROLLER;
const SECOND: &str = "attestor-controller-2";

/// Whoever kills the attestor controller does it alone.
static KILLS: Mutex<()> = Mutex::const_new(());

async fn banned(at: &Fixture, id: &str) -> bool {
    at.spire(&["agent", "show", "-spiffeID", id]).await.contains("Banned")
}

async fn entries(at: &Fixture, id: &str) -> String {
    at.spire(&["entry", "show", "-parentID", id]).await
}

async fn warm(at: &Fixture, pool: &str) -> PoolMember {
    let member = at.attested(pool).await;
    eventually("it is warm", async || at.condition(&member, "Ready").await.is_some_and(|it| it.status == "True")).await;
    member
}

/// Writes the evidence's reset count, as the plugin: the one number that the definition lets grow beyond what this version
/// reads.
async fn write_reset_count(at: &Fixture, member: &PoolMember, count: Value) {
    let plugin = at.cluster.kube(&Identity::AttestorPlugin).await.unwrap();
    let members: Api<Received<PoolMember>> = Api::namespaced(plugin, &at.namespace);
    let patch = Patch::Merge(json!({ "status": { "attestation": { "resetCount": count } } }));
    members.patch_status(&member.name_any(), &PatchParams::default(), &patch).await.unwrap();
}

/// A member that nobody can read keeps its agent and its entries, through restarts and sweeps, and stops nobody else's.
#[test]
fn what_cannot_be_read_is_not_taken_for_gone() {
    test(async |at: Fixture| {
        let _alone = KILLS.lock().await;
        at.pool("p", HONEST).await;
        let member = warm(&at, "p").await;
        let count = member.status.clone().unwrap().attestation.unwrap().reset_count.unwrap();
        let id = at.agent_id(&member.uid().unwrap());
        write_reset_count(&at, &member, json!(u64::from(u32::MAX) + 1)).await;
        // The first list after a start holds it too.
        at.cluster.kill(FIRST, Signal::Kill).await.unwrap();
        at.cluster.restart(FIRST).await.unwrap();
        eventually("it is counted", async || {
            let text = at.cluster.metrics(FIRST).await.unwrap_or_default();
            text.contains(r#"unreadable_objects_total{kind="poolmembers"}"#)
        })
        .await;

        // Others attest, and what surely is gone is swept: by then the unreadable one has been looked at as often.
        at.pool("q", HONEST).await;
        let other = loop {
            let members: Api<Received<PoolMember>> = at.all();
            let list = members.list(&Default::default()).await.unwrap();
            let found = list.into_iter().find_map(|member| match member {
                Received::Read(it) if it.spec.pool_ref.name == "q" => Some(it),
                _ => None,
            });
            match found {
                Some(it) if conditions::is_true(&it.status.clone().unwrap_or_default().conditions, "Attested") => {
                    break it;
                }
                _ => tokio::time::sleep(std::time::Duration::from_millis(200)).await,
            }
        };
        let gone = at.agent_id(&other.uid().unwrap());
        let force = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        let operator: Api<PoolMember> =
            Api::namespaced(at.cluster.kube(&Identity::Operator).await.unwrap(), &at.namespace);
        // Its own controllers must not end it in the usual way first.
        at.cluster.kill(FIRST, Signal::Stop).await.unwrap();
        operator.delete(&other.name_any(), &DeleteParams::default()).await.unwrap();
        operator.patch(&other.name_any(), &PatchParams::default(), &force).await.unwrap();
        at.cluster.kill(FIRST, Signal::Cont).await.unwrap();
        eventually("who was removed by force is banned", async || banned(&at, &gone).await).await;
        assert!(!banned(&at, &id).await, "the unreadable member is banned");
        assert!(!entries(&at, &id).await.contains("Found 0 entries"), "its entries are gone");

        write_reset_count(&at, &member, json!(count)).await;
        let verified = at.verified_at(&member).await;
        eventually("it proves itself again", async || at.verified_at(&member).await > verified).await;
        for pool in ["p", "q"] {
            at.all::<VirtualMachinePool>().delete(pool, &DeleteParams::default()).await.unwrap();
        }
        eventually("it is gone", async || at.member(&member).await.is_none()).await;
    });
}

/// A second attestor controller, beside the first.
async fn second(cluster: &Cluster) {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let program = cluster.dir().join("bin/banlieue-attestor");
    let (spire, settings) = (cluster.spire().unwrap(), cluster.settings());
    let argv = [
        program.display().to_string(),
        "controller".to_owned(),
        format!("--spire-server=127.0.0.1:{}", spire.port),
        format!("--workload-api=unix://{}", spire.workload_api.display()),
        format!("--trust-domain={}", settings.trust_domain),
        format!("--cluster={}", settings.cluster),
        format!("--identity={SECOND}"),
        format!("--metrics=127.0.0.1:{port}"),
        "--sweep-seconds=5".to_owned(),
        "--probe-seconds=3".to_owned(),
        "--agent-ttl-seconds=24".to_owned(),
    ];
    let kubeconfig = cluster.kubeconfig(&Identity::AttestorController).await.unwrap().display().to_string();
    let env = [("KUBECONFIG".to_owned(), kubeconfig), ("RUST_LOG".to_owned(), "info".to_owned())].into();
    let log = cluster.log(SECOND);
    cluster
        .supervisor()
        .spawn(Spec { name: SECOND.into(), argv: argv.into(), env, log, ..Spec::default() })
        .await
        .unwrap();
}

async fn leads(cluster: &Cluster, who: &str) {
    let leases: Api<Lease> = Api::namespaced(cluster.admin(), accounts::SYSTEM_NAMESPACE);
    eventually(&format!("{who} leads"), async || {
        let lease = leases.get_opt(accounts::ATTESTOR_CONTROLLER).await.unwrap();
        lease.and_then(|lease| lease.spec?.holder_identity).as_deref() == Some(who)
    })
    .await;
}

/// Of two one works. Whichever it is, killed, frozen and awake again or ended in peace: members attest, and end revoked.
#[test]
fn of_two_one_leads_and_the_other_takes_over() {
    test(async |at: Fixture| {
        let _alone = KILLS.lock().await;
        let ends = async |pool: &str, member: &PoolMember| {
            let id = at.agent_id(&member.uid().unwrap());
            at.all::<VirtualMachinePool>().delete(pool, &DeleteParams::default()).await.unwrap();
            eventually("the member is gone", async || at.member(member).await.is_none()).await;
            assert!(banned(&at, &id).await, "gone, and not banned");
            assert!(entries(&at, &id).await.contains("Found 0 entries"), "gone, and entries are left");
        };
        leads(at.cluster, FIRST).await;
        second(at.cluster).await;
        at.pool("a", HONEST).await;
        let member = warm(&at, "a").await;
        at.cluster.kill(FIRST, Signal::Kill).await.unwrap();
        leads(at.cluster, SECOND).await;
        ends("a", &member).await;

        // The first begins as a follower. The second is frozen for longer than its lease: it wakes up with old views.
        at.cluster.restart(FIRST).await.unwrap();
        at.pool("b", HONEST).await;
        let member = warm(&at, "b").await;
        at.cluster.kill(SECOND, Signal::Stop).await.unwrap();
        leads(at.cluster, FIRST).await;
        ends("b", &member).await;
        at.pool("c", HONEST).await;
        let member = warm(&at, "c").await;
        at.cluster.kill(SECOND, Signal::Cont).await.unwrap();
        let verified = at.verified_at(&member).await;
        eventually("it proves itself again", async || at.verified_at(&member).await > verified).await;
        assert!(at.condition(&member, "Attested").await.is_some_and(|it| it.status == "True"));
        assert!(!banned(&at, &at.agent_id(&member.uid().unwrap())).await);

        at.cluster.kill(FIRST, Signal::Term).await.unwrap();
        leads(at.cluster, SECOND).await;
        let log = std::fs::read_to_string(at.cluster.log(FIRST)).unwrap();
        assert!(log.contains("lease given back"), "{log}");
        ends("c", &member).await;
        at.cluster.restart(FIRST).await.unwrap();
        at.cluster.kill(SECOND, Signal::Term).await.unwrap();
        leads(at.cluster, FIRST).await;
    });
}

/// A pool namespace is deleted as a whole while nobody watches: its roles go first, and yet each identity is revoked.
#[test]
fn a_namespace_with_attested_members_goes() {
    test(async |at: Fixture| {
        let _alone = KILLS.lock().await;
        at.pool("p", HONEST).await;
        let member = warm(&at, "p").await;
        let id = at.agent_id(&member.uid().unwrap());
        at.claim("p", "c").await;
        eventually("it is bound", async || at.member(&member).await.unwrap().spec.claim_ref.is_some()).await;
        let successor = {
            let mut found = None;
            eventually("its successor is attested", async || {
                let members = at.all::<PoolMember>().list(&Default::default()).await.unwrap();
                found = members.into_iter().find(|other| {
                    let conditions = other.status.as_ref().map(|it| it.conditions.clone()).unwrap_or_default();
                    other.uid() != member.uid() && conditions::is_true(&conditions, "Attested")
                });
                found.is_some()
            })
            .await;
            at.agent_id(&found.unwrap().uid().unwrap())
        };
        let namespaces: Api<Namespace> = Api::all(at.cluster.admin());
        // What it remembers of policies is gone with it, and when it is back it may not read them any more.
        at.cluster.kill(FIRST, Signal::Kill).await.unwrap();
        namespaces.delete(&at.namespace, &DeleteParams::default()).await.unwrap();
        eventually("the member is ending", async || match at.member(&member).await {
            Some(member) => member.metadata.deletion_timestamp.is_some(),
            None => true,
        })
        .await;
        at.cluster.restart(FIRST).await.unwrap();
        eventually("the namespace is gone", async || namespaces.get_opt(&at.namespace).await.unwrap().is_none()).await;
        for id in [id, successor] {
            assert!(banned(&at, &id).await, "the namespace is gone, and {id} is not banned");
            assert!(entries(&at, &id).await.contains("Found 0 entries"), "the namespace is gone, and entries are left");
        }
    });
}

/// A node's word about what runs elsewhere is refused or counts for nothing.
#[test]
fn a_node_cannot_speak_for_another() {
    test(async |at: Fixture| {
        at.pool("p", HONEST).await;
        let mut made = None;
        eventually("a member's instance has a node", async || {
            let members = at.all::<PoolMember>().list(&Default::default()).await.unwrap();
            made = members.into_iter().find(|it| it.status.as_ref().is_some_and(|it| it.node_name.is_some()));
            made.is_some()
        })
        .await;
        let member = made.unwrap();
        let status = member.status.clone().unwrap();
        let (instance, node) = (status.instance_ref.unwrap(), status.node_name.unwrap());
        let other = if node == "l-1" { "l-2" } else { "l-1" };
        let reporter = at.cluster.kube(&Identity::NodeReporter(other.to_owned())).await.unwrap();
        let reports: Api<EndorsementReport> = Api::namespaced(reporter, &at.namespace);
        let report = |node: &str| -> EndorsementReport {
            serde_json::from_value(json!({
                "apiVersion": "banlieue.io/v1alpha1", "kind": "EndorsementReport",
                "metadata": { "name": format!("{}.{node}", instance.uid) },
                "spec": {
                    "instanceUid": instance.uid, "nodeName": node,
                    "instanceRef": { "apiVersion": kubevirt::API_VERSION, "kind": kubevirt::KIND, "name": instance.name },
                    "ekDigests": ["5a".repeat(32)], "source": "swtpm", "observedAt": "2026-01-01T00:00:00.000000Z",
                },
            }))
            .unwrap()
        };
        let refused = reports.create(&PostParams::default(), &report(&node)).await.unwrap_err();
        assert!(refused.to_string().contains("report for the own node only"), "{refused}");
        reports.create(&PostParams::default(), &report(other)).await.unwrap();

        let member = warm(&at, "p").await;
        let pinned = member.status.clone().unwrap().endorsement.unwrap().ek_digest;
        let own = at.all::<EndorsementReport>().get(&format!("{}.{node}", instance.uid)).await.unwrap();
        assert!(own.spec.ek_digests.contains(&pinned), "its own node's key is pinned");
        assert_ne!(pinned, "5a".repeat(32));
        eventually("the foreign report is deleted", async || {
            at.all::<EndorsementReport>().get_opt(&format!("{}.{other}", instance.uid)).await.unwrap().is_none()
        })
        .await;
        assert!(at.all::<EndorsementReport>().get_opt(&own.name_any()).await.unwrap().is_some(), "its own stays");
        let verified = at.verified_at(&member).await;
        eventually("it proves itself again", async || at.verified_at(&member).await > verified).await;
        at.all::<VirtualMachinePool>().delete("p", &DeleteParams::default()).await.unwrap();
        eventually("the member is gone", async || at.member(&member).await.is_none()).await;
    });
}

/// A member that is quarantined is kept to be looked at, and has no identity any more.
#[test]
fn a_quarantined_member_has_no_identity() {
    test(async |at: Fixture| {
        at.pool("p", HONEST).await;
        let member = warm(&at, "p").await;
        let id = at.agent_id(&member.uid().unwrap());
        let operator: Api<PoolMember> =
            Api::namespaced(at.cluster.kube(&Identity::Operator).await.unwrap(), &at.namespace);
        let quarantine =
            Patch::Merge(json!({ "metadata": { "annotations": { annotations::QUARANTINE: "looks odd" } } }));
        operator.patch(&member.name_any(), &PatchParams::default(), &quarantine).await.unwrap();
        eventually("its agent is banned", async || banned(&at, &id).await).await;
        eventually("its entries are gone", async || entries(&at, &id).await.contains("Found 0 entries")).await;
        let kept = at.member(&member).await.expect("it is kept");
        assert!(kept.metadata.deletion_timestamp.is_none(), "it is kept");
        at.all::<VirtualMachinePool>().delete("p", &DeleteParams::default()).await.unwrap();
        eventually("the member is gone", async || at.member(&member).await.is_none()).await;
        assert!(banned(&at, &id).await);
    });
}
