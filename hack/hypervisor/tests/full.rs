//! Real machines against KubeVirt's own control plane: QEMU, OVMF and swtpm, booting the image that the demo uses.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod world;

use std::path::PathBuf;

use banlieue_cluster::{Signal, component};
use banlieue_crds::kubevirt::{InstancePhase, VirtualMachineInstance};
use banlieue_crds::report::EndorsementReport;
use kube::{Api, ResourceExt};
use serde_json::json;
use world::{NAMESPACE, World};

const IMAGE: &str = "registry.local/banlieue/guest:dev";

/// The store that holds [`IMAGE`].
fn images() -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/images");
    let disk = root.join("registry.local_banlieue_guest_dev/disk.raw");
    assert!(disk.exists(), "{} is missing: run `cargo xtask image`", disk.display());
    root.display().to_string()
}

fn console(world: &World, instance: &VirtualMachineInstance) -> String {
    let short: String = instance.uid().unwrap().chars().take(8).collect();
    let path = world.cluster.dir().join(format!("vm/logs/{NAMESPACE}.{}.{short}.console.log", instance.name_any()));
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// One cluster for all of it: starting one takes longer than most of what is shown here.
#[tokio::test]
async fn machines() {
    let world = World::start("full-1=full", &["--images", &images()]).await;
    tokio::join!(a_guest_is_given_its_grace(&world), missing_parts_are_said_until_they_are_there(&world), async {
        a_machine_outlives_its_hypervisor_and_ends_with_its_guest(&world).await;
        crashes_fail_and_deletions_wipe(&world).await;
    });
    world.cluster.stop().await.unwrap();
}

async fn a_machine_outlives_its_hypervisor_and_ends_with_its_guest(world: &World) {
    // This seed makes the image print what it measured and power off.
    world.seed("short", json!({ "record-measurements": "" })).await;
    let short = world.create("short", "full", IMAGE).await;
    let running = world.until_phase("short", InstancePhase::Running).await;

    let reports: Api<EndorsementReport> = Api::namespaced(world.cluster.admin(), NAMESPACE);
    let report = reports.get(&format!("{}.full-1", short.uid().unwrap())).await.unwrap();
    assert_eq!(report.spec.ek_digests.len(), 3, "the report is there before the instance is said to run");
    assert!(running.status.unwrap().interfaces[0].ip_address.is_some());
    assert!(world.home(&short).join("tpm").exists());

    let before = world.processes_of(&short).await;
    world.cluster.kill(component::HYPERVISOR, Signal::Kill).await.unwrap();
    assert_eq!(world.processes_of(&short).await, before, "machines do not end with their hypervisor");
    world.cluster.restart(component::HYPERVISOR).await.unwrap();
    world.until_phase("short", InstancePhase::Succeeded).await;
    assert!(console(world, &short).contains("BANLIEUE-EVIDENCE"), "the guest ran to its own end");
    world.until_nothing_is_left(&short).await;
    world.delete("short").await;
    world.until_gone(&short).await;
}

/// Also what happened while the hypervisor was away.
async fn crashes_fail_and_deletions_wipe(world: &World) {
    let bundle = world.config("kubevirt", "kubevirt-ca", "ca-bundle").await;
    for name in ["crash", "deleted", "missed"] {
        world.honest_seed(name, &bundle).await;
    }
    let crash = world.create("crash", "full", IMAGE).await;
    let deleted = world.create("deleted", "full", IMAGE).await;
    let missed = world.create("missed", "full", IMAGE).await;
    for name in ["crash", "deleted", "missed"] {
        world.until_phase(name, InstancePhase::Running).await;
    }
    let supervisor = world.cluster.supervisor();
    supervisor.signal(&format!("vm-{}-qemu", crash.uid().unwrap()), Signal::Kill).await.unwrap();
    let failed = world.until_phase("crash", InstancePhase::Failed).await;
    assert_eq!(failed.status.unwrap().reason.as_deref(), Some("MachineFailed"));
    // virt-controller clears the condition of an instance that is over; the pod keeps the words.
    let words = async || world.pod_of(&crash).await.unwrap().status.unwrap().message.unwrap_or_default();
    world.until("the pod says why", async || words().await.contains("killed by signal 9")).await;
    world.until_nothing_is_left(&crash).await;

    world.delete("deleted").await;
    world.until_gone(&deleted).await;
    assert!(
        world.processes_of(&deleted).await.is_empty() && !world.home(&deleted).exists(),
        "wiped before it was gone"
    );

    world.cluster.kill(component::HYPERVISOR, Signal::Kill).await.unwrap();
    world.delete("missed").await;
    world.cluster.restart(component::HYPERVISOR).await.unwrap();
    world.until_gone(&missed).await;
    assert!(world.processes_of(&missed).await.is_empty() && !world.home(&missed).exists());
}

/// The grace of a deletion: the guest's power button is pressed, and an honest guest powers off.
async fn a_guest_is_given_its_grace(world: &World) {
    let bundle = world.config("kubevirt", "kubevirt-ca", "ca-bundle").await;
    world.honest_seed("polite", &bundle).await;
    let patient = |object: &mut serde_json::Value| object["spec"]["terminationGracePeriodSeconds"] = json!(200);
    let polite = world.create_with("polite", "full", IMAGE, patient).await;
    world.until_phase("polite", InstancePhase::Running).await;
    world.until("user space", async || console(world, &polite).contains("banlieue-guest")).await;
    world.delete("polite").await;
    world.until_gone(&polite).await;
    assert!(console(world, &polite).contains("Power down"), "it was not killed: {}", console(world, &polite));
}

async fn missing_parts_are_said_until_they_are_there(world: &World) {
    world.create("no-image", "full", "registry.local/nobody:1").await;
    let said = async |name: &str, word: &str| world.trouble(name).await.is_some_and(|said| said.contains(word));
    world.until("the image is missed", async || said("no-image", "registry.local/nobody:1").await).await;
    let late = world.create("no-secret", "full", IMAGE).await;
    world.until("the secret is missed", async || said("no-secret", "no-secret-enrol").await).await;
    world.seed("no-secret", json!({ "record-measurements": "" })).await;
    world.until_phase("no-secret", InstancePhase::Running).await;
    for name in ["no-image", "no-secret"] {
        world.delete(name).await;
    }
    world.until_gone(&late).await;
}
