//! What a person sees when the controller cannot start: one sentence and an exit code, no stack trace. And the doctor.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use std::path::Path;
use std::process::{Command, Output};

use banlieue_cluster::{Cluster, Identity, programs};

fn controller(kubeconfig: &Path, args: &[&str]) -> Output {
    let program = programs::binary("banlieue-controller").unwrap();
    Command::new(program).args(args).env_clear().env("KUBECONFIG", kubeconfig).env("RUST_LOG", "off").output().unwrap()
}

const RUN: [&str; 9] = [
    "run",
    "--trust-domain",
    "banlieue.local",
    "--cluster",
    "local",
    "--spire-server",
    "127.0.0.1:8081",
    "--metrics",
    "127.0.0.1:0",
];

/// One line on standard error that says all of these.
#[track_caller]
fn one_sentence(output: &Output, code: i32, says: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "more than a sentence: {text}");
    for word in says {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
}

#[test]
fn a_wrong_kubeconfig_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("nothing.yaml");
    one_sentence(&controller(&missing, &RUN), 2, &["kubeconfig", "KUBECONFIG"]);
    let broken = folder.path().join("broken.yaml");
    std::fs::write(&broken, "{ this is no kubeconfig").unwrap();
    one_sentence(&controller(&broken, &RUN), 2, &["kubeconfig"]);
}

#[test]
fn an_api_server_that_is_not_there_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig.yaml");
    // Port 9 of this host discards nothing here: nobody listens.
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:9'}}]\n\
                contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: t}}]\n";
    std::fs::write(&path, text).unwrap();
    one_sentence(&controller(&path, &RUN), 3, &["127.0.0.1:9", "cannot be reached"]);
}

#[test]
fn a_cluster_without_kubevirt_and_one_with_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bare = Cluster::builder().start().await.unwrap_or_else(|error| panic!("{error}"));
        let kubeconfig = bare.kubeconfig(&Identity::Controller).await.unwrap();
        one_sentence(&controller(&kubeconfig, &RUN), 3, &["virtualmachineinstances", "Install KubeVirt"]);
        one_sentence(&controller(&kubeconfig, &["doctor"]), 3, &["Install KubeVirt"]);
        bare.stop().await.unwrap();

        let whole = Cluster::builder().kubevirt().start().await.unwrap_or_else(|error| panic!("{error}"));
        let kubeconfig = whole.kubeconfig(&Identity::Controller).await.unwrap();
        let run = Running::new(&kubeconfig, &[]);
        let line = run.line_with("started").await;
        assert!(line.contains(" INFO ") && !line.contains('\u{1b}'), "colours in a file: {line:?}");
        drop(run);
        let run = Running::new(&kubeconfig, &["--log-json"]);
        let line = run.line_with("started").await;
        let json: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(json["fields"]["message"], "started");
        drop(run);
        whole.stop().await.unwrap();
    });
}

/// A controller that runs until it is dropped, and what it logs.
struct Running {
    child: std::process::Child,
    log: tempfile::NamedTempFile,
}

impl Running {
    fn new(kubeconfig: &Path, args: &[&str]) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let program = programs::binary("banlieue-controller").unwrap();
        let mut command = Command::new(program);
        command.args(RUN).args(args).env_clear().env("KUBECONFIG", kubeconfig);
        let child = command.stderr(log.reopen().unwrap()).spawn().unwrap();
        Self { child, log }
    }

    async fn line_with(&self, word: &str) -> String {
        for _ in 0..6000 {
            let text = std::fs::read_to_string(self.log.path()).unwrap();
            let whole = &text[..text.rfind('\n').unwrap_or(0)];
            if let Some(line) = whole.lines().find(|line| line.contains(word)) {
                return line.to_owned();
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("no line with {word} within ten minutes");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
