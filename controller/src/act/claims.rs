//! A claim's steps as writes: at most one in a pass, each conditional on the version that was decided on.

use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::conditions::{self, ClaimCondition, ClaimReason, condition};
use banlieue_crds::names::{finalizers, managers};
use banlieue_crds::{PoolMember, VirtualMachineClaim};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{ActError, Controller, Event, Outcome};
use crate::api::Kind;
use crate::decide::{self, ClaimIntent};
use crate::schedule::Key;
use crate::store::{ClaimSnapshot, DestroySteps, ObjectKey};

impl Controller {
    /// One pass over a claim.
    pub(super) async fn claim(&self, key: &ObjectKey) -> Outcome {
        let now = self.now();
        let Some(snapshot) = self.index().claim_snapshot(key) else { return Ok(None) };
        let plan = decide::claim(&snapshot, now, &self.settings.tuning);
        if let Some(intent) = plan.intent {
            self.claim_step(&snapshot, intent, now).await?;
        }
        Ok(plan.wake)
    }

    async fn claim_step(&self, snapshot: &ClaimSnapshot, intent: ClaimIntent, now: Timestamp) -> Result<(), ActError> {
        let claim = &snapshot.claim;
        match intent {
            ClaimIntent::Acknowledge => {
                self.wake(vec![Key::Serve(snapshot.key.clone())]);
                Ok(())
            }
            ClaimIntent::Wait { reason, message, position } => {
                let standing = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
                let said = conditions::find(standing, ClaimCondition::Bound)
                    .is_some_and(|condition| condition.reason == reason.as_str());
                let conditions = with(claim, [(ClaimCondition::Bound, false, reason.as_str(), message.clone())], now);
                let status = json!({
                    "phase": ClaimPhase::Pending, "queuePosition": position, "conditions": conditions,
                });
                self.write_claim(claim, status).await?;
                // A place that moved is no news.
                if !said {
                    self.tell(claim, reason == ClaimReason::PoolNotFound, reason.as_str(), "Wait", message);
                }
                Ok(())
            }
            ClaimIntent::Fail { reason, message } => {
                let nothing = "no member was bound".to_owned();
                let said = [
                    (ClaimCondition::Bound, false, reason.as_str(), message.clone()),
                    (ClaimCondition::Destroyed, true, reason.as_str(), nothing),
                ];
                let conditions = with(claim, said, now);
                let status = json!({
                    "phase": ClaimPhase::Failed, "terminationReason": reason, "queuePosition": null,
                    "conditions": conditions,
                });
                self.write_claim(claim, status).await?;
                self.metrics.claim_ended(reason.as_str());
                // Who deletes a claim knows that it ended.
                self.tell(claim, reason != ClaimReason::Released, reason.as_str(), "Fail", message);
                Ok(())
            }
            ClaimIntent::AddFinalizer => {
                let mut list = claim.finalizers().to_vec();
                list.push(finalizers::CLAIM_PROTECTION.to_owned());
                self.write_finalizers(claim, list).await
            }
            ClaimIntent::Extend { expires_at } => {
                self.write_claim(claim, json!({ "expiresAt": MicroTime(expires_at) })).await
            }
            ClaimIntent::Release { reason, message, verify } => {
                if verify && self.member_lives(snapshot).await? {
                    return Ok(());
                }
                let conditions = with(claim, [(ClaimCondition::Bound, false, reason.as_str(), message.clone())], now);
                let status = json!({
                    "phase": ClaimPhase::Releasing, "terminationReason": reason, "conditions": conditions,
                });
                self.write_claim(claim, status).await?;
                if reason == ClaimReason::Expired
                    && let Some(deadline) = claim.status.as_ref().and_then(|status| status.expires_at.as_ref())
                {
                    self.metrics.ttl_overrun(now.duration_since(deadline.0).as_secs_f64());
                }
                let warning = matches!(reason, ClaimReason::MemberLost | ClaimReason::AttestationLost);
                self.tell(claim, warning, reason.as_str(), "Release", message);
                Ok(())
            }
            ClaimIntent::DeleteMember { member, uid } => self.delete_member(&member, &uid, None).await,
            ClaimIntent::Finish { reason, forced } => self.finish(snapshot, reason, forced, now).await,
            ClaimIntent::RemoveFinalizer => {
                let list =
                    claim.finalizers().iter().filter(|name| *name != finalizers::CLAIM_PROTECTION).cloned().collect();
                self.write_finalizers(claim, list).await
            }
            ClaimIntent::Delete => {
                let uid = claim.uid().unwrap_or_default();
                let (namespace, name) = (&snapshot.key.namespace, &snapshot.key.name);
                let kept: Option<VirtualMachineClaim> =
                    self.api.delete(Kind::Claim, namespace, name, &uid, None).await?;
                let keys = match kept {
                    Some(claim) => self.index().put_claim(claim),
                    None => self.index().drop_claim(&snapshot.key, &uid),
                };
                self.wake(keys);
                Ok(())
            }
        }
    }

