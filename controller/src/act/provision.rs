//! Making a member's Secret and instance (`binding.md`, "Filling").
//!
//! Order: Secret, its digest onto the member, instance, its uid onto the member. Each step finds out by itself
//! whether it was done before, so a process that died between two goes on where it stopped. Only what this member
//! owns is taken over.

use banlieue_crds::conditions::MemberReason;
use banlieue_crds::kubevirt::{self, VirtualMachineInstance};
use banlieue_crds::member::{InstanceRef, MemberPhase};
use banlieue_crds::names::{self, managers};
use banlieue_crds::pool::AttestationMode;
use banlieue_crds::{PoolMember, VirtualMachinePool};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;

use super::{ActError, Controller};
use crate::api::{ApiError, Kind, Refusal};
use crate::decide::{self, MemberDraft, Shortage, TemplateVerdict};
use crate::runtime;
use crate::store::{MemberSnapshot, ObjectKey};

/// How much longer than its provisioning an enrolment secret counts: a member may wait for a node. It is good for
/// nothing without the endorsement key that the host reports.
const ENROLMENT_MARGIN: SignedDuration = SignedDuration::from_secs(3600);

impl Controller {
    /// Makes what is missing of a member and records it.
    pub(super) async fn provision(&self, snapshot: &MemberSnapshot, now: Timestamp) -> Result<(), ActError> {
        let Some(pool) = snapshot.pool.clone() else { return Ok(()) };
        let mut member = (*snapshot.member).clone();
        if member.spec.attestation.mode == AttestationMode::Vtpm && !decide::needs_identity(&member) {
            member = match self.ensure_seed(&pool, &member, now).await? {
                Some(member) => member,
                None => return Ok(()),
            };
        }
        let instance = match self.ensure_instance(&pool, &member, now).await? {
            Some(instance) => instance,
            None => return Ok(()),
        };
        let mut draft = MemberDraft::of(&member);
        draft.instance_ref = Some(InstanceRef {
            api_version: kubevirt::API_VERSION.to_owned(),
            kind: kubevirt::KIND.to_owned(),
            name: instance.name_any(),
            uid: instance.uid().unwrap_or_default(),
        });
        let made = format!("VirtualMachineInstance {} was made", instance.name_any());
        draft.set_provisioned(true, MemberReason::InstanceCreated, made, now);
        self.write_member_status(&member, &draft).await?;
        let keys = self.index().put_instance(&instance);
        self.wake(keys);
        Ok(())
    }

