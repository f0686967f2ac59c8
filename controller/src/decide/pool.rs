//! A pool's next steps: how many members to make, which to let go, and what to say about it.

use std::collections::BTreeSet;

use banlieue_crds::VirtualMachinePool;
use banlieue_crds::names::{self, annotations, finalizers};
use banlieue_crds::pool::{AttestationMode, NetworkPolicyMode, UpdateStrategyType, VirtualMachinePoolStatus};
use jiff::Timestamp;
use kube::ResourceExt;

use super::budget::{Budget, budget};
use super::pool_status::{Trouble, status};
use super::population::{Population, ready_at};
use super::template::{PolicyState, TemplateVerdict, check_template};
use super::{Tuning, plus, revision, sooner};
use crate::store::{MemberSnapshot, ObjectKey, PoolSnapshot};

/// One step for a pool.
#[derive(Debug, Clone, PartialEq)]
pub enum PoolIntent {
    /// Add our finalizer.
    AddFinalizer,
    /// Its last member is gone.
    RemoveFinalizer,
    /// Make the immutable copy of its measurements.
    CopyPolicy,
    /// Look whether the trust bundle is there.
    CheckBundle,
    /// Let KubeVirt judge the instance of this revision, without making one.
    ValidateTemplate {
        /// The revision.
        revision: String,
    },
    /// Make its NetworkPolicy, or make it again what it must be.
    ApplyNetworkPolicy,
    /// Make so many members, as far as the pace allows; creates whose reply was lost come first.
    Create {
        /// How many.
        count: usize,
        /// Of which revision.
        revision: String,
    },
    /// Delete an unbound member, if nobody has written it since.
    DeleteMember {
        /// Which.
        member: ObjectKey,
        /// Why, for the log and the event.
        why: &'static str,
    },
    /// Delete a policy copy that no member is judged by any more.
    DeletePolicyCopy {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
}

/// The steps, the status to write, and when to look again.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolPlan {
    /// The steps. They do not depend on each other.
    pub intents: Vec<PoolIntent>,
    /// The whole status.
    pub status: VirtualMachinePoolStatus,
    /// When to look again if nothing happens.
    pub wake: Option<Timestamp>,
}

/// Whether a pool that is deleted ends its bound members too.
pub(super) fn drains_now(pool: &VirtualMachinePool) -> bool {
    pool.annotations().get(annotations::DRAIN).map(String::as_str) == Some(annotations::DRAIN_NOW)
}

/// Decides a pool's next steps.
pub fn pool(snapshot: &PoolSnapshot, now: Timestamp, tuning: &Tuning) -> PoolPlan {
    let pool = &snapshot.pool;
    let current = revision(pool);
    let replaces_old = pool.spec.update_strategy.type_ != UpdateStrategyType::OnReplenish;
    let population = Population::of(snapshot, &current, replaces_old, now, tuning);
    let budget = budget(snapshot, &current, now, tuning);
    let mut steps = Steps { snapshot, population: &population, intents: Vec::new(), deleted: BTreeSet::new() };
    let mut wake = sooner(population.wake, budget.wake);

    if pool.metadata.deletion_timestamp.is_some() {
        steps.drain();
        let status = status(snapshot, &current, &population, &budget, Some(Trouble::Draining), now);
        return PoolPlan { intents: steps.intents, status, wake };
    }
    if !has_finalizer(pool) {
        steps.intents.push(PoolIntent::AddFinalizer);
    }
    let trouble = steps.prepare(&current, now, tuning, &mut wake);
    steps.keep_failed(&budget);
    let mut trouble = trouble.or_else(|| pool.spec.paused.then_some(Trouble::Paused));
    if trouble.is_none() {
        steps.replace(&current);
        steps.scale_down();
        let room = steps.fill(&current, &budget, now, &mut wake);
        trouble = room;
    }
    steps.collect_policies(&current);
    let status = status(snapshot, &current, &population, &budget, trouble, now);
    PoolPlan { intents: steps.intents, status, wake }
}

pub(super) fn has_finalizer(pool: &VirtualMachinePool) -> bool {
    pool.finalizers().iter().any(|finalizer| finalizer == finalizers::DRAIN)
}

struct Steps<'a> {
    snapshot: &'a PoolSnapshot,
    population: &'a Population<'a>,
    intents: Vec<PoolIntent>,
    deleted: BTreeSet<ObjectKey>,
}

impl<'a> Steps<'a> {
    /// Deletes a member at most once, and never one that the binder holds.
    fn delete(&mut self, member: &MemberSnapshot, why: &'static str) -> bool {
        if member.held || member.is_bound() || member.is_deleting() || !self.deleted.insert(member.key.clone()) {
            return false;
        }
        self.intents.push(PoolIntent::DeleteMember { member: member.key.clone(), why });
        true
    }

