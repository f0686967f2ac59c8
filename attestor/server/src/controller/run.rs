//! The attestor controller as a program: watches, and a pass over each member that something happened to.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use banlieue_crds::received::Received;
use banlieue_crds::{EndorsementReport, PoolMember, VirtualMachineClaim, VirtualMachinePool};
use banlieue_protocol::names::{Cluster, TrustDomain};
use banlieue_spire::{Client as SpireClient, Config as SpireConfig};
use futures::StreamExt;
use jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    runtime::{
        Controller,
        controller::{Action, Config as ControllerConfig},
        reflector::ObjectRef,
        watcher::Config as WatchConfig,
    },
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    decide::Settings,
    member::{Context, MemberError},
    metrics::Metrics,
};
use crate::{
    cluster::{self, Watched},
    http,
    policies::Policies,
};

/// Passes over members at once.
const WORKERS: u16 = 16;
/// A member that fails is tried again after this, doubling.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Fallback for every member, should an event be lost.
const FALLBACK: Duration = Duration::from_secs(300);
/// How the program is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// SPIRE server's TCP API, `host:port`.
    pub spire_server: String,
    /// Workload API of the agent beside us.
    pub workload_api: String,
    /// Trust domain.
    pub trust_domain: TrustDomain,
    /// Cluster.
    pub cluster: Cluster,
    /// Where liveness, readiness and metrics are served.
    pub metrics: SocketAddr,
    /// Life of the SVIDs of members' programs.
    pub svid_ttl: Duration,
    /// Life of agents' SVIDs, as SPIRE is configured.
    pub agent_ttl: Duration,
    /// Time between sweeps.
    pub sweep_every: Duration,
    /// Time between probes of the plugin.
    pub probe_every: Duration,
}

/// Runs until `stop`.
///
/// # Errors
/// When a connection cannot be set up at all; what fails later is tried again.
pub async fn run(options: Options, stop: CancellationToken) -> Result<()> {
    let client = cluster::client(None).await.map_err(anyhow::Error::msg)?;
    let metrics = Metrics::default();
    let ready = Arc::new(AtomicBool::new(false));
    let flag = ready.clone();
    let is_ready: http::Ready = Arc::new(move || {
        let ready = flag.load(Ordering::Acquire);
        Box::pin(
            async move { if ready { Ok(()) } else { Err("waiting for an SVID, or for the first lists".to_owned()) } },
        )
    });
    let _http = http::Server::start(options.metrics, metrics.registry(), is_ready)
        .await
        .with_context(|| format!("listening on {}", options.metrics))?;

    let config = SpireConfig {
        server: options.spire_server.clone(),
        workload_api: options.workload_api.clone(),
        trust_domain: options.trust_domain.clone(),
    };
    let spire = tokio::select! {
        spire = SpireClient::connect(config) => spire?,
        () = stop.cancelled() => return Ok(()),
    };
    tracing::info!(id = %spire.own_id()?, "has an identity");

    let parts = Parts::start(client, spire, &options, metrics);
    // Leader election goes here: everything above only reads, everything below writes.
    parts.lead(&options, &ready, &stop).await;
    Ok(())
}

/// The long-lived pieces.
pub(super) struct Parts {
    pub(super) context: Arc<Context>,
    pub(super) claims: Watched<VirtualMachineClaim>,
    pub(super) reports: Watched<EndorsementReport>,
    triggers: Mutex<Option<mpsc::UnboundedReceiver<()>>>,
    controller: Mutex<Option<Controller<PoolMember>>>,
    retries: Mutex<HashMap<String, u32>>,
}

