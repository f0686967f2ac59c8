//! The SPIRE agent: its configuration, and its processes one after another.

use std::{
    fs::{DirBuilder, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    process::{Command, Stdio},
};

use banlieue_protocol::{
    names::ATTESTOR_TYPE,
    seed::{Seed, key},
};
use rustix::process::Pid;
use thiserror::Error;

use crate::{console, evidence::EVENT_LOG, seed_volume::SEED};

/// The Workload API of this guest.
pub const SOCKET: &str = "/run/spire/agent.sock";
const PROGRAM: &str = "/usr/bin/spire-agent";
const PLUGIN: &str = "/usr/bin/banlieue-attestor-guest";
const CONFIG: &str = "/run/banlieue/agent.conf";
const DATA: &str = "/run/spire/data";
/// The kernel's resource manager keeps the plugin's handles apart from anybody else's.
const TPM: &str = "device:/dev/tpmrm0";
/// Longer lines of the agent are split.
const LONGEST_LINE: u64 = 4096;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why the agent could not be started.
#[derive(Debug, Error)]
pub enum Error {
    /// A file or folder could not be made.
    #[error("cannot write {0}: {1}")]
    Write(&'static str, std::io::Error),
    /// The program could not be run.
    #[error("cannot start the SPIRE agent: {0}")]
    Start(std::io::Error),
}

/// The agent's configuration (HCL). Every word in it was checked by the seed's parser: none holds a quote.
fn config(seed: &Seed) -> String {
    let host = seed.spire_server.host().trim_start_matches('[').trim_end_matches(']');
    let port = seed.spire_server.port();
    let (trust_domain, bundle) = (&seed.trust_domain, key::BUNDLE);
    format!(
        r#"agent {{
  trust_domain = "{trust_domain}"
  server_address = "{host}"
  server_port = {port}
  trust_bundle_path = "{SEED}/{bundle}"
  socket_path = "{SOCKET}"
  data_dir = "{DATA}"
  log_level = "INFO"
  log_format = "text"
  # How soon the guest learns of new entries and of a ban.
  experimental {{
    sync_interval = "1s"
  }}
}}
plugins {{
  NodeAttestor "{ATTESTOR_TYPE}" {{
    plugin_cmd = "{PLUGIN}"
    plugin_data {{
      tpm = "{TPM}"
      event_log = "{EVENT_LOG}"
      seed = "{SEED}"
      boot_id = "{BOOT_ID}"
    }}
  }}
  # Keys die with the guest.
  KeyManager "memory" {{
    plugin_data {{}}
  }}
  WorkloadAttestor "unix" {{
    plugin_data {{
      discover_workload_path = true
    }}
  }}
}}
"#
    )
}

/// Writes the configuration and the folders that the agent needs.
pub fn prepare(seed: &Seed) -> Result<(), Error> {
    let folder = DirBuilder::new().recursive(true).mode(0o755).create("/run/spire");
    folder.map_err(|e| Error::Write("/run/spire", e))?;
    let folder = DirBuilder::new().recursive(true).mode(0o700).create(DATA);
    folder.map_err(|e| Error::Write(DATA, e))?;
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(CONFIG);
    file.and_then(|mut f| f.write_all(config(seed).as_bytes())).map_err(|e| Error::Write(CONFIG, e))
}

/// Starts one agent process. It is reaped by whoever reaps for the first process.
pub fn start() -> Result<Pid, Error> {
    // A socket left by an agent that was killed would make its successor fail to listen.
    let _ = std::fs::remove_file(SOCKET);
    let (said, say) = std::io::pipe().map_err(Error::Start)?;
    let mut command = Command::new(PROGRAM);
    command.args(["run", "-config", CONFIG]).stdin(Stdio::null()).current_dir("/");
    // A pipe, not the console itself: to a terminal the agent writes colours, and a slow console would stop it.
    command.stdout(say.try_clone().map_err(Error::Start)?).stderr(say);
    command.env_clear().env("PATH", "/usr/bin").env("HOME", "/root").env("TMPDIR", "/tmp");
    // The TPM libraries of the plugin, which inherits this, tell every handle they flush otherwise.
    command.env("BANLIEUE_LOG", "warn").env("TSS2_LOG", "all+error");
    let child = command.spawn().map_err(Error::Start)?;
    std::thread::spawn(move || relay(said));
    Ok(Pid::from_child(&child))
}

/// Copies an agent's lines to the console until the last process that holds the pipe is gone.
fn relay(said: impl Read) {
    let mut lines = BufReader::new(said);
    loop {
        let mut line = Vec::new();
        match lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => console::raw(&format!("spire-agent: {}\n", String::from_utf8_lossy(&line).trim_end())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use banlieue_protocol::seed::SeedMap;

    #[test]
    fn config_names_what_the_seed_says() {
        let values = [
            ("member", "guest-x7k2p"),
            ("namespace", "sandboxes"),
            ("uid", "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab"),
            ("secret", "0707070707070707070707070707070707070707070707070707070707070707"),
            ("issued-at", "2026-11-30T20:00:00Z"),
            ("expires-at", "2026-11-30T20:15:00Z"),
            ("trust-domain", "banlieue.local"),
            ("cluster", "local"),
            ("bundle.pem", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"),
            ("spire-server", "10.0.2.2:8081"),
            ("broker", ""),
        ];
        let map: SeedMap = values.into_iter().map(|(k, v)| (k.to_owned(), v.as_bytes().to_vec())).collect();
        let text = config(&Seed::parse(&map).unwrap());
        for expected in [
            "server_address = \"10.0.2.2\"",
            "server_port = 8081",
            "trust_domain = \"banlieue.local\"",
            "trust_bundle_path = \"/run/banlieue/seed/bundle.pem\"",
            "NodeAttestor \"banlieue_vtpm\"",
            "tpm = \"device:/dev/tpmrm0\"",
        ] {
            assert!(text.contains(expected), "no {expected} in\n{text}");
        }
        assert!(!text.contains("0707"), "the secret is in the configuration");
    }
}