    /// The Secret is there and its digest recorded. Nothing when the member has failed by it.
    async fn ensure_seed(
        &self,
        pool: &VirtualMachinePool,
        member: &PoolMember,
        now: Timestamp,
    ) -> Result<Option<PoolMember>, ActError> {
        let namespace = member.namespace().unwrap_or_default();
        let name = names::enrolment_secret(&member.name_any());
        let secret = match self.api.get::<Secret>(Kind::Secret, &namespace, &name).await? {
            Some(secret) => secret,
            None => {
                let bundle = self.trust_bundle(pool).await?;
                let mut random = [0u8; 32];
                self.random.fill(&mut random);
                let seconds = i64::from(pool.spec.provisioning_timeout_seconds);
                let expires = decide::plus(decide::plus(now, SignedDuration::from_secs(seconds)), ENROLMENT_MARGIN);
                let object =
                    runtime::seed_secret(&self.settings.issuer, member, bundle, random, now, decide::whole(expires))?;
                match self.api.create::<Secret>(Kind::Secret, managers::CONTROLLER, object).await {
                    Ok(secret) => secret,
                    // Somebody was faster, or our own lost create: the next pass reads it.
                    Err(ApiError::AlreadyExists { .. }) => {
                        return Err(ActError::NotYet(format!("Secret {namespace}/{name} exists already")));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let mut draft = MemberDraft::of(member);
        match runtime::read_seed(member, &secret) {
            Ok((digest, expires)) => {
                draft.seed_digest = Some(digest);
                draft.enrolment_expires = Some(expires);
                self.write_member_status(member, &draft).await.map(Some)
            }
            Err(error) => {
                draft.set_provisioned(false, MemberReason::SeedMismatch, error.to_string(), now);
                draft.end(MemberPhase::Failed, MemberReason::SeedMismatch, error.to_string(), now);
                self.write_member_status(member, &draft).await?;
                Ok(None)
            }
        }
    }

    async fn trust_bundle(&self, pool: &VirtualMachinePool) -> Result<String, ActError> {
        let at = &self.settings.bundle;
        let live: Option<ConfigMap> = self.api.get(Kind::ConfigMap, &at.namespace, &at.name).await?;
        let bundle = live.and_then(|map| map.data?.remove(names::BUNDLE_KEY)).filter(|text| !text.trim().is_empty());
        let uid = pool.uid().unwrap_or_default();
        self.index().update_facts(&uid, |facts| facts.bundle = Some(bundle.is_some()));
        bundle.ok_or_else(|| ActError::NotYet(format!("the trust bundle is not in ConfigMap {at}")))
    }

    /// The instance is there and ours. Nothing when the member has failed by it.
    async fn ensure_instance(
        &self,
        pool: &VirtualMachinePool,
        member: &PoolMember,
        now: Timestamp,
    ) -> Result<Option<VirtualMachineInstance>, ActError> {
        let object = runtime::instance(pool, member);
        let created = self.api.create::<VirtualMachineInstance>(Kind::Instance, managers::CONTROLLER, object).await;
        match created {
            Ok(instance) => Ok(Some(instance)),
            Err(ApiError::AlreadyExists { what }) => {
                let key = ObjectKey::of(member);
                let live: Option<VirtualMachineInstance> =
                    self.api.get(Kind::Instance, &key.namespace, &key.name).await?;
                let Some(instance) = live else { return Err(ActError::NotYet(what)) };
                let ours = instance
                    .owner_references()
                    .iter()
                    .any(|owner| owner.kind == "PoolMember" && Some(&owner.uid) == member.metadata.uid.as_ref());
                if ours {
                    return Ok(Some(instance));
                }
                let text =
                    format!("instance {} stands under its name and is not its own", instance.uid().unwrap_or_default());
                self.fail_unmade(member, MemberReason::InstanceReplaced, text, now).await
            }
            Err(ApiError::Refused { refusal: Refusal::QuotaExceeded, message, .. }) => {
                // Held, not churned: the member stays and asks again.
                let uid = pool.uid().unwrap_or_default();
                let until = decide::plus(now, SignedDuration::from_secs(30));
                self.index().update_facts(&uid, |facts| {
                    facts.shortage = Some((until, Shortage { message: message.clone() }));
                });
                Err(ActError::NotYet(message))
            }
            // It ends with its namespace; that it could not be made says nothing about its template.
            Err(ApiError::Refused { refusal: Refusal::Terminating, message, .. }) => Err(ActError::NotYet(message)),
            Err(ApiError::Refused { refusal, message, .. }) => {
                if refusal == Refusal::Invalid {
                    let uid = pool.uid().unwrap_or_default();
                    let revision = member.spec.revision.clone();
                    let ask_again = decide::plus(now, SignedDuration::from_secs(60));
                    let verdict = TemplateVerdict::Refused { message: message.clone(), ask_again };
                    self.index().update_facts(&uid, |facts| facts.template = Some((revision, verdict)));
                }
                self.fail_unmade(member, MemberReason::InstanceRefused, message, now).await
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn fail_unmade(
        &self,
        member: &PoolMember,
        reason: MemberReason,
        message: String,
        now: Timestamp,
    ) -> Result<Option<VirtualMachineInstance>, ActError> {
        let mut draft = MemberDraft::of(member);
        draft.set_provisioned(false, reason, message.clone(), now);
        draft.end(MemberPhase::Failed, reason, message, now);
        self.write_member_status(member, &draft).await?;
        Ok(None)
    }
}
