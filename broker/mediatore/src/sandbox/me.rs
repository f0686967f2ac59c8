//! `GET /v1/me`: what a guest's member is lent for.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Response};
use banlieue_protocol::names::Uid;
use http::{StatusCode, Uri};
use schemars::JsonSchema;
use serde::Serialize;

use super::{find, peer::Guest};
use crate::{
    audit::Entry,
    broker::Broker,
    claims::{lend, record::subject_key},
    config::endpoint_parts,
    http::answer::{Code, Failure, json},
    user::wire::WorkloadRequest,
};

/// How long to wait for news: `?wait=<seconds>&claim=<uid>`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wait {
    /// Seconds to wait: for a claim, or, with `claim`, for that claim's end.
    wait: u64,
    /// Uid of the claim that the guest knows already.
    claim: Option<String>,
}

impl Wait {
    fn parse(query: &str) -> Option<Self> {
        let mut wait = Self::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=')? {
                ("wait", seconds) => wait.wait = seconds.parse().ok()?,
                ("claim", uid) => wait.claim = Some(Uid::parse(uid).ok()?.as_str().to_owned()),
                _ => return None,
            }
        }
        Some(wait)
    }
}

/// What a member is lent for.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Me {
    /// `metadata.uid` of the claim.
    pub claim_uid: String,
    /// The subject key, 64 hexadecimal digits.
    pub subject: String,
    /// The user that the workload runs as, made from the subject key.
    pub username: String,
    /// mediatore's clock, RFC 3339.
    pub now: String,
    /// The deadline, RFC 3339.
    pub expires_at: String,
    /// Seconds until the deadline, for a guest whose clock is wrong.
    pub expires_in_seconds: i64,
    /// Seconds that a guest may go on without an answer from here.
    pub lease_seconds: u64,
    /// What to run.
    pub workload: WorkloadRequest,
    /// What the workload may reach, besides mediatore.
    pub egress: Vec<Endpoint>,
    /// How to reach the registry.
    pub registry: Registry,
}

/// One place that may be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Endpoint {
    /// Host name.
    pub name: String,
    /// TCP port.
    pub port: u16,
}

/// How to reach the registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Registry {
    /// PEM of an additional root, or null.
    pub ca: Option<String>,
    /// Credentials, or null: none are handed out.
    pub auth: Option<String>,
}

/// `GET /v1/me`.
///
/// # Errors
/// `no_claim`, `released`, `member_revoked`, `unavailable`.
pub async fn get(State(broker): State<Arc<Broker>>, Guest(member): Guest, uri: Uri) -> Result<Response, Failure> {
    let wait = Wait::parse(uri.query().unwrap_or_default())
        .ok_or_else(|| Failure::new(Code::InvalidRequest, "the query takes wait=<seconds> and claim=<uid>"))?;
    let longest = Duration::from_secs(wait.wait.min(broker.config.limits.poll_seconds));
    let until = tokio::time::Instant::now() + longest;
    let mut changes = broker.store.changes();
    let poll = broker.polls.enter(&member);
    let outcome = loop {
        // Noted before asking: what changes from here on wakes the wait below.
        changes.mark_unchanged();
        let before = find::seen(&broker, &member);
        let now = jiff::Timestamp::now();
        let outcome = find::by_member(&broker, &member, now.as_second()).await;
        // With news, or without more time: answer.
        let wait_on = match &outcome {
            Ok(lent) => wait.claim.is_some() && wait.claim == lent.claim.metadata.uid,
            Err(failure) => failure.code == Code::NoClaim,
        };
        if !wait_on || poll.is_over() || tokio::time::Instant::now() >= until {
            break outcome.and_then(|lent| me(&broker, &lent, now));
        }
        // Woken by every change in the namespaces; asked live only when this member may be concerned.
        let news = async {
            while changes.changed().await.is_ok() {
                let seen = find::seen(&broker, &member);
                if seen.is_none() || seen != before {
                    return;
                }
            }
        };
        tokio::select! {
            () = news => {}
            () = poll.ended() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    };
    let entry = Entry { member_uid: Some(member.as_str()), ..Entry::about("me", None) };
    match &outcome {
        Ok(me) => broker.audit.write(&Entry {
            outcome: "allowed",
            reason: "lent",
            claim_uid: Some(&me.claim_uid),
            subject_key: Some(me.subject.clone()),
            ..entry
        }),
        // Asking before there is anything is the ordinary thing to do.
        Err(failure) if failure.reason == "no_claim" => {}
        Err(failure) => broker.audit.write(&Entry { outcome: "denied", reason: failure.reason, ..entry }),
    }
    outcome.map(|me| json(StatusCode::OK, &me))
}

fn me(broker: &Broker, lent: &find::Lent, now: jiff::Timestamp) -> Result<Me, Failure> {
    let gone = || Failure::new(Code::Released, "this claim is over; power off");
    let deadline = lend::deadline(&lent.claim).ok_or_else(gone)?;
    let expires_at = jiff::Timestamp::from_second(deadline).map_err(|_| gone())?;
    let key = subject_key(&lent.claim);
    let audiences = lent.grant.audiences.iter().filter_map(|id| broker.config.audience(id));
    let egress = audiences
        .flat_map(|audience| &audience.endpoints)
        .filter_map(|endpoint| endpoint_parts(endpoint))
        .map(|(name, port)| Endpoint { name: name.to_owned(), port })
        .collect();
    let ca_file = broker.config.registry.as_ref().and_then(|registry| registry.ca_file.as_ref());
    Ok(Me {
        claim_uid: lent.grant.claim_uid.clone(),
        subject: key.to_string(),
        username: key.username(),
        now: now.to_string(),
        expires_at: expires_at.to_string(),
        expires_in_seconds: deadline - now.as_second(),
        lease_seconds: broker.config.limits.lease_seconds,
        workload: WorkloadRequest::from_claim(&lent.claim.spec.workload),
        egress,
        registry: Registry { ca: ca_file.and_then(|file| std::fs::read_to_string(file).ok()), auth: None },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let uid = "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab";
        assert_eq!(Wait::parse(""), Some(Wait::default()));
        let both = Wait { wait: 30, claim: Some(uid.into()) };
        assert_eq!(Wait::parse(&format!("wait=30&claim={uid}")), Some(both));
        for bad in ["wait", "wait=-1", "wait=x", "claim=x", "other=1"] {
            assert_eq!(Wait::parse(bad), None, "{bad}");
        }
    }
}
