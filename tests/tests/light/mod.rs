//! What tests on light instances share: one cluster with the whole product, two recorded images, pools that ask for
//! evidence.
#![allow(dead_code)] // each test binary uses its part
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests, though not functions of a test

use std::future::Future;
use std::ops::Deref;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use banlieue_cluster::{Cluster, component, programs, progress};
use banlieue_crds::{PoolMember, Timestamp, VirtualMachinePool, conditions};
use banlieue_policy::Digest;
use banlieue_policy::document::{API_VERSION, Image, Program, Programs};
use banlieue_policy::record::{Predictions, record};
use banlieue_tests::objects::{self, template};
use banlieue_tests::space::{self, Space};
pub use banlieue_tests::wait::eventually;
use banlieue_tests::{members, spire};
use banlieue_tpm::eventlog::{Event, EventKind, EventLog};
use banlieue_tpm::hash::sha256;
use banlieue_tpm::pcr::extend;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// An image whose recorded boot is the golden one.
pub const HONEST: &str = "registry.local/light/honest:1";
/// The same with another initrd.
pub const TAMPERED: &str = "registry.local/light/tampered:1";
/// SPIRE's agents prove themselves again at half of this.
const AGENT_TTL: Duration = Duration::from_secs(24);
/// What the kernel's IMA extends.
const IMA: [u8; 32] = [0x1a; 32];

static WORLD: OnceCell<World> = OnceCell::const_new();

/// Never dropped: it ends with the test process, whose end closes the lifeline.
struct World {
    cluster: Cluster,
    measurements: String,
    digest: String,
}

/// Runs one test in a namespace of its own.
pub fn test<F: Future<Output = ()>>(body: impl FnOnce(Fixture) -> F) {
    space::run(async { body(Fixture::new().await).await });
}

/// A pool namespace of the shared cluster.
pub struct Fixture {
    space: Space,
    world: &'static World,
}

impl Deref for Fixture {
    type Target = Space;

    fn deref(&self) -> &Space {
        &self.space
    }
}

fn log(initrd: &str) -> EventLog {
    let event = |pcr, text: &str| Event {
        pcr,
        kind: EventKind::IPL,
        digest: sha256(&[text.as_bytes()]),
        data: text.as_bytes().to_vec(),
    };
    let firmware = (0..8).map(|pcr| event(pcr, &format!("firmware {pcr}")));
    EventLog { startup_locality: 0, events: firmware.chain([event(9, initrd), event(11, "sections")]).collect() }
}

fn write_image(store: &Path, reference: &str, log: &EventLog) {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let folder = store.join(reference.chars().map(safe).collect::<String>());
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("eventlog.bin"), log.marshal()).unwrap();
    let document = json!({ "eventLog": "eventlog.bin", "extend": [{ "pcr": 10, "digest": hex::encode(IMA) }] });
    std::fs::write(folder.join("light.json"), document.to_string()).unwrap();
}

/// The document for the honest image. Its program is what plays the guest of a light instance.
fn measurements() -> String {
    let log = log("initrd");
    let mut pcrs = [[0; 32]; 16];
    pcrs.copy_from_slice(log.replay().get(..16).unwrap());
    pcrs[10] = extend(&[0; 32], &IMA);
    let path = programs::binary(component::HYPERVISOR).unwrap();
    let sha256 = Digest::of(&std::fs::read(&path).unwrap());
    let predictions = Predictions {
        api_version: API_VERSION.to_owned(),
        image: Image { name: "light".into(), version: "1".into(), digest: format!("sha256:{}", "ab".repeat(32)) },
        pcrs: Default::default(),
        programs: Programs { node: Program { path: path.display().to_string(), sha256, uid: 0 }, egress: None },
    };
    record(&predictions, &pcrs, &log).unwrap().to_yaml().unwrap()
}

async fn start() -> World {
    // Inside the cluster's folder, so that it goes with it: a static is never dropped.
    let dir = std::env::temp_dir().join(format!("banlieue-light-{}", std::process::id()));
    let store = dir.join("light-images");
    let measurements = measurements();
    let builder = Cluster::builder()
        .nodes("l-1=light,l-2=light,w-1=weightless")
        .controller()
        .attestor()
        .agent_ttl(AGENT_TTL)
        .dir(&dir);
    // Tests restart SPIRE and look at refused members for longer than so short a TTL.
    let of_nodes = ["--images", &store.display().to_string(), "--light-give-up", "600"];
    let builder = builder.args(component::HYPERVISOR, of_nodes);
    let builder = builder.args(
        component::ATTESTOR_CONTROLLER,
        ["--sweep-seconds", "5", "--probe-seconds", "3", "--agent-ttl-seconds", "24"],
    );
    let cluster = builder.progress(progress::print).start().await.unwrap_or_else(|error| panic!("{error}"));
    write_image(&store, HONEST, &log("initrd"));
    write_image(&store, TAMPERED, &log("initrd with one byte changed"));
    let digest = Digest::of(measurements.as_bytes()).to_string();
    World { cluster, measurements, digest }
}

