//! The connection to the API server, and watches into memory; of plugin and controller alike.

use std::{
    fmt::Debug,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt, reflector,
        watcher::{Config as WatchConfig, DefaultBackoff, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::{sync::Notify, task::AbortHandle};

/// Every call has a deadline, well below that of an attestation.
pub const CALL_LIMIT: Duration = Duration::from_secs(5);

/// A client from a kubeconfig's path or, without one, as kube finds it: `KUBECONFIG`, then the pod's service account.
///
/// # Errors
/// One sentence on what is wrong with it. An API server that is down is no error here.
pub async fn client(kubeconfig: Option<&str>) -> Result<Client, String> {
    let mut config = match kubeconfig {
        Some(path) => {
            let read =
                kube::config::Kubeconfig::read_from(path).map_err(|error| format!("kubeconfig {path}: {error}"))?;
            kube::Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default())
                .await
                .map_err(|error| format!("kubeconfig {path}: {error}"))?
        }
        None => {
            kube::Config::infer().await.map_err(|error| format!("no kubeconfig and no service account: {error}"))?
        }
    };
    // kube repeats a failed call for longer than a stream lives.
    config.default_retry = false;
    config.connect_timeout = Some(CALL_LIMIT);
    Client::try_from(config).map_err(|error| format!("cannot set up the connection to the API server: {error}"))
}

/// A watch into memory; ends when dropped.
pub struct Watched<K>
where
    K: Resource + 'static,
    K::DynamicType: Hash + Eq,
{
    store: reflector::Store<K>,
    filled: Arc<AtomicBool>,
    changed: Arc<Notify>,
    task: AbortHandle,
}

impl<K> Drop for Watched<K>
where
    K: Resource + 'static,
    K::DynamicType: Hash + Eq,
{
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K> Watched<K>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    /// The objects, once the first list is complete. A store that is not would make everything look gone.
    #[must_use]
    pub fn filled(&self) -> Option<&reflector::Store<K>> {
        self.filled.load(Ordering::Acquire).then_some(&self.store)
    }

    /// Returns after something changed since the last call returned.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl<K> Watched<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Starts the watch.
    #[must_use]
    pub fn start(api: Api<K>) -> Self {
        let (store, writer) = reflector::store();
        let (filled, changed) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let (reader, flag, notify) = (store.clone(), filled.clone(), changed.clone());
        let task = tokio::spawn(async move {
            let stream = watcher(api, WatchConfig::default())
                .modify(|object| object.meta_mut().managed_fields = None)
                .backoff(DefaultBackoff::default());
            let stream = reflector::reflector(writer, stream).for_each(|event| {
                if let Err(error) = event {
                    tracing::warn!(%error, kind = %K::kind(&()), "a watch failed, it is tried again");
                }
                notify.notify_one();
                std::future::ready(())
            });
            let note = async {
                if reader.wait_until_ready().await.is_ok() {
                    flag.store(true, Ordering::Release);
                    notify.notify_one();
                }
            };
            tokio::join!(stream, note);
        });
        Self { store, filled, changed, task: task.abort_handle() }
    }
}
