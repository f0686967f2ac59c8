//! `POST /v1/me/status`: what a guest says of itself. It is written on the claim, forward only; the first latch brings
//! the workload its identity.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use banlieue_crds::{
    PoolMember, VirtualMachineClaim, VirtualMachineClaimStatus,
    claim::{WorkloadState, WorkloadStatus},
    conditions::{self, ClaimCondition},
};
use banlieue_protocol::names::Uid;
use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{find, peer::Guest};
use crate::{
    audit::Entry,
    broker::Broker,
    claims::{cluster::place as place_of, lend},
    entries::{Entries, EntryError},
    http::{
        answer::{Code, Failure},
        body,
    },
    user::wire::State as Reported,
};

/// Attempts at a status write that others overtake.
const ATTEMPTS: usize = 5;

/// What a guest reports. What is left out is left as it is.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// That it is marked as used, in its TPM. Never taken back.
    #[serde(default)]
    pub latched: bool,
    /// What the workload does.
    #[serde(default)]
    pub workload_state: Option<Reported>,
    /// How it ended; 128 plus the signal when one ended it.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// Digest of the image that runs, `sha256:…`.
    #[serde(default)]
    #[schemars(regex(pattern = "^sha256:[0-9a-f]{64}$"))]
    pub image_digest: Option<String>,
}

/// The workload's status after a report. Pure.
///
/// # Errors
/// When the report makes no sense.
pub fn after(before: &WorkloadStatus, report: &Report, now: Timestamp) -> Result<WorkloadStatus, Failure> {
    let bad = |detail: &str| Failure::new(Code::InvalidRequest, detail);
    let mut after = before.clone();
    let stamp = || Some(MicroTime(now));
    if report.latched && after.latched_at.is_none() {
        after.latched_at = stamp();
    }
    if let Some(digest) = &report.image_digest {
        let hex = digest.strip_prefix("sha256:").unwrap_or_default();
        if hex.len() != 64 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(bad("image_digest: must be sha256: and 64 hexadecimal digits"));
        }
        if before.image_digest.as_ref().is_some_and(|known| known != digest) {
            return Err(bad("image_digest: another one was reported before, and a workload has one image"));
        }
        after.image_digest = Some(digest.clone());
    }
    if report.exit_code.is_some() && !matches!(report.workload_state, Some(Reported::Finished | Reported::Failed)) {
        return Err(bad("exit_code: comes with workload_state finished or failed"));
    }
    if let Some(state) = report.workload_state.map(Reported::in_claim) {
        // What finished stays finished: the controller ends the claim for it.
        let over = matches!(before.state, Some(WorkloadState::Finished | WorkloadState::Failed));
        if over && before.state != Some(state) {
            return Err(bad("workload_state: this workload is over"));
        }
        if !over && state != WorkloadState::Pending && after.latched_at.is_none() {
            return Err(bad("workload_state: nothing is begun before the member is latched"));
        }
        // A report that was overtaken takes nothing back.
        if place(state) < before.state.map_or(0, place) {
            return Ok(after);
        }
        after.state = Some(state);
        if state == WorkloadState::Running && after.started_at.is_none() {
            after.started_at = stamp();
        }
        if matches!(state, WorkloadState::Finished | WorkloadState::Failed) {
            after.finished_at = after.finished_at.or_else(stamp);
            after.exit_code = if over { before.exit_code } else { report.exit_code };
        }
    }
    Ok(after)
}

/// Which state comes after which.
fn place(state: WorkloadState) -> u8 {
    match state {
        WorkloadState::Pending => 0,
        WorkloadState::Pulling => 1,
        WorkloadState::Unpacking => 2,
        WorkloadState::Running => 3,
        WorkloadState::Finished | WorkloadState::Failed => 4,
    }
}

