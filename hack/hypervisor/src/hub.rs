//! From watches to lives: keeps the index, and one running [`Life`] for each instance that concerns this host.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use banlieue_crds::kubevirt::VirtualMachineInstance;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use crate::addresses::Addresses;
use crate::identity::Identity;
use crate::index::{Change, Index, Known, Objects, name_of};
use crate::life::Life;
use crate::pod;
use crate::vm::{self, Home, Shared, Vm};
use crate::weight::Weight;

/// Everything that runs on this host.
pub struct Hub {
    shared: Arc<Shared>,
    weights: HashMap<String, Weight>,
    index: Index,
    addresses: Arc<Addresses>,
    seats: HashMap<String, watch::Sender<Objects>>,
    /// uids of lives that ended.
    ended: (mpsc::UnboundedSender<String>, mpsc::UnboundedReceiver<String>),
    /// Machines of an earlier life of this program, by uid.
    orphans: HashMap<String, Identity>,
}

/// Why the hub cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// State of machines.
    #[error(transparent)]
    Machine(#[from] vm::Error),
    /// The supervisor.
    #[error(transparent)]
    Supervisor(#[from] banlieue_supervisor::Error),
    /// A watch ended, which watches never do by themselves.
    #[error("the watch of {0} ended")]
    WatchEnded(&'static str),
}

type Changes<K> = Pin<Box<dyn Stream<Item = Change<K>> + Send>>;

impl Hub {
    /// A hub for nodes with their weights.
    pub fn new(shared: Arc<Shared>, weights: HashMap<String, Weight>) -> Self {
        Self {
            index: Index::new(weights.keys().cloned()),
            shared,
            weights,
            addresses: Arc::default(),
            seats: HashMap::new(),
            ended: mpsc::unbounded_channel(),
            orphans: HashMap::new(),
        }
    }

    /// Runs until a watch ends.
    ///
    /// # Errors
    /// State cannot be read, or a watch ended.
    pub async fn run(mut self) -> Result<(), Error> {
        Home::prepare(&self.shared.state)?;
        let client = &self.shared.client;
        let mut pods = changes(Api::<Pod>::all(client.clone()));
        let mut instances = changes(Api::<VirtualMachineInstance>::all(client.clone()));
        // Both complete before anything is decided: what is missing from a complete list is gone.
        let first = instances.next().await.ok_or(Error::WatchEnded("instances"))?;
        self.index.instances(first);
        let first = pods.next().await.ok_or(Error::WatchEnded("pods"))?;
        self.adopt().await?;
        self.take_pods(first);
        let touched: Vec<String> = self.orphans.keys().cloned().collect();
        self.wake(touched);
        loop {
            tokio::select! {
                change = pods.next() => {
                    let change = change.ok_or(Error::WatchEnded("pods"))?;
                    self.take_pods(change);
                }
                change = instances.next() => {
                    let touched = self.index.instances(change.ok_or(Error::WatchEnded("instances"))?);
                    self.wake(touched);
                }
                Some(uid) = self.ended.1.recv() => self.dismiss(&uid),
            }
        }
    }

    /// Finds what an earlier life of this program left: machines with a folder are lived on, processes without one are
    /// ended.
    async fn adopt(&mut self) -> Result<(), Error> {
        for identity in Home::all(&self.shared.state)? {
            self.index.declare_gone(&identity.uid);
            tracing::info!(instance = identity.name, node = identity.node, "found a machine");
            self.orphans.insert(identity.uid.clone(), identity);
        }
        for process in self.shared.supervisor.list().await? {
            let Some(owner) = vm::owner_of(&process.name) else { continue };
            if !self.orphans.contains_key(owner) {
                tracing::warn!(process = process.name, "ends: its machine has no folder");
                let stopped = self.shared.supervisor.stop(
                    &process.name,
                    banlieue_supervisor::Signal::Kill,
                    std::time::Duration::ZERO,
                );
                stopped.await?;
                self.shared.supervisor.forget(&process.name).await?;
            }
        }
        Ok(())
    }

    fn take_pods(&mut self, change: Change<Pod>) {
        match &change {
            Change::Apply(pod) => self.note(pod),
            Change::Delete(pod) => self.addresses.release(&pod.uid().unwrap_or_default()),
            Change::Reset(pods) => pods.iter().for_each(|pod| self.note(pod)),
        }
        let touched = self.index.pods(change);
        self.wake(touched);
    }

    fn note(&self, pod: &Pod) {
        if !self.index.is_ours(pod) {
            return;
        }
        if let (Some(ip), Some(uid)) = (pod::ip(pod), pod.uid()) {
            self.addresses.keep(&uid, ip);
        }
        if pod::instance_uid(pod).is_none() {
            self.refuse(pod.clone());
        }
    }

    /// A pod that is no launcher pod fails at once; one that is being deleted may go.
    fn refuse(&self, pod: Pod) {
        let view = pod::view(&pod);
        if view.phase == crate::decide::PodPhase::Over {
            return;
        }
        let pods: Api<Pod> = Api::namespaced(self.shared.client.clone(), &pod.namespace().unwrap_or_default());
        tokio::spawn(async move {
            let patch = Patch::Strategic(pod::refused(jiff::Timestamp::now()));
            tracing::info!(pod = pod.name_any(), "refused: it is no launcher pod");
            let refused = pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await;
            if let Err(error) = refused {
                tracing::warn!(%error, pod = pod.name_any(), "could not refuse a pod");
            }
            if pod.metadata.deletion_timestamp.is_some() {
                let params = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
                if let Err(error) = pods.delete(&pod.name_any(), &params).await {
                    tracing::debug!(%error, pod = pod.name_any(), "a refused pod was gone already");
                }
            }
        });
    }

    fn wake(&mut self, touched: impl IntoIterator<Item = String>) {
        for uid in touched.into_iter().collect::<BTreeSet<_>>() {
            let objects = self.index.objects(&uid);
            match self.seats.get(&uid) {
                Some(seat) => {
                    seat.send_replace(objects);
                }
                None => self.seat(uid, objects),
            }
        }
    }

    /// Starts a life for an instance that concerns this host.
    fn seat(&mut self, uid: String, objects: Objects) {
        let identity = match self.orphans.remove(&uid) {
            Some(identity) => Some(identity),
            None => self.index.node(&uid).zip(name_of(&objects)).map(|(node, (namespace, name))| Identity {
                uid: uid.clone(),
                namespace,
                name,
                node,
            }),
        };
        let Some(identity) = identity else {
            self.index.forget(&uid);
            return;
        };
        // The node of an orphan may be none of ours any more; its machine has a folder, so it is not weightless.
        let weight = self.weights.get(&identity.node).copied().unwrap_or(Weight::Full);
        let (seat, receiver) = watch::channel(objects);
        self.seats.insert(uid.clone(), seat);
        let life = Life {
            objects: receiver,
            client: self.shared.client.clone(),
            addresses: self.addresses.clone(),
            node: identity.node.clone(),
            named: (identity.namespace.clone(), identity.name.clone()),
            vm: Arc::new(Vm::new(identity, weight, self.shared.clone())),
        };
        let ended = self.ended.0.clone();
        tokio::spawn(async move {
            life.run().await;
            // Fails only when the hub is gone, and with it the program.
            let _ = ended.send(uid);
        });
    }

    /// A life ended on what it had seen. When more came meanwhile, another begins.
    fn dismiss(&mut self, uid: &str) {
        self.seats.remove(uid);
        let objects = self.index.objects(uid);
        let over = match &objects.instance {
            Known::There(instance) => matches!(
                instance.phase(),
                Some(
                    banlieue_crds::kubevirt::InstancePhase::Succeeded | banlieue_crds::kubevirt::InstancePhase::Failed
                )
            ),
            Known::Gone | Known::Unknown => true,
        };
        if objects.pod.is_some() || !over {
            self.wake([uid.to_owned()]);
        } else {
            self.index.forget(uid);
        }
    }
}

/// A watch as changes; a relist becomes one of them. Lists are consistent reads: a cached one could lack an instance that
/// lives, and its machine would be taken for an orphan.
fn changes<K>(api: Api<K>) -> Changes<K>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut listed = Vec::new();
    let stream = watcher(api, watcher::Config::default()).default_backoff().filter_map(move |event| {
        let change = match event {
            Ok(watcher::Event::Apply(object)) => Some(Change::Apply(slim(object))),
            Ok(watcher::Event::Delete(object)) => Some(Change::Delete(slim(object))),
            Ok(watcher::Event::Init) => {
                listed.clear();
                None
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed.push(slim(object));
                None
            }
            Ok(watcher::Event::InitDone) => Some(Change::Reset(std::mem::take(&mut listed))),
            Err(error) => {
                tracing::warn!(%error, "a watch was interrupted");
                None
            }
        };
        std::future::ready(change)
    });
    Box::pin(stream)
}

/// Field ownership is half of many objects and nobody here reads it.
fn slim<K: kube::Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}
