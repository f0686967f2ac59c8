//! The joined state. See the module's words in `store`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool};
use jiff::Timestamp;
use kube::ResourceExt;

use super::ObjectKey;
use super::facts::{ConfigMapFacts, InstanceFacts, NodeFacts, PodFacts};
use super::table::{Stored, Table};
use super::unreadable::Unreadables;
use super::warm::Candidates;
use crate::decide::{PolicyState, Shortage, TemplateVerdict};
use crate::schedule::{Expectations, Key, Pace};

/// A waiting claim's member, between the pick and the acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// uid of the claim.
    pub claim_uid: String,
    /// The member picked for it.
    pub member: ObjectKey,
    /// uid of that member.
    pub member_uid: String,
    /// The resourceVersion that a commit was sent with and whose outcome is not known yet. Only the very same commit
    /// may be repeated until it is known.
    pub sent: Option<String>,
}

/// What was seen of a member's end, for the claim's Destroyed condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DestroySteps {
    /// Instance verified gone.
    pub instance_gone: Option<Timestamp>,
    /// Launcher pod verified gone.
    pub pod_gone: Option<Timestamp>,
    /// Secret verified gone.
    pub secret_gone: Option<Timestamp>,
    /// Identity revoked, as the attestor controller dated it; none when the pool asks for no evidence.
    pub identity_revoked: Option<Timestamp>,
}

/// What this process found out about a pool by asking the API server. Lost at a restart and then asked again.
#[derive(Debug, Clone, Default)]
pub struct PoolFacts {
    /// KubeVirt's judgement of the instance of a revision.
    pub template: Option<(String, TemplateVerdict)>,
    /// State of the measurements of a digest.
    pub policy: Option<(String, PolicyState)>,
    /// Whether the trust bundle is there.
    pub bundle: Option<bool>,
    /// The last refusal for lack of room, and until when nothing is asked for again.
    pub shortage: Option<(Timestamp, Shortage)>,
    /// Claims that found a warm member at once, and those that did not.
    pub hits: (u32, u32),
    /// uid and generation of its NetworkPolicy after our last write of it.
    pub network_policy: Option<(String, i64)>,
    /// When the status was written last: counters are coalesced.
    pub status_written: Option<Timestamp>,
}

/// Everything the controller knows.
#[derive(Debug)]
pub struct Index {
    pub(super) scopes: usize,
    pub(super) pools: Table<VirtualMachinePool>,
    pub(super) members: Table<PoolMember>,
    pub(super) claims: Table<VirtualMachineClaim>,
    pub(super) instances: Table<InstanceFacts>,
    pub(super) pods: Table<PodFacts>,
    pub(super) nodes: Table<NodeFacts>,
    pub(super) config_maps: Table<ConfigMapFacts>,
    /// Their generations.
    pub(super) network_policies: Table<i64>,
    pub(super) members_by_pool: BTreeMap<ObjectKey, BTreeSet<String>>,
    pub(super) members_by_claim: BTreeMap<String, BTreeSet<ObjectKey>>,
    pub(super) claims_by_pool: BTreeMap<ObjectKey, BTreeSet<String>>,
    pub(super) pods_by_instance: BTreeMap<String, BTreeSet<ObjectKey>>,
    pub(super) candidates: Candidates,
    /// Objects that cannot be read.
    pub unreadable: Unreadables,
    /// Creates in flight.
    pub expectations: Expectations,
    /// Waiting claims that have a member picked, by claim.
    assignments: BTreeMap<ObjectKey, Assignment>,
    /// Members that somebody is writing: the binder for a claim, or the member's own worker.
    held: BTreeMap<ObjectKey, Holder>,
    /// Place in the queue of claims that found no member at the last pass.
    pub(super) unserved: BTreeMap<ObjectKey, (u32, bool)>,
    pool_facts: BTreeMap<String, PoolFacts>,
    paces: BTreeMap<String, Pace>,
    steps: BTreeMap<String, DestroySteps>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Holder {
    Claim(ObjectKey),
    Worker,
}

impl Index {
    /// An empty index fed by watches over so many scopes (1 when all namespaces are watched at once).
    pub fn new(scopes: usize) -> Self {
        Self {
            scopes: scopes.max(1),
            pools: Table::default(),
            members: Table::default(),
            claims: Table::default(),
            instances: Table::default(),
            pods: Table::default(),
            nodes: Table::default(),
            config_maps: Table::default(),
            network_policies: Table::default(),
            members_by_pool: BTreeMap::new(),
            members_by_claim: BTreeMap::new(),
            claims_by_pool: BTreeMap::new(),
            pods_by_instance: BTreeMap::new(),
            candidates: Candidates::default(),
            unreadable: Unreadables::default(),
            expectations: Expectations::default(),
            assignments: BTreeMap::new(),
            held: BTreeMap::new(),
            unserved: BTreeMap::new(),
            pool_facts: BTreeMap::new(),
            paces: BTreeMap::new(),
            steps: BTreeMap::new(),
        }
    }

