//! Starting, serving and stopping.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use axum::{Router, extract::State, routing::get};
use banlieue_identity::Issuers;
use prometheus_client::registry::Registry;
use rustls::{ServerConfig, sign::CertifiedKey};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    audit::Audit,
    broker::{Broker, Grants, Releasing},
    claims::{cluster::Cluster, grant::SealingKeys, keeper, store::Store},
    config::{Config, Tls, certificate, sealing_key, signing_key},
    http::{
        listen::Listener,
        rate::Rate,
        reload::{NewestCertificate, Reloaded},
    },
    metrics::Metrics,
    tokens::keys::SigningKeys,
    user,
};

/// Longest time of one call to the API server until it connects.
const CONNECT: Duration = Duration::from_secs(5);

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
    let audit = Audit::open(config.audit_file.as_deref(), metrics.clone())?;
    let issuers = Issuers::new(config.issuers.clone()).context("issuers")?;
    let sealing = sealing_keys(&config, &stop)?;
    let signing = signing_keys(&config, &stop)?;
    let tls = match &config.listeners.user.tls {
        Some(tls) => Some(user_tls(tls, &stop)?),
        None => None,
    };
    let limits = config.limits.clone();
    let user_side = Listener::bind("user", config.listeners.user.address, tls, limits.connections).await?;
    let metrics_side = match config.listeners.metrics {
        Some(address) => Some(Listener::bind("metrics", address, None, 64).await?),
        None => None,
    };
    let cluster = cluster().await?;
    let (store, over) = Store::start(&cluster.client(), &config.namespaces);
    let broker = Arc::new(Broker {
        issuers,
        cluster,
        store,
        grants: Grants::new(sealing),
        signing,
        audit,
        metrics,
        subject_rate: Rate::new(limits.subject_burst, limits.subject_per_minute),
        claim_rate: Rate::new(limits.claim_tokens_per_minute, limits.claim_tokens_per_minute),
        releasing: Releasing::default(),
        config,
    });
    tracing::info!(user = %user_side.address()?, "mediatore listens");

    let mut tasks = JoinSet::new();
    tasks.spawn(keeper::free(broker.clone(), over, stop.clone()));
    tasks.spawn(keeper::sweep(broker.clone(), stop.clone()));
    let patience = Duration::from_secs(limits.stop_seconds);
    tasks.spawn(user_side.serve(user::router(broker.clone()), stop.clone(), patience));
    if let Some(listener) = metrics_side {
        tasks.spawn(listener.serve(operators(broker, Arc::new(registry)), stop.clone(), patience));
    }
    // Each ends because of `stop` alone; one that ends otherwise takes the program with it, to be started again.
    while let Some(ended) = tasks.join_next().await {
        if !stop.is_cancelled() {
            stop.cancel();
            ended.context("a part of mediatore ended")?;
            return Err(anyhow!("a part of mediatore ended"));
        }
    }
    tracing::info!("mediatore stopped");
    Ok(())
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

/// Metrics and probes, for operators.
fn operators(broker: Arc<Broker>, registry: Arc<Registry>) -> Router {
    let text = async |State(registry): State<Arc<Registry>>| {
        let mut body = String::new();
        match prometheus_client::encoding::text::encode(&mut body, &registry) {
            Ok(()) => Ok(body),
            Err(_) => Err(::http::StatusCode::INTERNAL_SERVER_ERROR),
        }
    };
    Router::new().route("/metrics", get(text)).with_state(registry).merge(
        Router::new()
            .route("/livez", get(user::discovery::healthz))
            .route("/readyz", get(user::discovery::readyz))
            .with_state(broker),
    )
}
