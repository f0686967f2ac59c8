//! Steps of [`Election`] as calls on one Lease, and what a process does when it begins to lead.

use std::error::Error;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Election, Leadership, Record, Step, Written};

/// One process' part in the election.
pub struct Campaign {
    /// Leases of the system namespace, over a connection of its own: renewals wait behind nothing.
    pub leases: Api<Lease>,
    /// Name of the Lease.
    pub lease: String,
    /// This process' name in it.
    pub me: String,
    /// Field manager of its writes.
    pub manager: &'static str,
    /// The state of the election.
    pub election: Election,
    /// What the rest of the process asks.
    pub leadership: Leadership,
}

/// Why a call on the Lease was not granted.
enum Failure {
    /// Somebody else wrote before.
    Raced,
    /// It was refused, or may or may not have been done.
    NoAnswer(String),
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
                Step::Read => match self.within(self.leases.get_opt(&self.lease)).await {
                    Ok(lease) => {
                        failing = false;
                        let now = self.leadership.now();
                        self.election.saw(now, lease.as_ref().map(record));
                    }
                    Err(failure) => {
                        self.complain(&failure, &mut failing);
                        let now = self.leadership.now();
                        self.election.saw_nothing(now);
                    }
                },
                Step::Write { over, transitions } => {
                    let anew = over.as_ref().is_none_or(|record| record.holder != self.me);
                    let written = match self.write(over.as_ref(), transitions, anew).await {
                        Ok(lease) => {
                            failing = false;
                            Written::Granted(record(&lease))
                        }
                        Err(Failure::Raced) => Written::Lost,
                        Err(failure) => {
                            self.complain(&failure, &mut failing);
                            Written::NoAnswer
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

    fn complain(&self, failure: &Failure, failing: &mut bool) {
        let error = failure.words();
        if *failing {
            tracing::debug!(lease = self.lease, error, "the lease cannot be looked after");
        } else {
            tracing::warn!(lease = self.lease, error, "the lease cannot be looked after, trying again");
        }
        *failing = true;
    }

    /// A call that is given up in time for another before the renew deadline.
    async fn within<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
        match tokio::time::timeout(self.election.terms().renew_deadline / 2, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Err(Failure::Raced),
            Ok(Err(error)) => Err(Failure::NoAnswer(chain(&error))),
            Err(_) => Err(Failure::NoAnswer("no answer in time".to_owned())),
        }
    }

    async fn write(&self, over: Option<&Record>, transitions: i32, anew: bool) -> Result<Lease, Failure> {
        let now = format!("{:.6}", Timestamp::now());
        let seconds = i32::try_from(self.election.terms().duration.as_secs()).unwrap_or(i32::MAX);
        let mut spec = json!({
            "holderIdentity": self.me, "leaseDurationSeconds": seconds, "renewTime": now,
            "leaseTransitions": transitions,
        });
        if anew && let Some(map) = spec.as_object_mut() {
            map.insert("acquireTime".into(), json!(now));
        }
        let Some(over) = over else {
            let object = json!({ "metadata": { "name": self.lease }, "spec": spec });
            let lease = serde_json::from_value(object).map_err(|error| Failure::NoAnswer(error.to_string()))?;
            let params = PostParams { field_manager: Some(self.manager.to_owned()), ..PostParams::default() };
            return self.within(self.leases.create(&params, &lease)).await;
        };
        self.patch(over, spec).await
    }

    async fn patch(&self, over: &Record, spec: Value) -> Result<Lease, Failure> {
        let patch = Patch::Merge(json!({ "metadata": { "resourceVersion": over.version }, "spec": spec }));
        let params = PatchParams { field_manager: Some(self.manager.to_owned()), ..PatchParams::default() };
        self.within(self.leases.patch(&self.lease, &params, &patch)).await
    }

    /// Nobody has to wait for a process that ended in peace.
    async fn release(&self, held: &Record) {
        match self.patch(held, json!({ "holderIdentity": "", "leaseDurationSeconds": 1 })).await {
            Ok(_) => tracing::info!(lease = self.lease, "lease given back"),
            Err(failure) => {
                let error = failure.words();
                tracing::warn!(lease = self.lease, error, "lease not given back: the next leader waits");
            }
        }
    }
}

impl Failure {
    fn words(&self) -> &str {
        match self {
            Self::Raced => "changed meanwhile",
            Self::NoAnswer(why) => why,
        }
    }
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

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

/// Begins and ends this process' work as `leading` says. `catch_up` comes before `begin`, and ends early when leading does.
pub async fn follow<C: Future<Output = ()>>(
    mut leading: watch::Receiver<bool>,
    mut catch_up: impl FnMut() -> C,
    mut begin: impl FnMut(),
    mut rest: impl FnMut(),
) {
    loop {
        if leading.wait_for(|leads| *leads).await.is_err() {
            return;
        }
        tracing::info!("leads");
        tokio::select! {
            () = catch_up() => begin(),
            ended = leading.wait_for(|leads| !*leads) => {
                if ended.is_err() {
                    return;
                }
                continue;
            }
        }
        let ended = leading.wait_for(|leads| !*leads).await.is_err();
        rest();
        tracing::info!("does not lead any more");
        if ended {
            return;
        }
    }
}

/// A name in the Lease that no other process has, nor this one at its next start.
#[must_use]
pub fn made_up_name(program: &str) -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| program.to_owned());
    format!("{host}_{:08x}", rand::random::<u32>())
}
