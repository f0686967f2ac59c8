//! The main job, told as a person would watch it: a warm pool of attested machines, one lent to a claim and gone at its
//! deadline, and two that must be refused.
//!
//! - `watch`: one line for each change of a member
//! - `lend`: pool, claim, deadline
//! - `gone`: asking the owner of each fact whether anything is left
//! - `refuse`: the tampered image and the laid credential
//! - `keep`: a cluster that stays, and its end

mod gone;
mod keep;
mod lend;
mod refuse;
mod watch;

use std::path::{Path, PathBuf};

use anyhow::Context;
use banlieue_cluster::{Cluster, Identity};

use crate::interrupt;
use crate::packages::{self, Purpose};
use crate::stages::Stages;
use crate::{image, product, tools};

pub use keep::down;

/// What every part of the story needs.
struct Stage {
    cluster: Cluster,
    images: PathBuf,
    examples: PathBuf,
    watch: watch::Watch,
}

/// Runs the demo; with `keep` the cluster stays up afterwards.
pub fn run(root: &Path, keep: bool) -> anyhow::Result<()> {
    keep::refuse_second(root)?;
    let _shown = keep::showing(root)?;
    let mut times = Stages::default();
    times.run("build what is missing", || {
        packages::ensure(&[Purpose::Build, Purpose::Machines])?;
        tools::compilers(root, tools::DEMO)?;
        product::build(root)?;
        tools::ensure(root, tools::DEMO)?;
        image::ensure(root).map(drop)
    })?;
    let runtime = tokio::runtime::Runtime::new().context("starting the async runtime")?;
    let mut stage = times.run("start a cluster of its own", || runtime.block_on(interrupt::or(start(root))))?;
    let told = runtime.block_on(interrupt::or(tell(&mut stage, &mut times)));
    if let Err(error) = told {
        if interrupt::asked() {
            return Err(error);
        }
        let dir = stage.cluster.abandon();
        println!("logs of every part stay in {}", dir.join("log").display());
        return Err(error);
    }
    times.print();
    if keep { runtime.block_on(keep::keep(root, stage)) } else { end(&runtime, stage) }
}

fn end(runtime: &tokio::runtime::Runtime, stage: Stage) -> anyhow::Result<()> {
    let dir = stage.cluster.dir().to_path_buf();
    runtime.block_on(stage.cluster.stop()).context("ending the cluster")?;
    println!("\nthe cluster is ended and {} is gone; 'make demo KEEP=1' leaves it up", dir.display());
    Ok(())
}

async fn tell(stage: &mut Stage, times: &mut Stages) -> anyhow::Result<()> {
    let warm = times.run_async("a pool with two warm members", lend::fill(stage)).await?;
    let lent = times.run_async("a claim of 30 seconds", lend::claim(stage, &warm)).await?;
    times.run_async("the deadline", lend::deadline(stage, &lent)).await?;
    times.run_async("asking the owner of each fact", gone::verify(stage, &lent)).await?;
    times.run_async("an image with one byte changed", refuse::tampered(stage)).await?;
    times.run_async("an honest image with a credential laid beside it", refuse::credential(stage)).await
}

async fn start(root: &Path) -> anyhow::Result<Stage> {
    let cluster = Cluster::builder()
        .nodes("full-1=full")
        .attestor()
        .controller()
        .progress(banlieue_cluster::progress::print)
        .start()
        .await?;
    let author = cluster.kube(&Identity::PoolAuthor).await?;
    let operator = cluster.kube(&Identity::Operator).await?;
    let watch = watch::Watch::new(&author, &operator);
    Ok(Stage { cluster, images: root.join("target/images"), examples: root.join("docs/examples"), watch })
}

/// Creates the ConfigMap of an image's measurements as the pool's author and returns the digest that a pool names.
async fn publish_measurements(stage: &Stage, name: &str) -> anyhow::Result<String> {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::{Patch, PatchParams};

    let path = image::folder(&stage.images, image::HONEST).join(banlieue_crds::names::MEASUREMENTS_KEY);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let digest = hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes()).as_ref());
    let maps: Api<ConfigMap> = Api::namespaced(stage.cluster.kube(&Identity::PoolAuthor).await?, watch::NAMESPACE);
    let map = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": {banlieue_crds::names::MEASUREMENTS_KEY: text},
    });
    maps.patch(name, &PatchParams::apply("pool-author"), &Patch::Apply(&map))
        .await
        .with_context(|| format!("writing ConfigMap {}/{name}", watch::NAMESPACE))?;
    Ok(digest)
}
