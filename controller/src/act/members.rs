//! A member's steps as writes.

use banlieue_crds::PoolMember;
use banlieue_crds::conditions::MemberReason;
use banlieue_crds::member::MemberPhase;
use banlieue_crds::names::{self, MemberState, finalizers, labels, managers};
use banlieue_crds::{VirtualMachineClaim, kubevirt::VirtualMachineInstance};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt;
use serde_json::json;

use super::{ActError, Controller, Event, Outcome};
use crate::api::Kind;
use crate::decide::{self, MemberDraft, MemberIntent};
use crate::schedule::Key;
use crate::store::{MemberSnapshot, ObjectKey};

impl Controller {
    /// One pass over a member.
    pub(super) async fn member(&self, key: &ObjectKey) -> Outcome {
        let now = self.now();
        let Some(snapshot) = self.index().member_snapshot(key) else { return Ok(None) };
        if snapshot.is_deleting() {
            return self.destroy(&snapshot, now).await;
        }
        let plan = decide::member(&snapshot, now);
        if plan.intents.is_empty() {
            return Ok(plan.wake);
        }
        // While its own worker writes it, the binder leaves it alone; while the binder has it, so does its worker. The
        // binder's result wakes it again.
        let bound = snapshot.is_bound();
        if !bound && !self.index().hold(key) {
            return Ok(plan.wake);
        }
        let mut done = Ok(());
        for intent in plan.intents {
            done = self.member_step(&snapshot, intent, now).await;
            if done.is_err() {
                break;
            }
        }
        if !bound {
            self.index().unhold(key);
            let pool = key.sibling(&snapshot.member.spec.pool_ref.name);
            self.wake(vec![Key::Bind(pool)]);
        }
        done.map(|()| plan.wake)
    }

    async fn member_step(
        &self,
        at_start: &MemberSnapshot,
        intent: MemberIntent,
        now: Timestamp,
    ) -> Result<(), ActError> {
        let key = &at_start.key;
        match intent {
            MemberIntent::Provision => self.provision(at_start, now).await,
            MemberIntent::Status(draft) => {
                self.write_member_status(&at_start.member, &draft).await?;
                Ok(())
            }
            MemberIntent::Label(state) => {
                // Of the newest version: the status write before it in this pass made a new one. It loses against the
                // binder's label, which came with a newer one still.
                let Some(member) = self.index().member(key) else { return Ok(()) };
                self.write_label(&member, state).await
            }
            MemberIntent::DeleteSecret => self.delete_secret(&at_start.member).await.map(|_| ()),
            MemberIntent::VerifyInstance => self.verify_instance(at_start, now).await,
            MemberIntent::VerifyClaim => self.verify_claim(at_start).await,
            MemberIntent::Delete { why } => {
                if at_start.is_bound() {
                    self.metrics.orphan();
                    self.metrics.bind_surplus();
                }
                let version =
                    (!at_start.is_bound()).then(|| at_start.member.metadata.resource_version.clone()).flatten();
                self.tell_member(&at_start.member, false, "Deleting", why);
                self.delete_member(key, &at_start.uid(), version).await
            }
        }
    }

    /// Writes what we own of a member's status, conditional on the version that the draft was made from.
    pub(super) async fn write_member_status(
        &self,
        member: &PoolMember,
        draft: &MemberDraft,
    ) -> Result<PoolMember, ActError> {
        let key = ObjectKey::of(member);
        let answer = self.api.apply::<PoolMember>(Kind::Member, managers::STATUS, true, draft.body(member)).await;
        match answer {
            Ok(written) => {
                let keys = self.index().put_member(written.clone());
                self.wake(keys);
                self.report_stages(member, &written);
                let of = |member: &PoolMember| member.status.clone().unwrap_or_default().conditions;
                for news in decide::member_news(&of(member), &of(&written)) {
                    if news.warning {
                        let (reason, message) = (&news.condition.reason, &news.condition.message);
                        tracing::warn!(member = %key, reason, message, "member may not be lent");
                    }
                    self.tell_member(&written, news.warning, &news.condition.reason, news.text());
                }
                Ok(written)
            }
            Err(error) => {
                self.refresh_member(&key, &member.uid().unwrap_or_default(), &error).await?;
                Err(error.into())
            }
        }
    }

