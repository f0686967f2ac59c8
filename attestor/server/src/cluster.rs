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

use banlieue_crds::received::{Lighten, Received};
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

use crate::unread::Unread;

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

/// What a watch has seen, also of what could not be read.
pub type Store<K> = reflector::Store<Received<K>>;

/// A watch into memory; ends when dropped.
pub struct Watched<K>
where
    K: Resource + 'static,
    K::DynamicType: Hash + Eq,
{
    store: Store<K>,
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
    pub fn filled(&self) -> Option<&Store<K>> {
        self.filled.load(Ordering::Acquire).then_some(&self.store)
    }

    /// Returns after something changed since the last call returned.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl<K> Watched<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Lighten + Debug + Send + Sync + 'static,
{
    /// Starts the watch. What cannot be read does not stop it: it is kept as that.
    #[must_use]
    pub fn start(api: Api<Received<K>>, unread: Unread) -> Self {
        let (store, writer) = reflector::store();
        let (filled, changed) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let (reader, flag, notify) = (store.clone(), filled.clone(), changed.clone());
        let task = tokio::spawn(async move {
            let stream = watcher(api, WatchConfig::default())
                .backoff(DefaultBackoff::default())
                .modify(move |object| arrived(object, &unread));
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

/// Makes an object what is kept of it.
fn arrived<K>(object: &mut Received<K>, unread: &Unread)
where
    K: Resource<DynamicType = ()> + Lighten,
{
    match object {
        Received::Read(object) => object.lighten(),
        Received::Unreadable(object) => {
            unread.note::<K>(object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use banlieue_crds::VirtualMachineClaim;
    use serde_json::json;

    fn claim(phase: &str) -> Received<VirtualMachineClaim> {
        let text = json!({
            "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachineClaim",
            "metadata": { "name": "c", "annotations": { "big": "x" } },
            "spec": {
                "poolRef": { "name": "p" }, "subject": { "issuer": "i", "id": "s" },
                "workload": { "image": "r/x:1", "args": ["a"], "env": [{ "name": "A", "value": "b" }] },
            },
            "status": { "phase": phase },
        });
        serde_json::from_str(&text.to_string()).unwrap()
    }

    #[test]
    fn what_cannot_be_read_is_kept_as_that_and_what_nobody_reads_is_dropped() {
        let (unread, mut broken, mut whole) = (Unread::default(), claim("Tomorrow"), claim("Bound"));
        arrived(&mut broken, &unread);
        arrived(&mut whole, &unread);
        let Received::Unreadable(broken) = broken else { panic!("it was read") };
        assert!(!unread.note::<VirtualMachineClaim>(&broken), "it was said when it arrived");
        let Received::Read(claim) = whole else { panic!("it was not read") };
        assert!(claim.spec.workload.args.is_empty() && claim.spec.workload.env.is_empty());
        assert_eq!(claim.metadata.annotations, Some(Default::default()));
    }
}
