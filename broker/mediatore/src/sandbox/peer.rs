//! From a certificate to a member or a claim.
//!
//! The handshake verified the certificate under our trust domain's bundle. A connection outlives the certificate it was
//! made with, so each request looks at its end again: an identity that was revoked by not being renewed ends on time on
//! open connections too.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use axum::extract::FromRequestParts;
use banlieue_protocol::names::{Named, TrustDomain, Uid, read_id};
use http::request::Parts;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::{
    audit::Entry,
    broker::Broker,
    http::{
        answer::{Code, Failure},
        listen::Peer,
    },
};

/// The member whose guest agent asks.
pub struct Guest(pub Uid);

/// The claim whose workload asks.
pub struct Workload(pub Uid);

fn who(parts: &Parts, trust_domain: &TrustDomain, now: SystemTime) -> Result<Named, Failure> {
    let certificate = parts.extensions.get::<Peer>().and_then(|peer| peer.certificate.as_ref());
    let der = certificate.ok_or_else(|| Failure::new(Code::Unauthorized, "connect with a client certificate"))?;
    named(der, trust_domain, now)
}

/// What a certificate names.
///
/// # Errors
/// When it is over, or none of ours.
pub fn named(der: &[u8], trust_domain: &TrustDomain, now: SystemTime) -> Result<Named, Failure> {
    let unknown = || Failure::new(Code::Forbidden, "this identity is neither a guest's nor a workload's");
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| unknown())?;
    let seconds = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(i64::MAX, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    if seconds >= certificate.validity().not_after.timestamp() {
        let failure = Failure::new(Code::Unauthorized, "your certificate has expired; connect again with a newer one");
        return Err(failure.because("svid_expired"));
    }
    let names = certificate.subject_alternative_name().map_err(|_| unknown())?.ok_or_else(unknown)?;
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    // Exactly one (X.509-SVID, 2).
    let (Some(uri), None) = (uris.next(), uris.next()) else { return Err(unknown()) };
    read_id(trust_domain, uri).ok_or_else(unknown)
}

/// The answer to who asks more often than it may.
#[must_use]
pub fn too_often(seconds: u64) -> Failure {
    let failure = Failure::new(Code::RateLimited, format!("too many requests; try again in {seconds} s"));
    Failure { retry_after: Some(seconds), ..failure }
}

/// Whom a certificate does not show to be who a route is for has a line in the audit record, as on the callers' side.
fn refused(parts: &Parts, broker: &Broker, failure: &Failure) {
    broker.audit.write(&Entry {
        outcome: "denied",
        reason: failure.reason,
        peer: parts.extensions.get::<Peer>().map(|peer| peer.address.to_string()),
        ..Entry::about("authenticate", None)
    });
}

impl FromRequestParts<Arc<Broker>> for Guest {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, broker: &Arc<Broker>) -> Result<Self, Failure> {
        let guest = match who(parts, &broker.config.trust_domain, SystemTime::now()) {
            Ok(Named::Node(member)) => {
                // Neither refused nor recorded as somebody wrong: it is who it says, and asks too often.
                if let Err(seconds) = broker.member_rate.take(member.clone(), Instant::now()) {
                    return Err(too_often(seconds));
                }
                Ok(Self(member))
            }
            Ok(_) => Err(Failure::new(Code::Forbidden, "this route is for guest agents, with their node SVID")),
            Err(failure) => Err(failure),
        };
        guest.inspect_err(|failure| refused(parts, broker, failure))
    }
}

impl FromRequestParts<Arc<Broker>> for Workload {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, broker: &Arc<Broker>) -> Result<Self, Failure> {
        let workload = match who(parts, &broker.config.trust_domain, SystemTime::now()) {
            Ok(Named::Claim(claim)) => Ok(Self(claim)),
            Ok(_) => Err(Failure::new(Code::Forbidden, "this route is for workloads, with their claim SVID")),
            Err(failure) => Err(failure),
        };
        workload.inspect_err(|failure| refused(parts, broker, failure))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    const NODE: &str = "spiffe://banlieue.local/banlieue/node/0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab";

    fn judged(uris: &[&str], later: u64) -> Result<Named, Code> {
        let mut parameters = CertificateParams::default();
        parameters.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
        let start = SystemTime::now();
        parameters.not_before = start.into();
        parameters.not_after = (start + Duration::from_secs(300)).into();
        let certificate = parameters.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let domain = TrustDomain::parse("banlieue.local").unwrap();
        named(certificate.der(), &domain, start + Duration::from_secs(later)).map_err(|failure| failure.code)
    }

    #[test]
    fn a_certificate_names_one_of_ours_while_it_lasts() {
        let uid = Uid::parse("0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab").unwrap();
        assert_eq!(judged(&[NODE], 10), Ok(Named::Node(uid)));
        assert_eq!(judged(&[NODE], 301), Err(Code::Unauthorized));
        assert_eq!(judged(&[], 10), Err(Code::Forbidden));
        assert_eq!(judged(&[NODE, NODE], 10), Err(Code::Forbidden));
        assert_eq!(
            judged(&["spiffe://other.local/banlieue/node/0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab"], 10),
            Err(Code::Forbidden)
        );
        assert_eq!(judged(&["spiffe://banlieue.local/mediatore"], 10), Err(Code::Forbidden));
    }
}
