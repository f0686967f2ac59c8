//! `POST /v1/token`: one token for one audience, from live reads, or a refusal.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{body::Body, extract::State, response::Response};
use banlieue_crds::VirtualMachineClaim;
use banlieue_protocol::names::Uid;
use http::StatusCode;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    find,
    peer::{Workload, too_often},
};
use crate::{
    audit::Entry,
    broker::Broker,
    claims::{cluster::place, lend, record::subject_key},
    config::{Audience, Backend},
    http::{
        answer::{Code, Failure, json},
        body,
    },
    tokens::{
        backends,
        sts::{Wanted, claims, expiry},
    },
    user::create::rand_bytes,
};

/// Longest time for the live reads of one request.
const READS: Duration = Duration::from_secs(5);

/// What a workload asks for.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// One audience of its claim.
    pub audience: String,
}

/// The token.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TokenResponse {
    /// The token itself.
    pub access_token: String,
    /// `Bearer`.
    pub token_type: &'static str,
    /// RFC 3339.
    pub expires_at: String,
    /// For whom it is.
    pub audience: String,
    /// The subject key that it speaks for.
    pub subject: String,
}

/// `POST /v1/token`.
///
/// # Errors
/// `unknown_audience`, `released`, `member_revoked`, `no_claim`, `forbidden`, `rate_limited`, `unavailable`.
pub async fn post(State(broker): State<Arc<Broker>>, Workload(uid): Workload, body: Body) -> Result<Response, Failure> {
    let request = body::read::<TokenRequest>(body, broker.body_limits()).await;
    let audience = request.as_ref().ok().map(|request| request.audience.clone());
    // An audience that is in no claim is whatever somebody sent: not for the record in any length.
    let known = audience.as_deref().filter(|audience| broker.config.audience(audience).is_some());
    let entry = Entry { claim_uid: Some(uid.as_str()), audience: known, ..Entry::about("token", None) };
    let asked = broker.audit.ask(entry);
    let outcome = match request {
        Ok(request) => give(&broker, &uid, &request.audience).await,
        Err(failure) => Err(failure),
    };
    match outcome {
        Ok(Given { response, backend, token_id, lent }) => {
            let (namespace, name) = place(&lent.claim);
            let entry = Entry {
                reason: backend,
                claim: Some(format!("{namespace}/{name}")),
                subject_key: Some(response.subject.clone()),
                path: Some(lent.grant.path.as_str()),
                token_id: token_id.as_deref(),
                member_uid: lent.member.metadata.uid.as_deref(),
                ..asked.entry().of_subject(&lent.claim.spec.subject)
            };
            asked.allowed(entry).await?;
            Ok(json(StatusCode::OK, &response))
        }
        Err(failure) => {
            asked.denied(failure.reason);
            Err(failure)
        }
    }
}

/// A token on its way, with what is recorded of it.
struct Given {
    response: TokenResponse,
    backend: &'static str,
    /// `jti` of a token of ours. What a provider's token says is for its audience to read.
    token_id: Option<String>,
    lent: find::Lent,
}

async fn give(broker: &Arc<Broker>, uid: &Uid, audience: &str) -> Result<Given, Failure> {
    if let Err(seconds) = broker.claim_rate.take(uid.clone(), Instant::now()) {
        return Err(too_often(seconds));
    }
    let moment = Timestamp::now();
    let now = moment.as_second();
    let lent = tokio::time::timeout(READS, find::by_claim(broker, uid, now)).await.map_err(|_| slow())??;
    let key = subject_key(&lent.claim);
    if broker.store.denied(&key).is_some() {
        return Err(Failure::new(Code::Forbidden, "an operator denied this subject").because("subject_denied"));
    }
    if !lent.member.is_attested(moment) {
        return Err(Failure::new(Code::Forbidden, "this member is not attested now").because("not_attested"));
    }
    if !lend::is_latched(&lent.claim) {
        return Err(
            Failure::new(Code::Forbidden, "this member has not reported that it is latched").because("not_latched")
        );
    }
    let unknown = || Failure::new(Code::UnknownAudience, "this claim has no such audience");
    if !lent.grant.audiences.iter().any(|granted| granted == audience) {
        return Err(unknown());
    }
    let configured = broker.config.audience(audience).ok_or_else(unknown)?;
    // The list may have become shorter since the claim was made.
    if !lent.grant.may_have(&broker.config, configured) {
        return Err(Failure::new(Code::Forbidden, "this audience is not for this service").because("app_not_listed"));
    }
    let made = match configured.backend {
        Backend::Sts => sign(broker, uid, &lent, configured)?,
        Backend::DexRefresh => {
            backends::confirm(broker, &lent.claim, &lent.grant).await?;
            sign(broker, uid, &lent, configured)?
        }
        Backend::EntraObo => fetch(broker, &lent, configured).await?,
    };
    // A provider may have taken its time, and watches lag: the claim itself has the last word.
    let (namespace, name) = place(&lent.claim);
    let last = tokio::time::timeout(READS, broker.cluster.claim(namespace, name)).await.map_err(|_| slow())??;
    if !lives(last.as_ref(), uid) {
        return Err(released());
    }
    // Looked at after that read: a release that this replica was asked for meanwhile is marked before it is written.
    if broker.releasing.contains(uid.as_str()) {
        // Whether it is over, the claim itself says once the release is written.
        return Err(Failure::new(Code::Unavailable, "this claim is being released").because("releasing"));
    }
    let response = TokenResponse {
        access_token: made.token,
        token_type: "Bearer",
        expires_at: Timestamp::from_second(made.expires).map(|at| at.to_string()).unwrap_or_default(),
        audience: audience.to_owned(),
        subject: key.to_string(),
    };
    Ok(Given { response, backend: configured.backend.as_str(), token_id: made.id, lent })
}

