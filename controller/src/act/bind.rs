//! Binding: match, commit, acknowledge (`binding.md`, "Binding").
//!
//! Matching is synchronous and without I/O: it reserves pairs in the index, in the queue's order. Each pair is then
//! served by a pass of its own, so a slow write of one claim holds up no other.

use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::conditions::{self, ClaimCondition, condition};
use banlieue_crds::names::{MemberState, labels, managers};
use banlieue_crds::{PoolMember, VirtualMachineClaim};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;
use serde_json::json;

use super::{ActError, Controller, Outcome};
use crate::api::{ApiError, Kind};
use crate::decide::{self, Waiting};
use crate::schedule::Key;
use crate::store::{Assignment, Index, ObjectKey};

impl Controller {
    /// Pairs waiting claims with warm members, as far as both reach.
    pub(super) fn match_claims(&self, pool: &ObjectKey) -> Option<Timestamp> {
        let now = self.now();
        let mut index = self.index();
        let object = index.pool(pool)?;
        if object.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let revision = decide::revision(&object);
        let most = object.spec.claim_policy.max_priority;
        let before = index.subject_ranks(pool);
        let waiting: Vec<(ObjectKey, std::sync::Arc<VirtualMachineClaim>, String)> = index
            .waiting_claims(pool)
            .filter(|(key, claim)| {
                let before = before.get(&key.name).copied().unwrap_or_default();
                decide::admit(claim, &object, before).is_ok()
                    && decide::bind_deadline(claim, Some(&object)).is_none_or(|deadline| deadline > now)
            })
            .map(|(key, claim)| {
                let uid = claim.uid().unwrap_or_default();
                (key, claim, uid)
            })
            .collect();
        if waiting.is_empty() {
            index.set_unserved(pool, []);
            return None;
        }
        let places: Vec<Waiting<'_, usize>> = waiting
            .iter()
            .enumerate()
            .map(|(n, (_, claim, uid))| Waiting {
                key: n,
                priority: claim.spec.priority.min(most),
                subject: &claim.spec.subject,
                created: claim.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0),
                uid,
            })
            .collect();
        let mut candidates = index.candidates(pool);
        let mut served = Vec::new();
        let mut unserved = Vec::new();
        for (n, behind) in decide::order(&places) {
            let Some((claim_key, claim, uid)) = waiting.get(n) else { continue };
            let Some(member) = decide::pick(&object, &revision, candidates.iter(), now).cloned() else {
                let place = u32::try_from(unserved.len()).unwrap_or(u32::MAX).saturating_add(1);
                unserved.push((claim_key.clone(), place, behind, claim.clone()));
                continue;
            };
            candidates.retain(|candidate| candidate.key != member.key);
            let assignment =
                Assignment { claim_uid: uid.clone(), member_uid: member.uid(), member: member.key, sent: None };
            index.assign(claim_key.clone(), assignment);
            served.push(Key::Serve(claim_key.clone()));
        }
        // Claims that stay behind look at themselves: whenEmpty Fail, or a reason to say.
        let behind: Vec<Key> = unserved.iter().map(|(claim, ..)| Key::Claim(claim.clone())).collect();
        index.set_unserved(pool, unserved.into_iter().map(|(claim, place, behind, _)| (claim, place, behind)));
        drop(index);
        self.wake(served);
        self.wake(behind);
        None
    }

    /// Commits and acknowledges one claim that has its member.
    pub(super) async fn serve(&self, key: &ObjectKey) -> Outcome {
        loop {
            let step = {
                let index = self.index();
                next_step(&index, key, self.now())
            };
            match step {
                Step::Acknowledge(member, claim) => {
                    if self.acknowledge(key, &member, &claim).await? {
                        return Ok(None);
                    }
                }
                Step::Commit(member, assignment) => self.commit(key, &member, &assignment).await?,
                Step::Look(member) => self.look(key, &member).await?,
                Step::GiveUp => {
                    let pool = {
                        let mut index = self.index();
                        let pool = index.claim(key).map(|claim| key.sibling(&claim.spec.pool_ref.name));
                        let member = index.assignment(key).map(|assignment| assignment.member.clone());
                        index.unassign(key);
                        let pool = pool.or_else(|| {
                            let member = index.member(member.as_ref()?)?;
                            Some(key.sibling(&member.spec.pool_ref.name))
                        });
                        (pool, member)
                    };
                    let mut keys = vec![Key::Claim(key.clone())];
                    keys.extend(pool.0.map(|pool| [Key::Bind(pool.clone()), Key::Pool(pool)]).into_iter().flatten());
                    keys.extend(pool.1.map(Key::Member));
                    self.wake(keys);
                    return Ok(None);
                }
            }
        }
    }

    /// The commit point: claimRef and label in one patch that loses against any other write.
    async fn commit(&self, key: &ObjectKey, member: &PoolMember, assignment: &Assignment) -> Result<(), ActError> {
        let version = assignment.sent.clone().or_else(|| member.metadata.resource_version.clone());
        let patch = json!({
            "metadata": {
                "uid": assignment.member_uid,
                "resourceVersion": version,
                "labels": { labels::STATE: MemberState::Bound.as_str() },
            },
            "spec": { "claimRef": { "name": key.name, "uid": assignment.claim_uid } },
        });
        let at = &assignment.member;
        let answer =
            self.binding.merge::<PoolMember>(Kind::Member, &at.namespace, &at.name, managers::BINDER, false, patch);
        match answer.await {
            Ok(member) => {
                let keys = self.index().put_member(member);
                self.wake(keys);
                Ok(())
            }
            Err(error @ (ApiError::Conflict { .. } | ApiError::NotFound { .. })) => {
                // Not done by this call, and as its version has passed it never will be. But an earlier send of it may
                // have been: the member itself says.
                self.metrics.bind_conflict();
                tracing::debug!(claim = %key, member = %at, %error, "commit lost its race");
                self.look(key, at).await
            }
            Err(error @ ApiError::Refused { .. }) => {
                self.look(key, at).await?;
                Err(error.into())
            }
            Err(error) => {
                // It may still arrive. Only the very same commit may follow, until its outcome is known.
                if error.outcome_unknown() {
                    self.index().mark_sent(key, version);
                }
                Err(error.into())
            }
        }
    }

    /// Reads one member live, then forgets what was sent: whatever it was, the member's version now tells.
    async fn look(&self, key: &ObjectKey, at: &ObjectKey) -> Result<(), ActError> {
        let live: Option<PoolMember> = self.binding.get(Kind::Member, &at.namespace, &at.name).await?;
        let mut index = self.index();
        let mut keys = match live {
            Some(member) => index.put_member(member),
            None => match index.member(at).and_then(|member| member.uid()) {
                Some(uid) => index.drop_member(at, &uid),
                None => Vec::new(),
            },
        };
        let Some(assignment) = index.assignment(key).cloned() else { return Ok(()) };
        let committed = index.committed(&assignment.claim_uid);
        let version = index.member(at).and_then(|member| member.metadata.resource_version.clone());
        if committed.is_empty() && assignment.sent.is_some() && assignment.sent == version {
            return Err(ActError::NotYet(format!("the commit of {key} to {at} may still arrive")));
        }
        index.mark_sent(key, None);
        if committed.is_empty() {
            // Somebody else was faster: give it back and take the next one in the same pass.
            index.unassign(key);
            keys.push(Key::Member(at.clone()));
            if let Some(next) = reassign(&index, key, at, self.now()) {
                index.assign(key.clone(), next);
            }
        }
        drop(index);
        self.wake(keys);
        Ok(())
    }

    /// Writes Bound onto the claim. Answers whether the claim is settled; else the next step is found anew.
    async fn acknowledge(
        &self,
        key: &ObjectKey,
        member: &PoolMember,
        claim: &VirtualMachineClaim,
    ) -> Result<bool, ActError> {
        let now = self.now();
        let status = claim.status.clone().unwrap_or_default();
        let waited = status.queue_position.is_some();
        let mut conditions = status.conditions;
        // Without the deadline, which moves when ttlSeconds grows.
        let text = format!("member {} is lent to it until status.expiresAt", member.name_any());
        let bound = condition(ClaimCondition::Bound, true, "Bound", text, claim.metadata.generation, now);
        conditions::set(&mut conditions, bound);
        let member_status = member.status.clone().unwrap_or_default();
        let expires_at = decide::expires_at(claim, now);
        let patch = json!({
            "metadata": { "uid": claim.uid(), "resourceVersion": claim.metadata.resource_version },
            "status": {
                "phase": ClaimPhase::Bound,
                "memberRef": { "name": member.name_any(), "uid": member.uid() },
                "instanceRef": member_status.instance_ref.map(|instance| {
                    json!({ "kind": instance.kind, "name": instance.name, "uid": instance.uid })
                }),
                "addresses": member_status.addresses,
                "boundAt": MicroTime(now),
                "expiresAt": MicroTime(expires_at),
                "queuePosition": null,
                "conditions": conditions,
            },
        });
        let answer = self.binding.merge::<VirtualMachineClaim>(
            Kind::Claim,
            &key.namespace,
            &key.name,
            managers::CONTROLLER,
            true,
            patch,
        );
        match answer.await {
            Ok(written) => {
                let created = claim.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
                let waited = waited || now.duration_since(created).as_secs() > 1;
                self.metrics.bound(now.duration_since(created).as_secs_f64(), !waited);
                let mut keys = {
                    let mut index = self.index();
                    index.unassign(key);
                    index.update_facts(&member.spec.pool_ref.uid, |facts| {
                        let count = if waited { &mut facts.hits.1 } else { &mut facts.hits.0 };
                        *count = count.saturating_add(1);
                    });
                    index.put_claim(written)
                };
                keys.push(Key::Claim(key.clone()));
                self.wake(keys);
                self.tell(claim, false, "Bound", "Bind", format!("member {} until {expires_at:.0}", member.name_any()));
                Ok(true)
            }
            Err(error) => {
                // Refused, raced or lost: the claim itself says what became of it. A claim that cannot be bound any
                // more leaves its member surplus, which the member's own pass destroys.
                let live: Option<VirtualMachineClaim> =
                    self.binding.get(Kind::Claim, &key.namespace, &key.name).await?;
                let keys = {
                    let mut index = self.index();
                    match live {
                        Some(live) => index.put_claim(live),
                        None => index.drop_claim(key, &claim.uid().unwrap_or_default()),
                    }
                };
                self.wake(keys);
                // Another version is tried at once; anything else that leaves the claim waiting is tried later.
                let waits = self.index().claim(key).is_some_and(|claim| decide::is_waiting(&claim));
                if waits && !error.is_conflict() { Err(error.into()) } else { Ok(false) }
            }
        }
    }
}

