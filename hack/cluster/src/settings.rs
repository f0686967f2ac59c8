//! What a cluster is called, and how long its identities last.

use std::time::Duration;

/// Names and lifetimes that several components must agree on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// SPIFFE trust domain.
    pub trust_domain: String,
    /// Cluster name inside SPIFFE ids.
    pub cluster: String,
    /// Lifetime of an agent's SVID. Attestation runs again at about half of it.
    pub agent_ttl: Duration,
    /// Lifetime of workloads' SVIDs.
    pub svid_ttl: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            trust_domain: "banlieue.local".into(),
            cluster: "local".into(),
            agent_ttl: Duration::from_secs(600),
            svid_ttl: Duration::from_secs(300),
        }
    }
}
