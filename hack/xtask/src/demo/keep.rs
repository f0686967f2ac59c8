//! A cluster that stays after the demo, and its end.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use banlieue_cluster::Identity;

use super::Stage;

/// Names the kept cluster's directory.
fn note(root: &Path) -> PathBuf {
    root.join("target/demo-cluster")
}

/// Refuses to begin while an earlier cluster is up: its owner may still be at work with it.
pub fn refuse_second(root: &Path) -> anyhow::Result<()> {
    let Ok(dir) = std::fs::read_to_string(note(root)) else { return Ok(()) };
    if Path::new(dir.trim()).exists() {
        bail!("a cluster of an earlier demo is up in {}: 'make demo-down' ends it", dir.trim());
    }
    std::fs::remove_file(note(root)).context("removing the note of a cluster that is gone")
}

/// Leaves the cluster up and prints how to use it.
pub async fn keep(root: &Path, stage: Stage) -> anyhow::Result<()> {
    let operator = stage.cluster.kubeconfig(&Identity::Operator).await?;
    let author = stage.cluster.kubeconfig(&Identity::PoolAuthor).await?;
    let broker = stage.cluster.kubeconfig(&Identity::Broker).await?;
    let dir = stage.cluster.keep().await.context("leaving the cluster up")?;
    std::fs::write(note(root), dir.display().to_string()).context("writing the note for 'make demo-down'")?;
    let kubectl = root.join("target/tools/bin");
    println!("\nthe cluster stays up in {}", dir.display());
    println!("  export KUBECONFIG={} PATH={}:$PATH", operator.display(), kubectl.display());
    println!("three things to try:");
    println!("  kubectl -n sandboxes get bpool,bmember,bclaim");
    println!(
        "  kubectl --kubeconfig {} -n sandboxes scale virtualmachinepools.banlieue.io/demo --replicas=3",
        author.display()
    );
    println!(
        "  kubectl --kubeconfig {} -n sandboxes delete bclaim first --ignore-not-found; kubectl --kubeconfig {0} create -f {} && kubectl -n sandboxes wait bclaim/first --for=condition=Bound",
        broker.display(),
        root.join("docs/examples/claim.yaml").display()
    );
    println!("'make demo-down' ends it and leaves nothing behind");
    Ok(())
}

/// Ends a kept cluster.
pub fn down(root: &Path) -> anyhow::Result<()> {
    let Ok(dir) = std::fs::read_to_string(note(root)) else {
        println!("no cluster of a demo is up");
        return Ok(());
    };
    let dir = PathBuf::from(dir.trim());
    if dir.exists() {
        let runtime = tokio::runtime::Runtime::new().context("starting the async runtime")?;
        runtime
            .block_on(banlieue_cluster::down(&dir))
            .with_context(|| format!("ending the cluster in {}", dir.display()))?;
    }
    std::fs::remove_file(note(root)).context("removing the note")?;
    println!("the cluster in {} is ended", dir.display());
    Ok(())
}