    /// The kinds whose first list is not complete yet. Nothing may be decided before there are none: a half-seen
    /// world looks like one where everything has vanished.
    pub fn unsynced(&self) -> Vec<&'static str> {
        let tables = [
            ("virtualmachinepools", self.pools.is_synced(self.scopes)),
            ("poolmembers", self.members.is_synced(self.scopes)),
            ("virtualmachineclaims", self.claims.is_synced(self.scopes)),
            ("virtualmachineinstances", self.instances.is_synced(self.scopes)),
            ("pods", self.pods.is_synced(self.scopes)),
            ("nodes", self.nodes.is_synced(1)),
        ];
        tables.into_iter().filter(|(_, synced)| !synced).map(|(kind, _)| kind).collect()
    }

    /// Whether ConfigMaps and NetworkPolicies of a namespace were listed. They are watched in pool namespaces only,
    /// where the controller has rights on them.
    pub fn namespace_seen(&self, namespace: &str) -> bool {
        self.config_maps.is_scope_synced(namespace) && self.network_policies.is_scope_synced(namespace)
    }

    /// ConfigMaps and NetworkPolicies of a namespace are not watched any more.
    pub fn forget_namespace(&mut self, namespace: &str) {
        self.config_maps.forget_scope(namespace);
        self.network_policies.forget_scope(namespace);
    }

    /// Namespaces that hold a pool.
    pub fn pool_namespaces(&self) -> BTreeSet<String> {
        self.pools.iter().map(|(key, _)| key.namespace.clone()).collect()
    }

    /// Every key there is, to begin with. Claims that have a member picked are served on, by a process that led before.
    pub fn all_keys(&self) -> Vec<Key> {
        let serving = self.assignments.keys().cloned().map(Key::Serve);
        let pools = self.pools.iter().flat_map(|(key, _)| [Key::Pool(key.clone()), Key::Bind(key.clone())]);
        let members = self.members.iter().map(|(key, _)| Key::Member(key.clone()));
        let claims = self.claims.iter().map(|(key, _)| Key::Claim(key.clone()));
        pools.chain(members).chain(claims).chain(serving).collect()
    }

    /// The pool under a name.
    pub fn pool(&self, key: &ObjectKey) -> Option<Arc<VirtualMachinePool>> {
        self.pools.get(key).map(|stored| Arc::clone(&stored.object))
    }

    /// The member under a name.
    pub fn member(&self, key: &ObjectKey) -> Option<Arc<PoolMember>> {
        self.members.get(key).map(|stored| Arc::clone(&stored.object))
    }

    /// The claim under a name.
    pub fn claim(&self, key: &ObjectKey) -> Option<Arc<VirtualMachineClaim>> {
        self.claims.get(key).map(|stored| Arc::clone(&stored.object))
    }

    /// Every pool.
    pub fn pool_keys(&self) -> Vec<ObjectKey> {
        self.pools.iter().map(|(key, _)| key.clone()).collect()
    }

    /// The pool's members, terminating ones included.
    pub fn members_of(&self, pool: &ObjectKey) -> impl Iterator<Item = (ObjectKey, &Stored<PoolMember>)> {
        self.members_by_pool.get(pool).into_iter().flatten().filter_map(|name| {
            let key = pool.sibling(name);
            self.members.get(&key).map(|stored| (key, stored))
        })
    }

    /// Members whose claimRef names this claim.
    pub fn committed(&self, claim_uid: &str) -> Vec<(ObjectKey, Arc<PoolMember>)> {
        let keys = self.members_by_claim.get(claim_uid).into_iter().flatten();
        keys.filter_map(|key| self.members.get(key).map(|stored| (key.clone(), Arc::clone(&stored.object)))).collect()
    }

    /// The claim's picked member.
    pub fn assignment(&self, claim: &ObjectKey) -> Option<&Assignment> {
        self.assignments.get(claim)
    }

    /// Picks a member for a claim. The caller has seen under the same lock that neither is taken.
    pub fn assign(&mut self, claim: ObjectKey, assignment: Assignment) {
        self.unserved.remove(&claim);
        self.held.insert(assignment.member.clone(), Holder::Claim(claim.clone()));
        self.assignments.insert(claim, assignment);
    }

    /// Notes the version that a commit is sent with.
    pub fn mark_sent(&mut self, claim: &ObjectKey, version: Option<String>) {
        if let Some(assignment) = self.assignments.get_mut(claim) {
            assignment.sent = version;
        }
    }

    /// Gives back a claim's pick.
    pub fn unassign(&mut self, claim: &ObjectKey) {
        if let Some(assignment) = self.assignments.remove(claim)
            && self.held.get(&assignment.member) == Some(&Holder::Claim(claim.clone()))
        {
            self.held.remove(&assignment.member);
        }
    }

    /// Whether somebody is writing a member.
    pub fn is_held(&self, member: &ObjectKey) -> bool {
        self.held.contains_key(member)
    }

    /// Keeps the binder off a member while its worker writes it; false when the binder has it.
    pub fn hold(&mut self, member: &ObjectKey) -> bool {
        if self.held.contains_key(member) {
            return false;
        }
        self.held.insert(member.clone(), Holder::Worker);
        true
    }

