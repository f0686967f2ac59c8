//! Light instances: a real vTPM whose PCRs are extended from a recording, and a real spire-agent with our plugin as host
//! processes in a mount namespace of their own. Real attestation without a boot.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use banlieue_crds::kubevirt::VirtualMachineInstance;
use banlieue_protocol::seed::{Seed, SeedMap, key};
use banlieue_supervisor::{Bind, Spec};
use banlieue_tpm::eventlog::EventLog;

use super::home::absent;
use super::{Error, Part, Vm};
use crate::images::Recording;
use crate::machine::Endpoint;
use crate::plan::{self, file};
use crate::{iso, swtpm};

/// Folder with the seed's files.
const SEED: &str = "seed";
/// Configuration of the agent.
const CONFIGURATION: &str = "agent.conf";
/// The boot's random id, as `/proc/sys/kernel/random/boot_id` is in a guest.
const BOOT_ID: &str = "boot_id";
/// The agent's own password file, shown to it as /etc/passwd: it looks users up there for `unix:user` selectors.
const PASSWD: &str = "passwd";
/// The agent's Workload API.
const AGENT_SOCKET: &str = "agent.sock";

impl Vm {
    pub(super) async fn start_light(&self, instance: &VirtualMachineInstance) -> Result<(), Error> {
        let recording = self.shared.host.images.recording(plan::boot_image(instance)?)?;
        let Some(secret) = plan::seed_secret(instance) else {
            return Err(Error::Light("no disk has the seed's serial".into()));
        };
        let map: SeedMap = self.secret(secret).await?;
        let seed = Seed::parse(&map).map_err(|error| Error::Light(error.to_string()))?;
        self.clear(Part::Guest).await?;
        self.clear(Part::Tpm).await?;
        self.home.create(&self.id)?;
        self.endorse().await?;
        self.measure(&recording).await?;
        self.write_guest(&map, &seed, &recording)?;
        let own = self.shared.programs.own.display().to_string();
        let agent = self.shared.programs.spire_agent.display().to_string();
        let ttl = Duration::from_secs(seed.agent_ttl_seconds.into());
        let give_up = self.shared.light_give_up.unwrap_or(ttl).as_secs().to_string();
        let argv = [own.as_str(), "light-guest", "--give-up", &give_up, "--", &agent, "run", "-config", CONFIGURATION];
        let spec = Spec {
            name: self.process(Part::Guest),
            argv: argv.map(String::from).into(),
            cwd: Some(self.home.folder().to_owned()),
            log: self.log(Part::Guest),
            unshare_mount: true,
            binds: vec![Bind { source: self.home.path(PASSWD), target: "/etc/passwd".into(), read_only: false }],
            ..Spec::default()
        };
        self.shared.supervisor.spawn(spec).await?;
        self.check_alive(Part::Guest).await
    }

    /// Brings a fresh vTPM to the state that the recorded boot left.
    async fn measure(&self, recording: &Recording) -> Result<(), Error> {
        let wrong = |reason: String| Error::Light(format!("{}: {reason}", recording.event_log.display()));
        let bytes = std::fs::read(&recording.event_log).map_err(|error| wrong(error.to_string()))?;
        let log = EventLog::parse(&bytes).map_err(|error| wrong(error.to_string()))?;
        if log.startup_locality != 0 {
            return Err(wrong(format!(
                "the TPM was started from locality {}, which cannot be repeated",
                log.startup_locality
            )));
        }
        let socket = self.home.path(file::TPM_SOCKET);
        for stale in [socket.clone(), socket.with_extension("sock.ctrl")] {
            absent(std::fs::remove_file(&stale)).map_err(|source| Error::File { path: stale, source })?;
        }
        self.serve_tpm(swtpm::data_arguments(Path::new(file::TPM), Path::new(file::TPM_SOCKET))).await?;
        let mut tpm = swtpm::listening(&socket).await?;
        tpm.self_test().await?;
        for event in log.events.iter().filter(|event| event.pcr < 16) {
            tpm.extend(u32::from(event.pcr), &event.digest).await?;
        }
        for extension in &recording.extend {
            tpm.extend(u32::from(extension.pcr), &extension.digest).await?;
        }
        Ok(())
    }

    fn write_guest(&self, map: &SeedMap, seed: &Seed, recording: &Recording) -> Result<(), Error> {
        let folder = self.home.path(SEED);
        absent(std::fs::remove_dir_all(&folder)).map_err(|source| Error::File { path: folder.clone(), source })?;
        iso::write_files(&folder, map)?;
        let boot_id = std::fs::read("/proc/sys/kernel/random/uuid")
            .map_err(|source| Error::File { path: "/proc/sys/kernel/random/uuid".into(), source })?;
        let text = self.configuration(seed, recording)?;
        let files: [(&str, &[u8]); 3] =
            [(BOOT_ID, &boot_id), (PASSWD, b"root:x:0:0:root:/root:/bin/false\n"), (CONFIGURATION, text.as_bytes())];
        for (name, content) in files {
            let path = self.home.path(name);
            std::fs::write(&path, content).map_err(|source| Error::File { path, source })?;
        }
        Ok(())
    }

    /// The agent's configuration (`spire-agent`, HCL). Every value is quoted as JSON, which HCL's strings understand.
    fn configuration(&self, seed: &Seed, recording: &Recording) -> Result<String, Error> {
        let at = |name: &str| quoted(&self.home.path(name).display().to_string());
        let server = self.reachable(&seed.spire_server.to_string())?;
        Ok(format!(
            r#"agent {{
    trust_domain = {trust_domain}
    server_address = {host}
    server_port = {port}
    trust_bundle_path = {bundle}
    data_dir = {data}
    socket_path = {socket}
    log_level = "INFO"
    experimental {{
        sync_interval = "250ms"
    }}
}}
plugins {{
    KeyManager "memory" {{
        plugin_data {{}}
    }}
    NodeAttestor "banlieue_vtpm" {{
        plugin_cmd = {plugin}
        plugin_data {{
            tpm = {tpm}
            event_log = {log}
            seed = {seed}
            boot_id = {boot_id}
        }}
    }}
    WorkloadAttestor "unix" {{
        plugin_data {{
            discover_workload_path = true
        }}
    }}
}}
"#,
            trust_domain = quoted(&seed.trust_domain.to_string()),
            host = quoted(&server.ip().to_string()),
            port = server.port(),
            bundle = at(&format!("{SEED}/{}", key::BUNDLE)),
            data = at("data"),
            socket = at(AGENT_SOCKET),
            plugin = quoted(&self.shared.programs.attestor_guest.display().to_string()),
            // Relative to the agent's working directory, which its plugins inherit: an absolute path may be longer than a
            // socket's address.
            tpm = quoted(&format!("swtpm:path={}", file::TPM_SOCKET)),
            log = quoted(&recording.event_log.display().to_string()),
            seed = at(SEED),
            boot_id = at(BOOT_ID),
        ))
    }

    /// The host's address of an endpoint that guests may reach, which the seed may name by either side. Any other is
    /// refused, as the network of a full instance would.
    fn reachable(&self, named: &str) -> Result<SocketAddr, Error> {
        let is = |endpoint: &&Endpoint| endpoint.guest.to_string() == named || endpoint.host.to_string() == named;
        let allowed = self.shared.host.allow.iter().find(is);
        allowed.map(|endpoint| endpoint.host).ok_or_else(|| {
            Error::Light(format!("the seed names {named}, which is not among the endpoints that guests may reach"))
        })
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