    /// The end of the pool: unbound members at once, then the finalizer.
    fn drain(&mut self) {
        for member in &self.snapshot.members {
            self.delete(member, "its pool is deleted");
        }
        let empty = self.snapshot.members.is_empty() && self.snapshot.expected == 0;
        if self.snapshot.expected > 0 {
            // A create whose reply was lost must be settled before the pool may go.
            self.intents.push(PoolIntent::Create { count: 0, revision: String::new() });
        }
        if empty && has_finalizer(&self.snapshot.pool) {
            self.intents.push(PoolIntent::RemoveFinalizer);
        }
    }

    /// What must be there before a member can be made. Answers what is missing.
    fn prepare(
        &mut self,
        current: &str,
        now: Timestamp,
        tuning: &Tuning,
        wake: &mut Option<Timestamp>,
    ) -> Option<Trouble> {
        let spec = &self.snapshot.pool.spec;
        if let Err(fault) = check_template(&self.snapshot.pool, &tuning.allowed) {
            return Some(Trouble::Template(fault.to_string()));
        }
        if !self.snapshot.namespace_seen {
            return Some(Trouble::Namespace);
        }
        if spec.network_policy == NetworkPolicyMode::Managed
            && let Some(trouble) = self.network_policy(tuning)
        {
            return Some(trouble);
        }
        if spec.attestation.mode == AttestationMode::Vtpm {
            if let Some(trouble) = self.measurements() {
                return Some(trouble);
            }
            match self.snapshot.facts.bundle {
                Some(true) => {}
                Some(false) => {
                    // Somebody else's ConfigMap of another namespace: asked for again after a while.
                    *wake = sooner(*wake, Some(plus(now, jiff::SignedDuration::from_secs(5))));
                    self.intents.push(PoolIntent::CheckBundle);
                    return Some(Trouble::Bundle);
                }
                None => {
                    self.intents.push(PoolIntent::CheckBundle);
                    return Some(Trouble::Preparing);
                }
            }
        }
        match &self.snapshot.facts.template {
            Some((revision, TemplateVerdict::Accepted)) if revision == current => None,
            Some((revision, TemplateVerdict::Refused { message, ask_again })) if revision == current => {
                if *ask_again <= now {
                    self.intents.push(PoolIntent::ValidateTemplate { revision: current.to_owned() });
                } else {
                    *wake = sooner(*wake, Some(*ask_again));
                }
                Some(Trouble::Template(message.clone()))
            }
            _ => {
                self.intents.push(PoolIntent::ValidateTemplate { revision: current.to_owned() });
                Some(Trouble::Preparing)
            }
        }
    }

    /// No member before its policy stands, and none that could not reach what it needs.
    fn network_policy(&mut self, tuning: &Tuning) -> Option<Trouble> {
        let standing = self.snapshot.network_policy.as_ref();
        // Its generation counts changes of its spec: one that is not of our own last write is somebody else's, or of
        // an older configuration. After a restart it is written once more, which changes nothing when nothing differs.
        let ours = self.snapshot.facts.network_policy.as_ref();
        if !standing.is_some_and(|(uid, seen)| ours.is_some_and(|(own, written)| uid == own && seen <= written)) {
            self.intents.push(PoolIntent::ApplyNetworkPolicy);
        }
        if let Some(gap) = &tuning.egress_gap {
            return Some(Trouble::Egress(gap.clone()));
        }
        standing.is_none().then_some(Trouble::Preparing)
    }

    fn measurements(&mut self) -> Option<Trouble> {
        let Some(wanted) = &self.snapshot.pool.spec.attestation.measurements else {
            return Some(Trouble::Measurements("attestation.measurements is not set".into()));
        };
        let copy = names::policy_config_map(&self.snapshot.key.name, &wanted.sha256);
        let there = self.snapshot.policy_copies.iter().any(|(name, _)| *name == copy);
        match &self.snapshot.facts.policy {
            Some((digest, PolicyState::Copied)) if *digest == wanted.sha256 && there => None,
            Some((digest, PolicyState::Missing { message, looked_at })) if *digest == wanted.sha256 => {
                // Looked at again when the source has changed, not before.
                if *looked_at != self.snapshot.measurements_version {
                    self.intents.push(PoolIntent::CopyPolicy);
                }
                Some(Trouble::Measurements(message.clone()))
            }
            _ => {
                self.intents.push(PoolIntent::CopyPolicy);
                Some(Trouble::Preparing)
            }
        }
    }

