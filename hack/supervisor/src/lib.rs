//! One process that owns every process of a local cluster, virtual machines included.
//!
//! The guarantee: whatever happens to the program that started a cluster, or to the supervisor, nothing of the cluster
//! stays behind. It rests on one fact of the kernel: when the first process of a PID namespace ends, the kernel kills
//! every other process in it, however they were forked, re-parented or detached.
//!
//! ```text
//! starter ──lifeline (a pipe)──> keeper ──PDEATHSIG + pipe──> init (PID 1 of the namespace) ──> everything else
//! ```
//! - The **keeper** ([`keeper`]) stays outside. When its standard input ends, it kills init and removes the directory.
//! - **init** ([`init`]) spawns, reaps and answers on `<dir>/supervisor.sock`.
//! - [`shim`] is what a spawned process is for the moment before its own program starts: mounts and identity.
//!
//! Callers use [`Launch`] to start one and [`Client`] to talk to it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
pub mod init;
pub mod keeper;
mod launch;
pub mod shim;
mod spec;
pub mod wire;

pub use client::{Client, Error};
pub use launch::{Launch, Supervisor};
pub use spec::{Bind, Signal, Spec, State, Status};

/// The control socket's name inside the cluster's directory.
pub const SOCKET: &str = "supervisor.sock";
/// The supervisor's own log inside the cluster's directory.
pub const LOG: &str = "supervisor.log";
/// Temporary folder of everything in the cluster, inside the cluster's directory.
pub const TMP: &str = "tmp";
/// While this file exists in the cluster's directory, log files survive the cluster's end.
pub const KEEP_LOGS: &str = "keep-logs";
/// While this file exists in the cluster's directory, the end of the lifeline means nothing.
pub const DETACHED: &str = "detached";
