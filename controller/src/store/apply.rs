//! Taking objects into the index, and which keys each change concerns.

use banlieue_crds::conditions::{self, PoolCondition};
use banlieue_crds::kubevirt::VirtualMachineInstance;
use banlieue_crds::member::MemberPhase;
use banlieue_crds::names::labels;
use banlieue_crds::received::{Lighten, Unreadable};
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::ResourceExt;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher::Event;

use super::ObjectKey;
use super::facts::{ConfigMapFacts, InstanceFacts, NodeFacts, PodFacts};
use super::index::Index;
use super::table::Stored;
use super::watch::{Change, ChangeEvent};
use crate::schedule::Key;

impl Index {
    /// Applies one watch event. Answers the keys that it concerns.
    pub fn apply(&mut self, change: Change, now: Timestamp) -> Vec<Key> {
        take(self, change, now)
    }

    /// Stores a pool that a call answered.
    pub fn put_pool(&mut self, object: VirtualMachinePool) -> Vec<Key> {
        pool(self, object)
    }

    /// Stores a member that a call answered.
    pub fn put_member(&mut self, object: PoolMember) -> Vec<Key> {
        member(self, object)
    }

    /// Stores a claim that a call answered.
    pub fn put_claim(&mut self, object: VirtualMachineClaim) -> Vec<Key> {
        claim(self, object)
    }

    /// Stores an instance that a call answered.
    pub fn put_instance(&mut self, object: &VirtualMachineInstance) -> Vec<Key> {
        instance(self, object)
    }

    /// A call answered that this life of a member is gone.
    pub fn drop_member(&mut self, key: &ObjectKey, uid: &str) -> Vec<Key> {
        member_gone(self, key, uid)
    }

    /// A call answered that this life of a claim is gone.
    pub fn drop_claim(&mut self, key: &ObjectKey, uid: &str) -> Vec<Key> {
        claim_gone(self, key, uid)
    }

    /// A call answered that this life of an instance is gone.
    pub fn drop_instance(&mut self, key: &ObjectKey, uid: &str) -> Vec<Key> {
        instance_gone(self, key, uid)
    }

    /// A call answered that this life of a pool is gone.
    pub fn drop_pool(&mut self, key: &ObjectKey, uid: &str) -> Vec<Key> {
        pool_gone(self, key, uid)
    }
}

