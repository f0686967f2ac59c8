//! A cluster that stays after the demo, and its end.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use banlieue_cluster::{Identity, component};

use super::Stage;
use super::watch::NAMESPACE;
use crate::image;

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

/// Says for as long as the result lives that a demo is being shown; several may be, side by side.
///
/// # Errors
/// When the lock file cannot be made or locked.
pub fn showing(root: &Path) -> anyhow::Result<File> {
    let lock = lock(root)?;
    lock.lock_shared().context("waiting for 'make demo-down'")?;
    Ok(lock)
}

fn lock(root: &Path) -> anyhow::Result<File> {
    let path = root.join("target/demo.lock");
    File::create(&path).with_context(|| format!("creating {}: does target/ belong to another user?", path.display()))
}

/// Leaves the cluster up and prints how to use it.
pub async fn keep(root: &Path, stage: Stage) -> anyhow::Result<()> {
    let operator = stage.cluster.kubeconfig(&Identity::Operator).await?;
    let author = stage.cluster.kubeconfig(&Identity::PoolAuthor).await?;
    let broker = stage.cluster.kubeconfig(&Identity::Broker).await?;
    let controller = stage.cluster.kubeconfig(&Identity::Controller).await?;
    let admin = stage.cluster.kubeconfig(&Identity::Admin).await?;
    let health = [component::CONTROLLER, component::ATTESTOR_CONTROLLER]
        .map(|name| stage.cluster.health_url(name).map(|url| (name, url)));
    let measurements = image::folder(&stage.images, image::HONEST).join(banlieue_crds::names::MEASUREMENTS_KEY);
    let dir = stage.cluster.keep().await.context("leaving the cluster up")?;
    std::fs::write(note(root), dir.display().to_string()).context("writing the note for 'make demo-down'")?;
    let [operator, author, broker, controller, admin] =
        [operator, author, broker, controller, admin].map(|path| path.display().to_string());
    let claim = root.join("docs/examples/claim.yaml");
    println!("\nthe cluster stays up in {}; to use it:", dir.display());
    println!("  export KUBECONFIG={operator}");
    println!("  export PATH={}:$PATH   # kubectl of the cluster's version", root.join("target/tools/bin").display());
    println!("three things to try:");
    println!("  kubectl -n {NAMESPACE} get bpool,bmember,bclaim");
    println!("  kubectl --kubeconfig {author} -n {NAMESPACE} scale virtualmachinepools.banlieue.io/demo --replicas=3");
    println!(
        "  kubectl --kubeconfig {broker} -n {NAMESPACE} delete bclaim first --ignore-not-found; kubectl --kubeconfig \
         {broker} create -f {} && kubectl -n {NAMESPACE} wait bclaim/first --for=condition=Bound",
        claim.display()
    );
    println!("what the doctor says of it:");
    println!("  KUBECONFIG={controller} make doctor");
    println!("for a pool of your own, before the commands of docs/define-a-pool.md:");
    println!("  export KUBECONFIG={author} MEASUREMENTS={}", measurements.display());
    println!("who may do what (--kubeconfig):");
    println!("  operator     {operator}  looks at everything, releases by force, revokes");
    println!("  pool author  {author}  writes pools and their measurements in {NAMESPACE}");
    println!("  broker       {broker}  creates and deletes claims");
    println!("  admin        {admin}  namespaces, roles; what the policies refuse, it may not either");
    println!("health and metrics:");
    for (name, url) in health.into_iter().flatten() {
        println!("  {name:<28} {url}/readyz  {url}/metrics");
    }
    let (logs, consoles) = (dir.join("log"), dir.join("vm/logs"));
    println!("logs of every part are in {}, consoles of the VMs in {}", logs.display(), consoles.display());
    println!("'make demo-down' ends it and leaves nothing behind");
    Ok(())
}

/// Ends a kept cluster.
pub fn down(root: &Path) -> anyhow::Result<()> {
    let Ok(dir) = std::fs::read_to_string(note(root)) else {
        match lock(root)?.try_lock() {
            Ok(()) => println!("no cluster of a demo is up"),
            Err(TryLockError::WouldBlock) => println!("a demo is being shown: Ctrl-C in its terminal ends it"),
            Err(TryLockError::Error(error)) => return Err(error).context("asking whether a demo is being shown"),
        }
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
