//! Watches into memory: claims, members, pools, slots and denied subjects of every namespace in the configuration.
//!
//! What stands here may be old. It answers questions that are asked often (lists, long polls, which slot to try first);
//! whatever gives somebody a right is read live.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use banlieue_crds::{
    PoolMember, VirtualMachineClaim, VirtualMachinePool,
    received::{Received, Unreadable, readable},
};
use banlieue_identity::SubjectKey;
use banlieue_protocol::names::Namespace;
use futures::StreamExt;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api, Client, Resource,
    core::NamespaceResourceScope,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef},
        watcher::{self, DefaultBackoff, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
};

use super::{
    cluster::{COMPONENT, SLOT_COMPONENT},
    deny::DENIED,
    slots,
};

/// One watched kind in one namespace; ends when dropped.
struct Watched<K: Resource<DynamicType = ()> + 'static> {
    store: reflector::Store<K>,
    filled: Arc<AtomicBool>,
    task: AbortHandle,
}

impl<K: Resource<DynamicType = ()> + 'static> Drop for Watched<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K> Watched<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static,
{
    /// An object that cannot be read is left out: it must not stop the watch of its kind.
    fn start(
        api: Api<Received<K>>,
        config: watcher::Config,
        mut seen: impl FnMut(&watcher::Event<K>) + Send + 'static,
    ) -> Self {
        let (store, writer) = reflector::store();
        let filled = Arc::new(AtomicBool::new(false));
        let (reader, flag) = (store.clone(), filled.clone());
        let task = tokio::spawn(async move {
            let stream = watcher(api, config)
                .modify(|object| object.meta_mut().managed_fields = None)
                .backoff(DefaultBackoff::default())
                .filter_map(|event| {
                    let left_out = |unreadable: Box<Unreadable>| {
                        tracing::warn!(error = %unreadable, kind = %K::kind(&()), "an object is left out");
                    };
                    let event = event.map(|event| readable(event).map_err(left_out).ok()).transpose();
                    std::future::ready(event)
                });
            let stream = reflector::reflector(writer, stream).for_each(|event| {
                match event {
                    Ok(event) => seen(&event),
                    Err(error) => {
                        tracing::warn!(%error, kind = %K::kind(&()), "a watch failed, it is tried again");
                    }
                }
                std::future::ready(())
            });
            let note = async {
                if reader.wait_until_ready().await.is_ok() {
                    flag.store(true, Ordering::Release);
                }
            };
            tokio::join!(stream, note);
        });
        Self { store, filled, task: task.abort_handle() }
    }

    fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.store.get(&ObjectRef::new(name).within(namespace))
    }

    fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }
}

struct InNamespace {
    claims: Watched<VirtualMachineClaim>,
    members: Watched<PoolMember>,
    pools: Watched<VirtualMachinePool>,
    slots: Watched<Lease>,
    denied: Watched<ConfigMap>,
}

/// Everything watched.
pub struct Store {
    namespaces: BTreeMap<String, InNamespace>,
    first: String,
    changes: watch::Receiver<u64>,
}

impl Store {
    /// Starts the watches. Claims that are seen to be over or gone come out of the channel, often more than once.
    #[must_use]
    pub fn start(client: &Client, namespaces: &[Namespace]) -> (Self, mpsc::UnboundedReceiver<VirtualMachineClaim>) {
        let (over, freed) = mpsc::unbounded_channel();
        let (changed, changes) = watch::channel(0_u64);
        let changed = Arc::new(changed);
        let mut map = BTreeMap::new();
        for namespace in namespaces {
            let name = namespace.as_str();
            let all = watcher::Config::default;
            let note = {
                let changed = changed.clone();
                move || changed.send_modify(|count| *count = count.wrapping_add(1))
            };
            let (over, claim_note, member_note) = (over.clone(), note.clone(), note.clone());
            let watched = InNamespace {
                claims: Watched::start(Api::namespaced(client.clone(), name), all(), move |event| {
                    match event {
                        watcher::Event::Delete(claim) => drop(over.send(claim.clone())),
                        watcher::Event::Apply(claim) | watcher::Event::InitApply(claim) if slots::is_over(claim) => {
                            drop(over.send(claim.clone()));
                        }
                        _ => {}
                    }
                    claim_note();
                }),
                members: Watched::start(Api::namespaced(client.clone(), name), all(), move |_| member_note()),
                pools: Watched::start(Api::namespaced(client.clone(), name), all(), |_| ()),
                slots: Watched::start(
                    Api::namespaced(client.clone(), name),
                    all().labels(&format!("{COMPONENT}={SLOT_COMPONENT}")),
                    |_| (),
                ),
                denied: Watched::start(
                    Api::namespaced(client.clone(), name),
                    all().fields(&format!("metadata.name={DENIED}")),
                    move |_| note(),
                ),
            };
            map.insert(name.to_owned(), watched);
        }
        let first = namespaces.first().map(|name| name.as_str().to_owned()).unwrap_or_default();
        (Self { namespaces: map, first, changes }, freed)
    }

