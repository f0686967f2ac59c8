//! Starting, serving and stopping.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use banlieue_identity::Issuers;
use banlieue_protocol::names;
use prometheus_client::registry::Registry;
use rustls::{ServerConfig, sign::CertifiedKey};
use spiffe::{X509Source, X509Svid, x509_source::SvidPicker};
use spiffe_rustls::{TrustDomainPolicy, mtls_server};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    audit::Audit,
    broker::{Broker, Grants, Releasing},
    claims::{cluster::Cluster, grant::SealingKeys, keeper, store::Store},
    config::{Config, Limits, Spire, Tls, certificate, sealing_key, signing_key},
    entries::{self, Entries},
    http::{
        listen::{Bounds, Listener, Times},
        rate::Rate,
        reload::{NewestCertificate, Reloaded},
    },
    metrics::Metrics,
    operators,
    sandbox::{self, polls::Polls},
    tokens::{backends::Upstreams, keys::SigningKeys, sessions},
    user,
};

/// Longest time of one call to the API server until it connects.
const CONNECT: Duration = Duration::from_secs(5);

/// Longest wait, at the end, for what has no time of its own.
const LAST: Duration = Duration::from_secs(5);

/// Longest wait for mediatore's own SVID.
const FIRST_SVID: Duration = Duration::from_secs(60);

/// A client from `KUBECONFIG` or the pod's service account.
///
/// # Errors
/// When there is neither, or it is unusable.
pub async fn cluster() -> Result<Cluster> {
    let mut config = kube::Config::infer().await.context("no kubeconfig and no service account")?;
    // kube repeats a failed call for longer than any request may take.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    Ok(Cluster::new(kube::Client::try_from(config).context("cannot set up the connection to the API server")?))
}

/// Serves until `stop`, then ends gracefully.
///
/// # Errors
/// When it cannot start.
pub async fn serve(config: Config, stop: CancellationToken) -> Result<()> {
    let mut registry = Registry::default();
    let metrics = Arc::new(Metrics::new(&mut registry));
    let (audit, record) = Audit::open(config.audit_file.as_deref(), metrics.clone())?;
    let mut issuers = Issuers::new(config.issuers.clone()).context("issuers")?;
    if let Some(sts) = &config.sts {
        issuers = issuers.reserve(&sts.issuer).context("sts.issuer")?;
    }
    let sealing = sealing_keys(&config, &stop)?;
    let signing = signing_keys(&config, &stop)?;
    let upstreams = Upstreams::new(&config, sealing.clone(), &stop).map_err(|why| anyhow!("upstreams: {why}"))?;
    let tls = match &config.listeners.user.tls {
        Some(tls) => Some(user_tls(tls, &stop)?),
        None => None,
    };
    let limits = config.limits.clone();
    let behind_proxy = config.listeners.user.behind_proxy;
    let user_side = Listener::bind("user", config.listeners.user.address, tls, bounds(&limits, behind_proxy)).await?;
    let operators_side = match config.listeners.metrics {
        Some(address) => Some(Listener::bind("operators", address, None, bounds(&limits, false)).await?),
        None => None,
    };
    let cluster = cluster().await?;
    let (sandbox_side, entries) = match (&config.listeners.sandbox, &config.spire) {
        (Some(listener), Some(spire)) => {
            let source = own_svids(&config, spire).await?;
            let client = banlieue_spire::Client::with_source(&spire.server, &config.trust_domain, source.clone())?;
            let tls = Arc::new(sandbox_tls(&config, source)?);
            let listener = Listener::bind("sandbox", listener.address, Some(tls), bounds(&limits, false)).await?;
            let entries = Entries::new(client, config.trust_domain.clone(), config.cluster.clone());
            (Some(listener), Some(entries))
        }
        _ => (None, None),
    };
    let (store, over) = Store::start(&cluster.client(), &config.namespaces);
    let broker = Arc::new(Broker {
        issuers,
        cluster,
        store,
        grants: Grants::new(sealing),
        upstreams,
        signing,
        audit,
        metrics: metrics.clone(),
        failure_rate: (!behind_proxy).then(|| Rate::new(limits.failures_per_minute, limits.failures_per_minute)),
        subject_rate: Rate::new(limits.subject_burst, limits.subject_per_minute),
        claim_rate: Rate::new(limits.claim_tokens_per_minute, limits.claim_tokens_per_minute),
        member_rate: Rate::new(limits.member_requests_per_minute, limits.member_requests_per_minute),
        polls: Polls::default(),
        entries,
        releasing: Releasing::default(),
        config,
    });
    tracing::info!(user = %user_side.address()?, "mediatore listens");

    let mut tasks = JoinSet::new();
    tasks.spawn(keeper::free(broker.clone(), over, stop.clone()));
    tasks.spawn(keeper::sweep(broker.clone(), stop.clone()));
    tasks.spawn(sessions::sweep(broker.clone(), stop.clone()));
    let patience = Duration::from_secs(limits.stop_seconds);
    // Asked until the very end whether mediatore lives, so it ends last.
    let end = CancellationToken::new();
    if let Some(listener) = operators_side {
        tracing::info!(operators = %listener.address()?, "mediatore listens");
        let router = operators::router(broker.clone(), Arc::new(registry));
        tokio::spawn(listener.serve(router, metrics.clone(), end.clone(), LAST));
    }
    tasks.spawn(user_side.serve(user::router(broker.clone()), metrics.clone(), stop.clone(), patience));
    if let Some(listener) = sandbox_side {
        tracing::info!(sandbox = %listener.address()?, "mediatore listens");
        tasks.spawn(entries::follow(broker.clone(), stop.clone()));
        tasks.spawn(entries::sweep(broker.clone(), stop.clone()));
        tasks.spawn(listener.serve(sandbox::router(broker.clone()), metrics.clone(), stop.clone(), patience));
    }
    drop(broker);
    let mut outcome = Ok(());
    // Each ends because of `stop` alone; one that ends otherwise takes the program with it, to be started again.
    tokio::select! {
        () = stop.cancelled() => {}
        ended = tasks.join_next() => {
            outcome = match ended {
                Some(Err(error)) => Err(error).context("a part of mediatore ended"),
                _ => Err(anyhow!("a part of mediatore ended")),
            };
            stop.cancel();
        }
    }
    // What does not end in time is cut off: whoever stops mediatore waits for this.
    let all = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(patience + LAST, all).await.is_err() {
        tracing::warn!("some work is cut off at the end");
        tasks.shutdown().await;
    }
    end.cancel();
    record.finish(LAST).await;
    tracing::info!("mediatore stopped");
    outcome
}