impl Parts {
    fn start(client: Client, spire: SpireClient, options: &Options, metrics: Metrics) -> Arc<Self> {
        let controller = Controller::new(Api::<PoolMember>::all(client.clone()), WatchConfig::default())
            .with_config(ControllerConfig::default().concurrency(WORKERS));
        let members = controller.store();
        // A pool's policy, revocations or age limit concern all its members.
        let of_pool = members.clone();
        let controller = controller.watches(
            Api::<Received<VirtualMachinePool>>::all(client.clone()),
            WatchConfig::default(),
            move |pool: Received<VirtualMachinePool>| {
                let (namespace, name) = (pool.namespace(), pool.name_any());
                of_pool
                    .state_filter(|member| member.metadata.namespace == namespace && member.spec.pool_ref.name == name)
                    .into_iter()
                    .map(|member| ObjectRef::from_obj(&*member))
                    .collect::<Vec<_>>()
            },
        );
        let settings = Settings {
            trust_domain: options.trust_domain.clone(),
            cluster: options.cluster.clone(),
            svid_ttl: i32::try_from(options.svid_ttl.as_secs()).unwrap_or(300),
        };
        let (again, triggers) = mpsc::unbounded_channel();
        let context = Context {
            spire,
            again,
            settings,
            members,
            pools: Watched::start(Api::all(client.clone())),
            policies: Policies::new(client.clone()),
            metrics,
            entries: Mutex::default(),
            client: client.clone(),
        };
        Arc::new(Self {
            context: Arc::new(context),
            claims: Watched::start(Api::all(client.clone())),
            reports: Watched::start(Api::all(client)),
            triggers: Mutex::new(Some(triggers)),
            controller: Mutex::new(Some(controller)),
            retries: Mutex::default(),
        })
    }

    async fn lead(self: &Arc<Self>, options: &Options, ready: &AtomicBool, stop: &CancellationToken) {
        let passes = self.clone().passes(stop.clone());
        let timers = async {
            tokio::join!(
                self.sweeps(options),
                self.watch_claims(),
                self.probes(options.probe_every),
                self.say_ready(ready)
            );
        };
        tokio::select! {
            () = passes => {}
            () = timers => {}
        }
    }

    async fn say_ready(&self, ready: &AtomicBool) {
        let _ = self.context.members.wait_until_ready().await;
        while self.context.pools.filled().is_none() || self.claims.filled().is_none() || self.reports.filled().is_none()
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        ready.store(true, Ordering::Release);
        tracing::info!("ready");
    }

    /// One pass for each event, each wake-up and each trigger of a sweep; never two for one member at once.
    async fn passes(self: Arc<Self>, stop: CancellationToken) {
        let controller = self.controller.lock().unwrap_or_else(PoisonError::into_inner).take();
        let triggers = self.triggers.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (Some(controller), Some(triggers)) = (controller, triggers) else { return };
        // The first passes need the pools.
        while self.context.pools.filled().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let triggers = futures::stream::unfold(triggers, |mut triggers| async move {
            triggers.recv().await.map(|trigger| (trigger, triggers))
        });
        let shutdown = async move { stop.cancelled().await };
        controller
            .reconcile_all_on(triggers)
            .graceful_shutdown_on(shutdown)
            .run(pass, failed, self)
            .for_each(|_| std::future::ready(()))
            .await;
    }
}

async fn pass(member: Arc<PoolMember>, parts: Arc<Parts>) -> Result<Action, MemberError> {
    // The tombstone first: once the identity is revoked, nothing keeps the member, and its key must not come back.
    parts.end_reports_of(&member).await?;
    let wake = parts.context.pass(&member).await?;
    parts.retries.lock().unwrap_or_else(PoisonError::into_inner).remove(&member.uid().unwrap_or_default());
    let sleep = wake.map(|at| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO));
    Ok(Action::requeue(sleep.map_or(FALLBACK, |sleep| sleep.clamp(Duration::from_millis(20), FALLBACK))))
}

#[allow(clippy::needless_pass_by_value, reason = "the signature kube asks for")]
fn failed(member: Arc<PoolMember>, error: &MemberError, parts: Arc<Parts>) -> Action {
    tracing::warn!(member = %member.name_any(), %error, category = error.category(), "a pass failed, it is tried again");
    let mut retries = parts.retries.lock().unwrap_or_else(PoisonError::into_inner);
    // Members that are gone leave nothing behind for long.
    if retries.len() > 10_000 {
        retries.clear();
    }
    let count = retries.entry(member.uid().unwrap_or_default()).or_insert(0);
    let delay = FIRST_RETRY.saturating_mul(2_u32.saturating_pow((*count).min(10)));
    *count = count.saturating_add(1);
    Action::requeue(delay.min(LAST_RETRY))
}
