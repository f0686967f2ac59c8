//! Serves a SPIRE plugin from Rust.
//!
//! SPIRE starts a plugin once, over HashiCorp's go-plugin, and never again: when it dies, every attestation fails
//! until somebody restarts SPIRE, and SPIRE's own health check stays green. So the process that SPIRE starts is a
//! small *parent* that holds everything go-plugin is attached to, and the code that reads foreign bytes runs in a
//! *worker*, which the parent starts again as often as it dies.
//!
//! ```text
//!  spire-server ──unix socket── parent ──socketpair── worker
//!                handshake      (broker, stdio,        (NodeAttestor, Config)
//!                               controller, init,
//!                               health, proxy)
//! ```
//!
//! - [`handshake`]: the cookie, the socket, the first line on stdout;
//! - [`host`]: the services the parent answers itself, and the proxy of the rest;
//! - [`worker`]: starting, configuring, watching and restarting the worker;
//! - [`inner`]: what runs inside the worker;
//! - [`Kind`], [`Error`]: which half is served, and why it could not be;
//! - [`config`]: HCL as SPIRE hands it over;
//! - [`hclog`]: log lines that SPIRE understands.

pub mod config;
mod error;
pub mod handshake;
pub mod hclog;
pub mod host;
pub mod inner;
mod kind;
mod serve;
pub mod worker;

pub use error::Error;
pub use kind::Kind;
pub use serve::serve;
pub use worker::WORKER_ARG;

/// The generated messages and services, in modules named like their protobuf packages.
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/protos.rs"));
}

/// `spire.plugin.server.nodeattestor.v1`: the half that decides.
pub use proto::spire::plugin::server::nodeattestor::v1 as server;

/// `spire.plugin.agent.nodeattestor.v1`: the half that gives evidence.
pub use proto::spire::plugin::agent::nodeattestor::v1 as agent;

/// `spire.service.common.config.v1`: how either half is configured.
pub use proto::spire::service::common::config::v1 as plugin_config;
