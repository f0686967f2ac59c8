//! Client of SPIRE's server API over TCP, with an SVID of the caller from the Workload API.
//!
//! - [`client`]: the connection: mutual TLS, who the server must be, deadlines;
//! - [`entries`]: create, list and delete registration entries by ids that say who wrote them;
//! - [`agents`]: list, ban and delete agents, and the probe of a node attestor;
//! - [`sweep`]: what may be removed because nothing stands for it any more (pure).

pub mod agents;
pub mod client;
pub mod entries;
mod error;
pub mod sweep;

pub use client::{Client, Config};
pub use error::Error;

/// The generated messages and clients, in modules named like their protobuf packages.
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/protos.rs"));
}

use banlieue_protocol::names::{SpiffeId, TrustDomain};
use proto::spire::api::types::Spiffeid;

/// A SPIFFE id as SPIRE's API carries it.
fn to_proto(trust_domain: &TrustDomain, id: &SpiffeId) -> Spiffeid {
    Spiffeid { trust_domain: trust_domain.to_string(), path: id.path().to_owned() }
}