/// What each listener takes on.
fn bounds(limits: &Limits, behind_proxy: bool) -> Bounds {
    Bounds {
        connections: limits.connections,
        each_address: (!behind_proxy).then_some(limits.connections_per_address),
        each_identity: limits.connections_per_identity,
        times: Times {
            handshake: Duration::from_secs(limits.handshake_seconds),
            quiet: Duration::from_secs(limits.quiet_seconds),
            age: Duration::from_secs(limits.connection_seconds),
        },
    }
}

fn sealing_keys(config: &Config, stop: &CancellationToken) -> Result<Arc<Reloaded<SealingKeys>>> {
    let configured = config.sealing_keys.clone();
    let files: Vec<PathBuf> = configured.iter().map(|key| key.file.clone()).collect();
    let read = move || {
        let keys: Result<Vec<_>, String> = configured
            .iter()
            .map(|key| sealing_key(&key.file).map(|bytes| (key.id.clone(), bytes)).map_err(|error| error.to_string()))
            .collect();
        SealingKeys::new(keys?).ok_or_else(|| "no usable sealing key".to_owned())
    };
    let keys = Reloaded::new(read().map_err(|why| anyhow!("sealing_keys: {why}"))?);
    keys.watch("sealing keys", files, read, stop.clone());
    Ok(keys)
}

fn signing_keys(config: &Config, stop: &CancellationToken) -> Result<Option<Arc<Reloaded<SigningKeys>>>> {
    let Some(sts) = &config.sts else { return Ok(None) };
    let files = sts.key_files.clone();
    let configured = files.clone();
    let read = move || {
        let keys: Result<Vec<_>, _> = configured.iter().map(|file| signing_key(file)).collect();
        SigningKeys::new(keys.map_err(|error| error.to_string())?).ok_or_else(|| "no usable key".to_owned())
    };
    let keys = Reloaded::new(read().map_err(|why| anyhow!("sts.key_files: {why}"))?);
    keys.watch("signing keys", files, read, stop.clone());
    Ok(Some(keys))
}

fn user_tls(tls: &Tls, stop: &CancellationToken) -> Result<Arc<ServerConfig>> {
    let configured = tls.clone();
    let read = move || -> Result<CertifiedKey, String> { certificate(&configured).map_err(|error| error.to_string()) };
    let newest = Reloaded::new(read().map_err(|why| anyhow!("listeners.user.tls: {why}"))?);
    newest.watch(
        "the user side's certificate",
        vec![tls.certificate_file.clone(), tls.key_file.clone()],
        read,
        stop.clone(),
    );
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("TLS versions")?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(NewestCertificate(newest)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Takes mediatore's own SVID among those that the agent has for this program.
struct Own(String);

impl SvidPicker for Own {
    fn pick_svid(&self, svids: &[Arc<X509Svid>]) -> Option<usize> {
        svids.iter().position(|svid| svid.spiffe_id().to_string() == self.0)
    }
}

async fn own_svids(config: &Config, spire: &Spire) -> Result<X509Source> {
    let own = names::mediatore(&config.trust_domain);
    X509Source::builder()
        .endpoint(&spire.workload_api)
        .picker(Own(own.as_str().to_owned()))
        .initial_sync_timeout(FIRST_SVID)
        .build()
        .await
        .with_context(|| format!("no SVID {own} from the Workload API at {}", spire.workload_api))
}

/// Members and workloads of our trust domain; what each may ask is decided by its route.
fn sandbox_tls(config: &Config, source: X509Source) -> Result<ServerConfig> {
    let domain = config.trust_domain.as_str().try_into().context("trust domain")?;
    mtls_server(source)
        .trust_domain_policy(TrustDomainPolicy::LocalOnly(domain))
        .with_alpn_protocols([&b"h2"[..], b"http/1.1"])
        .build()
        .context("TLS of the sandbox side")
}
