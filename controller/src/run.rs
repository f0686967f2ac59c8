//! The program: connect, check, watch, work, stop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use banlieue_crds::names::managers;
use banlieue_leader::{Campaign, Election, Leadership, follow, made_up_name};
use jiff::SignedDuration;
use kube::{Client, Config};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::act::{Controller, Events, Parts, Settings, System, run_events};
use crate::api::{Kubernetes, Typed, chain, connect};
use crate::campaign::{self, LEASE};
use crate::config::RunArgs;
use crate::decide::Tuning;
use crate::metrics::Metrics;
use crate::schedule::{Key, Lane, Lookout, run_workers};
use crate::store::watch;

/// Why the program cannot run: one sentence on what is wrong, one on what to do.
#[derive(Debug, Error)]
pub enum RunError {
    /// Kubeconfig or flags.
    #[error("the configuration is wrong: {0}")]
    Config(String),
    /// The API server.
    #[error("the API server at {url} cannot be reached: {cause}. Check the kubeconfig, the network and that it runs.")]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        cause: String,
    },
    /// It answers and says no.
    #[error("the API server at {url} refuses us: {cause}. Check the credentials and the roles in the chart.")]
    Refused {
        /// Where.
        url: String,
        /// Why.
        cause: String,
    },
    /// A kind is not installed.
    #[error("the cluster has no {kind}. {remedy}")]
    Missing {
        /// Which.
        kind: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The address for metrics.
    #[error("cannot listen on {address}: {cause}. Choose another --metrics address.")]
    Listen {
        /// Which.
        address: String,
        /// Why.
        cause: String,
    },
}

impl RunError {
    /// The process' exit code: 2 configuration, 3 the cluster cannot be reached or lacks something.
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Config(_) | RunError::Listen { .. } => 2,
            RunError::Unreachable { .. } | RunError::Refused { .. } | RunError::Missing { .. } => 3,
        }
    }
}

/// Reads the kubeconfig or the pod's service account.
pub async fn client_config() -> Result<Config, RunError> {
    Config::infer().await.map_err(|error| {
        RunError::Config(format!(
            "no usable kubeconfig: {}. Set KUBECONFIG to a readable file, or run in a pod with a service account.",
            chain(&error)
        ))
    })
}

/// Whether the API server answers and has the kinds that we need.
pub async fn check_cluster(client: &Client, url: &str) -> Result<(), RunError> {
    let wanted = [
        ("banlieue.io/v1alpha1", "virtualmachinepools", "Apply charts/banlieue-crds."),
        ("banlieue.io/v1alpha1", "poolmembers", "Apply charts/banlieue-crds."),
        ("banlieue.io/v1alpha1", "virtualmachineclaims", "Apply charts/banlieue-crds."),
        ("kubevirt.io/v1", "virtualmachineinstances", "Install KubeVirt 1.8 or newer."),
    ];
    for (version, plural, remedy) in wanted {
        let found = tokio::time::timeout(Duration::from_secs(15), client.list_api_group_resources(version)).await;
        let missing = || RunError::Missing { kind: format!("{plural} in {version}"), remedy };
        match found {
            Err(_) => return Err(RunError::Unreachable { url: url.into(), cause: "no answer within 15 s".into() }),
            Ok(Ok(list)) if list.resources.iter().any(|resource| resource.name == plural) => {}
            Ok(Ok(_)) => return Err(missing()),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => return Err(missing()),
            Ok(Err(kube::Error::Api(status))) => {
                return Err(RunError::Refused { url: url.into(), cause: status.message.clone() });
            }
            Ok(Err(error)) => return Err(RunError::Unreachable { url: url.into(), cause: chain(&error) }),
        }
    }
    Ok(())
}