/// `POST /v1/me/status`.
///
/// # Errors
/// As `GET /v1/me`, and `invalid_request`.
pub async fn post(State(broker): State<Arc<Broker>>, Guest(member): Guest, body: Body) -> Result<Response, Failure> {
    let outcome = take(&broker, &member, body).await;
    if let Err(failure) = &outcome
        && failure.code != Code::NoClaim
    {
        broker.audit.write(&Entry {
            outcome: "denied",
            reason: failure.reason,
            member_uid: Some(member.as_str()),
            ..Entry::about("status", None)
        });
    }
    outcome
}

async fn take(broker: &Arc<Broker>, member: &Uid, body: Body) -> Result<Response, Failure> {
    let report: Report = body::read(body, broker.body_limits()).await?;
    for _ in 0..ATTEMPTS {
        let now = Timestamp::now();
        let lent = find::by_member(broker, member, now.as_second()).await?;
        let before = lent.claim.status.clone().unwrap_or_default();
        let old = before.workload.clone().unwrap_or_default();
        let workload = after(&old, &report, now)?;
        let mut claim = lent.claim;
        if workload != old {
            let mut status = VirtualMachineClaimStatus { workload: Some(workload.clone()), ..before };
            running(&mut status, &claim, now);
            let Some(written) = broker.cluster.report(&claim, &status).await? else { continue };
            claim = written;
            broker.audit.write(&Entry {
                outcome: "allowed",
                reason: if old.latched_at.is_none() && workload.latched_at.is_some() { "latched" } else { "reported" },
                member_uid: Some(member.as_str()),
                claim_uid: claim.metadata.uid.as_deref(),
                ..Entry::about("status", None)
            });
        }
        if lend::is_latched(&claim)
            && let Some(entries) = &broker.entries
            && claim.status.as_ref().is_none_or(|status| status.spiffe_id.is_none())
            // The latch is written in any case; the sweep makes up for what fails here.
            && let Err(failure) = identify(broker, entries, &claim, &lent.member).await
        {
            tracing::warn!(detail = failure.detail, "an identity is not ready yet");
        }
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Err(Failure::new(Code::Unavailable, "others write this claim's status at the same time; try again"))
}

fn running(status: &mut VirtualMachineClaimStatus, claim: &VirtualMachineClaim, now: Timestamp) {
    let state = status.workload.as_ref().and_then(|workload| workload.state).unwrap_or(WorkloadState::Pending);
    let word = format!("{state:?}");
    let runs = state == WorkloadState::Running;
    let condition = conditions::condition(
        ClaimCondition::WorkloadRunning,
        runs,
        word,
        "as the guest reported it",
        claim.metadata.generation,
        now,
    );
    conditions::set(&mut status.conditions, condition);
}

/// Whether a claim is still there and not ending, read at this moment.
async fn lives(broker: &Broker, claim: &VirtualMachineClaim) -> Result<bool, Failure> {
    let (namespace, name) = place_of(claim);
    let now = broker.cluster.claim(namespace, name).await?;
    Ok(now.is_some_and(|now| now.metadata.uid == claim.metadata.uid && !lend::is_ending(&now)))
}

/// Makes the entry of a latched and granted claim, and says so on the claim.
///
/// # Errors
/// When the claim may have none, or something that is needed does not answer.
pub async fn identify(
    broker: &Broker,
    entries: &Entries,
    claim: &VirtualMachineClaim,
    member: &PoolMember,
) -> Result<(), Failure> {
    let now = Timestamp::now();
    if lend::standing(member, Some(claim)) != lend::Standing::Lent
        || !member.is_attested(now)
        || lend::deadline(claim).is_none_or(|deadline| now.as_second() >= deadline)
        || broker.grants.of(&broker.cluster, claim).await?.is_none()
    {
        return Err(Failure::new(Code::NoClaim, "nothing that may have an identity now"));
    }
    let id = entries.make(claim, member).await.map_err(|error: EntryError| {
        tracing::warn!(%error, "an entry is not made");
        Failure::new(Code::Unavailable, "SPIRE does not make the identity now; try again").because("spire")
    })?;
    broker.metrics.kept("entry_made");
    // The claim may have ended since it was read, and who deletes entries of ending claims may have looked before this
    // one was made: then it is deleted here.
    if !lives(broker, claim).await? {
        if let Some(uid) = claim.metadata.uid.as_deref().and_then(|uid| Uid::parse(uid).ok())
            && let Err(error) = entries.delete(&uid).await
        {
            tracing::warn!(claim = uid.as_str(), %error, "an entry is not deleted yet");
        }
        return Err(Failure::new(Code::Released, "this claim is over; power off"));
    }
    let mut status = claim.status.clone().unwrap_or_default();
    if status.spiffe_id.as_deref() == Some(id.as_str()) {
        return Ok(());
    }
    status.spiffe_id = Some(id.as_str().to_owned());
    let ready = conditions::condition(
        ClaimCondition::IdentityReady,
        true,
        "EntryMade",
        "the workload can fetch its SVID",
        claim.metadata.generation,
        now,
    );
    conditions::set(&mut status.conditions, ready);
    broker.cluster.report(claim, &status).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1000).unwrap()
    }

    fn latched() -> WorkloadStatus {
        WorkloadStatus { latched_at: Some(MicroTime(now())), ..Default::default() }
    }

    #[test]
    fn the_latch_comes_first_and_stays() {
        let run = Report { workload_state: Some(Reported::Running), ..Default::default() };
        assert!(after(&WorkloadStatus::default(), &run, now()).is_err());
        let both = Report { latched: true, ..run.clone() };
        assert_eq!(after(&WorkloadStatus::default(), &both, now()).unwrap().started_at, Some(MicroTime(now())));
        let later = Timestamp::from_second(2000).unwrap();
        let again = after(&latched(), &Report { latched: true, ..Default::default() }, later).unwrap();
        assert_eq!(again, latched(), "its time is the first one");
        assert_eq!(after(&latched(), &Report::default(), later).unwrap(), latched());
    }

    #[test]
    fn what_is_over_stays_over() {
        let end = Report { workload_state: Some(Reported::Finished), exit_code: Some(3), ..Default::default() };
        let over = after(&latched(), &end, now()).unwrap();
        assert_eq!((over.state, over.exit_code), (Some(WorkloadState::Finished), Some(3)));
        let rerun = Report { workload_state: Some(Reported::Running), ..Default::default() };
        assert!(after(&over, &rerun, now()).is_err());
        let other = Report { exit_code: Some(0), ..end };
        assert_eq!(after(&over, &other, now()).unwrap().exit_code, Some(3), "the first word counts");
    }

    #[test]
    fn nothing_is_taken_back() {
        let says = |state| Report { workload_state: Some(state), ..Default::default() };
        let mut status = latched();
        let order = [Reported::Pending, Reported::Pulling, Reported::Unpacking, Reported::Running];
        for (at, state) in order.into_iter().enumerate() {
            status = after(&status, &says(state), now()).unwrap();
            for earlier in &order[..at] {
                assert_eq!(after(&status, &says(*earlier), now()).unwrap(), status, "{earlier:?} after {state:?}");
            }
        }
        let image =
            |digit: &str| Report { image_digest: Some(format!("sha256:{}", digit.repeat(64))), ..Default::default() };
        let known = after(&status, &image("a"), now()).unwrap();
        assert_eq!(after(&known, &image("a"), now()).unwrap(), known);
        assert!(after(&known, &image("b"), now()).is_err(), "a workload has one image");
        let over = after(&known, &says(Reported::Finished), now()).unwrap();
        let late = Report { exit_code: Some(7), ..says(Reported::Finished) };
        assert_eq!(after(&over, &late, now()).unwrap(), over, "its end was told without a code");
    }

    #[test]
    fn nonsense_is_refused() {
        for report in [
            Report { exit_code: Some(0), ..Default::default() },
            Report { image_digest: Some("latest".into()), ..Default::default() },
            Report { image_digest: Some(format!("sha256:{}", "G".repeat(64))), ..Default::default() },
        ] {
            assert!(after(&latched(), &report, now()).is_err(), "{report:?}");
        }
    }
}
