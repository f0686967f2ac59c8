//! Evidence from a real swtpm, verified in software the way the server does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may end here")]

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use banlieue_attestor_guest::{config::Config, evidence::Attestation, inputs, tpm::Tpm};
use banlieue_protocol::{
    log_codec,
    message::{M1, M2, M3},
    names::TrustDomain,
    transcript::{ProofInput, QuoteInput, extra_data_matches, m1_hash, m2_hash, verify_proof},
};
use banlieue_tpm::{
    attest::Attest,
    credential::make_credential,
    pcr::{PcrSelection, quote_digest},
    signature::Signature,
    template::{EndorsementKind, check_attestation, check_endorsement},
};

/// A swtpm with a manufacturer's endorsement key, gone with the test.
struct Swtpm {
    dir: tempfile::TempDir,
    process: Child,
}

impl Swtpm {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let setup = Command::new("swtpm_setup")
            .args(["--tpm2", "--create-ek-cert", "--create-platform-cert", "--lock-nvram", "--overwrite", "--tpmstate"])
            .arg(&state)
            .output()
            .expect("apt-get install swtpm-tools");
        assert!(setup.status.success(), "{}", String::from_utf8_lossy(&setup.stdout));
        let socket = dir.path().join("tpm");
        let process = Command::new("swtpm")
            .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear", "--tpmstate"])
            .arg(format!("dir={}", state.display()))
            .arg("--server")
            .arg(format!("type=unixio,path={}", socket.display()))
            .arg("--ctrl")
            .arg(format!("type=unixio,path={}.ctrl", socket.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("apt-get install swtpm");
        let until = Instant::now() + Duration::from_secs(30);
        while !socket.exists() || !dir.path().join("tpm.ctrl").exists() {
            assert!(Instant::now() < until, "swtpm made no sockets");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { dir, process }
    }

    fn tcti(&self) -> String {
        format!("swtpm:path={}/tpm", self.dir.path().display())
    }

    /// What tpm2-tools say, over their own connection.
    fn tool(&self, arguments: &[&str]) -> String {
        let out = Command::new("tpm2")
            .args(arguments)
            .env("TPM2TOOLS_TCTI", self.tcti())
            .output()
            .expect("apt-get install tpm2-tools");
        assert!(out.status.success(), "tpm2 {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }
}

impl Drop for Swtpm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const LOG: &[u8] = b"what the kernel shows as event log";
const BOOT: &str = "6a1f5a36-3b0c-4f42-8d6e-000000000001";

fn guest(swtpm: &Swtpm) -> Config {
    let folder = swtpm.dir.path().join("seed");
    let values = [
        ("member", "guest-x7k2p"),
        ("namespace", "sandboxes"),
        ("uid", "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab"),
        ("secret", "0707070707070707070707070707070707070707070707070707070707070707"),
        ("issued-at", "2026-11-30T20:00:00Z"),
        ("expires-at", "2026-11-30T20:15:00Z"),
        ("trust-domain", "banlieue.local"),
        ("cluster", "local"),
        ("bundle.pem", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"),
        ("spire-server", "10.0.2.2:8081"),
        ("broker", ""),
    ];
    std::fs::create_dir(&folder).unwrap();
    for (key, value) in values {
        std::fs::write(folder.join(key), value).unwrap();
    }
    let file = |name: &str, content: &[u8]| -> PathBuf {
        let path = swtpm.dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    Config {
        tpm: swtpm.tcti(),
        event_log: file("log", LOG),
        seed: folder,
        boot_id: file("boot_id", format!("{BOOT}\n").as_bytes()),
    }
}

fn challenge(m1: &M1, secret: &[u8]) -> M2 {
    let blobs = make_credential(&m1.ek, &m1.ak.name(), secret, &aws_lc_rs::rand::SystemRandom::new()).unwrap();
    M2 {
        server_nonce: [9; 32],
        id_object: blobs.id_object,
        encrypted_secret: blobs.encrypted_secret,
        selection: PcrSelection::QUOTED,
        policy_digest: [1; 32],
        deadline_seconds: 30,
    }
}

#[test]
fn evidence_holds_in_software() {
    let swtpm = Swtpm::start();
    let config = guest(&swtpm);
    let (seed, seed_digest) = inputs::seed(&config.seed).unwrap();
    swtpm.tool(&["pcrextend", &format!("4:sha256={}", "11".repeat(32))]);

    let (attestation, m1_bytes) = Attestation::begin(&config, "banlieue.local").unwrap();
    let m1 = M1::decode(&m1_bytes).unwrap();
    assert_eq!(check_endorsement(&m1.ek), Ok(EndorsementKind::Rsa2048));
    assert_eq!(check_attestation(&m1.ak), Ok(()));
    let proof = ProofInput { member: &m1.uid, ek: &m1.ek, ak_name: &m1.ak.name(), guest_nonce: &m1.guest_nonce };
    assert!(verify_proof(&seed.secret, &proof, &m1.enrolment_proof.unwrap()));

    let secret = [5; 32];
    let m2 = challenge(&m1, &secret);
    let m2_bytes = m2.encode();
    let m3 = attestation.answer(&m2_bytes, &config.event_log, &config.boot_id).unwrap();
    let m3 = M3::decode(&m3).unwrap();

    let attest = Attest::parse(&m3.attest).unwrap();
    Signature::parse(&m3.signature).unwrap().verify(&m1.ak, &m3.attest).unwrap();
    assert_eq!(attest.pcr_digest, quote_digest(&m3.pcr_values));
    let extra = QuoteInput {
        server_nonce: &m2.server_nonce,
        secret: &secret,
        m1: &m1_hash(&m1_bytes),
        m2: &m2_hash(&m2_bytes),
        seed: &seed_digest,
        trust_domain: &TrustDomain::parse("banlieue.local").unwrap(),
    };
    assert!(extra_data_matches(&extra, &attest.extra_data));
    assert!(!extra_data_matches(&QuoteInput { secret: &[6; 32], ..extra }, &attest.extra_data));
    let ek_name = m1.ek.qualified_name(&banlieue_tpm::Name::endorsement());
    assert_eq!(attest.qualified_signer, m1.ak.qualified_name(&ek_name));
    let extended = banlieue_tpm::pcr::extend(&[0; 32], &[0x11; 32]);
    assert_eq!(m3.pcr_values[4], extended);
    assert_eq!(m3.pcr_values[15], [0; 32]);
    assert_eq!(log_codec::unpack(&m3.event_log).unwrap(), LOG);
    assert_eq!(m3.boot_id.as_str(), BOOT);
    assert_eq!(m3.seed_digest, seed_digest);
}

#[test]
fn the_endorsement_key_is_the_one_the_host_reads() {
    let swtpm = Swtpm::start();
    let public = swtpm.dir.path().join("ek.pub");
    swtpm.tool(&["createek", "-G", "rsa", "-c", "-", "-u", public.to_str().unwrap()]);
    let ours = || Tpm::connect(&swtpm.tcti()).unwrap().endorsement_key().unwrap().public.marshal();
    assert_eq!(ours(), std::fs::read(&public).unwrap());
    // Without the kept key it is derived anew, and is the same.
    let kept = swtpm.tool(&["getcap", "handles-persistent"]);
    for handle in kept.lines().filter_map(|l| l.trim().strip_prefix("- ")) {
        swtpm.tool(&["evictcontrol", "-C", "o", "-c", handle]);
    }
    assert_eq!(ours(), std::fs::read(&public).unwrap());
}

#[test]
fn nothing_stays_in_the_tpm() {
    let swtpm = Swtpm::start();
    let config = guest(&swtpm);
    // More rounds than the TPM has room for keys or sessions.
    let mut keys = Vec::new();
    for round in 0..6 {
        let (attestation, m1) = Attestation::begin(&config, "banlieue.local").unwrap();
        let m1 = M1::decode(&m1).unwrap();
        keys.push(m1.ak.marshal());
        let mut m2 = challenge(&m1, &[5; 32]);
        if round % 2 == 1 {
            // A credential that does not open leaves nothing behind either.
            m2.id_object[10] ^= 1;
        }
        let answer = attestation.answer(&m2.encode(), &config.event_log, &config.boot_id);
        assert_eq!(answer.is_ok(), round % 2 == 0, "round {round}: {answer:?}");
    }
    for kind in ["handles-transient", "handles-loaded-session", "handles-saved-session"] {
        assert_eq!(swtpm.tool(&["getcap", kind]).trim(), "", "{kind}");
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 6, "an attestation key was used twice");
}

#[test]
fn attestations_that_were_cut_short_do_not_fill_the_tpm() {
    let swtpm = Swtpm::start();
    let config = guest(&swtpm);
    let mut waiting = Vec::new();
    for _ in 0..8 {
        // Never answered, never dropped: as if the plugin had been killed.
        waiting.push(Attestation::begin(&config, "banlieue.local").unwrap());
        assert_eq!(swtpm.tool(&["getcap", "handles-transient"]).trim(), "");
    }
    // And a program that was killed with its keys loaded.
    for name in ["a", "b", "c"] {
        let context = swtpm.dir.path().join(name);
        swtpm.tool(&["createprimary", "-Q", "-c", context.to_str().unwrap()]);
    }
    assert_eq!(swtpm.tool(&["getcap", "handles-transient"]).lines().count(), 3, "the TPM is not full");
    let (attestation, m1) = Attestation::begin(&config, "banlieue.local").unwrap();
    let m2 = challenge(&M1::decode(&m1).unwrap(), &[5; 32]);
    attestation.answer(&m2.encode(), &config.event_log, &config.boot_id).unwrap();
    assert_eq!(swtpm.tool(&["getcap", "handles-transient"]).trim(), "");
}

#[test]
fn another_tpms_credential_does_not_open() {
    let (ours, theirs) = (Swtpm::start(), Swtpm::start());
    let (our_config, their_config) = (guest(&ours), guest(&theirs));
    let (_theirs, their_m1) = Attestation::begin(&their_config, "banlieue.local").unwrap();
    let (attestation, _) = Attestation::begin(&our_config, "banlieue.local").unwrap();
    let m2 = challenge(&M1::decode(&their_m1).unwrap(), &[5; 32]);
    let answer = attestation.answer(&m2.encode(), &our_config.event_log, &our_config.boot_id);
    assert!(answer.is_err(), "{answer:?}");
}

#[test]
fn a_seed_of_another_trust_domain_is_not_used() {
    let swtpm = Swtpm::start();
    let config = guest(&swtpm);
    let refused = Attestation::begin(&config, "other.local").unwrap_err();
    assert!(refused.to_string().contains("other.local"), "{refused}");
}

#[test]
fn an_endless_event_log_is_refused() {
    let refused = inputs::event_log(Path::new("/dev/zero")).unwrap_err();
    assert!(matches!(refused, inputs::Error::TooLarge(..)), "{refused}");
}
