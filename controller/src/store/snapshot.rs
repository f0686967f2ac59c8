//! What `decide` gets to see: shared pointers into one consistent moment of the index.

use std::collections::BTreeMap;
use std::sync::Arc;

use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool};
use jiff::Timestamp;
use kube::ResourceExt;

use super::facts::{InstanceFacts, NodeFacts, PodFacts};
use super::{DestroySteps, Index, ObjectKey, PoolFacts};

/// One member and what belongs to it.
#[derive(Debug, Clone)]
pub struct MemberSnapshot {
    /// Where it stands.
    pub key: ObjectKey,
    /// The member.
    pub member: Arc<PoolMember>,
    /// Its pool, when that life of the pool is there.
    pub pool: Option<Arc<VirtualMachinePool>>,
    /// The instance under its name, whoever owns it.
    pub instance: Option<Arc<InstanceFacts>>,
    /// Launcher pods of that instance, or of the recorded one when it is gone.
    pub pods: Vec<Arc<PodFacts>>,
    /// The node of its instance, when we see it.
    pub node: Option<Arc<NodeFacts>>,
    /// The claim that its claimRef names by uid.
    pub claim: Option<Arc<VirtualMachineClaim>>,
    /// Whether the binder holds it for a claim, or its worker writes it.
    pub held: bool,
    /// What was seen of its end.
    pub steps: DestroySteps,
}

impl MemberSnapshot {
    /// Its uid.
    pub fn uid(&self) -> String {
        self.member.uid().unwrap_or_default()
    }

    /// uid of the instance that is recorded as its own.
    pub fn recorded_instance(&self) -> Option<&str> {
        self.member.status.as_ref()?.instance_ref.as_ref().map(|instance| instance.uid.as_str())
    }

    /// The instance that is its own: the recorded one, or before it is recorded one that it owns.
    pub fn own_instance(&self) -> Option<&InstanceFacts> {
        let instance = self.instance.as_deref()?;
        let own = match self.recorded_instance() {
            Some(uid) => uid == instance.uid,
            None => instance.owner_uid.as_deref() == self.member.metadata.uid.as_deref(),
        };
        own.then_some(instance)
    }

    /// Whatever instance stands under its name and is its own or says so: what must be gone before it may go. A create
    /// whose reply was lost may make a second one after the first was deleted.
    pub fn any_instance(&self) -> Option<&InstanceFacts> {
        let uid = self.member.metadata.uid.as_deref();
        let owned = self.instance.as_deref().filter(|instance| instance.owner_uid.as_deref() == uid);
        self.own_instance().or(owned)
    }

    /// The node its instance runs on, by the instance itself or by what was recorded.
    pub fn node_name(&self) -> Option<&str> {
        self.own_instance()
            .and_then(|instance| instance.node_name.as_deref())
            .or_else(|| self.member.status.as_ref()?.node_name.as_deref())
    }

    /// Whether its deletion was asked for.
    pub fn is_deleting(&self) -> bool {
        self.member.metadata.deletion_timestamp.is_some()
    }

    /// Whether it has a claimRef.
    pub fn is_bound(&self) -> bool {
        self.member.spec.claim_ref.is_some()
    }
}

/// One claim and what belongs to it.
#[derive(Debug, Clone)]
pub struct ClaimSnapshot {
    /// Where it stands.
    pub key: ObjectKey,
    /// The claim.
    pub claim: Arc<VirtualMachineClaim>,
    /// The pool that it names, as it stands now.
    pub pool: Option<Arc<VirtualMachinePool>>,
    /// Members whose claimRef names it by uid.
    pub committed: Vec<MemberSnapshot>,
    /// The member that its memberRef names by uid, when it is there.
    pub acknowledged: Option<MemberSnapshot>,
    /// Claims of the same subject on the same pool that hold or wait and come before it.
    pub subject_before: u32,
    /// Place in the queue (1 is next) and whether others of its subject stand before it, when the last pass found no
    /// member for it.
    pub unserved: Option<(u32, bool)>,
    /// Whether the binder is working for it right now.
    pub serving: bool,
    /// What was seen of its member's end.
    pub steps: DestroySteps,
}

