//! The cluster that refusals are asked of: an API server, a real mediatore, and issuers of every kind: real ones, and some
//! whose keys the test has, so that it can sign whatever it likes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests, though not functions of a test

pub mod requests;
pub mod tokens;

use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use banlieue_cluster::Cluster;
use banlieue_cluster::idp::{DexConfig, OidcConfig, Person, Provider as RealProvider, SANDBOX_ACCESS};
use banlieue_crds::VirtualMachinePool;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use reqwest::{Client, Method, RequestBuilder};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

use crate::broker::{Listening, NAMESPACE, Setup, body, eventually, weightless_pool};
use crate::forge::{Signer, jwks, with};
use crate::provider::Provider;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
/// Never dropped: it ends with the test process, whose end closes the lifeline.
static WORLD: OnceCell<World> = OnceCell::const_new();
/// One at a time: each reads the lines that it caused.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Runs one test.
pub fn test<F: Future<Output = ()>>(body: impl FnOnce(&'static World) -> F) {
    RUNTIME.block_on(async {
        let _turn = TURN.lock().await;
        body(WORLD.get_or_init(World::start).await).await;
    });
}

/// The cluster, the issuers, mediatore.
pub struct World {
    pub cluster: Cluster,
    pub entra: RealProvider,
    pub dex: RealProvider,
    /// Key of the issuer `forged`, and an older one of the same issuer, of another kind.
    pub forged: Signer,
    pub curve: Signer,
    /// A key that `forged` publishes twice under one name.
    pub twin: Signer,
    /// Key of the issuer `other`.
    pub other: Signer,
    pub forged_at: Provider,
    /// Of ID tokens.
    pub other_at: Provider,
    /// Whose discovery document is of somebody else.
    pub liar_at: Provider,
    pub pool: String,
    pub user: String,
    pub setup: Setup,
}

/// Another mediatore.
pub struct Asked {
    pub listening: Listening,
    pub client: Client,
    pub audit: PathBuf,
    pub log: PathBuf,
    pub component: String,
}

impl World {
    async fn start() -> Self {
        let cluster = Cluster::builder().start().await.unwrap_or_else(|error| panic!("{error}"));
        let entra = cluster.start_oidc(OidcConfig::entra()).await.unwrap_or_else(|error| panic!("{error}"));
        let dex = cluster.start_dex(DexConfig::default()).await.unwrap_or_else(|error| panic!("{error}"));
        let (forged, curve, twin, other) =
            (Signer::rsa("forged"), Signer::p256("curve"), Signer::rsa("twin"), Signer::rsa("other"));
        let mut keys = jwks(&[&forged, &curve, &twin]);
        keys["keys"].as_array_mut().unwrap().push(with(&other.jwk(), json!({ "kid": "twin" })));
        let forged_at = Provider::start(keys).await;
        let (other_at, liar_at) = (Provider::start(jwks(&[&other])).await, Provider::start(jwks(&[&other])).await);
        liar_at.change_discovery("issuer", json!(forged_at.url));
        let access = |name: &str, at: &Provider, more: Value| {
            let base = json!({
                "name": name, "url": at.url, "ca_file": at.ca_file, "client_id": "mediatore", "accepts": "access_token",
                "subject_claim": "oid", "clients": ["cli"], "peers": ["agent"],
                "require": { "scope": "sandbox.access", "group": "claimers", "role": "Claimer" },
            });
            with(&base, more)
        };
        let issuers = json!([
            {
                "name": "entra", "url": entra.issuer, "client_id": "mediatore", "ca_file": entra.ca_file,
                "accepts": "access_token", "subject_claim": "oid", "require": { "scope": "sandbox.access" },
                "clients": ["mediatore-cli"], "peers": ["agent"],
                "apps": { "allowed": true, "role": "Sandbox.Access" },
            },
            {
                "name": "dex", "url": dex.issuer, "client_id": "mediatore", "ca_file": dex.ca_file,
                "accepts": "id_token", "clients": ["mediatore-cli"], "peers": ["agent"],
            },
            access("forged", &forged_at, json!({
                "algorithms": ["RS256"],
                "apps": { "allowed": true, "role": "Sandbox.Access", "ids": ["pipeline"] },
            })),
            access("liar", &liar_at, json!({})),
            {
                "name": "other", "url": other_at.url, "ca_file": other_at.ca_file, "client_id": "mediatore",
                "accepts": "id_token", "clients": ["cli"], "peers": ["agent"],
            },
        ]);
        let more = json!({ "issuers": issuers, "limits": { "body_seconds": 2 } });
        let setup = Setup::new(&cluster, &entra, &[NAMESPACE], more);
        let user = setup.start(&cluster, "mediatore").await.user;
        let pool = "refused".to_owned();
        let made = weightless_pool(&pool, 0, 1, 5);
        let pools: Api<VirtualMachinePool> = Api::namespaced(cluster.admin(), NAMESPACE);
        pools.create(&PostParams::default(), &made).await.unwrap();
        let world =
            Self { cluster, entra, dex, forged, curve, twin, other, forged_at, other_at, liar_at, pool, user, setup };
        let token = world.person().await;
        eventually("the pool is seen", async || {
            let pools = body(world.ask(Method::GET, "/v1/pools").bearer_auth(&token).send().await.unwrap()).await;
            pools["pools"].as_array().is_some_and(|pools| !pools.is_empty())
        })
        .await;
        world
    }

    /// A real person's token.
    pub async fn person(&self) -> String {
        let scope = format!("openid profile {SANDBOX_ACCESS}");
        self.entra.login("mediatore-cli", &Person::ada(), &scope).await.unwrap().access_token
    }

    pub fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.setup.client.request(method, format!("{}{path}", self.user))
    }

    /// A claim asked for with this token.
    pub fn post(&self, token: &str) -> RequestBuilder {
        self.ask(Method::POST, "/v1/claims").header("authorization", format!("Bearer {token}"))
    }

    /// The audit record of what was decided from this moment on. Lines of what came before may still be written.
    pub fn audit_since(&self, moment: Timestamp) -> Vec<Value> {
        let text = std::fs::read_to_string(self.setup.config.with_file_name("audit.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["time"].as_str().unwrap().parse::<Timestamp>().unwrap() >= moment).collect()
    }

    /// What mediatore answers to these bytes, in TLS, until it closes.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let pem = std::fs::read(self.setup.config.with_file_name("tls.crt")).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth()));
        let address = self.user.strip_prefix("https://").unwrap();
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut stream = tls.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await.unwrap();
        let _ = stream.write_all(bytes).await;
        let _ = stream.flush().await;
        let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
        // It may close without reading everything, which is an end too.
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            all.extend_from_slice(&buffer[..length]);
        }
        String::from_utf8(all).unwrap()
    }

    /// Another mediatore, whose configuration is changed by `edit`.
    pub async fn another(&self, name: &str, edit: impl FnOnce(&mut Value)) -> Asked {
        let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&self.setup.config).unwrap()).unwrap();
        let audit = self.setup.config.with_file_name(format!("{name}.jsonl"));
        config["audit_file"] = json!(audit);
        edit(&mut config);
        let file = self.setup.config.with_file_name(format!("{name}.yaml"));
        std::fs::write(&file, config.to_string()).unwrap();
        let setup = Setup { config: file, client: self.setup.client.clone() };
        let component = format!("mediatore-{name}");
        let listening = setup.start(&self.cluster, &component).await;
        Asked { listening, client: setup.client, audit, log: self.cluster.log(&component), component }
    }
}
