//! Command line and environment.

use std::net::SocketAddr;

use banlieue_leader::Terms;
use banlieue_protocol::names::{Cluster, TrustDomain};
use banlieue_protocol::seed::{AGENT_TTL_SECONDS, HostPort, MAX_AGENT_TTL_SECONDS};
use clap::{Parser, Subcommand};

use crate::decide::Allowed;
use crate::runtime::{Egress, Endpoint, Issuer, Peer};
use crate::store::ObjectKey;

/// Keeps warm pools of attested virtual machines, lends each to one claim, destroys it.
#[derive(Debug, Parser)]
#[command(name = "banlieue-controller", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controller until SIGTERM or SIGINT.
    Run(Box<RunArgs>),
    /// Look whether the cluster has what banlieue needs, and list who could reach into a member. Exit code 1 when
    /// something is wrong, 3 when the cluster cannot be asked.
    Doctor(DoctorArgs),
}

/// Arguments of `run`.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// Namespaces to work in; all when none is given. May be repeated.
    #[arg(long = "namespace", env = "BANLIEUE_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Namespace of banlieue's own programs.
    #[arg(long, env = "BANLIEUE_SYSTEM_NAMESPACE", default_value = "banlieue-system")]
    pub system_namespace: String,
    /// SPIFFE trust domain.
    #[arg(long, env = "BANLIEUE_TRUST_DOMAIN", value_parser = trust_domain)]
    pub trust_domain: TrustDomain,
    /// Name of this cluster in SPIFFE ids.
    #[arg(long, env = "BANLIEUE_CLUSTER", value_parser = cluster)]
    pub cluster: Cluster,
    /// SPIRE server as members reach it, host:port.
    #[arg(long, env = "BANLIEUE_SPIRE_SERVER", value_parser = host_port)]
    pub spire_server: HostPort,
    /// Broker as members reach it, host:port.
    #[arg(long, env = "BANLIEUE_BROKER", value_parser = host_port)]
    pub broker: Option<HostPort>,
    /// Life of agents' SVIDs, as SPIRE's server is configured (agent_ttl): a guest whose identity does not come back for
    /// so long powers off.
    #[arg(long, env = "BANLIEUE_AGENT_TTL_SECONDS", default_value_t = AGENT_TTL_SECONDS,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_AGENT_TTL_SECONDS)))]
    pub agent_ttl_seconds: u32,
    /// Who stands behind --spire-server, for the pools' NetworkPolicies: a CIDR (10.0.0.0/8), or namespace and labels of
    /// pods (spire/app=spire-server,tier=a), each with @<port> when it listens on another. May be repeated; needed when
    /// --spire-server is a host name.
    #[arg(long = "spire-peer", env = "BANLIEUE_SPIRE_PEERS", value_delimiter = ';')]
    pub spire_peers: Vec<Peer>,
    /// The same for --broker.
    #[arg(long = "broker-peer", env = "BANLIEUE_BROKER_PEERS", value_delimiter = ';')]
    pub broker_peers: Vec<Peer>,
    /// What keys of a template's labels and annotations may begin with, besides app.kubernetes.io/: whole keys, or
    /// domains with their slash (example.com/). They reach the launcher pod, so list nothing that steers a network plugin,
    /// a runtime or an injector. May be repeated.
    #[arg(long = "allow-template-key-prefix", env = "BANLIEUE_ALLOW_TEMPLATE_KEY_PREFIXES", value_delimiter = ',',
        value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub template_key_prefixes: Vec<String>,
    /// PriorityClass that templates may name; none when none is given. May be repeated.
    #[arg(long = "allow-priority-class", env = "BANLIEUE_ALLOW_PRIORITY_CLASSES", value_delimiter = ',',
        value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub priority_classes: Vec<String>,
    /// ConfigMap of the system namespace that holds SPIRE's trust bundle under the key bundle.crt.
    #[arg(long, env = "BANLIEUE_BUNDLE_CONFIGMAP", default_value = "spire-bundle")]
    pub bundle_configmap: String,
    /// Where /livez, /readyz and /metrics are served.
    #[arg(long, env = "BANLIEUE_METRICS", default_value = "127.0.0.1:8080")]
    pub metrics: SocketAddr,
    /// Write only while holding the Lease `banlieue-controller` of the system namespace, so that several may run.
    #[arg(long, env = "BANLIEUE_LEADER_ELECT", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    pub leader_elect: bool,
    /// How long the others wait for a leader that is silent. It stops writing after two thirds of that.
    #[arg(long, env = "BANLIEUE_LEASE_SECONDS", default_value_t = 15,
        value_parser = clap::value_parser!(u32).range(3..=3600))]
    pub lease_seconds: u32,
    /// Name in the Lease and in events; made up anew at every start when none is given. A process that starts under the
    /// name that is in the Lease takes it at once: give a name (a pod's) that two processes never have at a time.
    #[arg(long, env = "BANLIEUE_IDENTITY")]
    pub identity: Option<String>,
    /// Log as JSON lines.
    #[arg(long, env = "BANLIEUE_LOG_JSON")]
    pub log_json: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Clone, clap::Args)]
pub struct DoctorArgs {
    /// Namespace of banlieue's own programs.
    #[arg(long, env = "BANLIEUE_SYSTEM_NAMESPACE", default_value = "banlieue-system")]
    pub system_namespace: String,
    /// ConfigMap of the system namespace that holds SPIRE's trust bundle under the key bundle.crt.
    #[arg(long, env = "BANLIEUE_BUNDLE_CONFIGMAP", default_value = "spire-bundle")]
    pub bundle_configmap: String,
}

impl RunArgs {
    /// What every seed holds.
    pub fn issuer(&self) -> Issuer {
        Issuer {
            trust_domain: self.trust_domain.clone(),
            cluster: self.cluster.clone(),
            spire_server: self.spire_server.clone(),
            broker: self.broker.clone(),
            agent_ttl_seconds: self.agent_ttl_seconds,
        }
    }

    /// What templates may hold besides what is always allowed.
    pub fn allowed(&self) -> Allowed {
        Allowed { key_prefixes: self.template_key_prefixes.clone(), priority_classes: self.priority_classes.clone() }
    }

    /// What members may reach.
    pub fn egress(&self) -> Egress {
        let spire = Endpoint {
            name: "SPIRE",
            flag: "--spire-peer",
            address: self.spire_server.clone(),
            peers: self.spire_peers.clone(),
        };
        let broker = self.broker.clone().map(|address| Endpoint {
            name: "the broker",
            flag: "--broker-peer",
            address,
            peers: self.broker_peers.clone(),
        });
        Egress([spire].into_iter().chain(broker).collect())
    }

    /// Times of the leader's Lease.
    pub fn terms(&self) -> Terms {
        Terms::of_seconds(self.lease_seconds)
    }

    /// The trust bundle's ConfigMap.
    pub fn bundle(&self) -> ObjectKey {
        ObjectKey::new(&self.system_namespace, &self.bundle_configmap)
    }
}

fn trust_domain(value: &str) -> Result<TrustDomain, String> {
    TrustDomain::parse(value).map_err(|error| error.to_string())
}

fn cluster(value: &str) -> Result<Cluster, String> {
    Cluster::parse(value).map_err(|error| error.to_string())
}

fn host_port(value: &str) -> Result<HostPort, String> {
    HostPort::parse(value).ok_or_else(|| "must be host:port".to_owned())
}
