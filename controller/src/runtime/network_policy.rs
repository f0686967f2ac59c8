//! The pool's one static NetworkPolicy: nothing comes in, and out only to SPIRE and the broker.

use std::net::IpAddr;

use banlieue_crds::VirtualMachinePool;
use banlieue_crds::names::{self, labels};
use banlieue_protocol::seed::HostPort;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{Issuer, pool_owner};

/// Builds it. Members resolve no names (their seed and the gateway do), so there is no rule for DNS.
///
/// An address in the configuration becomes exactly that address; a host name, which a NetworkPolicy cannot express,
/// becomes its port alone.
pub fn network_policy(pool: &VirtualMachinePool, issuer: &Issuer) -> Value {
    let mut egress = vec![rule(&issuer.spire_server)];
    egress.extend(issuer.broker.as_ref().map(rule));
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": names::network_policy(&pool.name_any()),
            "namespace": pool.namespace(),
            "labels": {
                labels::POOL: pool.name_any(),
                labels::MANAGED_BY: labels::MANAGED_BY_VALUE,
            },
            "ownerReferences": [pool_owner(pool)],
        },
        "spec": {
            "podSelector": { "matchLabels": { labels::POOL: pool.name_any() } },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": egress,
        },
    })
}

fn rule(to: &HostPort) -> Value {
    let ports = json!([{ "protocol": "TCP", "port": to.port() }]);
    match to.host().trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => {
            let length = if address.is_ipv4() { 32 } else { 128 };
            json!({ "to": [{ "ipBlock": { "cidr": format!("{address}/{length}") } }], "ports": ports })
        }
        Err(_) => json!({ "ports": ports }),
    }
}