/// One watch event.
fn take(index: &mut Index, change: Change, now: Timestamp) -> Vec<Key> {
    let scope = change.scope.as_str();
    match change.event {
        ChangeEvent::Unreadable { kind, object } => unreadable(index, kind, &object),
        ChangeEvent::Pool(event) => match event {
            Event::Apply(object) | Event::InitApply(object) => pool(index, object),
            Event::Delete(object) => pool_gone(index, &ObjectKey::of(&object), &Index::uid_of(&object)),
            Event::Init => {
                index.pools.begin_list(scope);
                Vec::new()
            }
            Event::InitDone => {
                let gone = index.pools.end_list(scope);
                gone.into_iter().flat_map(|(key, stored)| after_pool_gone(index, &key, &stored.uid)).collect()
            }
        },
        ChangeEvent::Member(event) => match event {
            Event::Apply(object) | Event::InitApply(object) => member(index, object),
            Event::Delete(object) => member_gone(index, &ObjectKey::of(&object), &Index::uid_of(&object)),
            Event::Init => {
                index.members.begin_list(scope);
                Vec::new()
            }
            Event::InitDone => {
                let gone = index.members.end_list(scope);
                gone.into_iter().flat_map(|(key, stored)| after_member_gone(index, &key, &stored.object)).collect()
            }
        },
        ChangeEvent::Claim(event) => match event {
            Event::Apply(object) | Event::InitApply(object) => claim(index, object),
            Event::Delete(object) => claim_gone(index, &ObjectKey::of(&object), &Index::uid_of(&object)),
            Event::Init => {
                index.claims.begin_list(scope);
                Vec::new()
            }
            Event::InitDone => {
                let gone = index.claims.end_list(scope);
                gone.into_iter().flat_map(|(key, stored)| after_claim_gone(index, &key, &stored.object)).collect()
            }
        },
        ChangeEvent::Instance(event) => match event {
            Event::Apply(object) | Event::InitApply(object) => instance(index, &object),
            Event::Delete(object) => instance_gone(index, &ObjectKey::of(&object), &Index::uid_of(&object)),
            Event::Init => {
                index.instances.begin_list(scope);
                Vec::new()
            }
            Event::InitDone => {
                let gone = index.instances.end_list(scope);
                gone.into_iter().flat_map(|(key, _)| member_keys(index, &key)).collect()
            }
        },
        ChangeEvent::Pod(event) => match event {
            Event::Apply(object) | Event::InitApply(object) => pod(index, &object),
            Event::Delete(object) => {
                let key = ObjectKey::of(&object);
                let gone = index.pods.remove(&key, &Index::uid_of(&object));
                gone.map(|stored| after_pod_gone(index, &key, &stored.object)).unwrap_or_default()
            }
            Event::Init => {
                index.pods.begin_list(scope);
                Vec::new()
            }
            Event::InitDone => {
                let gone = index.pods.end_list(scope);
                gone.into_iter().flat_map(|(key, stored)| after_pod_gone(index, &key, &stored.object)).collect()
            }
        },
        ChangeEvent::Node(event) => match event {
            Event::Apply(object) | Event::InitApply(object) => node(index, &object, now),
            Event::Delete(object) => {
                let key = ObjectKey::of(&object);
                index.nodes.remove(&key, &Index::uid_of(&object));
                keys_on_node(index, &key.name)
            }
            Event::Init => {
                index.nodes.begin_list(scope);
                Vec::new()
            }
            Event::InitDone => {
                let gone = index.nodes.end_list(scope);
                gone.into_iter().flat_map(|(key, _)| keys_on_node(index, &key.name)).collect()
            }
        },
        ChangeEvent::ConfigMap(event) => match event {
            Event::Apply(object) | Event::InitApply(object) => config_map(index, &object),
            Event::Delete(object) => {
                let key = ObjectKey::of(&object);
                index.config_maps.remove(&key, &Index::uid_of(&object));
                pools_naming(index, &key)
            }
            Event::Init => {
                index.config_maps.begin_list(scope);
                Vec::new()
            }
            Event::InitDone => {
                let gone = index.config_maps.end_list(scope);
                let mut keys: Vec<Key> = gone.into_iter().flat_map(|(key, _)| pools_naming(index, &key)).collect();
                keys.extend(pools_of_scope(index, scope));
                keys
            }
        },
        ChangeEvent::NetworkPolicy(event) => {
            let keys = |object: &PartialObjectMeta<_>| {
                let pool = object.labels().get(labels::POOL).cloned().unwrap_or_default();
                vec![Key::Pool(ObjectKey::of(object).sibling(pool))]
            };
            match event {
                Event::Apply(object) | Event::InitApply(object) => {
                    let version = object.resource_version().unwrap_or_default();
                    let generation = object.metadata.generation.unwrap_or_default();
                    let key = ObjectKey::of(&object);
                    let taken = index.network_policies.upsert(key, &Index::uid_of(&object), &version, generation);
                    let same = |before: &Stored<i64>| *before.object == generation;
                    if taken.is_some_and(|before| !before.as_ref().is_some_and(same)) {
                        keys(&object)
                    } else {
                        Vec::new()
                    }
                }
                Event::Delete(object) => {
                    index.network_policies.remove(&ObjectKey::of(&object), &Index::uid_of(&object));
                    keys(&object)
                }
                Event::Init => {
                    index.network_policies.begin_list(scope);
                    Vec::new()
                }
                Event::InitDone => {
                    index.network_policies.end_list(scope);
                    pools_of_scope(index, scope)
                }
            }
        }
    }
}

/// An object that cannot be read: what was known of it before stands until it is gone.
fn unreadable(index: &mut Index, kind: &str, object: &Unreadable) -> Vec<Key> {
    let meta = &object.metadata;
    let uid = meta.uid.clone().unwrap_or_default();
    let key = ObjectKey::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    match (kind, object.deleted) {
        ("virtualmachinepools", true) => pool_gone(index, &key, &uid),
        ("virtualmachinepools", false) => index.pools.keep(&key, &uid),
        ("poolmembers", true) => member_gone(index, &key, &uid),
        ("poolmembers", false) => index.members.keep(&key, &uid),
        ("virtualmachineclaims", true) => claim_gone(index, &key, &uid),
        ("virtualmachineclaims", false) => index.claims.keep(&key, &uid),
        ("virtualmachineinstances", true) => instance_gone(index, &key, &uid),
        ("virtualmachineinstances", false) => index.instances.keep(&key, &uid),
        _ => Vec::new(),
    }
}