/// One pool and what belongs to it.
#[derive(Debug, Clone)]
pub struct PoolSnapshot {
    /// Where it stands.
    pub key: ObjectKey,
    /// The pool.
    pub pool: Arc<VirtualMachinePool>,
    /// All its members, those of this life of the pool.
    pub members: Vec<MemberSnapshot>,
    /// Creates in flight that the index has not seen.
    pub expected: usize,
    /// Claims that wait for a member.
    pub waiting: usize,
    /// What was found out by asking.
    pub facts: PoolFacts,
    /// Its policy copies: name and uid.
    pub policy_copies: Vec<(String, String)>,
    /// Versions of the ConfigMap that its measurements name and of its copy: changes when either does.
    pub measurements_version: String,
    /// Whether ConfigMaps and NetworkPolicies of its namespace were listed.
    pub namespace_seen: bool,
    /// uid and generation of its NetworkPolicy.
    pub network_policy: Option<(String, i64)>,
    /// Share of the claims that this process bound which found a warm member at once.
    pub hit_percent: Option<u32>,
}

impl Index {
    /// The member under a name with what belongs to it.
    pub fn member_snapshot(&self, key: &ObjectKey) -> Option<MemberSnapshot> {
        let member = self.member(key)?;
        let pool = self
            .pool(&key.sibling(&member.spec.pool_ref.name))
            .filter(|pool| pool.uid().as_deref() == Some(member.spec.pool_ref.uid.as_str()));
        let claim = member.spec.claim_ref.as_ref().and_then(|claim_ref| {
            let claim = self.claim(&key.sibling(&claim_ref.name))?;
            (claim.uid().as_deref() == Some(claim_ref.uid.as_str())).then_some(claim)
        });
        let instance = self.instances.get(key).map(|stored| Arc::clone(&stored.object));
        let steps = self.steps(&member.uid().unwrap_or_default());
        let mut snapshot = MemberSnapshot {
            key: key.clone(),
            member,
            pool,
            instance,
            pods: Vec::new(),
            node: None,
            claim,
            held: self.is_held(key),
            steps,
        };
        let instance_uid = snapshot
            .recorded_instance()
            .map(str::to_owned)
            .or_else(|| snapshot.own_instance().map(|instance| instance.uid.clone()));
        if let Some(uid) = instance_uid {
            let pods = self.pods_by_instance.get(&uid).into_iter().flatten();
            snapshot.pods =
                pods.filter_map(|key| self.pods.get(key)).map(|stored| Arc::clone(&stored.object)).collect();
        }
        snapshot.node = snapshot.node_name().and_then(|name| self.node(name));
        Some(snapshot)
    }

    /// The claim under a name with what belongs to it.
    pub fn claim_snapshot(&self, key: &ObjectKey) -> Option<ClaimSnapshot> {
        let claim = self.claim(key)?;
        let uid = claim.uid().unwrap_or_default();
        let pool = self.pool(&key.sibling(&claim.spec.pool_ref.name));
        let committed: Vec<MemberSnapshot> =
            self.committed(&uid).iter().filter_map(|(key, _)| self.member_snapshot(key)).collect();
        let member_ref = claim.status.as_ref().and_then(|status| status.member_ref.clone());
        let acknowledged = member_ref.as_ref().and_then(|member_ref| {
            let snapshot = self.member_snapshot(&key.sibling(&member_ref.name))?;
            (snapshot.member.uid().as_deref() == Some(member_ref.uid.as_str())).then_some(snapshot)
        });
        let steps = member_ref.map(|member_ref| self.steps(&member_ref.uid)).unwrap_or_default();
        Some(ClaimSnapshot {
            key: key.clone(),
            pool,
            committed,
            acknowledged,
            subject_before: self.subject_before(key, &claim),
            unserved: self.unserved.get(key).copied(),
            serving: self.assignment(key).is_some(),
            steps,
            claim,
        })
    }

