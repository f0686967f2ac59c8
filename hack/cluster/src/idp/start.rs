//! Starting a provider: its authority and certificate, its configuration, its process, and waiting for its discovery
//! document.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rcgen::{CertificateParams, KeyPair, RsaKeySize};
use serde_json::{Value, json};

use super::Provider;
use super::config::{Application, Client, Credential, DexConfig, OidcConfig, Proof, Shape};
use super::http::Http;
use super::jwt;
use crate::error::{Error, Result};
use crate::pki::{self, Authority};
use crate::probe;
use crate::process::Processes;
use crate::programs::tool;

/// Starts `oidc-provider`.
pub(crate) async fn oidc(processes: &Processes, config: OidcConfig) -> Result<Provider> {
    let folder = processes.dir.join(&config.name);
    fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
    let mut clients = BTreeMap::new();
    let mut applications = Vec::new();
    for application in &config.applications {
        let credential = proof(&folder, application)?;
        applications.push(registration(application, &credential));
        let redirect_uri = application.redirect_uris.first().cloned().unwrap_or_default();
        clients.insert(application.client_id.clone(), Client { credential, redirect_uri });
    }
    let path = match config.shape {
        Shape::Entra => format!("/{}/v2.0", config.tenant),
        Shape::Plain => String::new(),
    };
    let rest = json!({
        "shape": config.shape,
        "tenant": config.tenant,
        "token_seconds": config.token_seconds,
        "people": config.people,
        "resources": config.resources,
        "applications": applications,
    });
    let of_port = |port: u16| json!({ "address": "127.0.0.1", "port": port });
    let start = Start { program: "oidc", name: &config.name, path: &path, rest, of_port: &of_port, dex: false };
    start.run(processes, &folder, clients).await
}

/// Starts Dex.
pub(crate) async fn dex(processes: &Processes, config: DexConfig) -> Result<Provider> {
    let folder = processes.dir.join(&config.name);
    fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
    let clients = config.clients.iter().map(|client| {
        let credential = if client.public { Proof::Public } else { Proof::Secret(client.secret.clone()) };
        let redirect_uri = client.redirect_uris.first().cloned().unwrap_or_default();
        (client.id.clone(), Client { credential, redirect_uri })
    });
    let rest = json!({
        "token_seconds": config.token_seconds,
        "people": config.people.iter().map(super::Person::for_dex).collect::<Vec<_>>(),
        "clients": config.clients,
    });
    let of_port = |port: u16| json!({ "address": format!("127.0.0.1:{port}") });
    let start = Start { program: "dex", name: &config.name, path: "/dex", rest, of_port: &of_port, dex: true };
    start.run(processes, &folder, clients.collect()).await
}

/// What differs between the two.
struct Start<'a> {
    program: &'a str,
    name: &'a str,
    /// Path of the issuer.
    path: &'a str,
    /// The configuration, apart from where it listens.
    rest: Value,
    of_port: &'a (dyn Fn(u16) -> Value + Sync),
    dex: bool,
}

impl Start<'_> {
    async fn run(self, processes: &Processes, folder: &Path, clients: BTreeMap<String, Client>) -> Result<Provider> {
        let program = tool(self.program)?;
        let authority = Authority::new(folder, "ca")?;
        let pair = authority.server(folder, "server", &[])?;
        let admin_token = jwt::random();
        let file = folder.join("config.json");
        let issuer = |port: u16| format!("https://127.0.0.1:{port}{}", self.path);
        let port = processes
            .start_on_port(
                |port| {
                    let mut config = self.rest.clone();
                    merge(&mut config, (self.of_port)(port));
                    let own = json!({
                        "issuer": issuer(port),
                        "certificate": pair.cert,
                        "key": pair.key,
                        "admin_token": admin_token,
                    });
                    merge(&mut config, own);
                    pki::write(&file, &config.to_string())?;
                    Ok(processes.spec(self.name, &program, ["-config".into(), file.display().to_string()]))
                },
                async |port| {
                    let discovery = format!("{}/.well-known/openid-configuration", self.path);
                    match probe::client(&format!("https://127.0.0.1:{port}"), Some(&authority.der)) {
                        Some(client) => probe::answers(&client, &discovery).await,
                        None => false,
                    }
                },
            )
            .await?;
        Ok(Provider {
            component: self.name.to_owned(),
            issuer: issuer(port),
            admin: format!("https://127.0.0.1:{port}"),
            admin_token,
            dex: self.dex,
            clients,
            http: Http::new(&authority.der).map_err(|error| Error::Missing(error.to_string()))?,
            ca_pem: authority.pem,
            ca_file: authority.path,
        })
    }
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}

/// An application as `hack/tools/oidc/directory.mjs` reads it.
fn registration(application: &Application, credential: &Proof) -> Value {
    let Application { client_id, oid, redirect_uris, delegated, roles, .. } = application;
    let mut it = json!({
        "client_id": client_id,
        "oid": oid,
        "redirect_uris": redirect_uris,
        "delegated": delegated,
        "roles": roles,
    });
    match credential {
        Proof::Public => {}
        Proof::Secret(secret) => merge(&mut it, json!({ "secret": secret })),
        Proof::Certificate { cert, .. } => merge(&mut it, json!({ "certificate": cert })),
    }
    it
}

/// The credential with its files; makes a certificate's.
fn proof(folder: &Path, application: &Application) -> Result<Proof> {
    let name = &application.client_id;
    match &application.credential {
        Credential::Public => Ok(Proof::Public),
        Credential::Secret(secret) => Ok(Proof::Secret(secret.clone())),
        Credential::Certificate => {
            let wrong = |source| Error::Certificate { name: name.clone(), source };
            // RSA, since Entra takes no other.
            let pair = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).map_err(wrong)?;
            let made = CertificateParams::new([name.clone()]).and_then(|it| it.self_signed(&pair)).map_err(wrong)?;
            let (cert, key) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
            pki::write(&cert, &made.pem())?;
            pki::write(&key, &pair.serialize_pem())?;
            Ok(Proof::Certificate { cert, key })
        }
    }
}
