//! Making a claim, step by step. Each step can be the last one before a crash, and a retry with the same key goes on
//! from there:
//!
//! 1. look for the claim that an earlier attempt made; its whole content must be what this request asks for;
//! 2. take a slot ([`slots`]): the atomic step that keeps the limit;
//! 3. make the claim, which notes its slot;
//! 4. read whether an operator denied the subject meanwhile, and seal the grant, which needs the claim's uid.
//!
//! What is left over from a request that is never retried, the [keeper](crate::claims::keeper) tidies up.

use std::sync::Arc;

use axum::{body::Body, extract::State, response::Response};
use banlieue_crds::{VirtualMachineClaim, VirtualMachinePool, claim::Subject};
use banlieue_identity::{Caller, Path};
use http::{HeaderMap, StatusCode, header};

use super::{
    auth::Authenticated,
    pools::may_claim,
    wire::{ClaimRequest, ClaimResponse, Secret},
};
use crate::{
    audit::Entry,
    broker::{Broker, to_the_end},
    claims::{
        cluster::{CallError, place},
        grant::Grant,
        grants::{Finding, GrantError},
        lend,
        name::{self, IdempotencyKey},
        record::{self, Wanted},
        slots::{self, Plan, Taken},
    },
    config::Config,
    http::{
        answer::{Code, Failure, json},
        body,
    },
    tokens::{backends, material::Kept},
};

/// Seconds that a claim lasts when its request does not say.
const DEFAULT_TTL: u32 = 3600;

/// `POST /v1/claims`.
///
/// # Errors
/// As documented in the route table.
pub async fn post(
    State(broker): State<Arc<Broker>>,
    headers: HeaderMap,
    who: Authenticated,
    body: Body,
) -> Result<Response, Failure> {
    to_the_end(async move {
        let asked = broker.audit.ask(Entry { peer: who.peer.clone(), ..Entry::about("claim", Some(&who.caller)) });
        match take(&broker, &headers, &who.caller, body).await {
            Ok((claim, reason)) => {
                let (namespace, name) = place(&claim);
                let entry = Entry {
                    reason,
                    claim: Some(format!("{namespace}/{name}")),
                    claim_uid: claim.metadata.uid.as_deref(),
                    ..asked.entry()
                };
                asked.allowed(entry).await?;
                Ok(json(StatusCode::CREATED, &ClaimResponse::of(&claim)))
            }
            Err(failure) => {
                asked.denied(failure.reason);
                Err(failure)
            }
        }
    })
    .await
}

type Outcome = Result<(VirtualMachineClaim, &'static str), Failure>;

async fn take(broker: &Arc<Broker>, headers: &HeaderMap, caller: &Caller, body: Body) -> Outcome {
    let key = idempotency_key(headers)?;
    let request: ClaimRequest = body::read(body, broker.body_limits()).await?;
    request.check()?;
    if let Some(why) = broker.store.unfilled() {
        return Err(Failure::new(Code::Unavailable, why));
    }
    let default = broker.store.namespaces().next().unwrap_or_default();
    let pool_ref = request.pool_ref.clone();
    let (namespace, name) = pool_ref.split_once('/').unwrap_or((default, &pool_ref));
    let pool = broker.store.pool(namespace, name).filter(|pool| may_claim(&broker.config, caller, pool));
    let pool = pool.ok_or_else(|| {
        let detail = format!("there is no pool {pool_ref} that you may claim from; see GET /v1/pools");
        Failure::new(Code::PoolNotFound, detail)
    })?;
    let brought = request.refresh_token.clone().map(Secret::material);
    let wanted = wanted(&broker.config, caller, &pool, namespace, name, request)?;
    let kept = backends::prepare(broker, caller, bearer(headers)?, &wanted.audiences, brought).await?;
    let making = Making { broker, caller, wanted, subject: record::subject(caller), kept, keyed: key.is_some() };
    making.make(&pool, key).await
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Failure> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let key = IdempotencyKey::parse(value.as_bytes()).filter(|_| values.next().is_none());
    let wrong =
        || Failure::new(Code::InvalidRequest, "Idempotency-Key: must be 1 to 255 visible ASCII characters, once");
    key.map(Some).ok_or_else(wrong)
}

/// The token that the caller was accepted with.
fn bearer(headers: &HeaderMap) -> Result<&str, Failure> {
    let text = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    Ok(banlieue_identity::bearer(text)?)
}

/// What a request asks for, as far as the pool allows it.
///
/// # Errors
/// `invalid_ttl`, `image_denied`, `unknown_audience`, `forbidden`, `invalid_request`.
pub fn wanted(
    config: &Config,
    caller: &Caller,
    pool: &VirtualMachinePool,
    namespace: &str,
    name: &str,
    request: ClaimRequest,
) -> Result<Wanted, Failure> {
    let policy = &pool.spec.claim_policy;
    let ttl_seconds = request.ttl_seconds.unwrap_or(DEFAULT_TTL.min(policy.max_ttl_seconds));
    if ttl_seconds > policy.max_ttl_seconds {
        let detail = format!("ttl_seconds: pool {namespace}/{name} allows at most {}", policy.max_ttl_seconds);
        return Err(Failure::new(Code::InvalidTtl, detail));
    }
    if !policy.allows_image(&request.workload.image) {
        let digest = if policy.require_digest { ", by digest (…@sha256:…)" } else { "" };
        let allowed = policy.allowed_images.join(", ");
        let detail = format!("workload.image: pool {namespace}/{name} allows [{allowed}]{digest}");
        return Err(Failure::new(Code::ImageDenied, detail));
    }
    for id in &request.audiences {
        let known = config.audience(id).filter(|_| policy.allowed_audiences.contains(id));
        let Some(audience) = known else {
            let detail = format!("audiences: there is no audience {id:?} for pool {namespace}/{name}");
            return Err(Failure::new(Code::UnknownAudience, detail));
        };
        // Such tokens carry nobody's rights but the service's, so each service is listed.
        if caller.path == Path::Service && !config.is_listed(audience, &caller.issuer, &caller.client) {
            let detail = format!("audiences: {id:?} is not for this service; have it listed under the audience's apps");
            return Err(Failure::new(Code::Forbidden, detail).because("app_not_listed"));
        }
    }
    if request.refresh_token.is_some() && !backends::takes_refresh_token(config, &request.audiences) {
        let detail = "refresh_token: no audience of this claim takes one; leave it out";
        return Err(Failure::new(Code::InvalidRequest, detail));
    }
    Ok(Wanted {
        namespace: namespace.to_owned(),
        pool: name.to_owned(),
        ttl_seconds,
        audiences: request.audiences,
        workload: request.workload.workload()?,
        max_bind_deadline: policy.max_bind_deadline_seconds,
        max_retention: policy.max_retention_seconds,
    })
}

/// One request on its way.
struct Making<'a> {
    broker: &'a Broker,
    caller: &'a Caller,
    wanted: Wanted,
    subject: Subject,
    /// What is sealed with the grant.
    kept: Kept,
    keyed: bool,
}

