//! The enrolment Secret: what a member is told before its first boot.

use std::collections::BTreeMap;

use banlieue_crds::PoolMember;
use banlieue_crds::names;
use banlieue_protocol::names::{Cluster, MemberName, Namespace, TrustDomain, Uid};
use banlieue_protocol::seed::{EnrolmentSecret, HostPort, Seed, SeedMap, seed_digest};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::{Value, json};
use thiserror::Error;

use super::member_owner;

/// Why a seed could not be made or read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EnrolmentError {
    /// A name may not enter a SPIFFE id.
    #[error("member {member} cannot be enrolled: {message}")]
    Name {
        /// The member.
        member: String,
        /// What is wrong.
        message: String,
    },
    /// The Secret under the member's name is not its own.
    #[error("Secret {secret} is not the one that was made for this member: {message}")]
    Foreign {
        /// The Secret.
        secret: String,
        /// What is wrong.
        message: String,
    },
}

impl EnrolmentError {
    /// Fixed word for metrics and events.
    pub fn category(&self) -> &'static str {
        "enrolment"
    }
}

/// What every seed of this cluster holds, from the controller's configuration.
#[derive(Debug, Clone)]
pub struct Issuer {
    /// SPIFFE trust domain.
    pub trust_domain: TrustDomain,
    /// Cluster name.
    pub cluster: Cluster,
    /// SPIRE server as the guest reaches it.
    pub spire_server: HostPort,
    /// Broker as the guest reaches it.
    pub broker: Option<HostPort>,
    /// Life of agents' SVIDs in seconds, as SPIRE is configured.
    pub agent_ttl_seconds: u32,
}

/// Builds a member's Secret: immutable, owned by the member.
pub fn seed_secret(
    issuer: &Issuer,
    member: &PoolMember,
    bundle_pem: String,
    random: [u8; 32],
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<Value, EnrolmentError> {
    let name = member.name_any();
    let refuse = |message: String| EnrolmentError::Name { member: name.clone(), message };
    let seed = Seed {
        member: MemberName::parse(&name).map_err(|error| refuse(error.to_string()))?,
        namespace: Namespace::parse(&member.namespace().unwrap_or_default())
            .map_err(|error| refuse(error.to_string()))?,
        uid: Uid::parse(&member.uid().unwrap_or_default()).map_err(|error| refuse(error.to_string()))?,
        secret: EnrolmentSecret::new(random),
        issued_at: now,
        expires_at,
        trust_domain: issuer.trust_domain.clone(),
        cluster: issuer.cluster.clone(),
        bundle_pem,
        spire_server: issuer.spire_server.clone(),
        broker: issuer.broker.clone(),
        agent_ttl_seconds: issuer.agent_ttl_seconds,
    };
    let data: BTreeMap<String, ByteString> =
        seed.to_map().into_iter().map(|(key, value)| (key, ByteString(value))).collect();
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": true,
        "metadata": {
            "name": names::enrolment_secret(&name),
            "namespace": member.namespace(),
            "labels": {
                names::labels::POOL: member.spec.pool_ref.name,
                names::labels::MEMBER: name,
                names::labels::MEMBER_UID: member.uid(),
                names::labels::MANAGED_BY: names::labels::MANAGED_BY_VALUE,
            },
            "ownerReferences": [member_owner(member)],
        },
        "data": data,
    }))
}

/// Reads back a member's Secret, as it stands: digest in lower-case hex, and when it expires.
///
/// Only a Secret that this member owns, that is immutable and that parses as this member's seed counts. So a process
/// that died after the create goes on with what is there, and a Secret that somebody put there is refused.
pub fn read_seed(member: &PoolMember, secret: &Secret) -> Result<(String, Timestamp), EnrolmentError> {
    let refuse = |message: &str| EnrolmentError::Foreign { secret: secret.name_any(), message: message.to_owned() };
    if !secret.owner_references().iter().any(|owner| Some(&owner.uid) == member.metadata.uid.as_ref()) {
        return Err(refuse("it has another owner"));
    }
    if secret.immutable != Some(true) {
        return Err(refuse("it can be changed"));
    }
    let data = secret.data.clone().unwrap_or_default();
    let map: SeedMap = data.into_iter().map(|(key, value)| (key, value.0)).collect();
    let seed = Seed::parse(&map).map_err(|error| refuse(&error.to_string()))?;
    if Some(seed.uid.to_string()) != member.metadata.uid || seed.member.to_string() != member.name_any() {
        return Err(refuse("it is the seed of another member"));
    }
    Ok((hex::encode(seed_digest(&map)), seed.expires_at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{member, pool};

    fn issuer() -> Issuer {
        Issuer {
            trust_domain: TrustDomain::parse("banlieue.local").unwrap(),
            cluster: Cluster::parse("local").unwrap(),
            spire_server: HostPort::parse("127.0.0.1:8081").unwrap(),
            broker: None,
            agent_ttl_seconds: 600,
        }
    }

    #[test]
    fn a_seed_is_read_back_as_it_was_made_and_only_by_its_member() {
        let pool = pool("p");
        let uid = "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab";
        let owner = member(&pool, "p-abcde", uid);
        let now: Timestamp = "2026-11-30T20:00:00Z".parse().unwrap();
        let bundle = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".to_owned();
        let expires = now + jiff::SignedDuration::from_secs(600);
        let object = seed_secret(&issuer(), &owner, bundle, [7; 32], now, expires).unwrap();
        let secret: Secret = serde_json::from_value(object).unwrap();
        let (digest, until) = read_seed(&owner, &secret).unwrap();
        assert_eq!(digest.len(), 64);
        assert_eq!(until, expires);

        let other = member(&pool, "p-other", "1b7a3a3e-8a8f-4f0e-9a0b-0123456789ab");
        assert!(read_seed(&other, &secret).unwrap_err().to_string().contains("another owner"));
        let mut loose = secret.clone();
        loose.immutable = None;
        assert!(read_seed(&owner, &loose).is_err());
    }
}