impl Fixture {
    async fn new() -> Self {
        let world = WORLD.get_or_init(start).await;
        Self { space: Space::new(&world.cluster).await, world }
    }

    /// SHA-256 of the measurements that pools name.
    pub fn policy(&self) -> &'static str {
        &self.world.digest
    }

    /// Makes a pool of one warm member from this image, and its measurements.
    pub async fn pool(&self, name: &str, image: &str) -> VirtualMachinePool {
        self.pool_with(name, image, json!({})).await
    }

    /// The same, where `more` goes into `spec.attestation`.
    pub async fn pool_with(&self, name: &str, image: &str, more: Value) -> VirtualMachinePool {
        self.pool_on(name, "light", 1, image, more).await
    }

    /// The same, of so many warm members, on nodes of this weight.
    pub async fn pool_on(&self, name: &str, weight: &str, warm: u32, image: &str, more: Value) -> VirtualMachinePool {
        let map: ConfigMap = serde_json::from_value(json!({
            "metadata": { "name": format!("{name}-measurements") },
            "data": { "measurements.yaml": self.world.measurements },
        }))
        .unwrap();
        self.all::<ConfigMap>().create(&PostParams::default(), &map).await.unwrap();
        let mut pool = json!({
            "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachinePool",
            "metadata": { "name": name },
            "spec": {
                "warmReplicas": warm, "maxReplicas": warm + 2, "maxSurge": warm,
                "template": { "kubeVirt": { "spec": template(weight, "128Mi", image) } },
                "attestation": {
                    "mode": "VTPM", "endorsement": "HostReported",
                    "measurements": {
                        "configMapRef": { "name": format!("{name}-measurements") }, "sha256": self.world.digest,
                    },
                },
                "failureBudget": { "consecutive": 2, "keepFailed": 1 },
                "claimPolicy": { "allowedImages": ["*"] },
            },
        });
        if let (Some(attestation), Value::Object(more)) = (pool["spec"]["attestation"].as_object_mut(), more) {
            attestation.extend(more);
        }
        let pool: VirtualMachinePool = serde_json::from_value(pool).unwrap();
        self.all::<VirtualMachinePool>().create(&PostParams::default(), &pool).await.unwrap()
    }

    /// Waits for an attested member of the pool.
    pub async fn attested(&self, pool: &str) -> PoolMember {
        let is_attested = |member: &PoolMember| {
            member.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, "Attested"))
        };
        let mut found = None;
        eventually("a member is attested", async || {
            found = members::first(&self.all(), pool, is_attested).await;
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// The member as it is now, in the same life.
    pub async fn member(&self, member: &PoolMember) -> Option<PoolMember> {
        members::now(&self.all(), member).await
    }

    pub async fn condition(&self, member: &PoolMember, kind: &str) -> Option<Condition> {
        members::condition(&self.all(), member, kind).await
    }

    pub async fn verified_at(&self, member: &PoolMember) -> Option<Timestamp> {
        self.member(member).await?.status?.attestation?.verified_at
    }

    pub fn agent_id(&self, member: &str) -> String {
        let settings = self.cluster.settings();
        format!(
            "spiffe://{}/spire/agent/banlieue_vtpm/{}/{}/{member}",
            settings.trust_domain, settings.cluster, self.namespace
        )
    }

    /// What spire-server's own command says, on its administration socket.
    pub async fn spire(&self, arguments: &[&str]) -> String {
        spire::command(self.cluster, arguments)
    }

    pub async fn agents(&self) -> String {
        self.spire(&["agent", "list"]).await
    }

    /// Posts a claim as the broker does.
    pub async fn claim(&self, pool: &str, name: &str) {
        objects::claim(self.cluster, &self.namespace, pool, name, json!({})).await;
    }

    /// Kills the whole plugin, as SPIRE knows it.
    pub async fn kill_plugin(&self) {
        let program = self.cluster.dir().join("bin/banlieue-attestor");
        for pid in processes_of(&program, "plugin") {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        }
    }

    /// Kills the process that reads foreign bytes; its parent stays.
    pub async fn kill_plugin_worker(&self) {
        let program = self.cluster.dir().join("bin/banlieue-attestor");
        let worker = processes_of(&program, "--plugin-worker");
        assert_eq!(worker.len(), 1, "one worker");
        let status = Command::new("kill").args(["-9", &worker[0].to_string()]).status().unwrap();
        assert!(status.success());
        eventually("another worker runs", async || {
            let now = processes_of(&program, "--plugin-worker");
            now.len() == 1 && now != worker
        })
        .await;
    }
}

/// Processes that run this program with this argument.
fn processes_of(program: &Path, argument: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let runs = words.first().is_some_and(|first| Path::new(first.as_ref()) == program);
        if runs && words.iter().any(|word| word == argument) {
            found.push(pid);
        }
    }
    found
}