impl Making<'_> {
    async fn make(&self, pool: &VirtualMachinePool, key: Option<IdempotencyKey>) -> Outcome {
        let cluster = &self.broker.cluster;
        let name = match &key {
            Some(key) => name::of_key(&self.caller.key, &self.subject.azp, key),
            None => name::random(rand_bytes()?),
        };
        if self.keyed {
            // A key belongs to one claim, in whichever namespace its pool is.
            for namespace in self.broker.store.namespaces() {
                if let Some(found) = cluster.claim(namespace, &name).await? {
                    return self.adopt(pool, found).await;
                }
            }
        }
        let slot = self.slot(pool, &name).await?;
        let claim = record::claim(&name, &self.wanted, self.subject.clone(), &slot.note());
        match cluster.create_claim(&claim).await {
            Ok(Some(made)) => Ok((self.grant(made, &slot).await?, "made")),
            // Another attempt with the same key was faster. It took the same slot, or this one is swept.
            Ok(None) => match cluster.claim(&self.wanted.namespace, &name).await? {
                Some(found) => self.adopt(pool, found).await,
                None => Err(Failure::new(Code::Unavailable, "an earlier claim of this key just ended; try again")),
            },
            Err(error) => Err(self.not_made(&name, &slot, error).await),
        }
    }

    /// What to answer when the claim was not made, as far as anybody knows. Its slot is freed only when the API server
    /// refused and has no such claim: what may have been made, or may still be, is for the keeper to find out.
    async fn not_made(&self, name: &str, slot: &Taken, error: CallError) -> Failure {
        let (cluster, namespace) = (&self.broker.cluster, &self.wanted.namespace);
        if is_final(&error) && matches!(cluster.claim(namespace, name).await, Ok(None)) {
            let freed = cluster.free_slot(namespace, slot).await;
            tracing::debug!(?freed, "the slot of a claim that was refused");
        }
        let refused = |code, detail: &str| {
            // Its words name objects and rules that are the operators' own.
            tracing::warn!(%error, claim = name, "the API server refused a claim");
            Failure::new(code, detail).because("api_refused")
        };
        match error.code() {
            Some(400 | 422) => refused(
                Code::InvalidRequest,
                "the cluster does not take this claim as it is; look at workload, ttl_seconds and audiences, or ask \
                 your operators",
            ),
            Some(403) => refused(
                Code::Forbidden,
                "the cluster does not allow this claim, by a policy or a quota; ask your operators",
            ),
            _ => error.into(),
        }
    }

    /// Grants what the caller asked for to the claim that holds this slot, unless an operator denied the caller
    /// meanwhile. The denial is read after the claim was written: whoever denies first writes that, then lists claims, so
    /// one of the two sees the other.
    async fn grant(&self, claim: VirtualMachineClaim, slot: &Taken) -> Result<VirtualMachineClaim, Failure> {
        let (cluster, key) = (&self.broker.cluster, self.caller.key.to_string());
        let (namespace, name) = place(&claim);
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        for known in self.broker.store.namespaces() {
            if cluster.is_denied(known, &key).await? {
                cluster.release(namespace, name, uid).await?;
                let detail = "an operator denied this subject; ask your operators";
                return Err(Failure::new(Code::Forbidden, detail).because("subject_denied"));
            }
        }
        let grant = Grant::of(self.caller, &claim, &self.wanted, &slot.name);
        let grant = grant.ok_or_else(|| Failure::new(Code::Unavailable, "the cluster named no claim; try again"))?;
        self.broker.grants.give(cluster, &claim, &grant, &self.kept).await?;
        Ok(claim)
    }

    /// The answer that an earlier attempt made, if it is one to this request. What that attempt left undone is done.
    async fn adopt(&self, pool: &VirtualMachinePool, found: VirtualMachineClaim) -> Outcome {
        let cluster = &self.broker.cluster;
        let conflict = || {
            let detail = "this Idempotency-Key was used for another request; take a new key for a new request";
            Failure::new(Code::IdempotencyConflict, detail)
        };
        let granted = match self.broker.grants.find(cluster, &found).await? {
            Finding::Valid(grant) => Some(grant),
            Finding::Absent => None,
            Finding::Unreadable(key) => {
                return Err(GrantError::Key { claim: place(&found).1.to_owned(), key }.into());
            }
            // Somebody else's object stands under the name of this key.
            Finding::Mismatch(why) => {
                tracing::warn!(claim = place(&found).1, why, "a retried request finds a grant that is not valid");
                return Err(conflict());
            }
        };
        let digest = granted.as_ref().and_then(|grant| grant.request.as_ref());
        if place(&found).0 != self.wanted.namespace || !record::answers(&found, &self.wanted, &self.subject, digest) {
            return Err(conflict());
        }
        // Nothing is granted to what is over.
        if granted.is_some() || lend::is_ending(&found) {
            return Ok((found, "retried"));
        }
        // Nothing is granted without a slot, whoever made the claim. Noting it makes another version of the claim, which
        // whoever is about to release it as one that nobody granted does not have.
        let slot = self.slot(pool, place(&found).1).await?;
        match cluster.note_slot(&found, &slot).await? {
            Some(noted) if !lend::is_ending(&noted) => Ok((self.grant(noted, &slot).await?, "retried")),
            _ => Err(Failure::new(Code::Unavailable, "an earlier claim of this key just ended; try again")),
        }
    }

    /// Takes a slot.
    async fn slot(&self, pool: &VirtualMachinePool, claim: &str) -> Result<Taken, Failure> {
        let (cluster, namespace) = (&self.broker.cluster, self.wanted.namespace.as_str());
        let limit = pool.spec.claim_policy.max_claims_per_subject;
        let share = self.broker.config.limits.agent_share_percent;
        let mut held = self.broker.store.held(namespace, &self.wanted.pool, &self.caller.key);
        let name = |index| {
            slots::name(&self.wanted.pool, &self.caller.key, index)
                .ok_or_else(|| Failure::new(Code::InvalidRequest, "pool_ref: the pool's name is too long for claims"))
        };
        let full = || {
            let whose = if self.caller.path == Path::AgentForPerson { "agents of this subject" } else { "one subject" };
            let detail = format!(
                "pool {namespace}/{} allows {limit} claims of one subject, and no more of {whose} now; release one",
                self.wanted.pool
            );
            Failure::new(Code::TooManyClaims, detail)
        };
        loop {
            let indices = match slots::plan(limit, share, self.caller.path, &held, claim) {
                Plan::Full => return Err(full()),
                Plan::Reuse(index) => {
                    if let Some(taken) = cluster.retake_slot(namespace, &name(index)?, claim).await? {
                        return Ok(taken);
                    }
                    // The view was old: that slot is not ours.
                    held.remove(&index);
                    continue;
                }
                Plan::Try(indices) => indices,
            };
            for index in indices {
                let slot = name(index)?;
                if let Some(taken) = cluster.take_slot(namespace, &slot, claim).await? {
                    return Ok(taken);
                }
                // Perhaps by an earlier attempt that the watch has not shown yet.
                if self.keyed
                    && let Some(taken) = cluster.retake_slot(namespace, &slot, claim).await?
                {
                    return Ok(taken);
                }
            }
            return Err(full());
        }
    }
}

/// Whether the API server refused for good, before it wrote anything.
fn is_final(error: &CallError) -> bool {
    error.code().is_some_and(|code| code < 500)
}

/// Randomness of the operating system.
pub(crate) fn rand_bytes<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Failure::new(Code::Unavailable, "there is no randomness to be had; try again"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