    async fn write_label(&self, member: &PoolMember, state: MemberState) -> Result<(), ActError> {
        let key = ObjectKey::of(member);
        if member.spec.claim_ref.is_some() {
            return Ok(());
        }
        let body = json!({
            "metadata": {
                "name": key.name, "namespace": key.namespace,
                "uid": member.uid(), "resourceVersion": member.metadata.resource_version,
                "labels": { labels::STATE: state.as_str() },
            },
        });
        match self.api.apply::<PoolMember>(Kind::Member, managers::CONTROLLER, false, body).await {
            Ok(written) => {
                let keys = self.index().put_member(written);
                self.wake(keys);
                Ok(())
            }
            Err(error) => {
                self.refresh_member(&key, &member.uid().unwrap_or_default(), &error).await?;
                Err(error.into())
            }
        }
    }

    /// After a refused write: what the member is now.
    pub(super) async fn refresh_member(
        &self,
        key: &ObjectKey,
        uid: &str,
        error: &crate::api::ApiError,
    ) -> Result<(), ActError> {
        if !error.is_conflict() && !error.is_not_found() {
            return Ok(());
        }
        let live: Option<PoolMember> = self.api.get(Kind::Member, &key.namespace, &key.name).await?;
        let keys = {
            let mut index = self.index();
            match live {
                Some(member) if member.metadata.uid.as_deref() == Some(uid) => index.put_member(member),
                _ => index.drop_member(key, uid),
            }
        };
        self.wake(keys);
        Ok(())
    }

    /// Deletes one life of a member; with a version only if nobody has written it since.
    pub(super) async fn delete_member(
        &self,
        key: &ObjectKey,
        uid: &str,
        version: Option<String>,
    ) -> Result<(), ActError> {
        match self.api.delete::<PoolMember>(Kind::Member, &key.namespace, &key.name, uid, version).await {
            Ok(kept) => {
                let keys = {
                    let mut index = self.index();
                    match kept {
                        Some(member) => index.put_member(member),
                        None => index.drop_member(key, uid),
                    }
                };
                self.wake(keys);
                Ok(())
            }
            Err(error) => {
                self.refresh_member(key, uid, &error).await?;
                Err(error.into())
            }
        }
    }

    /// Deletes the enrolment Secret if it is this member's. Answers whether it is verified gone.
    ///
    /// In a namespace that is being deleted our rights on Secrets go with its role bindings, in no order that anybody
    /// promises. Then it is settled too: the namespace controller deletes every Secret, and waiting for it would keep the
    /// member, and by that the namespace, for ever.
    pub(super) async fn delete_secret(&self, member: &PoolMember) -> Result<bool, ActError> {
        match self.try_delete_secret(member).await {
            Err(ActError::Api(error)) if error.is_forbidden() => {
                if self.namespace_ends(&member.namespace().unwrap_or_default()).await? {
                    Ok(true)
                } else {
                    Err(error.into())
                }
            }
            answer => answer,
        }
    }