/// Whether a claim that was read just now is this one, and nobody asked for its end. A release is answered once it is
/// written, by whichever replica, so a read that begins after the answer shows it.
fn lives(claim: Option<&VirtualMachineClaim>, uid: &Uid) -> bool {
    claim.is_some_and(|claim| claim.metadata.uid.as_deref() == Some(uid.as_str()) && !lend::is_ending(claim))
}

fn slow() -> Failure {
    Failure::new(Code::Unavailable, "the cluster does not answer in time; try again").because("cluster")
}

fn released() -> Failure {
    Failure::new(Code::Released, "this claim is over")
}

fn no_backend() -> Failure {
    Failure::new(Code::Unavailable, "nothing makes tokens for this audience").because("no_backend")
}

/// A token, whoever made it.
struct Made {
    token: String,
    /// Seconds since 1970.
    expires: i64,
    id: Option<String>,
}

/// A token that mediatore signs.
fn sign(broker: &Broker, uid: &Uid, lent: &find::Lent, audience: &Audience) -> Result<Made, Failure> {
    let (Some(sts), Some(keys)) = (&broker.config.sts, &broker.signing) else { return Err(no_backend()) };
    let subject = &lent.claim.spec.subject;
    let wanted = Wanted {
        issuer: &sts.issuer,
        trust_domain: &broker.config.trust_domain,
        claim: uid,
        subject_key: subject_key(&lent.claim).to_string(),
        upstream_issuer: &subject.issuer,
        upstream_id: &subject.id,
        agent: &subject.azp,
        audience: &audience.id,
        max_ttl: audience.max_ttl,
        deadline: lend::deadline(&lent.claim).unwrap_or_default(),
    };
    // A provider may have taken its time before this.
    let now = Timestamp::now().as_second();
    let claims = claims(&wanted, now, rand_bytes()?).ok_or_else(released)?;
    let token = keys.get().sign(&claims).map_err(|error| {
        tracing::error!(%error, "a token cannot be signed");
        Failure::new(Code::Internal, "mediatore cannot sign now")
    })?;
    Ok(Made { token, expires: claims.exp, id: Some(claims.jti) })
}

/// A token that the provider makes. Its own life is the provider's choice; what is answered is until when it may be
/// used before it has to be asked for again.
async fn fetch(broker: &Broker, lent: &find::Lent, audience: &Audience) -> Result<Made, Failure> {
    let tokens = backends::issue(broker, &lent.claim, &lent.grant, audience).await?;
    let now = Timestamp::now().as_second();
    let ours = expiry(now, audience.max_ttl, lend::deadline(&lent.claim).unwrap_or_default()).ok_or_else(released)?;
    let theirs = tokens.expires_in.and_then(|seconds| now.checked_add(i64::try_from(seconds).ok()?));
    Ok(Made { token: tokens.access_token.reveal().to_owned(), expires: theirs.unwrap_or(now).min(ours), id: None })
}

#[cfg(test)]
mod tests {
    use banlieue_crds::claim::ClaimPhase;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn the_last_read_must_show_this_claim_alive() {
        let uid = Uid::parse("0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab").unwrap();
        let (_, mut claim) = lend::tests::pair();
        claim.metadata.uid = Some(uid.as_str().to_owned());
        assert!(lives(Some(&claim), &uid));
        assert!(!lives(None, &uid), "gone");
        let mut again = claim.clone();
        again.metadata.uid = Some("1b7a3a3e-8a8f-4f0e-9a0b-0123456789ab".to_owned());
        assert!(!lives(Some(&again), &uid), "another claim of that name");
        let mut deleted = claim.clone();
        deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert!(!lives(Some(&deleted), &uid), "its end was asked for");
        for phase in [ClaimPhase::Releasing, ClaimPhase::Released, ClaimPhase::Failed] {
            let mut ending = claim.clone();
            ending.status.get_or_insert_default().phase = Some(phase);
            assert!(!lives(Some(&ending), &uid), "{phase:?}");
        }
    }
}