enum Step {
    Acknowledge(std::sync::Arc<PoolMember>, std::sync::Arc<VirtualMachineClaim>),
    Commit(std::sync::Arc<PoolMember>, Assignment),
    Look(ObjectKey),
    GiveUp,
}

/// What is left to do for a claim, from what the index shows.
fn next_step(index: &Index, key: &ObjectKey, now: Timestamp) -> Step {
    let assignment = index.assignment(key);
    let claim = index.claim(key);
    // A commit whose outcome is unknown is settled first, even if the claim has gone: its member may be spent.
    if let Some(assignment) = assignment
        && let Some(sent) = &assignment.sent
    {
        return match index.member(&assignment.member) {
            Some(member)
                if member.uid().as_deref() == Some(&assignment.member_uid)
                    && member.metadata.resource_version.as_ref() == Some(sent) =>
            {
                Step::Commit(member, assignment.clone())
            }
            // Its version has passed, or it is gone: the same commit cannot be done any more, only have been done.
            _ => Step::Look(assignment.member.clone()),
        };
    }
    let Some(claim) = claim else { return Step::GiveUp };
    if !decide::is_waiting(&claim) {
        return Step::GiveUp;
    }
    let uid = claim.uid().unwrap_or_default();
    // Never another member while one is committed.
    let committed = index.committed(&uid);
    if !committed.is_empty() {
        return match committed.into_iter().find(|(_, member)| member.metadata.deletion_timestamp.is_none()) {
            Some((_, member)) => Step::Acknowledge(member, claim),
            None => Step::GiveUp,
        };
    }
    let Some(assignment) = assignment else { return Step::GiveUp };
    if assignment.claim_uid != uid {
        return Step::GiveUp;
    }
    let overdue = {
        let pool = index.pool(&key.sibling(&claim.spec.pool_ref.name));
        decide::bind_deadline(&claim, pool.as_deref()).is_some_and(|deadline| deadline <= now)
    };
    match index.member_snapshot(&assignment.member) {
        Some(member) if !overdue && member.uid() == assignment.member_uid && decide::lendable(&member, now).is_ok() => {
            Step::Commit(member.member, assignment.clone())
        }
        _ => Step::GiveUp,
    }
}

/// The next member for a claim whose pick was lost.
fn reassign(index: &Index, key: &ObjectKey, not: &ObjectKey, now: Timestamp) -> Option<Assignment> {
    let claim = index.claim(key).filter(|claim| decide::is_waiting(claim))?;
    let pool_key = key.sibling(&claim.spec.pool_ref.name);
    let pool = index.pool(&pool_key)?;
    let candidates = index.candidates(&pool_key);
    let revision = decide::revision(&pool);
    let others = candidates.iter().filter(|candidate| candidate.key != *not);
    let member = decide::pick(&pool, &revision, others, now)?;
    Some(Assignment {
        claim_uid: claim.uid().unwrap_or_default(),
        member_uid: member.uid(),
        member: member.key.clone(),
        sent: None,
    })
}
