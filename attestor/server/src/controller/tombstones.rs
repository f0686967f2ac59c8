//! Carrying out what endorsement reports need: tombstones of keys whose instances ended, and their end.

use std::sync::Arc;

use banlieue_crds::{EndorsementReport, PoolMember, names::managers, received::Received};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;

use super::{
    member::MemberError,
    reports::{self, Fate},
    run::{Options, Parts},
    sweep::Missing,
};
use crate::{cluster::CALL_LIMIT, unread::read};

impl Parts {
    /// One look at every report.
    pub(super) async fn sweep_reports(&self, options: &Options, missing: &mut Missing) {
        let Some(store) = self.reports.filled() else { return };
        if self.context.members.wait_until_ready().await.is_err() {
            return;
        }
        let (all, now) = (store.state(), Timestamp::now());
        let members = self.context.members.state();
        let all: Vec<_> = all.iter().filter_map(|report| read(report)).collect();
        let living = |member: &PoolMember| member.metadata.deletion_timestamp.is_none();
        let without = all.iter().filter(|report| {
            !reports::member_of(report, &members).is_some_and(living) && !reports::may_count_later(report, &members)
        });
        let long = missing.note(without.filter_map(|report| report.uid()).collect(), now);
        let keep = options.agent_ttl.saturating_add(options.svid_ttl);
        let keep = SignedDuration::try_from(keep).unwrap_or(SignedDuration::from_hours(1));
        for report in all {
            let missing_long = report.uid().is_some_and(|uid| long.contains(&uid));
            let outcome = match reports::fate(report, reports::member_of(report, &members), missing_long, keep, now) {
                Fate::Keep => continue,
                Fate::End(key) => ("end-report", self.end_report(report, &key, now).await),
                Fate::Delete if missing_long => ("delete-report", self.delete_unless_wanted(report).await),
                Fate::Delete => ("delete-report", self.delete_report(report).await),
            };
            self.context.metrics.count(outcome.0, if outcome.1.is_ok() { "ok" } else { "kubernetes" });
            if let Err(why) = outcome.1 {
                tracing::warn!(%why, report = %report.name_any(), "a report is not as it should be");
            }
        }
    }

    /// Makes the reports on an ending member tombstones.
    pub(super) async fn end_reports_of(&self, member: &PoolMember) -> Result<(), MemberError> {
        if member.metadata.deletion_timestamp.is_none() {
            return Ok(());
        }
        // A key that is pinned was reported before, and no report may be overlooked for a list that is not there yet.
        let Some(reports) = self.reports.filled() else {
            let why = "the first list is not complete".to_owned();
            return Err(MemberError::Kubernetes { act: "list the endorsement reports".to_owned(), why });
        };
        for report in reports.state().iter().filter_map(|report| read(report)) {
            let about = reports::counts_about(report, member).then_some(member);
            if let Fate::End(key) = reports::fate(report, about, false, SignedDuration::MAX, Timestamp::now()) {
                let outcome = self.end_report(report, &key, Timestamp::now()).await;
                self.context.metrics.count("end-report", if outcome.is_ok() { "ok" } else { "kubernetes" });
                outcome
                    .map_err(|why| MemberError::Kubernetes { act: format!("end report {}", report.name_any()), why })?;
            }
        }
        Ok(())
    }

    async fn end_report(&self, report: &EndorsementReport, key: &str, now: Timestamp) -> Result<(), String> {
        self.context.may_write().map_err(|error| error.to_string())?;
        let body = json!({
            "apiVersion": EndorsementReport::api_version(&()),
            "kind": EndorsementReport::kind(&()),
            // As it was seen: one that ended meanwhile does not end once more.
            "metadata": {
                "name": report.name_any(), "uid": report.metadata.uid,
                "resourceVersion": report.metadata.resource_version,
            },
            "status": { "endedAt": format!("{now:.6}"), "ekDigest": key },
        });
        let api = self.report_api(report);
        let params = PatchParams::apply(managers::ATTESTOR_CONTROLLER).force();
        settle(
            tokio::time::timeout(CALL_LIMIT, api.patch_status(&report.name_any(), &params, &Patch::Apply(body))).await,
        )
    }

    /// By the watches it is about nothing. They may lag, or what they brought could not be read, so its member is asked for.
    async fn delete_unless_wanted(&self, report: &EndorsementReport) -> Result<(), String> {
        let api: Api<Received<PoolMember>> =
            Api::namespaced(self.context.client.clone(), &report.namespace().unwrap_or_default());
        let found = tokio::time::timeout(CALL_LIMIT, api.get_opt(&report.spec.instance_ref.name)).await;
        let found = found.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())?;
        let members: Vec<_> = found.map(Arc::new).into_iter().collect();
        let fate =
            reports::fate(report, reports::member_of(report, &members), true, SignedDuration::MAX, Timestamp::now());
        if fate != Fate::Delete || reports::may_count_later(report, &members) {
            return Ok(());
        }
        self.delete_report(report).await
    }

    async fn delete_report(&self, report: &EndorsementReport) -> Result<(), String> {
        self.context.may_write().map_err(|error| error.to_string())?;
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: report.metadata.uid.clone(),
                resource_version: report.metadata.resource_version.clone(),
            }),
            ..DeleteParams::default()
        };
        let api = self.report_api(report);
        settle(tokio::time::timeout(CALL_LIMIT, api.delete(&report.name_any(), &params)).await)
    }

    fn report_api(&self, report: &EndorsementReport) -> Api<EndorsementReport> {
        Api::namespaced(self.context.client.clone(), &report.namespace().unwrap_or_default())
    }
}

fn settle<T>(outcome: Result<kube::Result<T>, tokio::time::error::Elapsed>) -> Result<(), String> {
    match outcome {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}