    /// The member's worker is done.
    pub fn unhold(&mut self, member: &ObjectKey) {
        if self.held.get(member) == Some(&Holder::Worker) {
            self.held.remove(member);
        }
    }

    /// What this process found out about a pool.
    pub fn pool_facts(&self, pool_uid: &str) -> PoolFacts {
        self.pool_facts.get(pool_uid).cloned().unwrap_or_default()
    }

    /// Share of claims that found a warm member at once.
    pub(super) fn hit_percent(&self, pool_uid: &str) -> Option<u32> {
        let (hits, misses) = self.pool_facts.get(pool_uid)?.hits;
        let all = hits.checked_add(misses).filter(|all| *all > 0)?;
        u32::try_from(u64::from(hits) * 100 / u64::from(all)).ok()
    }

    /// Changes what was found out about a pool.
    pub fn update_facts(&mut self, pool_uid: &str, change: impl FnOnce(&mut PoolFacts)) {
        change(self.pool_facts.entry(pool_uid.to_owned()).or_default());
    }

    /// The pool's refill pace.
    pub fn pace(&mut self, pool_uid: &str, new: impl FnOnce() -> Pace) -> &mut Pace {
        self.paces.entry(pool_uid.to_owned()).or_insert_with(new)
    }

    /// What was seen of a member's end.
    pub fn steps(&self, member_uid: &str) -> DestroySteps {
        self.steps.get(member_uid).cloned().unwrap_or_default()
    }

    /// Notes a step of a member's end.
    pub fn note_step(&mut self, member_uid: &str, change: impl FnOnce(&mut DestroySteps)) {
        change(self.steps.entry(member_uid.to_owned()).or_default());
    }

    /// The claim has reported its member's end.
    pub fn forget_steps(&mut self, member_uid: &str) {
        self.steps.remove(member_uid);
    }

    /// Replaces the queue places of a pool's claims that found no member.
    pub fn set_unserved(&mut self, pool: &ObjectKey, places: impl IntoIterator<Item = (ObjectKey, u32, bool)>) {
        let claims = self.claims_by_pool.get(pool).into_iter().flatten();
        for name in claims {
            self.unserved.remove(&pool.sibling(name));
        }
        self.unserved.extend(places.into_iter().map(|(claim, place, behind)| (claim, (place, behind))));
    }

    pub(super) fn forget_pool(&mut self, pool_uid: &str) {
        self.pool_facts.remove(pool_uid);
        self.paces.remove(pool_uid);
    }

    pub(super) fn forget_claim(&mut self, claim: &ObjectKey) {
        self.unserved.remove(claim);
        // An assignment stays: its worker ends it, after it has learned what became of a commit that was sent.
    }

    pub(super) fn node(&self, name: &str) -> Option<Arc<NodeFacts>> {
        self.nodes.get(&ObjectKey::new("", name)).map(|stored| Arc::clone(&stored.object))
    }

    pub(super) fn uid_of(object: &impl ResourceExt) -> String {
        object.uid().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{at, claim, pool};
    use crate::store::{Change, ChangeEvent};
    use banlieue_crds::received::Unreadable;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    /// A claim may tell its workload much, and an annotation may hold a quarter of a megabyte.
    #[test]
    fn what_no_decision_reads_is_not_kept() {
        let mut index = Index::new(1);
        let mut claim = claim(&pool("p"), json!(null));
        claim.spec.workload.args = vec!["x".repeat(4096); 256];
        claim.spec.workload.env = vec![Default::default(); 256];
        let annotations = [("big".to_owned(), "x".repeat(100_000)), ("banlieue.io/force-release".into(), "y".into())];
        claim.metadata.annotations = Some(annotations.into());
        index.put_claim(claim.clone());
        let kept = index.claim(&ObjectKey::of(&claim)).unwrap();
        assert!(serde_json::to_string(&*kept).unwrap().len() < 2000);
        assert_eq!(kept.annotations().keys().collect::<Vec<_>>(), ["banlieue.io/force-release"]);
        assert_eq!(kept.spec.workload.image, claim.spec.workload.image);
    }

    #[test]
    fn a_pool_that_cannot_be_read_stands_as_it_was_until_it_is_gone() {
        let mut index = Index::new(1);
        let object = pool("p");
        let tell = |index: &mut Index, event| index.apply(Change { scope: String::new(), event }, at(0));
        let unreadable = |deleted| ChangeEvent::Unreadable {
            kind: "virtualmachinepools",
            object: Box::new(Unreadable { metadata: object.metadata.clone(), why: "too deep".into(), deleted }),
        };
        index.put_pool(object.clone());
        for event in [ChangeEvent::Pool(Event::Init), unreadable(false), ChangeEvent::Pool(Event::InitDone)] {
            tell(&mut index, event);
        }
        assert!(index.pool(&ObjectKey::of(&object)).is_some());
        tell(&mut index, unreadable(true));
        assert!(index.pool(&ObjectKey::of(&object)).is_none());
    }
}
