//! Light instances: the vTPM shows what was recorded, a real agent tries to attest with our plugin, and a node whose disk is
//! full says so.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod world;

use std::path::Path;

use banlieue_cluster::Cluster;
use banlieue_crds::kubevirt::InstancePhase;
use banlieue_crds::report::EndorsementReport;
use banlieue_hypervisor::tpm::Tpm;
use banlieue_tpm::eventlog::{Event, EventKind, EventLog};
use banlieue_tpm::pcr::extend;
use kube::{Api, ResourceExt};
use serde_json::json;
use world::{NAMESPACE, World};

const IMAGE: &str = "registry.local/light:1";

/// A recording of two events, and of one extension that no log shows.
fn record(store: &Path) -> EventLog {
    let event = |pcr, byte| Event { pcr, kind: EventKind(0xd), digest: [byte; 32], data: vec![byte] };
    let log = EventLog { startup_locality: 0, events: vec![event(0, 1), event(4, 2)] };
    let folder = store.join("registry.local_light_1");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("log.bin"), log.marshal()).unwrap();
    let document = json!({ "eventLog": "log.bin", "extend": [{ "pcr": 10, "digest": hex::encode([3; 32]) }] });
    std::fs::write(folder.join("light.json"), document.to_string()).unwrap();
    log
}

/// One cluster for all of it.
#[tokio::test]
async fn light_instances() {
    let store = tempfile::tempdir().unwrap();
    let log = record(store.path());
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").canonicalize().unwrap();
    let [agent, plugin] = [target.join("tools/bin/spire-agent"), target.join("debug/banlieue-attestor-guest")];
    for program in [&agent, &plugin] {
        assert!(program.exists(), "{} is missing: run `make build`", program.display());
    }
    let images = store.path().display().to_string();
    let (agent, plugin) = (agent.display().to_string(), plugin.display().to_string());
    let arguments = ["--images", &images, "--spire-agent", &agent, "--attestor-guest", &plugin];
    let world = World::build(Cluster::builder().spire().nodes("light-1=light"), &arguments).await;

    let bundle = world.config("banlieue-system", "spire-bundle", "bundle.crt").await;
    the_recorded_state_is_shown_and_an_agent_tries_to_attest(&world, &bundle, &log).await;
    a_full_disk_is_said_and_leaves_nothing(&world, &bundle).await;
    world.cluster.stop().await.unwrap();
}

async fn the_recorded_state_is_shown_and_an_agent_tries_to_attest(world: &World, bundle: &str, log: &EventLog) {
    world.honest_seed("m", bundle).await;
    let member = world.create("m", "light", IMAGE).await;
    world.until_phase("m", InstancePhase::Running).await;
    let reports: Api<EndorsementReport> = Api::namespaced(world.cluster.admin(), NAMESPACE);
    let report = reports.get(&format!("{}.light-1", member.uid().unwrap())).await.unwrap();
    assert_eq!(report.spec.ek_digests.len(), 3);

    // spire-server has no such plugin in this cluster, so the agent is refused again and again: it got that far.
    let short: String = member.uid().unwrap().chars().take(8).collect();
    let agent = world.cluster.dir().join(format!("vm/logs/{NAMESPACE}.m.{short}.guest.log"));
    let said = async |word: &str, times: usize| {
        std::fs::read_to_string(&agent).unwrap_or_default().matches(word).count() >= times
    };
    world.until("the server refuses", async || said("could not find node attestor type", 1).await).await;
    world.until("the agent is started again", async || said("Starting agent", 2).await).await;

    let mut tpm = Tpm::connect(&world.home(&member).join("tpm.sock")).await.unwrap();
    let mut expected = log.replay();
    expected[10] = extend(&expected[10], &[3; 32]);
    for pcr in 0..16_u8 {
        assert_eq!(tpm.pcr(pcr).await.unwrap(), expected[usize::from(pcr)], "PCR {pcr}");
    }
    drop(tpm);

    world.delete("m").await;
    world.until_gone(&member).await;
    world.until_nothing_is_left(&member).await;
}

/// No machine is lost to a full disk: what was begun goes when it is deleted, and starts once there is room.
async fn a_full_disk_is_said_and_leaves_nothing(world: &World, bundle: &str) {
    // Mounted in the cluster's own mount namespace: even a killed test leaves no mount behind.
    let machines = world.cluster.dir().join("vm/vms").display().to_string();
    let filler = world.cluster.dir().join("vm/vms/filler").display().to_string();
    assert!(world.shell(&format!("mount -t tmpfs -o size=8m tmpfs {machines}")).await, "this test runs as root");
    let fill = format!("cat /dev/zero > {filler}");
    assert!(!world.shell(&fill).await, "it ends for lack of space");
    for name in ["ended", "patient"] {
        world.honest_seed(name, bundle).await;
    }
    let ended = world.create("ended", "light", IMAGE).await;
    let patient = world.create("patient", "light", IMAGE).await;
    for instance in [&ended, &patient] {
        let name = instance.name_any();
        world
            .until("the full disk is said", async || {
                let said = world.trouble(&name).await.unwrap_or_default();
                said.contains("No space left on device") && said.contains(&instance.uid().unwrap())
            })
            .await;
        assert_eq!(world.processes_of(instance).await, [""; 0], "nothing runs for {name}");
        assert_eq!(world.phase(&name).await, Some(InstancePhase::Scheduled));
    }
    world.delete("ended").await;
    world.until_gone(&ended).await;

    assert!(world.shell(&format!("rm {filler}")).await);
    world.until_phase("patient", InstancePhase::Running).await;
    assert_eq!(world.trouble("patient").await, None, "the trouble is taken back");
    world.delete("patient").await;
    world.until_gone(&patient).await;
    assert!(world.shell(&format!("test -z \"$(ls -A {machines})\"")).await, "files of machines are left");
    assert!(world.shell(&format!("umount {machines}")).await);
}