/// A pool. Its own status does not concern anybody, apart from what the attestor controller says in it.
fn pool(index: &mut Index, mut object: VirtualMachinePool) -> Vec<Key> {
    object.lighten();
    let (key, uid) = (ObjectKey::of(&object), Index::uid_of(&object));
    let version = object.resource_version().unwrap_or_default();
    let meta = object.metadata.clone();
    let Some(before) = index.pools.upsert(key.clone(), &uid, &version, object) else { return Vec::new() };
    if let Some(before) = &before
        && before.uid == uid
    {
        let old = &before.object.metadata;
        if old.generation == meta.generation
            && old.annotations == meta.annotations
            && old.deletion_timestamp == meta.deletion_timestamp
            && old.finalizers == meta.finalizers
        {
            let reachable = |pool: &VirtualMachinePool| {
                let conditions = pool.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
                conditions::find(conditions, PoolCondition::AttestorReachable).map(|found| found.status.clone())
            };
            let now = index.pool(&key).and_then(|pool| reachable(&pool));
            if reachable(&before.object) != now {
                return vec![Key::Pool(key)];
            }
            return Vec::new();
        }
    }
    pool_and_all_of_it(index, &key)
}

fn pool_gone(index: &mut Index, key: &ObjectKey, uid: &str) -> Vec<Key> {
    match index.pools.remove(key, uid) {
        Some(_) => after_pool_gone(index, key, uid),
        None => Vec::new(),
    }
}

fn after_pool_gone(index: &mut Index, key: &ObjectKey, uid: &str) -> Vec<Key> {
    index.forget_pool(uid);
    pool_and_all_of_it(index, key)
}

/// Pools of a namespace whose first list of ConfigMaps or NetworkPolicies is complete: they waited for it.
fn pools_of_scope(index: &Index, scope: &str) -> Vec<Key> {
    let of_scope = |key: &&ObjectKey| scope.is_empty() || key.namespace == scope;
    index.pools.iter().map(|(key, _)| key).filter(of_scope).map(|key| Key::Pool(key.clone())).collect()
}

fn pool_and_all_of_it(index: &Index, key: &ObjectKey) -> Vec<Key> {
    let members = index.members_by_pool.get(key).into_iter().flatten().map(|name| Key::Member(key.sibling(name)));
    let claims = index.claims_by_pool.get(key).into_iter().flatten().map(|name| Key::Claim(key.sibling(name)));
    [Key::Pool(key.clone()), Key::Bind(key.clone())].into_iter().chain(members).chain(claims).collect()
}

/// A member.
fn member(index: &mut Index, mut object: PoolMember) -> Vec<Key> {
    object.lighten();
    let (key, uid) = (ObjectKey::of(&object), Index::uid_of(&object));
    let version = object.resource_version().unwrap_or_default();
    let pool_key = key.sibling(&object.spec.pool_ref.name);
    let pool_uid = object.spec.pool_ref.uid.clone();
    let claim_ref = object.spec.claim_ref.clone();
    let ready = object.status.as_ref().and_then(|status| status.phase) == Some(MemberPhase::Ready);
    let Some(before) = index.members.upsert(key.clone(), &uid, &version, object) else { return Vec::new() };
    index.expectations.settle(&pool_uid, &key.name);
    if let Some(before) = before {
        unlink_member(index, &key, &before.object);
    }
    if let Some(stored) = index.members.get(&key) {
        index.candidates.insert(&key, &stored.object);
    }
    index.members_by_pool.entry(pool_key.clone()).or_default().insert(key.name.clone());
    let mut keys = vec![Key::Member(key.clone()), Key::Pool(pool_key.clone())];
    match claim_ref {
        Some(claim) => {
            index.members_by_claim.entry(claim.uid).or_default().insert(key.clone());
            keys.push(Key::Claim(key.sibling(claim.name)));
        }
        None if ready => keys.push(Key::Bind(pool_key)),
        None => {}
    }
    keys
}