    /// Which namespace and kind has not been listed completely yet.
    #[must_use]
    pub fn unfilled(&self) -> Option<String> {
        self.namespaces.iter().find_map(|(name, at)| {
            let parts = [
                ("claims", at.claims.is_filled()),
                ("members", at.members.is_filled()),
                ("pools", at.pools.is_filled()),
                ("slots", at.slots.is_filled()),
                ("denied subjects", at.denied.is_filled()),
            ];
            parts.iter().find(|(_, filled)| !filled).map(|(kind, _)| format!("the {kind} of {name} are not listed yet"))
        })
    }

    /// A counter that changes whenever a claim, a member or a denial does.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// Names of the namespaces, the configured default first.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let first = self.namespaces.keys().filter(|name| **name == self.first);
        first.chain(self.namespaces.keys().filter(|name| **name != self.first)).map(String::as_str)
    }

    /// A claim by name.
    #[must_use]
    pub fn claim(&self, namespace: &str, name: &str) -> Option<Arc<VirtualMachineClaim>> {
        self.namespaces.get(namespace)?.claims.get(namespace, name)
    }

    /// Every claim.
    #[must_use]
    pub fn claims(&self) -> Vec<Arc<VirtualMachineClaim>> {
        self.namespaces.values().flat_map(|at| at.claims.store.state()).collect()
    }

    /// The claim of this uid.
    #[must_use]
    pub fn claim_of(&self, uid: &str) -> Option<Arc<VirtualMachineClaim>> {
        self.namespaces.values().find_map(|at| at.claims.store.find(|claim| claim.metadata.uid.as_deref() == Some(uid)))
    }

    /// A member by name.
    #[must_use]
    pub fn member(&self, namespace: &str, name: &str) -> Option<Arc<PoolMember>> {
        self.namespaces.get(namespace)?.members.get(namespace, name)
    }

    /// The member of this uid.
    #[must_use]
    pub fn member_of(&self, uid: &str) -> Option<Arc<PoolMember>> {
        let is = |member: &PoolMember| member.metadata.uid.as_deref() == Some(uid);
        self.namespaces.values().find_map(|at| at.members.store.find(is))
    }

    /// A pool by name.
    #[must_use]
    pub fn pool(&self, namespace: &str, name: &str) -> Option<Arc<VirtualMachinePool>> {
        self.namespaces.get(namespace)?.pools.get(namespace, name)
    }

    /// Every pool.
    #[must_use]
    pub fn pools(&self) -> Vec<Arc<VirtualMachinePool>> {
        self.namespaces.values().flat_map(|at| at.pools.store.state()).collect()
    }

    /// Slots of a namespace.
    #[must_use]
    pub fn slots(&self, namespace: &str) -> Vec<Arc<Lease>> {
        self.namespaces.get(namespace).map(|at| at.slots.store.state()).unwrap_or_default()
    }

    /// Which slots of a subject are held, and by which claims, as far as this replica knows.
    #[must_use]
    pub fn held(&self, namespace: &str, pool: &str, subject: &SubjectKey) -> BTreeMap<u32, String> {
        let held = |lease: &Lease| {
            let index = slots::index(lease.metadata.name.as_deref()?, pool, subject)?;
            Some((index, lease.spec.as_ref()?.holder_identity.clone()?))
        };
        self.slots(namespace).iter().filter_map(|lease| held(lease)).collect()
    }

    /// Why a subject may not claim, if an operator said so, in any namespace.
    #[must_use]
    pub fn denied(&self, subject: &SubjectKey) -> Option<String> {
        let key = subject.to_string();
        self.namespaces.iter().find_map(|(name, at)| at.denied.get(name, DENIED)?.data.as_ref()?.get(&key).cloned())
    }
}