    /// Failed members beyond the ones kept for inspection, newest kept. Only counted ones: the budget's memory is the
    /// pool's status, written before the member goes.
    fn keep_failed(&mut self, budget: &Budget) {
        let mut failed = self.population.failed.clone();
        failed.sort_by_key(|member| std::cmp::Reverse(member.member.metadata.creation_timestamp.clone()));
        let keep = usize::try_from(self.snapshot.pool.spec.failure_budget.keep_failed).unwrap_or(usize::MAX);
        for member in failed.into_iter().skip(keep) {
            if budget.is_counted(member) {
                self.delete(member, "it failed");
            }
        }
    }

    /// Members of older revisions, idle ones and those on nodes that go: never below `warmReplicas - maxUnavailable`.
    fn replace(&mut self, current: &str) {
        let spec = &self.snapshot.pool.spec;
        let recreate = spec.update_strategy.type_ == UpdateStrategyType::Recreate;
        let least = count(spec.warm_replicas.saturating_sub(spec.update_strategy.max_unavailable));
        let mut spare = self.population.warm.len().saturating_sub(least);
        for (member, why) in self.population.replaceable.clone() {
            let is_warm = self.population.warm.iter().any(|warm| warm.key == member.key);
            let old = member.member.spec.revision != current;
            // What is not warm now costs nothing to replace; Recreate asks for all old ones at once.
            if !is_warm || (recreate && old) {
                self.delete(member, why);
            } else if spare > 0 && self.delete(member, why) {
                spare -= 1;
            }
        }
    }

    /// More than wanted: those on their way first, youngest first; then warm ones, youngest first, for the binder
    /// takes the oldest. Nobody is sent away while claims wait.
    fn scale_down(&mut self) {
        let wanted = count(self.snapshot.pool.spec.warm_replicas);
        let mut excess = self.population.supply().saturating_sub(wanted);
        if excess == 0 || self.snapshot.waiting > 0 {
            return;
        }
        let mut coming = self.population.provisioning.clone();
        coming.sort_by_key(|member| std::cmp::Reverse(member.member.metadata.creation_timestamp.clone()));
        let mut warm = self.population.warm.clone();
        warm.sort_by_key(|member| std::cmp::Reverse(ready_at(member)));
        for member in coming.into_iter().chain(self.population.resting.clone()).chain(warm) {
            if excess == 0 {
                break;
            }
            if !self.population.is_replaceable(member) && self.delete(member, "the pool is larger than wanted") {
                excess -= 1;
            }
        }
    }

    /// New members, as many as are missing and fit. Answers what holds more back.
    fn fill(
        &mut self,
        current: &str,
        budget: &Budget,
        now: Timestamp,
        wake: &mut Option<Timestamp>,
    ) -> Option<Trouble> {
        let spec = &self.snapshot.pool.spec;
        let missing = count(spec.warm_replicas).saturating_sub(self.population.supply());
        let coming = self.population.provisioning.len() + self.population.expected;
        let room = count(spec.max_replicas).saturating_sub(self.population.living);
        let mut create = missing.min(count(spec.max_surge).saturating_sub(coming)).min(room);
        let mut trouble = (missing > 0 && room == 0).then_some(Trouble::MaxReplicas);
        if let Some((until, shortage)) = &self.snapshot.facts.shortage {
            if *until > now {
                create = 0;
                *wake = sooner(*wake, Some(*until));
                trouble = Some(Trouble::Quota(shortage.message.clone()));
            } else if missing > 0 {
                // Asked again with one only.
                create = create.min(1);
            }
        }
        if let Some(until) = budget.pause_until {
            if until > now {
                create = 0;
                *wake = sooner(*wake, Some(until));
            } else if budget.spent {
                create = create.min(1usize.saturating_sub(coming));
            }
        }
        if create > 0 || self.snapshot.expected > 0 {
            self.intents.push(PoolIntent::Create { count: create, revision: current.to_owned() });
        }
        trouble
    }

    /// Copies of older policies, once every living member is of the current revision.
    fn collect_policies(&mut self, current: &str) {
        if self.snapshot.expected > 0 || self.snapshot.members.iter().any(|m| m.member.spec.revision != current) {
            return;
        }
        let wanted = self.snapshot.pool.spec.attestation.measurements.as_ref();
        let keep = wanted.map(|wanted| names::policy_config_map(&self.snapshot.key.name, &wanted.sha256));
        for (name, uid) in &self.snapshot.policy_copies {
            if Some(name) != keep.as_ref() {
                self.intents.push(PoolIntent::DeletePolicyCopy { name: name.clone(), uid: uid.clone() });
            }
        }
    }
}

fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
