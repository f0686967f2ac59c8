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
use banlieue_crds::names::{accounts, managers};
use banlieue_crds::received::Received;
use banlieue_crds::{EndorsementReport, PoolMember, VirtualMachineClaim, VirtualMachinePool};
use banlieue_leader::{Campaign, Election, Leadership, Terms, follow};
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
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    decide::Settings,
    member::{Context, MemberError},
    metrics::Metrics,
};
use crate::{
    cluster::{self, CALL_LIMIT, Watched},
    http,
    policies::Policies,
    unread::read,
};

/// Passes over members at once.
const WORKERS: u16 = 16;
/// A member that fails is tried again after this, doubling.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Fallback for every member, should an event be lost.
const FALLBACK: Duration = Duration::from_secs(300);
/// Between two looks at what nobody tells.
const LOOK: Duration = Duration::from_millis(50);

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
    /// How this process stands for leading; none when it runs alone.
    pub candidate: Option<Candidate>,
}

/// How a process stands for leading.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name in the Lease.
    pub name: String,
    /// Times.
    pub terms: Terms,
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

    let leadership = if options.candidate.is_some() { Leadership::follower() } else { Leadership::always() };
    let parts = Parts::start(client, spire, &options, metrics, leadership.clone());
    let retire = CancellationToken::new();
    let election = match &options.candidate {
        // Its own connection: renewals wait behind nothing.
        Some(candidate) => {
            let client = cluster::client(None).await.map_err(anyhow::Error::msg)?;
            Some(stand(candidate, &parts, client, ready.clone(), &retire))
        }
        None => None,
    };
    parts.work(&options, &ready, &stop).await;
    // What was begun is finished under the lease, then the next one need not wait.
    retire.cancel();
    if let Some(election) = election {
        let _ = tokio::time::timeout(CALL_LIMIT, election).await;
    }
    Ok(())
}

/// Stands for leading, once everything that a leader needs was seen; until then it would only keep others from it.
fn stand(
    candidate: &Candidate,
    parts: &Arc<Parts>,
    client: Client,
    ready: Arc<AtomicBool>,
    retire: &CancellationToken,
) -> tokio::task::JoinHandle<()> {
    let campaign = Campaign {
        leases: Api::namespaced(client, &candidate.namespace),
        lease: accounts::ATTESTOR_CONTROLLER.to_owned(),
        me: candidate.name.clone(),
        manager: managers::ATTESTOR_CONTROLLER,
        election: Election::new(candidate.name.clone(), candidate.terms),
        leadership: parts.context.leadership.clone(),
    };
    let (leads, leading) = watch::channel(false);
    let context = parts.context.clone();
    tokio::spawn(async move {
        let begin = || {
            context.leadership.begin();
            // What became due under another, or under nobody.
            let _ = context.again.send(());
        };
        // Whatever the last one did and this one has not seen is the same done twice, or refused as out of date.
        follow(leading, || std::future::ready(()), begin, || context.leadership.rest()).await;
    });
    let retire = retire.clone();
    tokio::spawn(async move {
        // A store wakes one of those who wait for it, so this looks at what another found.
        while !ready.load(Ordering::Acquire) {
            if retire.is_cancelled() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
        campaign.run(leads, retire).await;
    })
}

/// The long-lived pieces.
pub(super) struct Parts {
    pub(super) context: Arc<Context>,
    pub(super) claims: Watched<VirtualMachineClaim>,
    pub(super) reports: Watched<EndorsementReport>,
    triggers: Mutex<Option<mpsc::UnboundedReceiver<()>>>,
    controller: Mutex<Option<Controller<Received<PoolMember>>>>,
    retries: Mutex<HashMap<String, u32>>,
}

impl Parts {
    fn start(
        client: Client,
        spire: SpireClient,
        options: &Options,
        metrics: Metrics,
        leadership: Leadership,
    ) -> Arc<Self> {
        let controller = Controller::new(Api::<Received<PoolMember>>::all(client.clone()), WatchConfig::default())
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
                    .state_filter(|member| {
                        member.namespace() == namespace
                            && read(member).is_some_and(|member| member.spec.pool_ref.name == name)
                    })
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
        let unread = metrics.unread.clone();
        let context = Context {
            spire,
            leadership,
            again,
            settings,
            members,
            pools: Watched::start(Api::all(client.clone()), metrics.unread.clone()),
            policies: Policies::new(client.clone()),
            metrics,
            entries: Mutex::default(),
            client: client.clone(),
        };
        Arc::new(Self {
            context: Arc::new(context),
            claims: Watched::start(Api::all(client.clone()), unread.clone()),
            reports: Watched::start(Api::all(client), unread),
            triggers: Mutex::new(Some(triggers)),
            controller: Mutex::new(Some(controller)),
            retries: Mutex::default(),
        })
    }

    async fn work(self: &Arc<Self>, options: &Options, ready: &AtomicBool, stop: &CancellationToken) {
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
            tokio::time::sleep(LOOK).await;
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

async fn pass(member: Arc<Received<PoolMember>>, parts: Arc<Parts>) -> Result<Action, MemberError> {
    let member = match &*member {
        Received::Read(member) => member,
        // It lives, and what it is nobody knows: nothing is done about it until it changes.
        Received::Unreadable(member) => {
            parts.context.metrics.unread.note::<PoolMember>(member);
            return Ok(Action::await_change());
        }
    };
    // A follower's passes come again when it leads.
    if !parts.context.leadership.works() {
        return Ok(Action::await_change());
    }
    // The tombstone first: once the identity is revoked, nothing keeps the member, and its key must not come back.
    parts.end_reports_of(member).await?;
    let wake = parts.context.pass(member).await?;
    parts.retries.lock().unwrap_or_else(PoisonError::into_inner).remove(&member.uid().unwrap_or_default());
    let sleep = wake.map(|at| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO));
    Ok(Action::requeue(sleep.map_or(FALLBACK, |sleep| sleep.clamp(Duration::from_millis(20), FALLBACK))))
}

#[allow(clippy::needless_pass_by_value, reason = "the signature kube asks for")]
fn failed(member: Arc<Received<PoolMember>>, error: &MemberError, parts: Arc<Parts>) -> Action {
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
