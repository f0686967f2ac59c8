//! The software half against a real TPM: swtpm, driven by tpm2-tools.
//!
//! Needs `apt-get install swtpm swtpm-tools tpm2-tools util-linux`.

// Clippy's exception for tests does not reach what tests share.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aws_lc_rs::rand::SystemRandom;
use banlieue_tpm::credential::{Credential, make_credential};
use banlieue_tpm::eventlog::{Event, EventKind, EventLog};
use banlieue_tpm::pcr::{PcrSelection, PcrValue, extend, quote_digest};
use banlieue_tpm::template::{EndorsementKind, check_attestation, check_endorsement};
use banlieue_tpm::{Attest, Name, Public, Signature};

const AK_ATTRIBUTES: &str = "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|restricted|sign";
const INSTALL: &str = "install them with: apt-get install swtpm swtpm-tools tpm2-tools util-linux";

/// A TPM of its own, gone with its state when dropped.
struct Tpm {
    dir: tempfile::TempDir,
    swtpm: Child,
}

impl Drop for Tpm {
    fn drop(&mut self) {
        let _ = self.swtpm.kill();
        let _ = self.swtpm.wait();
    }
}

impl Tpm {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        let setup = Command::new("swtpm_setup")
            // Keys without certificates: no CA on the machine is touched, so runs side by side share nothing.
            .args(["--tpm2", "--ecc", "--createek", "--pcr-banks", "sha256", "--overwrite", "--tpmstate"])
            .arg(&state)
            .output()
            .unwrap_or_else(|error| panic!("swtpm_setup: {error}; {INSTALL}"));
        let said = [setup.stdout, setup.stderr].concat();
        assert!(setup.status.success(), "{}", String::from_utf8_lossy(&said));
        let socket = dir.path().join("tpm.sock");
        let swtpm = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "swtpm", "socket", "--tpm2", "--flags", "startup-clear"])
            .arg("--tpmstate")
            .arg(format!("dir={}", state.display()))
            .arg("--server")
            .arg(format!("type=unixio,path={}", socket.display()))
            .arg("--ctrl")
            .arg(format!("type=unixio,path={}.ctrl", socket.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("swtpm: {error}; {INSTALL}"));
        let tpm = Self { dir, swtpm };
        let patience = Instant::now() + Duration::from_secs(60);
        while !socket.exists() {
            assert!(Instant::now() < patience, "swtpm made no socket");
            std::thread::sleep(Duration::from_millis(20));
        }
        tpm
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// Runs one of tpm2-tools in the TPM's folder. There is no resource manager: what it loaded is flushed.
    fn try_run(&self, command: &str) -> Result<String, String> {
        let result = self.tool(command);
        self.tool("tpm2_flushcontext -t").unwrap();
        result
    }

    fn tool(&self, command: &str) -> Result<String, String> {
        let mut words = command.split_whitespace();
        let output = Command::new(words.next().unwrap())
            .args(words)
            .current_dir(self.dir.path())
            .env("TPM2TOOLS_TCTI", format!("swtpm:path={}", self.path("tpm.sock").display()))
            .output()
            .unwrap_or_else(|error| panic!("{command}: {error}; {INSTALL}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn run(&self, command: &str) -> String {
        self.try_run(command).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    fn endorsement(&self, kind: EndorsementKind) -> Endorsement<'_> {
        // swtpm_setup left the P-384 key behind; the others come from the TPM's seed.
        let handle = match kind {
            EndorsementKind::P384 => "0x81010016",
            EndorsementKind::Rsa2048 => {
                self.run("tpm2_createek -G rsa -c ek-rsa.ctx -u ek.unused");
                "ek-rsa.ctx"
            }
            EndorsementKind::P256 => {
                self.run("tpm2_createek -G ecc -c ek-ecc.ctx -u ek.unused");
                "ek-ecc.ctx"
            }
        };
        let (public, qualified_name) = self.public(handle);
        Endorsement { tpm: self, kind, handle, public, qualified_name }
    }

    /// Public area and qualified name, as the TPM says them.
    fn public(&self, handle: &str) -> (Public, Vec<u8>) {
        self.run(&format!("tpm2_readpublic -c {handle} -o public.bin -n name.bin -q qualified.bin"));
        let bytes = self.read("public.bin");
        let public = Public::parse(&bytes).unwrap();
        assert_eq!(public.marshal(), bytes);
        assert_eq!(public.name().as_bytes(), self.read("name.bin"));
        (public, self.read("qualified.bin"))
    }

    fn quote(&self, handle: &str, extra: &[u8]) -> (Vec<u8>, Vec<u8>, Vec<PcrValue>) {
        let list = (0..16).map(|pcr| pcr.to_string()).collect::<Vec<_>>().join(",");
        let extra: String = extra.iter().map(|byte| format!("{byte:02x}")).collect();
        self.run(&format!(
            "tpm2_quote -c {handle} -l sha256:{list} -g sha256 -q {extra} -m quote.bin -s signature.bin"
        ));
        self.run(&format!("tpm2_pcrread sha256:{list} -o pcrs.bin"));
        let values = self.read("pcrs.bin").chunks(32).map(|value| value.try_into().unwrap()).collect();
        (self.read("quote.bin"), self.read("signature.bin"), values)
    }
}

struct Endorsement<'a> {
    tpm: &'a Tpm,
    kind: EndorsementKind,
    handle: &'static str,
    public: Public,
    qualified_name: Vec<u8>,
}

impl Endorsement<'_> {
    /// Runs a command that uses the key: by its policy, or, for the P-384 template, by its empty auth value.
    fn run(&self, command: &str) -> Result<String, String> {
        if self.kind == EndorsementKind::P384 {
            return self.tpm.try_run(command);
        }
        self.tpm.run("tpm2_startauthsession --policy-session -S session.ctx");
        self.tpm.run("tpm2_policysecret -S session.ctx -c e");
        let result = self.tpm.try_run(&format!("{command} -P session:session.ctx"));
        self.tpm.run("tpm2_flushcontext session.ctx");
        result
    }

    /// A key under the endorsement key.
    fn create(&self, algorithm: &str, attributes: &str) -> (Public, Vec<u8>) {
        let handle = self.handle;
        self.run(&format!("tpm2_create -C {handle} -G {algorithm} -g sha256 -a {attributes} -u ak.pub -r ak.priv"))
            .unwrap();
        self.run(&format!("tpm2_load -C {handle} -u ak.pub -r ak.priv -c ak.ctx")).unwrap();
        self.tpm.public("ak.ctx")
    }

    /// What the TPM finds in a credential.
    fn activate(&self, credential: &Credential) -> Result<Vec<u8>, String> {
        let sized = |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
        // The header is tpm2-tools' own.
        let header = [0xbadc_c0de_u32.to_be_bytes(), 1u32.to_be_bytes()].concat();
        let file = [header, sized(&credential.id_object), sized(&credential.encrypted_secret)].concat();
        fs::write(self.tpm.path("credential.bin"), file).unwrap();
        let _ = fs::remove_file(self.tpm.path("secret.bin"));
        self.run(&format!("tpm2_activatecredential -c ak.ctx -C {} -i credential.bin -o secret.bin", self.handle))?;
        Ok(self.tpm.read("secret.bin"))
    }
}

