//! Watches: one task for each kind turns kube's watcher into [`Change`]s.

use banlieue_crds::kubevirt::VirtualMachineInstance;
use banlieue_crds::names::labels;
use banlieue_crds::received::{Lighten, Received, Unreadable, readable};
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::DefaultBackoff};
use kube::{Client, ResourceExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// One event of one watch.
#[derive(Debug)]
pub struct Change {
    /// The namespace that the watch is about; empty when it is about all.
    pub scope: String,
    /// What happened.
    pub event: ChangeEvent,
}

/// The event, by kind.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one at a time passes through a channel; a box each would cost more")]
pub enum ChangeEvent {
    /// Of a pool.
    Pool(Event<VirtualMachinePool>),
    /// Of a member.
    Member(Event<PoolMember>),
    /// Of a claim.
    Claim(Event<VirtualMachineClaim>),
    /// Of an instance that carries our pool label.
    Instance(Event<VirtualMachineInstance>),
    /// Of a launcher pod.
    Pod(Event<Pod>),
    /// Of a node.
    Node(Event<Node>),
    /// Of a ConfigMap, without its content.
    ConfigMap(Event<PartialObjectMeta<ConfigMap>>),
    /// Of a NetworkPolicy of ours, without its content.
    NetworkPolicy(Event<PartialObjectMeta<NetworkPolicy>>),
    /// Of an object that does not fit its type. What was known of it before still stands.
    Unreadable {
        /// The kind's plural.
        kind: &'static str,
        /// What is known of it.
        object: Box<Unreadable>,
    },
}

impl ChangeEvent {
    /// The kind's plural, for metrics and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            ChangeEvent::Pool(_) => "virtualmachinepools",
            ChangeEvent::Member(_) => "poolmembers",
            ChangeEvent::Claim(_) => "virtualmachineclaims",
            ChangeEvent::Instance(_) => "virtualmachineinstances",
            ChangeEvent::Pod(_) => "pods",
            ChangeEvent::Node(_) => "nodes",
            ChangeEvent::ConfigMap(_) => "configmaps",
            ChangeEvent::NetworkPolicy(_) => "networkpolicies",
            ChangeEvent::Unreadable { kind, .. } => kind,
        }
    }
}

impl ChangeEvent {
    /// Kind and creation of a claim or member that looks new, for the lag of watches. Kubernetes keeps whole seconds,
    /// so a second is as good as this gets.
    pub fn arrival(&self) -> Option<(&'static str, jiff::Timestamp)> {
        let created = match self {
            ChangeEvent::Claim(Event::Apply(claim)) if claim.status.is_none() => &claim.metadata.creation_timestamp,
            ChangeEvent::Member(Event::Apply(member)) if member.status.is_none() => &member.metadata.creation_timestamp,
            _ => return None,
        };
        created.as_ref().map(|created| (self.kind(), created.0))
    }
}

/// Starts every watch. `namespaces` empty means all. Changes arrive on the channel in each watch's own order.
pub fn start(client: &Client, namespaces: &[String], changes: mpsc::Sender<Change>, stop: &CancellationToken) {
    for scope in scopes(namespaces) {
        let ours = Config::default().labels(labels::POOL);
        let run = Run { scope: scope.clone().unwrap_or_default(), changes: changes.clone(), stop: stop.clone() };
        run.spawn(watcher(api(client, &scope), Config::default()), VirtualMachinePool::lighten, ChangeEvent::Pool);
        run.spawn(watcher(api(client, &scope), Config::default()), PoolMember::lighten, ChangeEvent::Member);
        run.spawn(watcher(api(client, &scope), Config::default()), VirtualMachineClaim::lighten, ChangeEvent::Claim);
        run.spawn(watcher(api(client, &scope), ours.clone()), strip::<VirtualMachineInstance>, ChangeEvent::Instance);
        run.spawn(watcher(api(client, &scope), ours), strip_pod, ChangeEvent::Pod);
    }
    let run = Run { scope: String::new(), changes, stop: stop.clone() };
    run.spawn(watcher(Api::all(client.clone()), Config::default()), strip_node, ChangeEvent::Node);
}

/// Starts the watches of one pool namespace: ConfigMaps and NetworkPolicies, on which the controller has no rights
/// elsewhere.
pub fn start_namespace(client: &Client, namespace: &str, changes: mpsc::Sender<Change>, stop: &CancellationToken) {
    let run = Run { scope: namespace.to_owned(), changes, stop: stop.clone() };
    let scope = Some(namespace.to_owned());
    let ours = Config::default().labels(labels::POOL);
    run.spawn(watcher(api(client, &scope), Config::default()), strip, ChangeEvent::ConfigMap);
    run.spawn(watcher(api(client, &scope), ours), strip, ChangeEvent::NetworkPolicy);
}

fn scopes(namespaces: &[String]) -> Vec<Option<String>> {
    if namespaces.is_empty() { vec![None] } else { namespaces.iter().cloned().map(Some).collect() }
}

/// One object that does not fit its type must not stop the watch of its kind, so all are read as [`Received`].
fn api<K>(client: &Client, scope: &Option<String>) -> Api<Received<K>>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    match scope {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

struct Run {
    scope: String,
    changes: mpsc::Sender<Change>,
    stop: CancellationToken,
}

impl Run {
    fn spawn<K>(
        &self,
        stream: impl Stream<Item = watcher::Result<Event<Received<K>>>> + Send + 'static,
        strip: fn(&mut K),
        wrap: fn(Event<K>) -> ChangeEvent,
    ) where
        K: ResourceExt + Send + 'static,
    {
        let (scope, changes, stop) = (self.scope.clone(), self.changes.clone(), self.stop.clone());
        tokio::spawn(async move {
            let mut stream = std::pin::pin!(stream.backoff(DefaultBackoff::default()));
            let mut failing = false;
            loop {
                let next = tokio::select! {
                    () = stop.cancelled() => return,
                    next = stream.next() => next,
                };
                match next {
                    Some(Ok(event)) => {
                        failing = false;
                        let event = match readable(event) {
                            Ok(event) => wrap(stripped(event, strip)),
                            Err(object) => {
                                let kind = wrap(Event::Init).kind();
                                warn!(kind, error = %object, "an object is left out");
                                ChangeEvent::Unreadable { kind, object }
                            }
                        };
                        if changes.send(Change { scope: scope.clone(), event }).await.is_err() {
                            return;
                        }
                    }
                    Some(Err(error)) => {
                        // The first of a row is news, the rest is noise: kube backs off and lists again by itself.
                        let text = crate::api::chain(&error);
                        if failing {
                            debug!(error = text, "watch fails");
                        } else {
                            warn!(error = text, "watch fails, trying again");
                        }
                        failing = true;
                    }
                    None => return,
                }
            }
        });
    }
}

fn stripped<K>(event: Event<K>, strip: fn(&mut K)) -> Event<K> {
    let with = |mut object: K| {
        strip(&mut object);
        object
    };
    match event {
        Event::Apply(object) => Event::Apply(with(object)),
        Event::InitApply(object) => Event::InitApply(with(object)),
        other => other,
    }
}

fn strip<K: ResourceExt>(object: &mut K) {
    object.managed_fields_mut().clear();
}

fn strip_pod(pod: &mut Pod) {
    strip(pod);
    pod.annotations_mut().clear();
    pod.spec = None;
}

fn strip_node(node: &mut Node) {
    strip(node);
    node.annotations_mut().clear();
    if let Some(status) = node.status.as_mut() {
        status.images = None;
    }
}