fn member_gone(index: &mut Index, key: &ObjectKey, uid: &str) -> Vec<Key> {
    match index.members.remove(key, uid) {
        Some(stored) => after_member_gone(index, key, &stored.object),
        None => Vec::new(),
    }
}

fn after_member_gone(index: &mut Index, key: &ObjectKey, member: &PoolMember) -> Vec<Key> {
    unlink_member(index, key, member);
    let mut keys = vec![Key::Pool(key.sibling(&member.spec.pool_ref.name))];
    if let Some(claim) = &member.spec.claim_ref {
        keys.push(Key::Claim(key.sibling(&claim.name)));
    }
    keys
}

fn unlink_member(index: &mut Index, key: &ObjectKey, member: &PoolMember) {
    index.candidates.remove(key, member);
    let pool = key.sibling(&member.spec.pool_ref.name);
    if let Some(names) = index.members_by_pool.get_mut(&pool) {
        names.remove(&key.name);
        if names.is_empty() {
            index.members_by_pool.remove(&pool);
        }
    }
    if let Some(claim) = &member.spec.claim_ref
        && let Some(keys) = index.members_by_claim.get_mut(&claim.uid)
    {
        keys.remove(key);
        if keys.is_empty() {
            index.members_by_claim.remove(&claim.uid);
        }
    }
}

/// A claim.
fn claim(index: &mut Index, mut object: VirtualMachineClaim) -> Vec<Key> {
    object.lighten();
    let (key, uid) = (ObjectKey::of(&object), Index::uid_of(&object));
    let version = object.resource_version().unwrap_or_default();
    let pool = key.sibling(&object.spec.pool_ref.name);
    let phase = object.status.as_ref().and_then(|status| status.phase);
    let Some(before) = index.claims.upsert(key.clone(), &uid, &version, object) else { return Vec::new() };
    let mut keys = vec![Key::Claim(key.clone())];
    let old_phase = before.as_ref().and_then(|before| before.object.status.as_ref()?.phase);
    if before.is_none() || old_phase != phase {
        // Bind first in the answer: it is the hot path. The pool counts waiting claims.
        keys.insert(0, Key::Bind(pool.clone()));
        keys.push(Key::Pool(pool.clone()));
    }
    if let Some(before) = before
        && before.uid != uid
    {
        keys.extend(after_claim_gone(index, &key, &before.object));
    }
    index.claims_by_pool.entry(pool).or_default().insert(key.name.clone());
    keys.extend(index.members_by_claim.get(&uid).into_iter().flatten().cloned().map(Key::Member));
    keys
}

fn claim_gone(index: &mut Index, key: &ObjectKey, uid: &str) -> Vec<Key> {
    match index.claims.remove(key, uid) {
        Some(stored) => after_claim_gone(index, key, &stored.object),
        None => Vec::new(),
    }
}

fn after_claim_gone(index: &mut Index, key: &ObjectKey, claim: &VirtualMachineClaim) -> Vec<Key> {
    let pool = key.sibling(&claim.spec.pool_ref.name);
    index.forget_claim(key);
    if let Some(names) = index.claims_by_pool.get_mut(&pool) {
        names.remove(&key.name);
        if names.is_empty() {
            index.claims_by_pool.remove(&pool);
        }
    }
    let mut keys = vec![Key::Pool(pool.clone()), Key::Bind(pool)];
    let uid = Index::uid_of(claim);
    keys.extend(index.members_by_claim.get(&uid).into_iter().flatten().cloned().map(Key::Member));
    keys
}

/// An instance.
fn instance(index: &mut Index, object: &VirtualMachineInstance) -> Vec<Key> {
    let (key, uid) = (ObjectKey::of(object), Index::uid_of(object));
    let facts = InstanceFacts::of(object);
    let version = object.resource_version().unwrap_or_default();
    match index.instances.upsert(key.clone(), &uid, &version, facts.clone()) {
        Some(Some(before)) if *before.object == facts => Vec::new(),
        Some(_) => member_keys(index, &key),
        None => Vec::new(),
    }
}