/// Runs until `stop`.
pub async fn run(args: RunArgs, stop: CancellationToken) -> Result<(), RunError> {
    let config = client_config().await?;
    let url = config.cluster_url.to_string();
    let connected = |config: Config| connect(config).map_err(|error| RunError::Config(chain(&error)));
    let client = connected(config.clone())?;
    check_cluster(&client, &url).await?;
    let binding = connected(config.clone())?;
    let electing = connected(config.clone())?;
    let watching = connected(config)?;
    let listener = TcpListener::bind(args.metrics)
        .await
        .map_err(|error| RunError::Listen { address: args.metrics.to_string(), cause: error.to_string() })?;

    let metrics = Metrics::default();
    let leadership = if args.leader_elect { Leadership::follower() } else { Leadership::always() };
    let me = args.identity.clone().unwrap_or_else(|| made_up_name("banlieue-controller"));
    let gated = |client, deadline| {
        Arc::new(Kubernetes::new(client, deadline, metrics.clone()).only_leading(leadership.clone()))
    };
    let api = gated(client, Duration::from_secs(30));
    let (events, queue) = Events::new(1024, metrics.clone());
    let sender = tokio::spawn(run_events(Typed::new(api.clone()), queue, me.clone(), metrics.clone()));
    let egress = args.egress();
    let controller = Arc::new(Controller::new(Parts {
        api,
        binding: gated(binding, Duration::from_secs(10)),
        scopes: args.namespaces.len(),
        clock: Arc::new(System),
        random: Arc::new(System),
        settings: Settings {
            issuer: args.issuer(),
            bundle: args.bundle(),
            tuning: Tuning {
                egress_gap: egress.gap(),
                allowed: args.allowed(),
                // Half a minute for the guest's power-off to be seen.
                proof_of_life: SignedDuration::from_secs(i64::from(args.agent_ttl_seconds).saturating_add(30)),
                ..Tuning::default()
            },
            egress,
            coalesce: SignedDuration::from_millis(250),
            pace: (50, 50),
        },
        events,
        metrics: metrics.clone(),
        leadership: leadership.clone(),
    }));
    tracing::info!(url, identity = me, metrics = %listener.local_addr().map_or_else(|_| args.metrics.to_string(), |a| a.to_string()), "started");

    let (changes, received) = mpsc::channel(4096);
    let watches = stop.child_token();
    watch::start(&watching, &args.namespaces, changes.clone(), &watches);
    let feed = tokio::spawn(feed(controller.clone(), watching.clone(), changes, received, watches.clone()));
    let served = tokio::spawn(crate::http::serve(listener, controller.clone(), watches.clone()));

    // Its own end, after the lanes': what was begun is finished under the lease.
    let retire = CancellationToken::new();
    let (leads, leading) = tokio::sync::watch::channel(false);
    let election = if args.leader_elect {
        let terms = args.terms();
        let campaign = Campaign {
            leases: kube::Api::namespaced(electing, &args.system_namespace),
            lease: LEASE.to_owned(),
            manager: managers::CONTROLLER,
            election: Election::new(me.clone(), terms),
            me,
            leadership,
        };
        let follower = controller.clone();
        let namespaces = args.namespaces.clone();
        tokio::spawn(async move {
            let catch_up = || {
                let (follower, watching, namespaces) = (follower.clone(), watching.clone(), namespaces.clone());
                async move { campaign::catch_up(&follower, &watching, &namespaces).await }
            };
            follow(leading, catch_up, || follower.begin(), || follower.rest()).await;
        });
        let (controller, stop, retire) = (controller.clone(), stop.clone(), retire.clone());
        Some(tokio::spawn(async move {
            campaign::synced(&controller, &stop).await;
            drop(controller);
            campaign.run(leads, retire).await;
        }))
    } else {
        None
    };

    let mut lanes = tokio::task::JoinSet::new();
    for (lane, most) in [(Lane::Bind, 64), (Lane::End, 32), (Lane::Fill, 8)] {
        let schedule = controller.schedule();
        let (clock, worker, gate) = (controller.clone(), controller.clone(), controller.clone());
        let counts = controller.metrics().clone();
        let taken = move |key: &Key, lag: SignedDuration, depth| {
            counts.queue_wait(key.kind(), lag.as_secs_f64());
            counts.queue_depth(key.kind(), depth);
        };
        let work = move |key| {
            let worker = worker.clone();
            async move { worker.work(key).await }
        };
        let lookout = Lookout { now: move || clock.now(), may: move || gate.works(), taken };
        lanes.spawn(run_workers(schedule, lane, most, lookout, work, stop.clone()));
    }
    while lanes.join_next().await.is_some() {}
    tracing::info!("drained");
    retire.cancel();
    if let Some(election) = election {
        let _ = tokio::time::timeout(Duration::from_secs(5), election).await;
    }
    watches.cancel();
    feed.abort();
    let _ = tokio::time::timeout(Duration::from_secs(2), served).await;
    drop(controller);
    let _ = tokio::time::timeout(Duration::from_secs(2), sender).await;
    Ok(())
}

/// Takes changes into the index, and watches a namespace from its first pool to the end of its last.
async fn feed(
    controller: Arc<Controller>,
    client: Client,
    changes: mpsc::Sender<watch::Change>,
    mut received: mpsc::Receiver<watch::Change>,
    stop: CancellationToken,
) {
    let mut watched: BTreeMap<String, CancellationToken> = BTreeMap::new();
    while let Some(change) = received.recv().await {
        let is_pool = matches!(change.event, watch::ChangeEvent::Pool(_));
        controller.observe(change);
        if is_pool {
            let namespaces = controller.index().pool_namespaces();
            for namespace in &namespaces {
                if !watched.contains_key(namespace) {
                    let end = stop.child_token();
                    watch::start_namespace(&client, namespace, changes.clone(), &end);
                    watched.insert(namespace.clone(), end);
                }
            }
            // Without a pool there is nothing to look at, and in a namespace that is gone nothing but refusals.
            watched.retain(|namespace, end| {
                let holds_pools = namespaces.contains(namespace);
                if !holds_pools {
                    end.cancel();
                    controller.index().forget_namespace(namespace);
                }
                holds_pools
            });
        }
    }
}
