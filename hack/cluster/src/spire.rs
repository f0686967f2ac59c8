//! spire-server with our plugin, and the agent beside it that gives our own programs their identities.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};

use crate::apply::Manifests;
use crate::error::{Error, Result};
use crate::identity::{Identities, Identity};
use crate::pki;
use crate::process::{Processes, until};
use crate::programs::{repository, tool};
use crate::settings::Settings;
use crate::{component, probe};

/// Where SPIRE answers.
#[derive(Clone, Debug)]
pub struct Spire {
    /// Port of the server on 127.0.0.1: agents and the server API.
    pub port: u16,
    /// The server's administration socket, for `spire-server` commands run inside the cluster.
    pub admin_socket: PathBuf,
    /// The Workload API of the agent beside the server.
    pub workload_api: PathBuf,
}

/// Starts both. `plugin` is our node attestor's binary; without it the server attests by join token only.
pub(crate) async fn start(
    processes: &Processes,
    identities: &Identities,
    admin: &Client,
    settings: &Settings,
    plugin: Option<&Path>,
) -> Result<Spire> {
    let folder = processes.dir.join("spire");
    std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
    Manifests::parse("manifests/spire.yaml", include_str!("../manifests/spire.yaml"))?.apply(admin).await?;
    let notifier = identities.kubeconfig(&Identity::SpireServer, Some(admin)).await?;
    let plugin = match plugin {
        None => None,
        Some(binary) => Some(Plugin {
            binary: binary.to_owned(),
            kubeconfig: identities.kubeconfig(&Identity::AttestorPlugin, Some(admin)).await?,
        }),
    };
    let server = Server { folder: &folder, settings, plugin, notifier };
    let port = server.start(processes, admin).await?;
    let spire = Spire { port, admin_socket: folder.join("server.sock"), workload_api: folder.join("agent.sock") };
    agent(processes, settings, &folder, &spire).await?;
    Ok(spire)
}

struct Plugin {
    binary: PathBuf,
    kubeconfig: PathBuf,
}

struct Server<'a> {
    folder: &'a Path,
    settings: &'a Settings,
    plugin: Option<Plugin>,
    notifier: PathBuf,
}

impl Server<'_> {
    async fn start(&self, processes: &Processes, admin: &Client) -> Result<u16> {
        let program = tool(component::SPIRE_SERVER)?;
        let health = processes.ports.take()?;
        let config = self.folder.join("server.conf");
        let port = processes
            .start_on_port(
                |port| {
                    pki::write(&config, &self.config(port, health)?)?;
                    let args = ["run".into(), "-config".into(), config.display().to_string()];
                    Ok(processes.spec(component::SPIRE_SERVER, &program, args))
                },
                async |_| ready(health).await,
            )
            .await?;
        let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "banlieue-system");
        until("spire-server has written its trust bundle to ConfigMap spire-bundle", async || {
            let Ok(map) = maps.get("spire-bundle").await else { return false };
            map.data.is_some_and(|it| it.get("bundle.crt").is_some_and(|it| it.contains("BEGIN CERTIFICATE")))
        })
        .await?;
        Ok(port)
    }

    /// HCL. Limits on attestation are off, since whole pools sit behind one address; the plugin brings its own.
    fn config(&self, port: u16, health: u16) -> Result<String> {
        let Settings { trust_domain, agent_ttl, svid_ttl, .. } = self.settings;
        let folder = self.folder.display();
        let notifier = self.notifier.display();
        let policy = repository().join("charts/banlieue/files/spire-policy.rego");
        let policy = if policy.is_file() { opa(&policy, self.folder, self.settings)? } else { String::new() };
        let plugin = self.plugin.as_ref().map(|it| self.plugin_config(it)).transpose()?.unwrap_or_default();
        Ok(format!(
            r#"server {{
  bind_address = "127.0.0.1"
  bind_port = "{port}"
  socket_path = "{folder}/server.sock"
  trust_domain = "{trust_domain}"
  data_dir = "{folder}"
  log_level = "INFO"
  ca_ttl = "24h"
  agent_ttl = "{}"
  default_x509_svid_ttl = "{}"
  ratelimit {{ attestation = false }}
  experimental {{
    cache_reload_interval = "250ms"
{policy}  }}
}}
plugins {{
  DataStore "sql" {{
    plugin_data {{
      database_type = "sqlite3"
      connection_string = "{folder}/datastore.sqlite3"
    }}
  }}
  KeyManager "disk" {{ plugin_data {{ keys_path = "{folder}/keys.json" }} }}
  NodeAttestor "join_token" {{ plugin_data {{}} }}
{plugin}  Notifier "k8sbundle" {{
    plugin_data {{
      namespace = "banlieue-system"
      config_map = "spire-bundle"
      config_map_key = "bundle.crt"
      kube_config_file_path = "{notifier}"
    }}
  }}
}}
{}"#,
            seconds(*agent_ttl),
            seconds(*svid_ttl),
            health_checks(health),
        ))
    }

    fn plugin_config(&self, plugin: &Plugin) -> Result<String> {
        let Plugin { binary, kubeconfig } = plugin;
        let bytes = std::fs::read(binary).map_err(|source| Error::File { path: binary.clone(), source })?;
        let checksum = hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes));
        Ok(format!(
            r#"  NodeAttestor "banlieue_vtpm" {{
    plugin_cmd = "{}"
    plugin_args = ["plugin"]
    plugin_checksum = "{checksum}"
    plugin_data {{
      kubeconfig = "{}"
      cluster = "{}"
    }}
  }}