    /// The index says that the member or its instance is gone: ask. True when it is there after all, then the index
    /// has it now and the claim is looked at again.
    async fn member_lives(&self, snapshot: &ClaimSnapshot) -> Result<bool, ActError> {
        let Some(member_ref) = snapshot.claim.status.as_ref().and_then(|status| status.member_ref.clone()) else {
            return Ok(false);
        };
        let at = snapshot.key.sibling(&member_ref.name);
        let live: Option<PoolMember> = self.api.get(Kind::Member, &at.namespace, &at.name).await?;
        let Some(member) = live.filter(|member| member.metadata.uid.as_deref() == Some(&member_ref.uid)) else {
            return Ok(false);
        };
        let known = snapshot.acknowledged.is_some();
        let recorded = member.status.as_ref().and_then(|status| status.instance_ref.clone());
        let keys = self.index().put_member(member);
        self.wake(keys);
        if !known {
            self.wake(vec![Key::Claim(snapshot.key.clone())]);
            return Ok(true);
        }
        let Some(recorded) = recorded else { return Ok(false) };
        let lives = self.instance_lives(&at, &recorded.uid).await?;
        if lives {
            self.wake(vec![Key::Claim(snapshot.key.clone())]);
        }
        Ok(lives)
    }

    /// The terminal phase, with the time of each step of its member's end.
    async fn finish(
        &self,
        snapshot: &ClaimSnapshot,
        reason: ClaimReason,
        forced: bool,
        now: Timestamp,
    ) -> Result<(), ActError> {
        let claim = &snapshot.claim;
        let member_ref = claim.status.as_ref().and_then(|status| status.member_ref.clone());
        if let Some(member_ref) = member_ref.as_ref().filter(|_| !forced) {
            let at = snapshot.key.sibling(&member_ref.name);
            let live: Option<PoolMember> = self.api.get(Kind::Member, &at.namespace, &at.name).await?;
            if let Some(member) = live
                && member.metadata.uid.as_deref() == Some(&member_ref.uid)
            {
                let keys = self.index().put_member(member);
                self.wake(keys);
                return Ok(());
            }
        }
        let phase = ClaimPhase::ended_by(reason);
        let conditions = if forced {
            let text = "an operator asked not to wait: the member was not verified gone".to_owned();
            with(claim, [(ClaimCondition::Destroyed, false, "ForceReleased", text)], now)
        } else {
            let text = steps_text(claim, &snapshot.steps, now);
            with(claim, [(ClaimCondition::Destroyed, true, reason.as_str(), text)], now)
        };
        let status = json!({ "phase": phase, "terminationReason": reason, "conditions": conditions });
        self.write_claim(claim, status).await?;
        self.metrics.claim_ended(reason.as_str());
        if let Some(member_ref) = member_ref {
            self.index().forget_steps(&member_ref.uid);
        }
        if forced {
            let text = "force-release: not waiting for the member to be verified gone".to_owned();
            self.tell(claim, true, "ForceReleased", "Finish", text);
        } else {
            self.tell(claim, false, "Destroyed", "Finish", "the member is verified gone".to_owned());
        }
        Ok(())
    }

