//! The SPIRE plugin: streams in, facts from Kubernetes, pure checks, one guarded write, an answer.
//!
//! [`service`] speaks SPIRE's protocol; [`session`] takes one stream through the checks; [`store`] says what a session
//! needs from the cluster and [`kube_store`] gives it; [`read`] turns objects into facts; [`limits`] and
//! [`enrolments`] bound what strangers and members may cost; [`metrics`] counts.

pub mod config;
pub mod enrolments;
pub mod kube_store;
pub mod limits;
pub mod metrics;
pub mod read;
pub mod service;
pub mod session;
pub mod store;
#[cfg(test)]
mod tests;