fn whole_protocol(kind: EndorsementKind) {
    let tpm = Tpm::start();
    let ek = tpm.endorsement(kind);
    assert_eq!(check_endorsement(&ek.public), Ok(kind));
    assert_eq!(ek.public.qualified_name(&Name::endorsement()).as_bytes(), ek.qualified_name);
    assert_spki_is_openssls(&tpm, ek.handle, &ek.public);

    let (ak, ak_qualified) = ek.create("ecc256:ecdsa-sha256:null", AK_ATTRIBUTES);
    assert_eq!(check_attestation(&ak), Ok(()));
    let qualified = ak.qualified_name(&ek.public.qualified_name(&Name::endorsement()));
    assert_eq!(qualified.as_bytes(), ak_qualified);

    // Credentials: opened by this TPM for this key and no other.
    let random = SystemRandom::new();
    for size in [1, 16, 32] {
        let secret: Vec<u8> = (1..=size).collect();
        let credential = make_credential(&ek.public, &ak.name(), &secret, &random).unwrap();
        assert_eq!(ek.activate(&credential).unwrap(), secret);
    }
    let secret = [7; 32];
    let for_other = make_credential(&ek.public, &ek.public.name(), &secret, &random).unwrap();
    ek.activate(&for_other).unwrap_err();
    let mut damaged = make_credential(&ek.public, &ak.name(), &secret, &random).unwrap();
    *damaged.id_object.last_mut().unwrap() ^= 1;
    ek.activate(&damaged).unwrap_err();

    // Quotes.
    tpm.run(&format!("tpm2_pcrextend 4:sha256={} 15:sha256={}", "44".repeat(32), "15".repeat(32)));
    let (quote, signature, values) = tpm.quote("ak.ctx", &[0xe7; 32]);
    let attest = Attest::parse(&quote).unwrap();
    let signature = Signature::parse(&signature).unwrap();
    signature.verify(&ak, &quote).unwrap();
    assert_eq!(attest.qualified_signer, qualified);
    assert_eq!(attest.extra_data, [0xe7; 32]);
    assert_eq!(attest.selection, [PcrSelection::QUOTED]);
    assert_eq!(attest.pcr_digest, quote_digest(&values));
    assert!(attest.clock.safe);
    for at in 0..quote.len() {
        let mut changed = quote.clone();
        changed[at] ^= 1;
        signature.verify(&ak, &changed).unwrap_err();
    }
    let log = EventLog {
        startup_locality: 0,
        events: [(4, 0x44), (15, 0x15)]
            .map(|(pcr, byte)| Event { pcr, kind: EventKind::IPL, digest: [byte; 32], data: vec![] })
            .to_vec(),
    };
    log.check_replay(&values, 0).unwrap();
    assert_eq!(values[4], extend(&[0; 32], &[0x44; 32]));

    // The same TPM, the same attributes, but straight under the endorsement hierarchy: another qualified name.
    tpm.run(&format!("tpm2_createprimary -C e -G ecc256:ecdsa-sha256:null -g sha256 -a {AK_ATTRIBUTES} -c other.ctx"));
    let (other, _) = tpm.public("other.ctx");
    let (quote, bytes, _) = tpm.quote("other.ctx", &[1]);
    Signature::parse(&bytes).unwrap().verify(&other, &quote).unwrap();
    Signature::parse(&bytes).unwrap().verify(&ak, &quote).unwrap_err();
    let signer = Attest::parse(&quote).unwrap().qualified_signer;
    assert_ne!(signer, other.qualified_name(&ek.public.qualified_name(&Name::endorsement())));
    assert_eq!(signer, other.qualified_name(&Name::endorsement()));
}

