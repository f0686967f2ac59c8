//! The attestor controller as a program: watches, member passes, and what runs on timers.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use banlieue_crds::{EndorsementReport, PoolMember, VirtualMachineClaim, VirtualMachinePool, names::managers};
use banlieue_protocol::names::{Cluster, TrustDomain, Uid, claim_entry, egress_entry, node_entry};
use banlieue_spire::{Client as SpireClient, Config as SpireConfig, sweep::Plan};
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::{
        Controller,
        controller::{Action, Config as ControllerConfig},
        reflector::ObjectRef,
        watcher::Config as WatchConfig,
    },
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    claims,
    decide::Settings,
    member::{Context, MemberError, by_uid},
    metrics::Metrics,
    probe,
    reports::{self, Fate},
    sweep::{self, Living, Missing},
};
use crate::{
    cluster::{self, CALL_LIMIT, Watched},
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
/// The longest sleep between looks at claims.
const CLAIMS_EVERY: Duration = Duration::from_secs(30);

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
struct Parts {
    context: Arc<Context>,
    claims: Watched<VirtualMachineClaim>,
    reports: Watched<EndorsementReport>,
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
            Api::<VirtualMachinePool>::all(client.clone()),
            WatchConfig::default(),
            move |pool: VirtualMachinePool| {
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
        let context = Context {
            spire,
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
            controller: Mutex::new(Some(controller)),
            retries: Mutex::default(),
        })
    }

    async fn lead(self: &Arc<Self>, options: &Options, ready: &AtomicBool, stop: &CancellationToken) {
        let (again, triggers) = mpsc::unbounded_channel();
        let passes = self.clone().passes(triggers, stop.clone());
        let timers = async {
            tokio::join!(
                self.sweeps(options, &again),
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
    async fn passes(self: Arc<Self>, triggers: mpsc::UnboundedReceiver<()>, stop: CancellationToken) {
        let taken = self.controller.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(controller) = taken else { return };
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

    async fn watch_claims(&self) {
        let mut dealt_with: BTreeSet<Uid> = BTreeSet::new();
        loop {
            let mut sleep = CLAIMS_EVERY;
            if let Some(store) = self.claims.filled() {
                let (claims, now) = (store.state(), Timestamp::now());
                dealt_with.retain(|uid| claims.iter().any(|claim| claim.uid().as_deref() == Some(uid.as_str())));
                let over = claims::over(&claims, &dealt_with, now);
                if !over.claims.is_empty() {
                    match self.delete_claim_entries(&over.claims).await {
                        Ok(()) => dealt_with.extend(over.claims),
                        Err(error) => {
                            tracing::warn!(%error, "entries of ended claims are still there");
                            sleep = Duration::from_secs(1);
                        }
                    }
                }
                let until_next = over.next.map(|next| next.duration_since(Timestamp::now()));
                if let Some(until) = until_next.and_then(|until| Duration::try_from(until).ok()) {
                    sleep = sleep.min(until.saturating_add(Duration::from_millis(5)));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(sleep) => {}
                () = self.claims.changed() => {}
            }
        }
    }

    async fn delete_claim_entries(&self, claims: &[Uid]) -> Result<(), banlieue_spire::Error> {
        let context = &self.context;
        let ids: Vec<_> = claims.iter().map(|claim| claim_entry(&context.settings.cluster, claim)).collect();
        let outcome = async {
            for result in context.spire.delete_entries(&ids).await? {
                result?;
            }
            Ok(())
        }
        .await;
        let word = outcome.as_ref().err().map_or("ok", banlieue_spire::Error::category);
        context.metrics.count("delete-entry", word);
        outcome
    }

    async fn probes(&self, every: Duration) {
        let mut was = None;
        loop {
            let finding = probe::probe(&self.context.spire).await;
            if was != Some(finding.answering) {
                tracing::info!(answering = finding.answering, message = %finding.message, "the plugin");
                was = Some(finding.answering);
            }
            self.context.metrics.plugin_answering.set(i64::from(finding.answering));
            // What is found changes on the timer only; a new pool is told at once.
            let next = tokio::time::sleep(every);
            tokio::pin!(next);
            loop {
                self.tell(&finding).await;
                tokio::select! {
                    () = &mut next => break,
                    () = self.context.pools.changed() => {}
                }
            }
        }
    }

    async fn tell(&self, finding: &probe::Finding) {
        let pools = self.context.pools.filled().map(|store| store.state()).unwrap_or_default();
        for pool in pools {
            if let Err(why) = probe::tell(&self.context.client, &pool, finding).await {
                tracing::warn!(%why, "a pool was not told about the plugin");
            }
        }
    }

    async fn sweeps(&self, options: &Options, again: &mpsc::UnboundedSender<()>) {
        let (mut missing, mut unreported) = (Missing::default(), Missing::default());
        loop {
            if let Err(error) = self.sweep(options, &mut missing, again).await {
                tracing::warn!(%error, "no sweep: a list is not complete");
            }
            self.sweep_reports(options, &mut unreported).await;
            tokio::time::sleep(options.sweep_every).await;
        }
    }

    async fn sweep(
        &self,
        options: &Options,
        missing: &mut Missing,
        again: &mpsc::UnboundedSender<()>,
    ) -> Result<(), banlieue_spire::Error> {
        let context = &self.context;
        // SPIRE first: what it shows was made for an object that existed before.
        let entries = context.spire.list_entries().await?;
        let agents = context.spire.list_agents().await?;
        if context.members.wait_until_ready().await.is_err() {
            return Ok(());
        }
        let Some(claims) = self.claims.filled().map(|store| store.state()) else { return Ok(()) };
        let members = by_uid(&context.members.state());
        let now = Timestamp::now();

        let (over, live): (Vec<_>, Vec<_>) = claims.iter().partition(|claim| claims::is_over(claim, now));
        let uids = |claims: Vec<&Arc<VirtualMachineClaim>>| claims.iter().filter_map(|claim| claim.uid()).collect();
        let living = Living { members: members.keys().cloned().collect(), claims: uids(live), claims_over: uids(over) };
        self.compare_entries(&members, &entries, again);

        let cluster = &context.settings.cluster;
        let keep = SignedDuration::try_from(options.svid_ttl).unwrap_or(SignedDuration::from_secs(300));
        let found = sweep::sweep(&entries, &agents, &living, missing, cluster, keep, now);
        if let Some(ids) = self.allowed("entries", found.entries) {
            for result in context.spire.delete_entries(&ids).await? {
                context.metrics.count("delete-entry", result.as_ref().err().map_or("ok", |error| error.category()));
            }
        }
        for path in self.allowed("agents", found.ban).unwrap_or_default() {
            if let Some(id) = self.agent_of(&path) {
                let outcome = context.spire.ban_agent(&id).await;
                context.metrics.count("ban", outcome.as_ref().err().map_or("ok", |error| error.category()));
            }
        }
        for path in found.delete {
            if let Some(id) = self.agent_of(&path) {
                let outcome = context.spire.delete_agent(&id).await;
                context.metrics.count("delete-agent", outcome.as_ref().err().map_or("ok", |error| error.category()));
            }
        }
        Ok(())
    }

    fn agent_of(&self, path: &str) -> Option<banlieue_protocol::names::SpiffeId> {
        use banlieue_protocol::names::{Named, agent, read_path};
        match read_path(path)? {
            Named::Agent { cluster, namespace, member } if cluster == self.context.settings.cluster => {
                Some(agent(&self.context.settings.trust_domain, &cluster, &namespace, &member))
            }
            _ => None,
        }
    }

    fn allowed(&self, what: &str, plan: Plan) -> Option<Vec<String>> {
        match plan {
            Plan::Remove(ids) => {
                if !ids.is_empty() {
                    tracing::info!(what, count = ids.len(), "sweeps what nothing stands for");
                }
                Some(ids)
            }
            Plan::Stop { surprising, of } => {
                self.context.metrics.stopped_sweeps.inc();
                tracing::error!(
                    what,
                    surprising,
                    of,
                    "the sweep stops: more than a tenth of SPIRE's records stand for nothing that is seen. If that is \
                     true, delete them by hand; if not, look why objects are not seen"
                );
                None
            }
        }
    }

    /// Takes SPIRE's complete list for what is known, and looks again at members whose entries are not there.
    fn compare_entries(
        &self,
        members: &HashMap<String, Arc<PoolMember>>,
        entries: &[banlieue_spire::entries::Entry],
        again: &mpsc::UnboundedSender<()>,
    ) {
        let ids: BTreeSet<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        let cluster = &self.context.settings.cluster;
        let mut known = HashMap::new();
        for (uid, member) in members {
            let Ok(parsed) = Uid::parse(uid) else { continue };
            let own = [node_entry(cluster, &parsed), egress_entry(cluster, &parsed)];
            let there: BTreeSet<String> = own.into_iter().filter(|id| ids.contains(id.as_str())).collect();
            if there.is_empty() && member.metadata.deletion_timestamp.is_none() {
                let _ = again.send(());
            }
            // An ending member's claim entry is not in this set, so what is known about ending ones is nothing.
            if member.metadata.deletion_timestamp.is_none() {
                known.insert(uid.clone(), there);
            }
        }
        self.context.replace_entries(known);
    }

    async fn sweep_reports(&self, options: &Options, missing: &mut Missing) {
        let Some(store) = self.reports.filled() else { return };
        if self.context.members.wait_until_ready().await.is_err() {
            return;
        }
        let (all, now) = (store.state(), Timestamp::now());
        let members = self.context.members.state();
        let without = all.iter().filter(|report| reports::member_of(report, &members).is_none());
        let long = missing.note(without.filter_map(|report| report.uid()).collect(), now);
        let keep = options.agent_ttl.saturating_add(options.svid_ttl);
        let keep = SignedDuration::try_from(keep).unwrap_or(SignedDuration::from_hours(1));
        for report in &all {
            let missing_long = report.uid().is_some_and(|uid| long.contains(&uid));
            let outcome = match reports::fate(report, reports::member_of(report, &members), missing_long, keep, now) {
                Fate::Keep => continue,
                Fate::End => ("end-report", self.end_report(report, now).await),
                Fate::Delete => ("delete-report", self.delete_report(report).await),
            };
            self.context.metrics.count(outcome.0, if outcome.1.is_ok() { "ok" } else { "kubernetes" });
            if let Err(why) = outcome.1 {
                tracing::warn!(%why, report = %report.name_any(), "a report is not as it should be");
            }
        }
    }

    async fn end_reports_of(&self, member: &Arc<PoolMember>) -> Result<(), MemberError> {
        if member.metadata.deletion_timestamp.is_none() {
            return Ok(());
        }
        let own = std::slice::from_ref(member);
        for report in self.reports.filled().map(|store| store.state()).unwrap_or_default() {
            let ended = report.status.as_ref().is_some_and(|status| status.ended_at.is_some());
            if !ended && reports::member_of(&report, own).is_some() {
                let outcome = self.end_report(&report, Timestamp::now()).await;
                self.context.metrics.count("end-report", if outcome.is_ok() { "ok" } else { "kubernetes" });
                outcome
                    .map_err(|why| MemberError::Kubernetes { act: format!("end report {}", report.name_any()), why })?;
            }
        }
        Ok(())
    }

    async fn end_report(&self, report: &EndorsementReport, now: Timestamp) -> Result<(), String> {
        let body = json!({
            "apiVersion": EndorsementReport::api_version(&()),
            "kind": EndorsementReport::kind(&()),
            "metadata": { "name": report.name_any(), "uid": report.metadata.uid },
            "status": { "endedAt": format!("{now:.6}") },
        });
        let api = self.report_api(report);
        let params = PatchParams::apply(managers::ATTESTOR_CONTROLLER).force();
        settle(
            tokio::time::timeout(CALL_LIMIT, api.patch_status(&report.name_any(), &params, &Patch::Apply(body))).await,
        )
    }

    async fn delete_report(&self, report: &EndorsementReport) -> Result<(), String> {
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: report.metadata.uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        let api = self.report_api(report);
        settle(tokio::time::timeout(CALL_LIMIT, api.delete(&report.name_any(), &params)).await)
    }

    fn report_api(&self, report: &EndorsementReport) -> Api<EndorsementReport> {
        Api::namespaced(self.context.client.clone(), &report.namespace().unwrap_or_default())
    }
}

fn settle<T>(outcome: Result<kube::Result<T>, tokio::time::error::Elapsed>) -> Result<(), String> {
    match outcome {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
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
