//! Starts a cluster and keeps it: `cargo run -p banlieue-cluster --example up -- [kubevirt] [spire] [attestor] [controller] [nodes=w-1=weightless]`.

use banlieue_cluster::{Cluster, Identity, progress};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let begun = std::time::Instant::now();
    let mut builder = Cluster::builder().progress(progress::print);
    for part in std::env::args().skip(1) {
        builder = match part.as_str() {
            "kubevirt" => builder.kubevirt(),
            "spire" => builder.spire(),
            "attestor" => builder.attestor(),
            "controller" => builder.controller(),
            other => match other.strip_prefix("nodes=") {
                Some(nodes) => builder.nodes(nodes),
                None => anyhow::bail!("{other} is no part of a cluster"),
            },
        };
    }
    let cluster = builder.start().await?;
    println!("up in {:.1} s", begun.elapsed().as_secs_f64());
    println!("export KUBECONFIG={}", cluster.kubeconfig(&Identity::Admin).await?.display());
    let dir = cluster.keep().await?;
    println!("it lives in {} until a key is pressed", dir.display());
    std::io::stdin().read_line(&mut String::new())?;
    banlieue_cluster::down(&dir).await?;
    Ok(())
}
