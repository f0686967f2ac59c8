//! Seeing and releasing one's own claims. Somebody else's is answered as one that is not there.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use banlieue_crds::VirtualMachineClaim;
use banlieue_identity::Caller;
use http::StatusCode;

use super::{
    auth::Authenticated,
    wire::{ClaimList, ClaimResponse},
};
use crate::{
    audit::Entry,
    broker::{Broker, to_the_end},
    claims::{cluster::place, name},
    http::{
        answer::{Code, Failure, json},
        route::Name,
    },
};

fn not_found() -> Failure {
    Failure::new(Code::NotFound, "you have no claim of this name")
}

/// `GET /v1/claims`.
///
/// # Errors
/// As documented in the route table.
pub async fn list(State(broker): State<Arc<Broker>>, who: Authenticated) -> Result<Response, Failure> {
    if let Some(why) = broker.store.unfilled() {
        return Err(Failure::new(Code::Unavailable, why));
    }
    let mut claims = broker.store.claims();
    claims.retain(|claim| Broker::is_of(&who.caller, claim));
    claims.sort_by(|a, b| {
        let key = |claim: &VirtualMachineClaim| {
            (claim.metadata.creation_timestamp.as_ref().map(|time| time.0), claim.metadata.name.clone())
        };
        key(b).cmp(&key(a))
    });
    let claims = claims.iter().map(|claim| ClaimResponse::of(claim)).collect();
    Ok(json(StatusCode::OK, &ClaimList { claims }))
}

/// The caller's claim of this name, read live: an answer about one claim is never older than the question.
async fn find(broker: &Broker, caller: &Caller, name: &str) -> Result<VirtualMachineClaim, Failure> {
    if !name::is_name(name) {
        return Err(not_found());
    }
    for namespace in broker.store.namespaces() {
        if let Some(claim) = broker.cluster.claim(namespace, name).await?
            && Broker::is_of(caller, &claim)
        {
            return Ok(claim);
        }
    }
    Err(not_found())
}

/// `GET /v1/claims/{name}`.
///
/// # Errors
/// As documented in the route table.
pub async fn get(State(broker): State<Arc<Broker>>, who: Authenticated, Name(name): Name) -> Result<Response, Failure> {
    let claim = find(&broker, &who.caller, &name).await?;
    Ok(json(StatusCode::OK, &ClaimResponse::of(&claim)))
}

/// `DELETE /v1/claims/{name}`.
///
/// # Errors
/// As documented in the route table.
pub async fn delete(
    State(broker): State<Arc<Broker>>,
    who: Authenticated,
    Name(name): Name,
) -> Result<Response, Failure> {
    to_the_end(async move {
        let asked = broker.audit.ask(Entry { peer: who.peer.clone(), ..Entry::about("release", Some(&who.caller)) });
        let claim = match release(&broker, &who.caller, &name).await {
            Ok(claim) => claim,
            Err(failure) => {
                asked.denied(failure.reason);
                return Err(failure);
            }
        };
        let (namespace, name) = place(&claim);
        let entry = Entry {
            reason: "own_claim",
            claim: Some(format!("{namespace}/{name}")),
            claim_uid: claim.metadata.uid.as_deref(),
            ..asked.entry()
        };
        asked.allowed(entry).await?;
        Ok(StatusCode::NO_CONTENT.into_response())
    })
    .await
}

async fn release(broker: &Broker, caller: &Caller, name: &str) -> Result<VirtualMachineClaim, Failure> {
    let claim = find(broker, caller, name).await?;
    let (namespace, name) = place(&claim);
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    // Tokens first: a token request that read the claim before now finds this when it is about to answer. When nobody
    // knows whether the release was written, the mark is taken back: if it was, the claim says so itself.
    let mark = broker.releasing.begin(uid);
    broker.cluster.release(namespace, name, uid).await?;
    mark.done();
    Ok(claim)
}
