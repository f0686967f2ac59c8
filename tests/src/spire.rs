//! spire-server's own command.

use std::process::Command;

use banlieue_cluster::{Cluster, programs};

/// What it says, on the server's administration socket: its output, then its errors.
///
/// # Panics
/// It cannot be run, or the cluster has no SPIRE.
#[must_use]
pub fn command(cluster: &Cluster, arguments: &[&str]) -> String {
    let socket = cluster.spire().unwrap().admin_socket.display().to_string();
    let program = programs::tool("spire-server").unwrap();
    let output = Command::new(program).args(arguments).args(["-socketPath", &socket]).output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}
