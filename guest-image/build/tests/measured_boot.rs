//! Boots real images with firmware, stub and vTPM, and compares what was measured with what was predicted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may end here")]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Duration,
};

use banlieue_hypervisor::accel;
use banlieue_hypervisor::golden::{Golden, record_measurements, run_to_poweroff};
use banlieue_image::{
    build::{self, Built, Recipe},
    disk, kernel, light,
    predict::{self, Prediction},
    tamper,
    tree::Programs,
};
use banlieue_policy::{golden, record::record};
use banlieue_tpm::{
    eventlog::EventLog,
    pcr::{PcrValue, QUOTED},
};

/// Boots are slow where there is no KVM and many run at once; this only ends what hangs.
const PATIENCE: Duration = Duration::from_secs(600);

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The guest agent of this very source. A golden boot starts no other program, so others stand in for those.
fn recipe() -> Recipe {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "-p", "banlieue-guest", "--bin", "banlieue-guest", "--message-format=json"])
        .current_dir(workspace())
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = String::from_utf8(built.stdout).unwrap();
    let guest = said
        .split("\"executable\":\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .find(|path| path.ends_with("/banlieue-guest"))
        .expect("cargo names the program it built");
    let cache = workspace().join("target/image/kernel");
    let kernel = kernel::unpack(&kernel::download(&cache).unwrap(), &cache).unwrap();
    Recipe {
        name: "test".into(),
        version: "1".into(),
        stub: "/usr/lib/systemd/boot/efi/linuxx64.efi.stub".into(),
        programs: Programs {
            spire_agent: "/usr/bin/true".into(),
            guest: PathBuf::from(guest),
            attestor_guest: "/usr/bin/true".into(),
        },
        kernel,
    }
}

fn honest() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| build::build(&recipe()).unwrap())
}

/// Boots `image` with `seed` until it powers off; gives its console's output.
fn console(image: &[u8], seed: BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    // Below target/: whether KVM works is found out once and noted beside the disks' folders.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = dir.path().join("disk.raw");
    std::fs::write(&disk, image).unwrap();
    let console = dir.path().join("console.log");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let accelerator = runtime.block_on(accel::choose(&disk)).unwrap();
    let boot = Golden { disk, seed, memory_mib: 512, vcpus: 1, console, accelerator };
    std::fs::read(runtime.block_on(run_to_poweroff(&boot, PATIENCE)).unwrap()).unwrap()
}

/// Boots `image` and gives what it measured, and its console.
fn boot(image: &[u8]) -> ([PcrValue; QUOTED], EventLog, Vec<u8>) {
    let console = console(image, record_measurements());
    let evidence = golden::read(&console).unwrap();
    (evidence.pcrs, evidence.log, console)
}

fn predicted(image: &[u8]) -> Prediction {
    predict::predict(&disk::read(image, disk::BOOT_FILE).unwrap()).unwrap()
}

#[test]
fn same_inputs_give_the_same_bytes() {
    // Unpacked anew elsewhere: neither a path nor the order in which a folder lists its files may show.
    let elsewhere = tempfile::tempdir().unwrap();
    let package = kernel::download(&workspace().join("target/image/kernel")).unwrap();
    let kernel = kernel::unpack(&package, elsewhere.path()).unwrap();
    let again = build::build(&Recipe { kernel, ..recipe() }).unwrap();
    assert_eq!(again.predictions, honest().predictions);
    assert!(again.disk == honest().disk, "two builds of one recipe differ");
}

#[test]
fn an_honest_boot_measures_what_was_predicted() {
    let (pcrs, log, console) = boot(&honest().disk);
    let Prediction { boot, handed, sections } = predicted(&honest().disk);
    assert_eq!((pcrs[4], pcrs[9], pcrs[11]), (boot, handed, sections));
    for zero in [8, 12, 13, 14, 15] {
        assert_eq!(pcrs[zero], [0; 32], "PCR {zero}");
    }
    let document = record(&honest().predictions, &pcrs, &log).unwrap().to_yaml().unwrap();

    // The light form replays to the same values.
    let light = light::light(&console, document.as_bytes(), Path::new("/usr/bin/true")).unwrap();
    let mut replayed = EventLog::parse(&light.event_log).unwrap().replay();
    for extension in &light.recording.extend {
        let mut digest = [0; 32];
        hex::decode_to_slice(&extension.digest, &mut digest).unwrap();
        let pcr = &mut replayed[usize::from(extension.pcr)];
        *pcr = banlieue_tpm::pcr::extend(pcr, &digest);
    }
    assert_eq!(replayed[..QUOTED], pcrs);
}

#[test]
fn a_changed_byte_in_the_initrd_is_measured() {
    let changed = tamper::change_byte(&honest().disk, tamper::QUIET_FILE).unwrap();
    let (pcrs, ..) = boot(&changed);
    let (honest, dishonest) = (predicted(&honest().disk), predicted(&changed));
    assert_eq!((pcrs[4], pcrs[9], pcrs[11]), (dishonest.boot, dishonest.handed, dishonest.sections));
    assert!(pcrs[4] != honest.boot && pcrs[9] != honest.handed && pcrs[11] != honest.sections);
}

#[test]
fn a_credential_beside_the_image_is_measured() {
    let laid = tamper::lay_credential(&honest().disk).unwrap();
    let (pcrs, ..) = boot(&laid);
    assert_ne!(pcrs[12], [0; 32], "the credential left no trace in PCR 12");
    // The image itself is the honest one.
    assert_eq!((pcrs[4], pcrs[11]), (predicted(&honest().disk).boot, predicted(&honest().disk).sections));
}

#[test]
fn only_files_that_are_there_can_be_changed() {
    let refused = tamper::change_byte(&honest().disk, "etc/shadow").unwrap_err();
    assert!(refused.to_string().contains("etc/shadow"), "{refused}");
}

#[test]
fn a_seed_that_is_none_powers_the_guest_off() {
    let seed = [("member", "guest-1"), ("shell", "/bin/sh")];
    let seed = seed.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
    let said = String::from_utf8_lossy(&console(&honest().disk, seed.into())).into_owned();
    assert!(said.contains("powering off: seed has the unknown key \"shell\""), "{said}");
}
