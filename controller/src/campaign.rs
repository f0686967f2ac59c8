//! What the controller does around leading: it stands once it sees everything, and catches up before it works.

use std::time::Duration;

use banlieue_crds::PoolMember;
use banlieue_crds::names::accounts;
use kube::Client;
use kube::api::ListParams;
use tokio_util::sync::CancellationToken;

use crate::act::Controller;
use crate::api::chain;

/// Name of the Lease in the system namespace.
pub const LEASE: &str = accounts::CONTROLLER;

/// Waits until every watch has listed once: a leader that sees nothing would only keep others from leading.
pub async fn synced(controller: &Controller, stop: &CancellationToken) {
    while !controller.index().unsynced().is_empty() && !stop.is_cancelled() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Members that the predecessor made last may not have come through the watch yet; counted too low, the pool would grow
/// beyond `maxReplicas`. One list that is served from the store itself shows them all.
pub async fn catch_up(controller: &Controller, client: &Client, namespaces: &[String]) {
    let scopes: Vec<Option<&str>> =
        if namespaces.is_empty() { vec![None] } else { namespaces.iter().map(|it| Some(it.as_str())).collect() };
    for scope in scopes {
        let members: kube::Api<PoolMember> = match scope {
            Some(namespace) => kube::Api::namespaced(client.clone(), namespace),
            None => kube::Api::all(client.clone()),
        };
        loop {
            match members.list(&ListParams::default()).await {
                Ok(list) => {
                    let mut index = controller.index();
                    for mut member in list.items {
                        member.metadata.managed_fields = None;
                        // Nothing is scheduled yet: beginning looks at everything.
                        index.put_member(member);
                    }
                    break;
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "members cannot be listed, trying again");
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }
}