/// tpm2-tools write a key's SubjectPublicKeyInfo through OpenSSL.
fn assert_spki_is_openssls(tpm: &Tpm, handle: &str, public: &Public) {
    tpm.run(&format!("tpm2_readpublic -c {handle} -f der -o spki.der"));
    assert_eq!(public.spki_der().unwrap(), tpm.read("spki.der"));
}

#[test]
fn rsa_2048() {
    whole_protocol(EndorsementKind::Rsa2048);
}

#[test]
fn p_256() {
    whole_protocol(EndorsementKind::P256);
}

#[test]
fn p_384() {
    whole_protocol(EndorsementKind::P384);
}

#[test]
fn another_tpm_opens_no_credential() {
    let (one, two) = (Tpm::start(), Tpm::start());
    let (ours, theirs) = (one.endorsement(EndorsementKind::P256), two.endorsement(EndorsementKind::P256));
    let (ak, _) = theirs.create("ecc256:ecdsa-sha256:null", AK_ATTRIBUTES);
    let credential = make_credential(&ours.public, &ak.name(), &[7; 32], &SystemRandom::new()).unwrap();
    theirs.activate(&credential).unwrap_err();
}

#[test]
fn keys_that_only_look_like_an_attestation_key_are_told_apart() {
    let tpm = Tpm::start();
    let ek = tpm.endorsement(EndorsementKind::P384);
    for (algorithm, attributes, category) in [
        ("ecc256:ecdsa-sha256:null", "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|sign", "attributes"),
        (
            "ecc256:ecdsa-sha256:null",
            "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|restricted|sign|noda",
            "attributes",
        ),
        ("ecc256:null:null", "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|decrypt|sign", "attributes"),
        ("ecc384:ecdsa-sha384:null", AK_ATTRIBUTES, "algorithm"),
        ("ecc256:ecdsa-sha384:null", AK_ATTRIBUTES, "algorithm"),
        ("rsa2048:rsassa-sha256:null", AK_ATTRIBUTES, "algorithm"),
    ] {
        let (key, _) = ek.create(algorithm, attributes);
        assert_eq!(check_attestation(&key).unwrap_err().category(), category, "{algorithm} {attributes}");
    }
    assert!(Path::new(&tpm.path("tpm.sock")).exists());
}