    async fn write_claim(&self, claim: &VirtualMachineClaim, status: Value) -> Result<(), ActError> {
        let patch = json!({
            "metadata": { "uid": claim.uid(), "resourceVersion": claim.metadata.resource_version },
            "status": status,
        });
        self.patch_claim(claim, true, patch).await
    }

    async fn write_finalizers(&self, claim: &VirtualMachineClaim, list: Vec<String>) -> Result<(), ActError> {
        let patch = json!({
            "metadata": {
                "uid": claim.uid(), "resourceVersion": claim.metadata.resource_version, "finalizers": list,
            },
        });
        self.patch_claim(claim, false, patch).await
    }

    async fn patch_claim(&self, claim: &VirtualMachineClaim, status: bool, patch: Value) -> Result<(), ActError> {
        let key = ObjectKey::of(claim);
        let answer = self
            .api
            .merge::<VirtualMachineClaim>(Kind::Claim, &key.namespace, &key.name, managers::CONTROLLER, status, patch)
            .await;
        match answer {
            Ok(written) => {
                let over = written.metadata.deletion_timestamp.is_some() && written.finalizers().is_empty();
                let keys = {
                    let mut index = self.index();
                    // The last finalizer of a deleted object: the write was its end.
                    if over {
                        index.drop_claim(&key, &written.uid().unwrap_or_default())
                    } else {
                        index.put_claim(written)
                    }
                };
                self.wake(keys);
                Ok(())
            }
            Err(error) if error.is_not_found() => {
                let keys = self.index().drop_claim(&key, &claim.uid().unwrap_or_default());
                self.wake(keys);
                Ok(())
            }
            Err(error) => {
                // A version that has passed is replaced by the live one, so that the next try is not as stale.
                if error.is_conflict()
                    && let Some(live) =
                        self.api.get::<VirtualMachineClaim>(Kind::Claim, &key.namespace, &key.name).await?
                {
                    let keys = self.index().put_claim(live);
                    self.wake(keys);
                }
                Err(error.into())
            }
        }
    }

    pub(super) fn tell(
        &self,
        claim: &VirtualMachineClaim,
        warning: bool,
        reason: &str,
        action: &'static str,
        message: String,
    ) {
        self.events.send(Event {
            kind: Kind::Claim,
            object: ObjectKey::of(claim),
            uid: claim.uid().unwrap_or_default(),
            group: claim.uid().unwrap_or_default(),
            warning,
            reason: reason.to_owned(),
            action,
            message,
        });
    }
}

/// The claim's conditions with these said anew.
fn with<const N: usize>(
    claim: &VirtualMachineClaim,
    said: [(ClaimCondition, bool, &str, String); N],
    now: Timestamp,
) -> Vec<Condition> {
    let mut list = claim.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    for (type_, holds, reason, message) in said {
        conditions::set(&mut list, condition(type_, holds, reason, message, claim.metadata.generation, now));
    }
    list
}

/// When each step of the end was done. What this process did not see itself (it started in between) is left out.
fn steps_text(claim: &VirtualMachineClaim, steps: &DestroySteps, now: Timestamp) -> String {
    let conditions = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let releasing = conditions::find(conditions, ClaimCondition::Bound).map(|bound| bound.last_transition_time.0);
    let all = [
        ("releasing", releasing),
        ("instance gone", steps.instance_gone),
        ("launcher pod gone", steps.pod_gone),
        ("Secret gone", steps.secret_gone),
        ("identity revoked", steps.identity_revoked),
        ("member gone", Some(now)),
    ];
    let known: Vec<String> = all.into_iter().filter_map(|(step, at)| at.map(|at| format!("{step} {at:.3}"))).collect();
    known.join("; ")
}
