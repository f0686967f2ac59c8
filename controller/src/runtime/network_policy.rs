//! The pool's one static NetworkPolicy: nothing comes in, and out only to SPIRE and the broker.
//!
//! Members resolve no names (their seed and the gateway do), so there is no rule for DNS. A NetworkPolicy knows
//! addresses and pods, no host names: an endpoint that is configured by a host name needs the peers behind it said as
//! well. Without them its rule is left out, and the pool makes no members: closed, never open.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use banlieue_crds::VirtualMachinePool;
use banlieue_crds::names::{self, labels};
use banlieue_protocol::seed::HostPort;
use kube::ResourceExt;
use serde_json::{Value, json};
use thiserror::Error;

use super::pool_owner;

/// Label that Kubernetes gives to every namespace: its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Why a peer does not parse.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} is no peer: write a CIDR such as 10.0.0.0/8 or <namespace>/<label>=<value>[,…], each with @<port> when it listens on another"
)]
pub struct PeerError {
    text: String,
}

/// Who stands behind an endpoint, as a NetworkPolicy names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    to: To,
    /// Where it listens when that is not the endpoint's port: a policy judges what is left after a Service's translation.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum To {
    Block(String),
    Pods { namespace: String, labels: BTreeMap<String, String> },
}

impl FromStr for Peer {
    type Err = PeerError;

    /// `10.0.0.0/8`, `spire/app=spire-server,tier=server`, either with `@8081`.
    fn from_str(text: &str) -> Result<Self, PeerError> {
        let wrong = || PeerError { text: text.to_owned() };
        let (to, port) = match text.split_once('@') {
            Some((to, port)) => (to, Some(port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?)),
            None => (text, None),
        };
        let (first, rest) = to.split_once('/').ok_or_else(wrong)?;
        if let Ok(address) = first.parse::<IpAddr>() {
            let most = if address.is_ipv4() { 32 } else { 128 };
            let length = rest.parse::<u8>().ok().filter(|length| *length <= most).ok_or_else(wrong)?;
            return Ok(Self { to: To::Block(format!("{address}/{length}")), port });
        }
        let word = |text: &str, also: &[u8]| {
            text.len() <= 253 && text.bytes().all(|c| c.is_ascii_alphanumeric() || also.contains(&c))
        };
        let mut labels = BTreeMap::new();
        for pair in rest.split(',') {
            let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
            if key.is_empty() || !word(key, b"-_./") || !word(value, b"-_.") || value.len() > 63 {
                return Err(wrong());
            }
            labels.insert(key.to_owned(), value.to_owned());
        }
        if first.is_empty() || !word(first, b"-") {
            return Err(wrong());
        }
        Ok(Self { to: To::Pods { namespace: first.to_owned(), labels }, port })
    }
}

impl Peer {
    fn rule(&self, endpoint: &HostPort) -> Value {
        let to = match &self.to {
            To::Block(cidr) => json!({ "ipBlock": { "cidr": cidr } }),
            To::Pods { namespace, labels } => json!({
                "namespaceSelector": { "matchLabels": { NAMESPACE_NAME: namespace } },
                "podSelector": { "matchLabels": labels },
            }),
        };
        let port = self.port.unwrap_or_else(|| endpoint.port());
        json!({ "to": [to], "ports": [{ "protocol": "TCP", "port": port }] })
    }
}

/// One thing that members may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// What it is, for a person.
    pub name: &'static str,
    /// The flag that names its peers.
    pub flag: &'static str,
    /// As members reach it.
    pub address: HostPort,
    /// Who stands behind it; the address itself when none is said and it is no host name.
    pub peers: Vec<Peer>,
}

impl Endpoint {
    fn rules(&self) -> Vec<Value> {
        if !self.peers.is_empty() {
            return self.peers.iter().map(|peer| peer.rule(&self.address)).collect();
        }
        let Some(address) = self.ip() else { return Vec::new() };
        let length = if address.is_ipv4() { 32 } else { 128 };
        let peer = Peer { to: To::Block(format!("{address}/{length}")), port: None };
        vec![peer.rule(&self.address)]
    }

    fn ip(&self) -> Option<IpAddr> {
        self.address.host().trim_matches(['[', ']']).parse().ok()
    }
}

/// Everything that members may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Egress(pub Vec<Endpoint>);

impl Egress {
    /// What a policy cannot say yet, and what to configure; nothing when it is complete.
    pub fn gap(&self) -> Option<String> {
        let endpoint = self.0.iter().find(|endpoint| endpoint.peers.is_empty() && endpoint.ip().is_none())?;
        Some(format!(
            "{} is configured by the host name {}, which a NetworkPolicy cannot express: give the controller {} with a \
             CIDR or <namespace>/<label>=<value> for what stands behind it, or set networkPolicy: Unmanaged and keep \
             members apart yourself",
            endpoint.name,
            endpoint.address.host(),
            endpoint.flag
        ))
    }
}

/// Builds it.
pub fn network_policy(pool: &VirtualMachinePool, egress: &Egress) -> Value {
    let rules: Vec<Value> = egress.0.iter().flat_map(Endpoint::rules).collect();
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
            "egress": rules,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(address: &str, peers: &[&str]) -> Endpoint {
        Endpoint {
            name: "SPIRE",
            flag: "--spire-peer",
            address: HostPort::parse(address).unwrap(),
            peers: peers.iter().map(|peer| peer.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn each_form_of_an_endpoint_becomes_its_peers_and_a_host_name_alone_becomes_nothing() {
        let ports = |port: u16| json!([{ "protocol": "TCP", "port": port }]);
        let block = |cidr: &str, port| json!({ "to": [{ "ipBlock": { "cidr": cidr } }], "ports": ports(port) });
        for (address, peers, rules) in [
            ("10.0.2.100:8081", vec![], vec![block("10.0.2.100/32", 8081)]),
            ("[fd00::1]:8081", vec![], vec![block("fd00::1/128", 8081)]),
            ("spire.example:443", vec![], vec![]),
            ("spire.example:443", vec!["10.1.0.0/16"], vec![block("10.1.0.0/16", 443)]),
            ("10.0.2.100:443", vec!["fd00::/8@8081"], vec![block("fd00::/8", 8081)]),
            (
                "spire.example:443",
                vec!["spire/app.kubernetes.io/name=server,tier=a@8081"],
                vec![json!({
                    "to": [{
                        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "spire" } },
                        "podSelector": { "matchLabels": { "app.kubernetes.io/name": "server", "tier": "a" } },
                    }],
                    "ports": ports(8081),
                })],
            ),
        ] {
            let endpoint = endpoint(address, &peers);
            assert_eq!(endpoint.rules(), rules, "{address} {peers:?}");
            assert_eq!(Egress(vec![endpoint]).gap().is_some(), rules.is_empty(), "{address} {peers:?}");
        }
        let gap = Egress(vec![endpoint("10.0.2.100:1", &[]), endpoint("spire.example:443", &[])]).gap().unwrap();
        assert!(gap.contains("spire.example") && gap.contains("--spire-peer"), "{gap}");
    }

    #[test]
    fn what_is_no_peer_is_refused_in_a_sentence() {
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "fd00::/129",
            "10.0.0.0/8@0",
            "10.0.0.0/8@x",
            "spire",
            "spire/",
            "/a=b",
            "spire/a",
            "spire/=b",
            "spire/a=b@",
            "sp ire/a=b",
            "spire/a=b c",
            "0.0.0.0/",
            "spire/a=b,",
        ] {
            let error = text.parse::<Peer>().unwrap_err();
            assert!(error.to_string().contains("write a CIDR"), "{text}");
        }
    }
}
