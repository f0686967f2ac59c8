//! What a caller may claim from.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use banlieue_crds::VirtualMachinePool;
use banlieue_identity::Caller;
use http::StatusCode;

use super::{
    auth::Authenticated,
    wire::{PoolList, PoolResponse},
};
use crate::{
    broker::Broker,
    config::Config,
    http::answer::{Code, Failure, json},
};

/// Whether a caller may claim from a pool: it is not going away, and its rule, if it has one, names the caller's issuer.
#[must_use]
pub fn may_claim(config: &Config, caller: &Caller, pool: &VirtualMachinePool) -> bool {
    let namespace = pool.metadata.namespace.as_deref().unwrap_or_default();
    let name = format!("{namespace}/{}", pool.metadata.name.as_deref().unwrap_or_default());
    let rule = config.pools.iter().find(|rule| rule.pool == name);
    pool.metadata.deletion_timestamp.is_none() && rule.is_none_or(|rule| rule.issuers.contains(&caller.issuer_name))
}

/// `GET /v1/pools`.
///
/// # Errors
/// As documented in the route table.
pub async fn list(State(broker): State<Arc<Broker>>, who: Authenticated) -> Result<Response, Failure> {
    if let Some(why) = broker.store.unfilled() {
        return Err(Failure::new(Code::Unavailable, why));
    }
    let mut pools: Vec<PoolResponse> = broker
        .store
        .pools()
        .iter()
        .filter(|pool| may_claim(&broker.config, &who.caller, pool))
        .map(|pool| PoolResponse::of(pool))
        .collect();
    pools.sort_by(|a, b| a.pool_ref.cmp(&b.pool_ref));
    Ok(json(StatusCode::OK, &PoolList { pools }))
}
