//! Leader election: steps of [`Election`] as calls on one Lease, and what a process does when it begins to lead.

use std::sync::Arc;
use std::time::Duration;

use banlieue_crds::PoolMember;
use banlieue_crds::names::{accounts, managers};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::act::Controller;
use crate::api::{Kind, Typed, chain};
use crate::schedule::{Election, Leadership, Record, Step, Written};
use crate::store::ObjectKey;

/// Name of the Lease in the system namespace.
pub const LEASE: &str = accounts::CONTROLLER;

/// One process' part in the election.
pub struct Campaign {
    /// Its own connection, not bound to leading: renewals wait behind nothing.
    pub api: Typed,
    /// The Lease.
    pub lease: ObjectKey,
    /// This process' name in it.
    pub me: String,
    /// The state of the election.
    pub election: Election,
    /// What the rest of the process asks.
    pub leadership: Leadership,
}

impl Campaign {
    /// Runs until `retire`, then gives the lease back. `leading` is told every change.
    pub async fn run(mut self, leading: watch::Sender<bool>, retire: CancellationToken) {
        let mut failing = false;
        loop {
            let now = self.leadership.now();
            let step = self.election.step(now);
            self.publish(&leading);
            match step {
                Step::Wait(pause) => {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = retire.cancelled() => break,
                    }
                }
                Step::Read => match self.api.get::<Lease>(Kind::Lease, &self.lease.namespace, &self.lease.name).await {
                    Ok(lease) => {
                        failing = false;
                        let now = self.leadership.now();
                        self.election.saw(now, lease.as_ref().map(record));
                    }
                    Err(error) => {
                        self.complain(&error, &mut failing);
                        let now = self.leadership.now();
                        self.election.saw_nothing(now);
                    }
                },
                Step::Write { over, transitions } => {
                    let anew = over.as_ref().is_none_or(|record| record.holder != self.me);
                    let answer = self.write(over.as_ref(), transitions, anew).await;
                    let written = match answer {
                        Ok(lease) => {
                            failing = false;
                            Written::Granted(record(&lease))
                        }
                        Err(error) => {
                            let raced = error.is_conflict() || error.is_not_found() || error.already_exists();
                            if !raced {
                                self.complain(&error, &mut failing);
                            }
                            if raced { Written::Lost } else { Written::NoAnswer }
                        }
                    };
                    let answered = self.leadership.now();
                    self.election.wrote(now, answered, written);
                }
            }
            self.publish(&leading);
            if retire.is_cancelled() {
                break;
            }
        }
        let now = self.leadership.now();
        let held = self.election.resign(now);
        self.publish(&leading);
        if let Some(held) = held {
            self.release(&held).await;
        }
    }

    fn publish(&self, leading: &watch::Sender<bool>) {
        let until = self.election.leads_until();
        self.leadership.allow(until);
        leading.send_if_modified(|leads| std::mem::replace(leads, until.is_some()) != until.is_some());
    }

    fn complain(&self, error: &crate::api::ApiError, failing: &mut bool) {
        if *failing {
            tracing::debug!(lease = %self.lease, %error, "the lease cannot be looked after");
        } else {
            tracing::warn!(lease = %self.lease, %error, "the lease cannot be looked after, trying again");
        }
        *failing = true;
    }

    async fn write(&self, over: Option<&Record>, transitions: i32, anew: bool) -> Result<Lease, crate::api::ApiError> {
        let now = format!("{:.6}", Timestamp::now());
        let seconds = i32::try_from(self.election.terms().duration.as_secs()).unwrap_or(i32::MAX);
        let mut spec = json!({
            "holderIdentity": self.me, "leaseDurationSeconds": seconds, "renewTime": now,
            "leaseTransitions": transitions,
        });
        if anew && let Some(map) = spec.as_object_mut() {
            map.insert("acquireTime".into(), json!(now));
        }
        let (namespace, name) = (&self.lease.namespace, &self.lease.name);
        match over {
            None => {
                let object = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": { "name": name, "namespace": namespace }, "spec": spec,
                });
                self.api.create(Kind::Lease, managers::CONTROLLER, object).await
            }
            Some(over) => {
                let patch = patch(over, spec);
                self.api.merge(Kind::Lease, namespace, name, managers::CONTROLLER, false, patch).await
            }
        }
    }

    /// Nobody has to wait for a process that ended in peace.
    async fn release(&self, held: &Record) {
        let spec = json!({ "holderIdentity": "", "leaseDurationSeconds": 1 });
        let (namespace, name) = (&self.lease.namespace, &self.lease.name);
        let patch = patch(held, spec);
        match self.api.merge::<Lease>(Kind::Lease, namespace, name, managers::CONTROLLER, false, patch).await {
            Ok(_) => tracing::info!(lease = %self.lease, "lease given back"),
            Err(error) => tracing::warn!(lease = %self.lease, %error, "lease not given back: the next leader waits"),
        }
    }
}

fn patch(over: &Record, spec: Value) -> Value {
    json!({ "metadata": { "resourceVersion": over.version }, "spec": spec })
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds),
        transitions: spec.lease_transitions.unwrap_or(0),
        version: lease.resource_version().unwrap_or_default(),
    }
}

/// Waits until every watch has listed once: a leader that sees nothing would only keep others from leading.
pub async fn synced(controller: &Controller, stop: &CancellationToken) {
    while !controller.index().unsynced().is_empty() && !stop.is_cancelled() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Begins and ends this process' work as `leading` says.
pub async fn follow(
    controller: Arc<Controller>,
    client: Client,
    namespaces: Vec<String>,
    mut leading: watch::Receiver<bool>,
) {
    loop {
        if leading.wait_for(|leads| *leads).await.is_err() {
            return;
        }
        tracing::info!("leads");
        tokio::select! {
            () = catch_up(&controller, &client, &namespaces) => controller.begin(),
            ended = leading.wait_for(|leads| !*leads) => {
                if ended.is_err() {
                    return;
                }
                continue;
            }
        }
        let ended = leading.wait_for(|leads| !*leads).await.is_err();
        controller.rest();
        tracing::info!("does not lead any more");
        if ended {
            return;
        }
    }
}

/// Members that the predecessor made last may not have come through the watch yet; counted too low, the pool would grow
/// beyond `maxReplicas`. One list that is served from the store itself shows them all.
async fn catch_up(controller: &Controller, client: &Client, namespaces: &[String]) {
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
