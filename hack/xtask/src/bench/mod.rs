//! What banlieue costs, as ratios against bare baselines of the same run, and as counts. Nothing is asserted: times are
//! this machine's, at this hour. Baseline and product alternate, so that both see the same machine, and etcd waits for
//! the disk here.
//!
//! - `bind`: from claim to Bound, against the two guarded writes that any binding needs
//! - `fill`: a pool until it is warm, against the same instances made by a plain client
//! - `counts`: writes and passes for each claim

mod bind;
mod counts;
mod fill;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use banlieue_cluster::{Cluster, Identity};
use banlieue_crds::{VirtualMachineClaim, VirtualMachinePool};
use kube::{Api, Client};

use crate::interrupt;
use crate::packages::{self, Purpose};
use crate::{product, tools};

/// Namespace of the pool in `docs/examples`.
const NAMESPACE: &str = "sandboxes";
/// Longest wait for one state.
const LIMIT: Duration = Duration::from_secs(300);
/// Between two looks at a state whose time is not measured to the millisecond.
const LOOK: Duration = Duration::from_millis(50);

/// Builds what is missing, measures, prints.
pub fn run(root: &Path) -> anyhow::Result<()> {
    packages::ensure(&[Purpose::Build])?;
    tools::compilers(root, &["control-plane", "kubevirt"])?;
    product::build(root)?;
    tools::ensure(root, &["control-plane", "kubevirt"])?;
    let runtime = tokio::runtime::Runtime::new().context("starting the async runtime")?;
    runtime.block_on(interrupt::or(async {
        let builder = Cluster::builder().nodes("w-1=weightless,w-2=weightless").controller().fsync();
        let cluster = builder.progress(banlieue_cluster::progress::print).start().await?;
        match measure(root, &cluster).await {
            Ok(()) => Ok(cluster.stop().await?),
            Err(error) => {
                println!("logs of every part stay in {}", cluster.abandon().join("log").display());
                Err(error)
            }
        }
    }))
}

/// What every measurement needs.
struct Bench<'a> {
    cluster: &'a Cluster,
    /// A client of its own for the baseline, so that neither warms the other's connections.
    bare: Client,
    pool: VirtualMachinePool,
    pools: Api<VirtualMachinePool>,
    claims: Api<VirtualMachineClaim>,
}

async fn measure(root: &Path, cluster: &Cluster) -> anyhow::Result<()> {
    let path = root.join("docs/examples/weightless-pool.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let bench = Bench {
        cluster,
        bare: cluster.admin(),
        pool: serde_saphyr::from_str(&text).with_context(|| format!("parsing {}", path.display()))?,
        pools: Api::namespaced(cluster.kube(&Identity::PoolAuthor).await?, NAMESPACE),
        claims: Api::namespaced(cluster.kube(&Identity::Broker).await?, NAMESPACE),
    };
    println!("\n{}, etcd with fsync, a debug build, weightless members", conditions());
    fill::measure(&bench).await?;
    let before = counts::Passes::now(cluster).await?;
    let claims = bind::measure(&bench).await?;
    counts::print(&bench, &claims, &before).await
}

/// What the numbers depend on, for who reads them later.
fn conditions() -> String {
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1_048_576;
    format!("{processors} processors, {memory} GiB, load {load} before it began")
}

/// Looks until a state is there.
async fn until(what: &str, done: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !done().await? {
        if begun.elapsed() > LIMIT {
            anyhow::bail!("waited {} s for {what}", LIMIT.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Lowest, median, ninth decile and highest.
fn spread(values: impl IntoIterator<Item = f64>) -> [f64; 4] {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let at = |part: usize| sorted.get((sorted.len() * part / 100).min(last)).copied().unwrap_or(0.0);
    [at(0), at(50), at(90), at(100)]
}

/// As [`spread`], in milliseconds.
fn milliseconds(times: &[Duration]) -> [f64; 4] {
    spread(times.iter().map(|time| time.as_secs_f64() * 1000.0))
}

/// Two rows and what the second is of the first.
fn compare(title: &str, bare: (&[Duration], &str), ours: (&[Duration], &str)) {
    println!("\n{title}");
    println!("               low       p50       p90      high");
    let (low, high) = (milliseconds(bare.0), milliseconds(ours.0));
    for (name, row, what) in [("bare", low, bare.1), ("banlieue", high, ours.1)] {
        println!("  {name:<8} {:>8.1}  {:>8.1}  {:>8.1}  {:>8.1}   {what}", row[0], row[1], row[2], row[3]);
    }
    let of = |index: usize| match (low.get(index), high.get(index)) {
        (Some(bare), Some(ours)) if *bare > 0.0 => ours / bare,
        _ => f64::NAN,
    };
    println!("  {:<8} {:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}", "ratio", of(0), of(1), of(2), of(3));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_taken_from_sorted_times() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(milliseconds(&times), [1.0, 51.0, 91.0, 100.0]);
        assert_eq!(spread([]), [0.0; 4]);
    }
}
