//! Who calls. There is no header that stands for an identity: the token alone says it.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use axum::extract::FromRequestParts;
use banlieue_identity::Caller;
use http::{header, request::Parts};

use crate::{
    broker::Broker,
    http::{
        answer::{Code, Failure},
        listen::Peer,
        seats::neighbour,
    },
};

/// A caller whose token was accepted, who asks not too often, and whom no operator denied.
pub struct Authenticated {
    /// Who.
    pub caller: Caller,
    /// From where, for the audit record.
    pub peer: Option<String>,
}

impl FromRequestParts<Arc<Broker>> for Authenticated {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, broker: &Arc<Broker>) -> Result<Self, Failure> {
        let address = parts.extensions.get::<Peer>().map(|peer| peer.address);
        let peer = address.map(|address| address.to_string());
        let outcome = authenticate(parts, broker).await;
        // Only what nobody stands behind counts against an address: those who share it with a noisy neighbour are served.
        if let Err((None, failure)) = &outcome
            && failure.code == Code::Unauthorized
            && let (Some(rate), Some(address)) = (&broker.failure_rate, address)
            && let Err(seconds) = rate.take(neighbour(address.ip()), Instant::now())
        {
            broker.metrics.decided("authenticate", "denied", "address_limited");
            let detail = "too many requests without an acceptable token come from your address; get a new token";
            let failure = Failure::new(Code::RateLimited, detail).because("address_limited");
            return Err(Failure { retry_after: Some(seconds), ..failure });
        }
        if let Err((caller, failure)) = &outcome {
            broker.audit.write(&crate::audit::Entry {
                outcome: "denied",
                reason: failure.reason,
                peer: peer.clone(),
                ..crate::audit::Entry::about("authenticate", caller.as_ref())
            });
        }
        outcome.map(|caller| Self { caller, peer }).map_err(|(_, failure)| failure)
    }
}

async fn authenticate(parts: &Parts, broker: &Broker) -> Result<Caller, (Option<Caller>, Failure)> {
    let unknown = |failure| (None, failure);
    let mut values = parts.headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next();
    // Two tokens are two identities, and which one counts would be a matter of order.
    if values.next().is_some() {
        return Err(unknown(Failure::new(Code::Unauthorized, "there is more than one Authorization header")));
    }
    let text = value.map(|value| value.to_str()).transpose();
    let text = text.map_err(|_| unknown(Failure::new(Code::Unauthorized, "the Authorization header is no text")))?;
    let bearer = banlieue_identity::bearer(text).map_err(|refusal| unknown(refusal.into()))?;
    let caller = broker.issuers.validate(bearer, SystemTime::now()).await.map_err(|refusal| unknown(refusal.into()))?;
    if let Err(seconds) = broker.subject_rate.take(*caller.key.as_bytes(), Instant::now()) {
        let failure = Failure::new(Code::RateLimited, format!("too many requests; try again in {seconds} s"));
        return Err((Some(caller), Failure { retry_after: Some(seconds), ..failure }));
    }
    // Who is denied is not known before everything is listed.
    if let Some(why) = broker.store.unfilled() {
        return Err((Some(caller), Failure::new(Code::Unavailable, why).because("not_ready")));
    }
    if broker.store.denied(&caller.key).is_some() {
        // The reason is the operators' own.
        let failure = Failure::new(Code::Forbidden, "an operator denied this subject; ask your operators");
        return Err((Some(caller), failure.because("subject_denied")));
    }
    Ok(caller)
}
