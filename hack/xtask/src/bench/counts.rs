//! What does not vary with the machine: the controller's writes, from the API server's audit log, and its passes, from
//! its own metrics.

use std::collections::BTreeMap;

use anyhow::Context;
use banlieue_cluster::audit::Event;
use banlieue_cluster::{Cluster, component};
use banlieue_crds::PoolMember;
use banlieue_crds::names::accounts;
use kube::Api;

use super::bind::Served;
use super::{Bench, NAMESPACE, spread, until};

/// Passes over objects so far, by kind.
pub struct Passes(BTreeMap<String, f64>);

impl Passes {
    /// Asks the controller.
    pub async fn now(cluster: &Cluster) -> anyhow::Result<Self> {
        Ok(Self(passes(&cluster.metrics(component::CONTROLLER).await?)))
    }
}

/// Lines like `banlieue_reconciles_total{kind="claim",outcome="ok"} 12`, outcomes added up.
fn passes(text: &str) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("banlieue_reconciles_total{kind=\"") else { continue };
        let Some((kind, rest)) = rest.split_once('"') else { continue };
        let count = rest.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()).unwrap_or(0.0);
        *all.entry(kind.to_owned()).or_insert(0.0) += count;
    }
    all
}

/// Waits until the claims and their members are gone, then counts.
pub async fn print(bench: &Bench<'_>, served: &[Served], before: &Passes) -> anyhow::Result<()> {
    let members: Api<PoolMember> = Api::namespaced(bench.bare.clone(), NAMESPACE);
    for claim in served {
        until(&format!("claim {} and its member to be gone", claim.name), async || {
            Ok(bench.claims.get_opt(&claim.name).await.context("reading a claim")?.is_none()
                && members.get_opt(&claim.member).await.context("reading a member")?.is_none())
        })
        .await?;
    }
    let after = Passes::now(bench.cluster).await?;
    let audit = bench.cluster.audit()?;
    let user = accounts::username(accounts::SYSTEM_NAMESPACE, accounts::CONTROLLER);
    let writes: Vec<&Event> = audit.writes(&user).collect();
    let (mut bound, mut life) = (Vec::new(), Vec::new());
    for claim in served {
        let created = audit
            .events
            .iter()
            .find(|event| event.verb == "create" && concerns(event, "virtualmachineclaims", &claim.name))
            .with_context(|| format!("the audit log does not show how claim {} was created", claim.name))?;
        let since = |event: &&&Event| event.request_received_timestamp >= created.request_received_timestamp;
        let ours: Vec<&&Event> = writes.iter().filter(since).filter(|event| of(event, claim)).collect();
        let acknowledged = ours.iter().position(|event| concerns(event, "virtualmachineclaims", &claim.name));
        bound.push(acknowledged.map_or(0, |at| at + 1) as f64);
        life.push(ours.len() as f64);
    }
    println!("\nthe controller's writes for one claim, {} claims, events not counted", served.len());
    println!("               low       p50       p90      high");
    for (what, counts) in [("to Bound", bound), ("in all", life)] {
        let row = spread(counts);
        println!("  {what:<8} {:>8.0}  {:>8.0}  {:>8.0}  {:>8.0}", row[0], row[1], row[2], row[3]);
    }
    println!("  in all: claim, member, instance and Secret, from the claim's creation until all are gone");
    println!("\nthe controller's passes for one claim, refills included: all passes over all {} claims", served.len());
    for (kind, count) in &after.0 {
        let passes = count - before.0.get(kind).copied().unwrap_or(0.0);
        println!("  {kind:<8} {:>8.1}", passes / served.len().max(1) as f64);
    }
    Ok(())
}

/// Whether an event is about a claim or what stands under its member's name.
fn of(event: &Event, claim: &Served) -> bool {
    concerns(event, "virtualmachineclaims", &claim.name)
        || concerns(event, "poolmembers", &claim.member)
        || concerns(event, "virtualmachineinstances", &claim.member)
        || concerns(event, "secrets", &format!("{}-enrol", claim.member))
}

fn concerns(event: &Event, resource: &str, name: &str) -> bool {
    event
        .object_ref
        .as_ref()
        .is_some_and(|object| object.namespace == NAMESPACE && object.resource == resource && object.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_added_up_by_kind() {
        let text = "# TYPE x\nbanlieue_reconciles_total{kind=\"claim\",outcome=\"ok\"} 12\n\
                    banlieue_reconciles_total{kind=\"claim\",outcome=\"conflict\"} 1\n\
                    banlieue_reconciles_total{kind=\"pool\",outcome=\"ok\"} 7\nother 3\n";
        assert_eq!(passes(text), BTreeMap::from([("claim".to_owned(), 13.0), ("pool".to_owned(), 7.0)]));
    }
}
