//! What tests on real machines share: one cluster with the whole product and one full node, pools of the image that the
//! demo uses, and hands on a machine from outside of it.
#![allow(dead_code)] // each test binary uses its part
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests, though not functions of a test

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use banlieue_cluster::{Builder, Cluster, programs, progress};
use banlieue_crds::kubevirt::{InstancePhase, VirtualMachineInstance};
use banlieue_crds::{PoolMember, VirtualMachinePool};
use banlieue_hypervisor::qmp::Qmp;
use banlieue_policy::Digest;
pub use banlieue_tests::members::instance_uid;
use banlieue_tests::objects::{self, template};
use banlieue_tests::wait::within;
use banlieue_tests::{members, spire};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

const NAMESPACE: &str = "sandboxes";
const NODE: &str = "full-1";
const IMAGE: &str = "registry.local/banlieue/guest:dev";

/// What a Secret holds.
pub type Files = BTreeMap<String, ByteString>;

pub struct World {
    pub cluster: Cluster,
    digest: String,
}

impl World {
    /// Starts the cluster that `builder` describes, with the product and one full node.
    pub async fn start(builder: Builder) -> Self {
        let image = programs::images().join("registry.local_banlieue_guest_dev");
        let path = image.join("measurements.yaml");
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}. Run `cargo xtask image`", path.display()));
        let builder = builder.nodes(format!("{NODE}=full")).controller().attestor().progress(progress::print);
        let cluster = builder.start().await.unwrap_or_else(|error| panic!("{error}"));
        let world = Self { cluster, digest: Digest::of(text.as_bytes()).to_string() };
        let map = json!({ "metadata": { "name": "guest" }, "data": { "measurements.yaml": text } });
        let map: ConfigMap = serde_json::from_value(map).unwrap();
        world.all::<ConfigMap>().create(&PostParams::default(), &map).await.unwrap();
        world
    }

    /// Objects of the pools' namespace, as cluster admin: for looking.
    pub fn all<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.cluster.admin(), NAMESPACE)
    }

    /// Makes a pool that has one member, which stays to be looked at when it fails.
    pub async fn pool(&self, name: &str) {
        let mut template = template("full", "512Mi", IMAGE);
        template["domain"]["machine"] = json!({ "type": "q35" });
        let pool: VirtualMachinePool = serde_json::from_value(json!({
            "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachinePool",
            "metadata": { "name": name },
            "spec": {
                "warmReplicas": 1, "maxReplicas": 1, "maxSurge": 1,
                "template": { "kubeVirt": { "spec": template } },
                "attestation": {
                    "mode": "VTPM", "endorsement": "HostReported",
                    "measurements": { "configMapRef": { "name": "guest" }, "sha256": self.digest },
                    "timeoutSeconds": 3600,
                },
                // Machines of a busy host are slow; nothing here may end for that.
                "provisioningTimeoutSeconds": 3600,
                "failureBudget": { "consecutive": 2, "keepFailed": 1 },
                "claimPolicy": { "allowedImages": ["*"] },
            },
        }))
        .unwrap();
        self.all::<VirtualMachinePool>().create(&PostParams::default(), &pool).await.unwrap();
    }

    /// No more members for this pool.
    pub async fn pause(&self, pool: &str) {
        let patch = Patch::Merge(json!({ "spec": { "paused": true } }));
        self.all::<VirtualMachinePool>().patch(pool, &PatchParams::default(), &patch).await.unwrap();
    }

    /// The pool's member, once its instance is recorded.
    pub async fn made(&self, pool: &str) -> PoolMember {
        let mut found = None;
        eventually(&format!("the member of pool {pool} has an instance"), async || {
            found = members::first(&self.all(), pool, members::is_made).await;
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    pub async fn ready(&self, member: &PoolMember) {
        eventually(&format!("{} is ready", member.name_any()), async || {
            self.condition(member, "Ready").await.is_some_and(|it| it.status == "True")
        })
        .await;
    }

    /// The member as it is now, in the same life.
    pub async fn member(&self, member: &PoolMember) -> Option<PoolMember> {
        members::now(&self.all(), member).await
    }

    pub async fn condition(&self, member: &PoolMember, kind: &str) -> Option<Condition> {
        members::condition(&self.all(), member, kind).await
    }

    /// Waits until the member's evidence is refused, and gives the words.
    pub async fn refused(&self, member: &PoolMember) -> String {
        let mut words = None;
        eventually(&format!("the evidence of {} is refused", member.name_any()), async || {
            let attested = self.condition(member, "Attested").await;
            words = attested.filter(|it| it.status == "False" && it.reason == "AttestationRefused");
            words.is_some()
        })
        .await;
        words.unwrap().message
    }

    pub async fn instance(&self, member: &PoolMember) -> Option<InstancePhase> {
        let instances = self.all::<VirtualMachineInstance>();
        instances.get_opt(&member.name_any()).await.unwrap().and_then(|instance| instance.phase())
    }

    pub async fn powered_off(&self, member: &PoolMember) {
        eventually(&format!("the machine of {} is off", member.name_any()), async || {
            self.instance(member).await == Some(InstancePhase::Succeeded)
        })
        .await;
    }

    /// What the machine's serial console shows.
    pub fn console(&self, member: &PoolMember) -> String {
        let uid = instance_uid(member);
        let name = format!("{NAMESPACE}.{}.{}.console.log", member.name_any(), &uid[..8]);
        let path = self.cluster.dir().join("vm/logs").join(name);
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    /// Folder of the machine on its node.
    pub fn home(&self, member: &PoolMember) -> PathBuf {
        self.cluster.dir().join("vm/vms").join(instance_uid(member))
    }

    /// One command to the machine's QEMU.
    pub async fn qmp(&self, member: &PoolMember, command: &str) {
        Qmp::connect(&self.home(member).join("qmp.sock")).await.unwrap().execute(command).await.unwrap();
    }

    /// What the member's enrolment Secret holds.
    pub async fn enrolment(&self, member: &PoolMember) -> Files {
        self.all::<Secret>().get(&members::enrolment(member)).await.unwrap().data.unwrap()
    }

    /// Puts other files in the place of the member's enrolment. Only the controller's own account may.
    pub async fn replace_enrolment(&self, member: &PoolMember, files: Files) {
        let secrets = members::enrolments(&self.cluster, NAMESPACE).await;
        let mut object = members::take_enrolment(&secrets, member).await;
        object.data = Some(files);
        secrets.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Whether the node takes more machines.
    pub async fn cordon(&self, cordoned: bool) {
        members::cordon(self.cluster.admin(), NODE, cordoned).await;
    }

    /// Posts a claim as the broker does.
    pub async fn claim(&self, pool: &str, name: &str) {
        objects::claim(&self.cluster, NAMESPACE, pool, name, json!({})).await;
    }

    pub fn agent_id(&self, member: &PoolMember) -> String {
        let settings = self.cluster.settings();
        let uid = member.uid().unwrap();
        format!("spiffe://{}/spire/agent/banlieue_vtpm/{}/{NAMESPACE}/{uid}", settings.trust_domain, settings.cluster)
    }

    /// What spire-server's own command says, on its administration socket.
    pub fn spire(&self, arguments: &[&str]) -> String {
        spire::command(&self.cluster, arguments)
    }
}

/// A value of a configuration map, as text.
pub async fn config(cluster: &Cluster, namespace: &str, name: &str, key: &str) -> String {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin(), namespace);
    maps.get(name).await.unwrap().data.unwrap().remove(key).unwrap()
}

/// Whether a line of the file has all the words.
pub fn line_with(path: &Path, words: &[&str]) -> bool {
    let text = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().any(|line| words.iter().all(|word| line.contains(word)))
}

/// Waits for a state; twenty minutes mean that it never comes.
pub async fn eventually(what: &str, holds: impl AsyncFnMut() -> bool) {
    println!("waiting: {what}");
    within(Duration::from_secs(1200), what, holds).await;
}