fn instance_gone(index: &mut Index, key: &ObjectKey, uid: &str) -> Vec<Key> {
    match index.instances.remove(key, uid) {
        Some(_) => member_keys(index, key),
        None => Vec::new(),
    }
}

/// The member of that name, its claim, and its pool's binder.
fn member_keys(index: &Index, key: &ObjectKey) -> Vec<Key> {
    let mut keys = vec![Key::Member(key.clone())];
    if let Some(member) = index.member(key) {
        keys.push(Key::Pool(key.sibling(&member.spec.pool_ref.name)));
        if let Some(claim) = &member.spec.claim_ref {
            keys.push(Key::Claim(key.sibling(&claim.name)));
        }
    }
    keys
}

fn pod(index: &mut Index, object: &Pod) -> Vec<Key> {
    let Some(facts) = PodFacts::of(object) else { return Vec::new() };
    let key = ObjectKey::of(object);
    let version = object.resource_version().unwrap_or_default();
    match index.pods.upsert(key.clone(), &Index::uid_of(object), &version, facts.clone()) {
        Some(Some(before)) if *before.object == facts => return Vec::new(),
        Some(_) => {}
        None => return Vec::new(),
    }
    index.pods_by_instance.entry(facts.instance_uid).or_default().insert(key.clone());
    facts.member.map(|member| vec![Key::Member(key.sibling(member))]).unwrap_or_default()
}

fn after_pod_gone(index: &mut Index, key: &ObjectKey, facts: &PodFacts) -> Vec<Key> {
    if let Some(pods) = index.pods_by_instance.get_mut(&facts.instance_uid) {
        pods.remove(key);
        if pods.is_empty() {
            index.pods_by_instance.remove(&facts.instance_uid);
        }
    }
    facts.member.as_ref().map(|member| vec![Key::Member(key.sibling(member))]).unwrap_or_default()
}

fn node(index: &mut Index, object: &Node, now: Timestamp) -> Vec<Key> {
    let key = ObjectKey::of(object);
    let before = index.nodes.get(&key).map(|stored| std::sync::Arc::clone(&stored.object));
    let facts = NodeFacts::of(object, before.as_deref(), now);
    let changed = before.is_none_or(|before| before.unusable != facts.unusable);
    let version = object.resource_version().unwrap_or_default();
    let taken = index.nodes.upsert(key.clone(), &Index::uid_of(object), &version, facts);
    if taken.is_some() && changed { keys_on_node(index, &key.name) } else { Vec::new() }
}

fn keys_on_node(index: &Index, node: &str) -> Vec<Key> {
    let on_node =
        |member: &PoolMember| member.status.as_ref().and_then(|status| status.node_name.as_deref()) == Some(node);
    let members = index.members.iter().filter(|(_, stored)| on_node(&stored.object));
    let keys = members.flat_map(|(key, stored)| {
        let pool = key.sibling(&stored.object.spec.pool_ref.name);
        [Key::Member(key.clone()), Key::Pool(pool.clone()), Key::Bind(pool)]
    });
    keys.collect()
}

fn config_map(index: &mut Index, object: &PartialObjectMeta<ConfigMap>) -> Vec<Key> {
    let key = ObjectKey::of(object);
    let version = object.resource_version().unwrap_or_default();
    let facts = ConfigMapFacts {
        uid: Index::uid_of(object),
        version: version.clone(),
        pool: object.labels().get(labels::POOL).cloned(),
    };
    if index.config_maps.upsert(key.clone(), &Index::uid_of(object), &version, facts).is_none() {
        return Vec::new();
    }
    pools_naming(index, &key)
}

/// The pools whose measurements, or whose policy copy, this ConfigMap is.
fn pools_naming(index: &Index, config_map: &ObjectKey) -> Vec<Key> {
    let names = |pool: &VirtualMachinePool| {
        pool.spec.attestation.measurements.as_ref().is_some_and(|measurements| {
            measurements.config_map_ref.name == config_map.name
                || banlieue_crds::names::policy_config_map(&pool.name_any(), &measurements.sha256) == config_map.name
        })
    };
    let pools =
        index.pools.iter().filter(|(key, stored)| key.namespace == config_map.namespace && names(&stored.object));
    pools.map(|(key, _)| Key::Pool(key.clone())).collect()
}