"#,
            binary.display(),
            kubeconfig.display(),
            self.settings.cluster,
        ))
    }
}

/// The policy and its data, as `charts/banlieue/files/spire-policy-data.json` has it for another trust domain.
fn opa(policy: &Path, folder: &Path, settings: &Settings) -> Result<String> {
    let Settings { trust_domain, cluster, .. } = settings;
    let caller = |path: &str, role: &str| serde_json::json!({ "id": format!("spiffe://{trust_domain}/{path}"), "role": role, "cluster": cluster });
    let callers = [caller("banlieue/attestor-controller", "attestor"), caller("mediatore", "mediatore")];
    let data = folder.join("policy-data.json");
    pki::write(&data, &serde_json::json!({ "banlieue": { "callers": callers } }).to_string())?;
    Ok(format!(
        "    auth_opa_policy_engine {{\n      local {{\n        rego_path = \"{}\"\n        policy_data_path = \"{}\"\n      }}\n    }}\n",
        policy.display(),
        data.display()
    ))
}

/// Starts the agent by join token and gives our programs their identities on it.
async fn agent(processes: &Processes, settings: &Settings, folder: &Path, spire: &Spire) -> Result<()> {
    let server = tool(component::SPIRE_SERVER)?;
    let program = tool(component::SPIRE_AGENT)?;
    let socket = spire.admin_socket.display().to_string();
    let bundle = processes.run("spire-bundle-show", &server, ["bundle", "show", "-socketPath", &socket]).await?;
    pki::write(&folder.join("bundle.pem"), &bundle)?;
    let generated = processes
        .run("spire-token-generate", &server, ["token", "generate", "-ttl", "3600", "-socketPath", &socket])
        .await?;
    let token = generated.lines().find_map(|line| line.strip_prefix("Token: ")).map(str::trim);
    let token = token.ok_or_else(|| Error::Missing(format!("spire-server gave no join token: {generated}")))?;
    let health = processes.ports.take()?;
    let config = folder.join("agent.conf");
    pki::write(&config, &agent_config(settings, folder, spire, health))?;
    let args = ["run", "-config", &config.display().to_string(), "-joinToken", token];
    let entries = entries(processes, settings, &server, &socket, token);
    let started = processes.start(processes.spec(component::SPIRE_AGENT, &program, args), async || ready(health).await);
    futures::try_join!(started, entries)?;
    Ok(())
}

fn agent_config(settings: &Settings, folder: &Path, spire: &Spire, health: u16) -> String {
    let (trust_domain, folder, port) = (&settings.trust_domain, folder.display(), spire.port);
    format!(
        r#"agent {{
  data_dir = "{folder}/agent"
  log_level = "INFO"
  server_address = "127.0.0.1"
  server_port = "{port}"
  socket_path = "{folder}/agent.sock"
  trust_domain = "{trust_domain}"
  trust_bundle_path = "{folder}/bundle.pem"
  experimental {{ sync_interval = "250ms" }}
}}
plugins {{
  NodeAttestor "join_token" {{ plugin_data {{}} }}
  KeyManager "disk" {{ plugin_data {{ directory = "{folder}/agent" }} }}
  WorkloadAttestor "unix" {{ plugin_data {{ discover_workload_path = true }} }}
}}
{}"#,
        health_checks(health)
    )
}

/// One entry for each program of ours that speaks to SPIRE's server.
async fn entries(processes: &Processes, settings: &Settings, server: &Path, socket: &str, token: &str) -> Result<()> {
    let parent = format!("spiffe://{}/spire/agent/join_token/{token}", settings.trust_domain);
    for (path, binary) in [("banlieue/attestor-controller", "banlieue-attestor"), ("mediatore", "mediatore")] {
        let id = format!("spiffe://{}/{path}", settings.trust_domain);
        let program = format!("unix:path:{}", processes.dir.join("bin").join(binary).display());
        let args = [
            "entry",
            "create",
            "-socketPath",
            socket,
            "-parentID",
            &parent,
            "-spiffeID",
            &id,
            "-selector",
            &program,
            "-admin",
        ];
        processes.run(&format!("spire-entry-{binary}"), server, args).await?;
    }
    Ok(())
}

fn health_checks(port: u16) -> String {
    format!(
        "health_checks {{\n  listener_enabled = true\n  bind_address = \"127.0.0.1\"\n  bind_port = \"{port}\"\n  live_path = \"/live\"\n  ready_path = \"/ready\"\n}}\n"
    )
}

async fn ready(port: u16) -> bool {
    match probe::client(&format!("http://127.0.0.1:{port}"), None) {
        Some(client) => probe::answers(&client, "/ready").await,
        None => false,
    }
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}