    /// Whether a namespace is being deleted, or is gone.
    async fn namespace_ends(&self, name: &str) -> Result<bool, ActError> {
        let live: Option<Namespace> = self.api.get(Kind::Namespace, "", name).await?;
        Ok(live.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()))
    }

    async fn try_delete_secret(&self, member: &PoolMember) -> Result<bool, ActError> {
        let namespace = member.namespace().unwrap_or_default();
        let name = names::enrolment_secret(&member.name_any());
        let live: Option<Secret> = self.api.get(Kind::Secret, &namespace, &name).await?;
        let Some(secret) = live else { return Ok(true) };
        if !secret.owner_references().iter().any(|owner| Some(&owner.uid) == member.metadata.uid.as_ref()) {
            // Not ours to delete, and never given to this member.
            return Ok(true);
        }
        let uid = secret.uid().unwrap_or_default();
        let kept: Option<Secret> = self.api.delete(Kind::Secret, &namespace, &name, &uid, None).await?;
        Ok(kept.is_none())
    }

    /// Whether the recorded instance of a member is there, by the API server. The index learns the answer.
    pub(super) async fn instance_lives(&self, at: &ObjectKey, uid: &str) -> Result<bool, ActError> {
        let live: Option<VirtualMachineInstance> = self.api.get(Kind::Instance, &at.namespace, &at.name).await?;
        let (lives, keys) = {
            let mut index = self.index();
            match live {
                Some(instance) => {
                    let lives = instance.metadata.uid.as_deref() == Some(uid);
                    (lives, index.put_instance(&instance))
                }
                None => (false, index.drop_instance(at, uid)),
            }
        };
        self.wake(keys);
        Ok(lives)
    }

    async fn verify_instance(&self, snapshot: &MemberSnapshot, now: Timestamp) -> Result<(), ActError> {
        let Some(uid) = snapshot.recorded_instance().map(str::to_owned) else { return Ok(()) };
        if self.instance_lives(&snapshot.key, &uid).await? {
            return Ok(());
        }
        let mut draft = MemberDraft::of(&snapshot.member);
        draft.end(MemberPhase::Failed, MemberReason::InstanceGone, format!("its instance {uid} is gone"), now);
        self.write_member_status(&snapshot.member, &draft).await?;
        Ok(())
    }

    async fn verify_claim(&self, snapshot: &MemberSnapshot) -> Result<(), ActError> {
        let Some(claim_ref) = snapshot.member.spec.claim_ref.clone() else { return Ok(()) };
        let at = snapshot.key.sibling(&claim_ref.name);
        let live: Option<VirtualMachineClaim> = self.api.get(Kind::Claim, &at.namespace, &at.name).await?;
        if let Some(claim) = live
            && claim.metadata.uid.as_deref() == Some(&claim_ref.uid)
        {
            let keys = self.index().put_claim(claim);
            self.wake(keys);
            return Ok(());
        }
        self.metrics.orphan();
        let text = format!(
            "claim {} went without waiting for this member, which is destroyed now: its creator should have set the \
             finalizer {}",
            claim_ref.name,
            finalizers::CLAIM_PROTECTION
        );
        self.tell_member(&snapshot.member, true, "ClaimGone", text);
        self.delete_member(&snapshot.key, &snapshot.uid(), None).await
    }

    /// Metrics when a member becomes Ready for the first time in its phase.
    fn report_stages(&self, before: &PoolMember, after: &PoolMember) {
        let phase = |member: &PoolMember| member.status.as_ref().and_then(|status| status.phase);
        if phase(before) == phase(after) || phase(after) != Some(MemberPhase::Ready) {
            return;
        }
        let times = after.status.as_ref().and_then(|status| status.phase_times.clone()).unwrap_or_default();
        let Some(created) = times.created else { return };
        for (stage, time) in [("running", times.running), ("attested", times.attested), ("ready", times.ready)] {
            if let Some(time) = time {
                self.metrics.stage(stage, time.0.duration_since(created.0).as_secs_f64());
            }
        }
    }

    pub(super) fn tell_member(&self, member: &PoolMember, warning: bool, reason: &str, message: String) {
        let uid = member.uid().unwrap_or_default();
        self.events.send(Event {
            kind: Kind::Member,
            object: ObjectKey::of(member),
            group: if warning { member.spec.pool_ref.uid.clone() } else { uid.clone() },
            uid,
            warning,
            reason: reason.to_owned(),
            action: "Reconcile",
            message,
        });
    }
}
