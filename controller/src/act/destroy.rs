//! The end of a member (`binding.md`, "Ending"): instance, launcher pod and Secret verified gone, identity revoked,
//! then its finalizer.

use banlieue_crds::PoolMember;
use banlieue_crds::kubevirt::VirtualMachineInstance;
use banlieue_crds::names::{finalizers, labels, managers};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use super::{ActError, Controller, Outcome};
use crate::api::{Kind, created_by_selector};
use crate::decide::{self, Identity, MemberDraft};
use crate::schedule::Key;
use crate::store::MemberSnapshot;

impl Controller {
    /// One pass over a member whose deletion was asked for.
    pub(super) async fn destroy(&self, snapshot: &MemberSnapshot, now: Timestamp) -> Outcome {
        let Some(plan) = decide::destroy(snapshot, now, &self.settings.tuning) else { return Ok(None) };
        let uid = snapshot.uid();
        if let Identity::Revoked(at) = plan.identity {
            self.index().note_step(&uid, |steps| steps.identity_revoked = Some(at));
        }
        // Side by side: the instance does not wait for the Secret, and neither waits for SPIRE.
        if let Some(instance) = &plan.delete_instance {
            self.delete_instance(snapshot, instance).await?;
        }
        let secret_gone = match snapshot.steps.secret_gone {
            Some(_) => true,
            None => self.delete_secret(&snapshot.member).await?,
        };
        if secret_gone {
            self.index().note_step(&uid, |steps| _ = steps.secret_gone.get_or_insert(now));
        }
        if let Some(why) = &plan.stalled {
            self.report_stall(snapshot, why, now).await?;
        }
        if !plan.verify || plan.delete_instance.is_some() || !secret_gone {
            return Ok(Some(plan.wake));
        }
        if !self.verified_gone(snapshot, now).await? {
            // The watch that shows it going wakes us; this is for the case that it has shown it already.
            return Ok(Some(decide::plus(now, SignedDuration::from_secs(2)).min(plan.wake)));
        }
        if plan.identity == Identity::Standing {
            return Ok(Some(plan.wake));
        }
        self.remove_finalizer(snapshot, now).await?;
        Ok(None)
    }

    async fn delete_instance(&self, snapshot: &MemberSnapshot, uid: &str) -> Result<(), ActError> {
        let at = &snapshot.key;
        let kept: Option<VirtualMachineInstance> =
            match self.api.delete(Kind::Instance, &at.namespace, &at.name, uid, None).await {
                Ok(kept) => kept,
                // Another life of the name: ours is gone.
                Err(error) if error.is_conflict() => self.api.get(Kind::Instance, &at.namespace, &at.name).await?,
                Err(error) => return Err(error.into()),
            };
        let keys = {
            let mut index = self.index();
            match kept {
                Some(instance) => index.put_instance(&instance),
                None => index.drop_instance(at, uid),
            }
        };
        self.wake(keys);
        self.wake(vec![Key::Member(at.clone())]);
        Ok(())
    }

    /// Asks the API server itself: neither the instance nor its launcher pod is there. The index may be behind.
    async fn verified_gone(&self, snapshot: &MemberSnapshot, now: Timestamp) -> Result<bool, ActError> {
        let (at, uid) = (&snapshot.key, snapshot.uid());
        let live: Option<VirtualMachineInstance> = self.api.get(Kind::Instance, &at.namespace, &at.name).await?;
        if let Some(instance) = live {
            let owned = instance.owner_references().iter().any(|owner| owner.uid == uid);
            let recorded = snapshot.recorded_instance() == instance.metadata.uid.as_deref();
            if owned || recorded {
                let keys = self.index().put_instance(&instance);
                self.wake(keys);
                return Ok(false);
            }
        }
        self.index().note_step(&uid, |steps| _ = steps.instance_gone.get_or_insert(now));
        // By KubeVirt's label for the recorded instance, and by ours for whatever was made for this member.
        let selectors = snapshot.recorded_instance().map(created_by_selector);
        for labels in selectors.into_iter().chain([format!("{}={uid}", labels::MEMBER_UID)]) {
            let pods: Vec<Pod> = self.api.list(Kind::Pod, &at.namespace, labels).await?;
            if !pods.is_empty() {
                return Ok(false);
            }
        }
        self.index().note_step(&uid, |steps| _ = steps.pod_gone.get_or_insert(now));
        Ok(true)
    }

    async fn remove_finalizer(&self, snapshot: &MemberSnapshot, now: Timestamp) -> Result<(), ActError> {
        let member = &snapshot.member;
        let at = &snapshot.key;
        let rest: Vec<&String> = member.finalizers().iter().filter(|name| *name != finalizers::DESTROY).collect();
        let patch = json!({
            "metadata": {
                "uid": member.uid(), "resourceVersion": member.metadata.resource_version, "finalizers": rest,
            },
        });
        let answer = self
            .api
            .merge::<PoolMember>(Kind::Member, &at.namespace, &at.name, managers::CONTROLLER, false, patch)
            .await;
        let uid = snapshot.uid();
        match answer {
            Ok(written) => {
                if let Some(asked) = &member.metadata.deletion_timestamp {
                    self.metrics.destroyed(now.duration_since(asked.0).as_secs_f64());
                }
                let keys = {
                    let mut index = self.index();
                    if member.spec.claim_ref.is_none() {
                        index.forget_steps(&uid);
                    }
                    if written.finalizers().is_empty() {
                        index.drop_member(at, &uid)
                    } else {
                        index.put_member(written)
                    }
                };
                self.wake(keys);
                Ok(())
            }
            Err(error) => {
                self.refresh_member(at, &uid, &error).await?;
                if error.is_not_found() { Ok(()) } else { Err(error.into()) }
            }
        }
    }

    async fn report_stall(&self, snapshot: &MemberSnapshot, why: &str, now: Timestamp) -> Result<(), ActError> {
        let mut draft = MemberDraft::of(&snapshot.member);
        draft.set_stalled(format!("it ends, but {why}"), now);
        if !draft.differs_from(&snapshot.member) {
            return Ok(());
        }
        self.write_member_status(&snapshot.member, &draft).await?;
        Ok(())
    }
}
