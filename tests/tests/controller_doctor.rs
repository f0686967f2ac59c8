//! `banlieue-controller doctor` on a real API server: what is wrong is said with what to do, and told by the exit code;
//! whoever could reach into a member is listed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use std::path::{Path, PathBuf};
use std::process::Command;

use banlieue_cluster::{Cluster, Identity, programs};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::api::Patch;
use serde_json::{Value, json};

struct Doctor {
    kubeconfig: PathBuf,
}

impl Doctor {
    /// Runs it: its exit code and what it printed.
    fn run(&self) -> (i32, String) {
        let program = programs::binary("banlieue-controller").unwrap();
        let mut command = Command::new(program);
        let output = command.arg("doctor").env_clear().env("KUBECONFIG", &self.kubeconfig).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.is_empty(), "{errors}");
        (output.status.code().unwrap(), text)
    }

    #[track_caller]
    fn finds(&self, words: &[&str]) {
        let (code, text) = self.run();
        assert_eq!(code, 1, "{text}");
        let wrong: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("WRONG")).collect();
        let found = wrong.iter().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(found, "no finding says {words:?}:\n{text}");
        let sum = format!(" {} failed: each line above that says WRONG names its remedy", wrong.len());
        assert!(text.trim_end().ends_with(&sum), "the sum stands at the end:\n{text}");
    }
}

/// A certificate of the cluster's own, in PEM.
fn certificate(folder: &Path) -> String {
    let files = std::fs::read_dir(folder.join("pki")).unwrap();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok());
    texts.into_iter().find(|text| text.starts_with("-----BEGIN CERTIFICATE-----")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_what_is_wrong_and_who_could_reach_in() {
    let cluster = Cluster::builder().kubevirt().start().await.unwrap_or_else(|error| panic!("{error}"));
    let doctor = Doctor { kubeconfig: cluster.kubeconfig(&Identity::Controller).await.unwrap() };
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin(), "banlieue-system");
    let set = async |name: &str, data: Value| {
        let patch = Patch::Merge(json!({ "data": data }));
        maps.patch(name, &Default::default(), &patch).await.unwrap();
    };

    doctor.finds(&["spire-bundle", "does not exist", "k8sbundle"]);
    let empty = json!({ "metadata": { "name": "spire-bundle" } });
    maps.create(&Default::default(), &serde_json::from_value(empty).unwrap()).await.unwrap();
    doctor.finds(&["spire-bundle", "nothing under bundle.crt"]);
    set("spire-bundle", json!({ "bundle.crt": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" }))
        .await;
    doctor.finds(&["spire-bundle", "no certificate"]);
    set("spire-bundle", json!({ "bundle.crt": certificate(cluster.dir()) })).await;

    let (code, text) = doctor.run();
    println!("{text}");
    assert_eq!(code, 0, "{text}");
    for line in [
        "definition poolmembers.banlieue.io",
        "admission policy no-way-in.banlieue.io",
        "trust bundle with 1 authority",
        "pool namespaces: sandboxes",
        "What system:serviceaccount:banlieue-system:banlieue-controller may do",
        "nodes: list, watch",
        "leases banlieue-controller in banlieue-system: get, patch",
        "networkpolicies in sandboxes",
        "Group system:masters, everywhere: pods/attach, pods/ephemeralcontainers, pods/exec",
        " 0 failed: nothing is wrong",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    assert!(!text.contains("User eve"), "{text}");

    set("banlieue-admission", json!({ "brokers": null })).await;
    doctor.finds(&["banlieue-admission", "no key brokers", "30-parameters.yaml"]);
    set("banlieue-admission", json!({ "brokers": "me\n", "controllers": "somebody\n" })).await;
    doctor.finds(&["banlieue-admission", "does not name", "banlieue-controller"]);
    let account = "system:serviceaccount:banlieue-system:banlieue-controller\n";
    set("banlieue-admission", json!({ "controllers": account })).await;
    assert_eq!(doctor.run().0, 0);

    // A role that lost its nodes.
    let roles: Api<ClusterRole> = Api::all(cluster.admin());
    let mut role = roles.get("banlieue-controller").await.unwrap();
    for rule in role.rules.iter_mut().flatten() {
        rule.resources.iter_mut().for_each(|resources| resources.retain(|resource| resource != "nodes"));
    }
    roles.replace("banlieue-controller", &Default::default(), &role).await.unwrap();
    doctor.finds(&["nodes", "may not list, watch", "ClusterRole banlieue-controller"]);

    let grant = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: helpful}
rules:
  - {apiGroups: [subresources.kubevirt.io], resources: [virtualmachines/restart, virtualmachineinstances/console], verbs: [get, update]}
  - {apiGroups: [''], resources: [pods/exec], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: helpful, namespace: NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: helpful}
subjects:
  - {apiGroup: rbac.authorization.k8s.io, kind: User, name: WHO}
";
    for (namespace, who) in [("sandboxes", "eve"), ("default", "dev")] {
        cluster.apply(&grant.replace("NAMESPACE", namespace).replace("WHO", who)).await.unwrap();
    }
    let (_, text) = doctor.run();
    let reach = "pods/exec, virtualmachineinstances/console, virtualmachines/restart";
    assert!(text.contains(&format!("User eve, in namespace sandboxes: {reach}")), "{text}");
    // Where no pools are, a pod is no launcher; a machine is never far.
    let machines = "virtualmachineinstances/console, virtualmachines/restart";
    assert!(text.contains(&format!("User dev, in namespace default: {machines}")), "{text}");
    cluster.stop().await.unwrap();
}
