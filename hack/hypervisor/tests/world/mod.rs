//! What the tests of the node half share: a cluster with KubeVirt's control plane and our nodes.
#![allow(dead_code, missing_docs)] // each test file uses its part
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use banlieue_cluster::{Builder, Cluster, component, progress};
use banlieue_crds::kubevirt::{InstancePhase, VirtualMachineInstance};
use banlieue_supervisor::{Spec, State};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

pub const NAMESPACE: &str = "sandboxes";
/// Generous: for a machine that is busy with other work.
const PATIENCE: Duration = Duration::from_secs(240);

pub struct World {
    pub cluster: Cluster,
    pub instances: Api<VirtualMachineInstance>,
    pub pods: Api<Pod>,
}

impl World {
    pub async fn start(nodes: &str, arguments: &[&str]) -> Self {
        Self::build(Cluster::builder().nodes(nodes), arguments).await
    }

    pub async fn build(builder: Builder, arguments: &[&str]) -> Self {
        let builder = builder.progress(progress::print);
        let cluster = builder
            .args(component::HYPERVISOR, arguments.iter().copied())
            .env(component::HYPERVISOR, "RUST_LOG", "debug,kube=info,hyper=info,tower=info,h2=info,rustls=info")
            .start()
            .await
            .unwrap();
        Self {
            instances: Api::namespaced(cluster.admin(), NAMESPACE),
            pods: Api::namespaced(cluster.admin(), NAMESPACE),
            cluster,
        }
    }

    pub async fn create(&self, name: &str, weight: &str, image: &str) -> VirtualMachineInstance {
        self.create_with(name, weight, image, |_| ()).await
    }

    pub async fn create_with(
        &self,
        name: &str,
        weight: &str,
        image: &str,
        change: impl FnOnce(&mut Value),
    ) -> VirtualMachineInstance {
        let mut object = json!({
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "nodeSelector": {"banlieue.io/node-weight": weight},
                "evictionStrategy": "None",
                "terminationGracePeriodSeconds": 0,
                "domain": {
                    "cpu": {"cores": 1},
                    "memory": {"guest": "512Mi"},
                    "machine": {"type": "q35"},
                    "features": {"smm": {"enabled": true}},
                    "firmware": {"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223", "bootloader": {"efi": {"secureBoot": false}}},
                    "devices": {
                        "tpm": {"persistent": false},
                        "rng": {},
                        "disks": [
                            {"name": "image", "bootOrder": 1, "disk": {"bus": "virtio"}},
                            {"name": "banlieue-enrol", "serial": "BANLIEUE-ENROL", "disk": {"bus": "virtio", "readonly": true}}
                        ],
                        "interfaces": [{"name": "default", "masquerade": {}}]
                    }
                },
                "networks": [{"name": "default", "pod": {}}],
                "volumes": [
                    {"name": "image", "containerDisk": {"image": image}},
                    {"name": "banlieue-enrol", "secret": {"secretName": format!("{name}-enrol")}}
                ]
            }
        });
        change(&mut object);
        let instance: VirtualMachineInstance = serde_json::from_value(object).unwrap();
        self.instances.create(&PostParams::default(), &instance).await.unwrap()
    }

    pub async fn seed(&self, member: &str, files: Value) {
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(self.cluster.admin(), NAMESPACE);
        let secret = json!({"metadata": {"name": format!("{member}-enrol")}, "stringData": files});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    }

    /// A seed that an honest guest takes. What it names does not answer, so the guest goes on trying.
    pub async fn honest_seed(&self, member: &str, bundle: &str) {
        let files = json!({
            "member": member, "namespace": NAMESPACE, "uid": "5d307ca9-b3ef-428c-8861-06e72d69f223",
            "secret": "ab".repeat(32), "issued-at": "2026-11-30T00:00:00Z", "expires-at": "2036-11-30T00:00:00Z",
            "trust-domain": self.cluster.settings().trust_domain, "cluster": "local", "bundle.pem": bundle,
            "spire-server": "10.0.2.100:8081", "broker": ""
        });
        self.seed(member, files).await;
    }

    /// Runs shell in the cluster's own mount namespace, as its hypervisor and machines see files; says whether it went well.
    pub async fn shell(&self, script: &str) -> bool {
        let name = "test-shell".to_owned();
        let argv = ["sh", "-c", script].map(str::to_owned).into();
        let spec = Spec { name: name.clone(), argv, log: self.cluster.log(&name), ..Spec::default() };
        self.cluster.supervisor().spawn(spec).await.unwrap();
        let ended = self.cluster.supervisor().wait(&name).await.unwrap();
        self.cluster.supervisor().forget(&name).await.unwrap();
        ended.state == State::Exited { code: 0 }
    }

    /// What the instance says about why its machine does not start.
    pub async fn trouble(&self, name: &str) -> Option<String> {
        let instance = self.instances.get(name).await.unwrap();
        instance.condition("Synchronized").and_then(|condition| condition.message.clone())
    }

    /// A key of a ConfigMap.
    pub async fn config(&self, namespace: &str, name: &str, key: &str) -> String {
        let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(self.cluster.admin(), namespace);
        maps.get(name).await.unwrap().data.unwrap().remove(key).unwrap()
    }

    pub async fn phase(&self, name: &str) -> Option<InstancePhase> {
        self.instances.get_opt(name).await.unwrap().and_then(|instance| instance.phase())
    }

    pub async fn until_phase(&self, name: &str, phase: InstancePhase) -> VirtualMachineInstance {
        self.until(&format!("{name} is {phase:?}"), async || self.phase(name).await == Some(phase)).await;
        self.instances.get(name).await.unwrap()
    }

    pub async fn pod_of(&self, instance: &VirtualMachineInstance) -> Option<Pod> {
        let selector = format!("kubevirt.io/created-by={}", instance.uid().unwrap());
        self.pods.list(&ListParams::default().labels(&selector)).await.unwrap().items.pop()
    }

    pub async fn delete(&self, name: &str) {
        self.instances.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub async fn until_gone(&self, instance: &VirtualMachineInstance) {
        let name = instance.name_any();
        self.until(&format!("{name} and its pod are gone"), async || {
            self.instances.get_opt(&name).await.unwrap().is_none() && self.pod_of(instance).await.is_none()
        })
        .await;
    }

    pub async fn processes_of(&self, instance: &VirtualMachineInstance) -> Vec<String> {
        let uid = instance.uid().unwrap();
        let all = self.cluster.components().await.unwrap();
        all.into_iter().map(|process| process.name).filter(|name| name.contains(&uid)).collect()
    }

    pub fn home(&self, instance: &VirtualMachineInstance) -> std::path::PathBuf {
        self.cluster.dir().join("vm/vms").join(instance.uid().unwrap())
    }

    pub async fn until_nothing_is_left(&self, instance: &VirtualMachineInstance) {
        self.until("no process and no file is left", async || {
            self.processes_of(instance).await.is_empty() && !self.home(instance).exists()
        })
        .await;
    }

    pub async fn until(&self, what: &str, done: impl AsyncFn() -> bool) {
        let looking = async {
            while !done().await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let seen = tokio::time::timeout(PATIENCE, looking).await.is_ok();
        assert!(seen, "never saw: {what}; see {}", self.cluster.log(component::HYPERVISOR).display());
    }
}