    /// The pool under a name with what belongs to it.
    pub fn pool_snapshot(&mut self, key: &ObjectKey, now: Timestamp) -> Option<PoolSnapshot> {
        let pool = self.pool(key)?;
        let uid = pool.uid().unwrap_or_default();
        let members: Vec<MemberSnapshot> = self
            .members_of(key)
            .filter(|(_, stored)| stored.object.spec.pool_ref.uid == uid)
            .filter_map(|(key, _)| self.member_snapshot(&key))
            .collect();
        let members_table = &self.members;
        let exists = |name: &str| members_table.get(&key.sibling(name)).is_some();
        let expected = self.expectations.count(&uid, now, exists);
        let policy_copies = self
            .config_maps
            .iter()
            .filter(|(at, stored)| at.namespace == key.namespace && stored.object.pool.as_deref() == Some(&key.name))
            .map(|(at, stored)| (at.name.clone(), stored.uid.clone()))
            .collect();
        let version = |name: &str| self.config_maps.get(&key.sibling(name)).map(|stored| stored.version);
        let measurements_version = pool.spec.attestation.measurements.as_ref().map_or_else(String::new, |wanted| {
            let copy = banlieue_crds::names::policy_config_map(&key.name, &wanted.sha256);
            format!("{:?}/{:?}", version(&wanted.config_map_ref.name), version(&copy))
        });
        Some(PoolSnapshot {
            key: key.clone(),
            expected,
            waiting: self.waiting_claims(key).count(),
            hit_percent: self.hit_percent(&uid),
            facts: self.pool_facts(&uid),
            policy_copies,
            measurements_version,
            namespace_seen: self.namespace_seen(&key.namespace),
            network_policy: self
                .network_policies
                .get(&key.sibling(banlieue_crds::names::network_policy(&key.name)))
                .map(|stored| (stored.uid.clone(), *stored.object)),
            members,
            pool,
        })
    }

    /// Claims of a pool that wait for a member and have none on the way.
    pub fn waiting_claims(&self, pool: &ObjectKey) -> impl Iterator<Item = (ObjectKey, Arc<VirtualMachineClaim>)> {
        let names = self.claims_by_pool.get(pool).into_iter().flatten();
        names.filter_map(|name| {
            let key = pool.sibling(name);
            let claim = self.claim(&key)?;
            let waits = crate::decide::is_waiting(&claim)
                && !self.members_by_claim.contains_key(&claim.uid().unwrap_or_default())
                && self.assignment(&key).is_none();
            waits.then_some((key, claim))
        })
    }

    /// Members of a pool that may be picked, oldest Ready first: unbound, in phase Ready, not being written.
    pub fn candidates(&self, pool: &ObjectKey) -> Vec<MemberSnapshot> {
        self.candidates
            .of(pool)
            .map(|name| pool.sibling(name))
            .filter(|key| !self.is_held(key))
            .filter_map(|key| self.member_snapshot(&key))
            .collect()
    }

    /// For each claim of a pool that counts for its subject: how many of the same subject come before it.
    pub fn subject_ranks(&self, pool: &ObjectKey) -> BTreeMap<String, u32> {
        let mut claims: Vec<(String, Arc<VirtualMachineClaim>)> = Vec::new();
        for name in self.claims_by_pool.get(pool).into_iter().flatten() {
            if let Some(claim) = self.claim(&pool.sibling(name))
                && crate::decide::counts_for_subject(&claim)
            {
                claims.push((name.clone(), claim));
            }
        }
        claims.sort_by_cached_key(|(_, claim)| crate::decide::subject_place(claim));
        let mut counts: BTreeMap<(String, String), u32> = BTreeMap::new();
        let mut ranks = BTreeMap::new();
        for (name, claim) in claims {
            let subject = (claim.spec.subject.issuer.clone(), claim.spec.subject.id.clone());
            let count = counts.entry(subject).or_default();
            ranks.insert(name, *count);
            *count = count.saturating_add(1);
        }
        ranks
    }

    /// How many claims of the subject hold or wait and come before this one: those with a member, then older ones.
    fn subject_before(&self, key: &ObjectKey, claim: &VirtualMachineClaim) -> u32 {
        let pool = key.sibling(&claim.spec.pool_ref.name);
        let place = crate::decide::subject_place(claim);
        let names = self.claims_by_pool.get(&pool).into_iter().flatten();
        let before = names
            .filter(|name| **name != key.name)
            .filter_map(|name| self.claim(&key.sibling(name)))
            .filter(|other| {
                other.spec.subject.issuer == claim.spec.subject.issuer && other.spec.subject.id == claim.spec.subject.id
            })
            .filter(|other| crate::decide::counts_for_subject(other) && crate::decide::subject_place(other) < place)
            .count();
        u32::try_from(before).unwrap_or(u32::MAX)
    }
}
