//! The server half of attestation: SPIRE plugin, attestor controller, tools.
//!
//! - [`facts`]: what is known about a member, as plain values; [`checks`]: every check over them (pure);
//! - [`plugin`]: the SPIRE plugin: streams, limits, reading facts, the one guarded write;
//! - [`controller`]: keeps SPIRE and members in step: entries, `Attested`, bans, tombstones, sweeps, the probe;
//! - [`tools`]: the golden recorder and the log printer for people;
//! - [`cluster`], [`policies`], [`unread`]: the API server as both see it: watches, policy copies, what cannot be read;
//! - [`http`]: liveness, readiness and metrics of both programs.

pub mod checks;
pub mod cluster;
pub mod controller;
pub mod facts;
pub mod http;
pub mod plugin;
pub mod policies;
pub mod tools;
pub mod unread;
