//! What the tests of mediatore share: one cluster with weightless members, an Entra-shaped provider, three replicas that
//! run under mediatore's own rights, and an HTTP client.
#![allow(dead_code)] // each test binary uses its part
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests, though not functions of a test

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use banlieue_cluster::idp::{MEDIATORE, OidcConfig, Person, Provider, SANDBOX_ACCESS};
use banlieue_cluster::{Cluster, Identity, Signal, programs};
use banlieue_crds::{VirtualMachineClaim, VirtualMachinePool};
use banlieue_identity::SubjectKey;
use banlieue_supervisor::Spec;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// Where pools and claims of these tests are.
pub const NAMESPACE: &str = "sandboxes";
/// What the reference calls mediatore.
pub const NAME: &str = "mediatore.sandbox.example";
/// What the reference calls its image.
pub const IMAGE: &str = "registry.internal:5000/sandbox/claude:latest";

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
/// Never dropped: it ends with the test process, whose end closes the lifeline.
static WORLD: OnceCell<World> = OnceCell::const_new();
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Runs one test.
pub fn test<F: Future<Output = ()>>(body: impl FnOnce(&'static World) -> F) {
    RUNTIME.block_on(async { body(WORLD.get_or_init(World::start).await).await });
}

/// The cluster, the provider, the replicas.
pub struct World {
    pub cluster: Cluster,
    pub entra: Provider,
    pub replicas: Vec<String>,
    pub config: PathBuf,
    client: Client,
}

fn write(path: &Path, content: &str) -> String {
    std::fs::write(path, content).unwrap();
    path.display().to_string()
}

/// A configuration of mediatore with its keys, and a client that trusts its certificate.
pub struct Setup {
    pub config: PathBuf,
    pub client: Client,
}

/// Where a replica listens.
pub struct Listening {
    pub user: String,
    /// `host:port`, when it has that side.
    pub sandbox: Option<String>,
}

impl Setup {
    /// Writes a configuration; `more` is added to it.
    pub fn new(cluster: &Cluster, entra: &Provider, namespaces: &[&str], more: Value) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = cluster.dir().join("mediatore");
        std::fs::create_dir_all(&folder).unwrap();
        let pair = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned(), NAME.to_owned()]).unwrap();
        let certificate = parameters.self_signed(&pair).unwrap();
        let sealing = write(&folder.join("sealing"), &"5e".repeat(32));
        let signing = write(&folder.join("sts.pem"), &rcgen::KeyPair::generate().unwrap().serialize_pem());
        let leaf = write(&folder.join("tls.crt"), &certificate.pem());
        let key = write(&folder.join("tls.key"), &pair.serialize_pem());
        let mut config = json!({
            "trust_domain": cluster.settings().trust_domain,
            "cluster": cluster.settings().cluster,
            "namespaces": namespaces,
            "listeners": {
                "user": { "address": "127.0.0.1:0", "tls": { "certificate_file": leaf, "key_file": key } },
            },
            "issuers": [{
                "name": "entra", "url": entra.issuer, "client_id": "mediatore", "ca_file": entra.ca_file,
                "accepts": "access_token", "subject_claim": "oid", "require": { "scope": "sandbox.access" },
                "clients": ["mediatore-cli"], "peers": ["agent"],
                "apps": { "allowed": true, "role": "Sandbox.Access" },
            }],
            "audiences": [
                { "id": "api://trading-data", "endpoints": ["trading.example:443"], "apps": [{ "issuer": "entra", "ids": ["pipeline"] }] },
                { "id": "api://people-only" },
            ],
            "sealing_keys": [{ "id": "one", "file": sealing }],
            "sts": { "issuer": "https://mediatore.example", "key_files": [signing] },
            "limits": {
                "subject_burst": 100000, "subject_per_minute": 100000, "agent_share_percent": 50, "request_seconds": 30,
                "failures_per_minute": 100000,
            },
            "audit_file": folder.join("audit.jsonl"),
        });
        for (key, value) in more.as_object().unwrap() {
            match (config[key].as_object_mut(), value.as_object()) {
                (Some(section), Some(more)) => section.extend(more.clone()),
                _ => config[key] = value.clone(),
            }
        }
        // JSON is YAML.
        let config = PathBuf::from(write(&folder.join("config.yaml"), &config.to_string()));
        let root = reqwest::Certificate::from_pem(certificate.pem().as_bytes()).unwrap();
        let client = Client::builder().tls_certs_only([root]).timeout(Duration::from_secs(120)).build().unwrap();
        Self { config, client }
    }

    /// Changes the configuration before anybody reads it.
    pub fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&self.config).unwrap()).unwrap();
        edit(&mut config);
        std::fs::write(&self.config, config.to_string()).unwrap();
    }

    fn signing_file(&self) -> PathBuf {
        self.config.with_file_name("sts.pem")
    }

    /// A token of mediatore's with other claims, under mediatore's own key: for what only the claims show.
    pub fn forge(&self, token: &str, edit: impl FnOnce(&mut Value)) -> String {
        let (header, mut claims) = banlieue_cluster::idp::decode(token).unwrap();
        edit(&mut claims);
        self.sign(&header, &claims)
    }

    /// The same token, as if by another key of mediatore's.
    pub fn forge_with_kid(&self, token: &str, kid: &str) -> String {
        let (mut header, claims) = banlieue_cluster::idp::decode(token).unwrap();
        header["kid"] = json!(kid);
        self.sign(&header, &claims)
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
        let pem = std::fs::read(self.signing_file()).unwrap();
        let key: rustls::pki_types::PrivatePkcs8KeyDer<'_> =
            rustls::pki_types::pem::PemObject::from_pem_slice(&pem).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.secret_pkcs8_der()).unwrap();
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = pair.sign(&aws_lc_rs::rand::SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// Writes another key into the file of the one that signs.
    pub fn rotate_signing_key(&self) {
        let next = self.signing_file().with_extension("next");
        std::fs::write(&next, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        std::fs::rename(next, self.signing_file()).unwrap();
    }

    /// Starts a replica under mediatore's own service account, from the place that SPIRE knows it by.
    pub async fn start(&self, cluster: &Cluster, name: &str) -> Listening {
        let source = programs::binary("mediatore").unwrap_or_else(|error| panic!("{error}"));
        let program = cluster.dir().join("bin/mediatore");
        if !program.exists() {
            std::fs::create_dir_all(program.parent().unwrap()).unwrap();
            std::fs::copy(source, &program).unwrap();
        }
        let kubeconfig = cluster.kubeconfig(&Identity::Broker).await.unwrap();
        let env = BTreeMap::from([
            ("KUBECONFIG".to_owned(), kubeconfig.display().to_string()),
            ("RUST_LOG".to_owned(), "info".to_owned()),
        ]);
        let argv = ["serve", "--config", &self.config.display().to_string()].map(ToOwned::to_owned);
        let argv = std::iter::once(program.display().to_string()).chain(argv).collect();
        let log = cluster.log(name);
        let spec = Spec { name: name.to_owned(), argv, env, log: log.clone(), ..Spec::default() };
        cluster.supervisor().spawn(spec).await.unwrap();
        let config = std::fs::read_to_string(&self.config).unwrap();
        let has_sandbox = config.contains("\"sandbox\"");
        // It takes ports of the kernel's choice and says which.
        let address = |said: &str, side: &str| {
            let (_, rest) = said.split_once(&format!("mediatore listens {side}="))?;
            Some(rest.split_whitespace().next()?.to_owned())
        };
        let mut found = None;
        eventually(&format!("{name} listens"), async || {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(!said.contains("\nmediatore: ") && !said.starts_with("mediatore: "), "{said}");
            found = address(&said, "user").map(|user| (user, address(&said, "sandbox")));
            found.as_ref().is_some_and(|(_, sandbox)| sandbox.is_some() || !has_sandbox)
        })
        .await;
        let (user, sandbox) = found.unwrap();
        let user = format!("https://{user}");
        eventually(&format!("{name} is ready"), async || {
            self.client.get(format!("{user}/readyz")).send().await.is_ok_and(|response| response.status() == 200)
        })
        .await;
        Listening { user, sandbox }
    }
}

impl World {
    async fn start() -> Self {
        let builder = Cluster::builder().nodes("w-1=weightless,w-2=weightless").controller();
        let cluster = builder.start().await.unwrap_or_else(|error| panic!("{error}"));
        let entra = cluster.start_oidc(OidcConfig::entra()).await.unwrap_or_else(|error| panic!("{error}"));
        let setup = Setup::new(&cluster, &entra, &[NAMESPACE], json!({}));
        let mut replicas = Vec::new();
        for n in 1..=3 {
            replicas.push(setup.start(&cluster, &format!("mediatore-{n}")).await.user);
        }
        Self { cluster, entra, replicas, config: setup.config, client: setup.client }
    }

    /// Starts one more replica, whose end disturbs nobody. Its configuration is everybody's, changed by `edit`.
    pub async fn replica(&self, name: &str, edit: impl FnOnce(&mut Value)) -> String {
        let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&self.config).unwrap()).unwrap();
        edit(&mut config);
        let config = PathBuf::from(write(&self.config.with_file_name(format!("{name}.yaml")), &config.to_string()));
        let setup = Setup { config, client: self.client.clone() };
        setup.start(&self.cluster, name).await.user
    }

    /// kill -9 of such a replica; returns when it is gone.
    pub async fn kill(&self, name: &str) {
        self.cluster.supervisor().stop(name, Signal::Kill, Duration::from_secs(60)).await.unwrap();
    }

    /// A request to any address.
    pub fn ask_at(&self, url: &str, method: Method, path: &str, token: &str) -> RequestBuilder {
        self.client.request(method, format!("{url}{path}")).bearer_auth(token)
    }

    /// A person's token for mediatore.
    pub async fn person(&self, person: &Person) -> String {
        self.entra
            .login("mediatore-cli", person, &format!("openid profile {SANDBOX_ACCESS}"))
            .await
            .unwrap()
            .access_token
    }

    /// A person whom nobody else's test knows.
    pub async fn somebody(&self) -> (Person, String) {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let person = Person::new(&format!("0c0c0c0c-1111-4222-8333-{n:012}"), &format!("person-{n}"));
        self.entra.put_person(&person).await.unwrap();
        let token = self.person(&person).await;
        (person, token)
    }

    /// The trusted agent's token for a person.
    pub async fn agent_for(&self, person: &Person) -> String {
        let own = self.entra.login("agent-app", person, "api://agent/access").await.unwrap().access_token;
        self.entra.on_behalf_of("agent", &own, SANDBOX_ACCESS).await.unwrap().access_token
    }

    /// A service's own token.
    pub async fn service(&self) -> String {
        self.entra.client_credentials("pipeline", &format!("{MEDIATORE}/.default")).await.unwrap().access_token
    }

    /// A request to a replica.
    pub fn ask(&self, replica: usize, method: Method, path: &str, token: &str) -> RequestBuilder {
        let url = format!("{}{path}", self.replicas[replica % self.replicas.len()]);
        let request = self.client.request(method, url);
        if token.is_empty() { request } else { request.bearer_auth(token) }
    }

    /// Objects of the namespace, as cluster admin: for looking.
    pub fn all<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.cluster.admin(), NAMESPACE)
    }

    /// Makes a pool that lends weightless members.
    pub async fn pool(&self, warm: u32, max: u32, limit: u32) -> String {
        let name = format!("p{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let pool = weightless_pool(&name, warm, max, limit);
        self.all::<VirtualMachinePool>().create(&PostParams::default(), &pool).await.unwrap();
        for replica in 0..self.replicas.len() {
            eventually(&format!("every replica sees pool {name}"), async || {
                let token = self.service().await;
                let pools = body(self.ask(replica, Method::GET, "/v1/pools", &token).send().await.unwrap()).await;
                pools["pools"].as_array().unwrap().iter().any(|pool| pool["pool_ref"] == format!("{NAMESPACE}/{name}"))
            })
            .await;
        }
        name
    }

    pub async fn claim(&self, name: &str) -> Option<VirtualMachineClaim> {
        self.all::<VirtualMachineClaim>().get_opt(name).await.unwrap()
    }

    /// Every line of the audit record that is about this claim.
    pub fn audit(&self, claim_uid: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.config.with_file_name("audit.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["claim_uid"] == claim_uid).collect()
    }
}

/// A pool whose members are weightless, on nodes of that kind.
pub fn weightless_pool(name: &str, warm: u32, max: u32, limit: u32) -> VirtualMachinePool {
    serde_json::from_value(json!({
        "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachinePool",
        "metadata": { "name": name, "annotations": { "banlieue.io/allow-unattested": "true" } },
        "spec": {
            "warmReplicas": warm, "maxReplicas": max, "maxSurge": 2,
            "template": { "kubeVirt": { "spec": {
                "nodeSelector": { "banlieue.io/node-weight": "weightless" },
                "domain": {
                    "cpu": { "cores": 1 }, "memory": { "guest": "32Mi" },
                    "devices": {
                        "disks": [{ "name": "image", "disk": { "bus": "virtio" } }],
                        "interfaces": [{ "name": "default", "masquerade": {} }],
                        "rng": {},
                    },
                },
                "networks": [{ "name": "default", "pod": {} }],
                "volumes": [{ "name": "image", "containerDisk": { "image": "registry.local/banlieue/guest:dev" } }],
            } } },
            "attestation": { "mode": "None" },
            "claimPolicy": {
                "allowedImages": ["registry.internal:5000/sandbox/*"], "maxTtlSeconds": 7200,
                "maxClaimsPerSubject": limit, "allowedAudiences": ["api://trading-data", "api://people-only"],
            },
        },
    }))
    .unwrap()
}

/// Claims of a subject.
pub async fn claims_of(world: &World, id: &str) -> Vec<VirtualMachineClaim> {
    let all = world.all::<VirtualMachineClaim>().list(&ListParams::default()).await.unwrap();
    all.items.into_iter().filter(|claim| claim.spec.subject.id == id).collect()
}

/// Names of the slots that a person holds.
pub async fn slots_of(world: &World, person: &Person) -> Vec<String> {
    let key = SubjectKey::of(&world.entra.issuer, &person.id).to_string();
    let all = world.all::<Lease>().list(&ListParams::default()).await.unwrap();
    all.items.iter().map(ResourceExt::name_any).filter(|name| name.contains(&key)).collect()
}

/// Posts the reference's request and gives status and body.
pub async fn post(world: &World, replica: usize, token: &str, key: Option<&str>, body_: &Value) -> (u16, Value) {
    let mut asking = world.ask(replica, Method::POST, "/v1/claims", token).body(body_.to_string());
    if let Some(key) = key {
        asking = asking.header("Idempotency-Key", key);
    }
    let response = asking.send().await.unwrap();
    (response.status().as_u16(), body(response).await)
}

/// The reference's request, on this pool.
pub fn request(pool: &str) -> Value {
    json!({
        "pool_ref": pool,
        "ttl_seconds": 3600,
        "audiences": ["api://trading-data"],
        "workload": { "image": IMAGE, "args": ["/usr/bin/claude", "-p", "reconcile the ledgers"] },
    })
}

pub async fn body(response: Response) -> Value {
    let text = response.text().await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"))
}

/// What an answer must be when it is an error: this status and code, in the one shape.
pub async fn refused(what: &str, response: Response, status: u16, code: &str) {
    let (got, headers) = (response.status().as_u16(), response.headers().clone());
    let shape = body(response).await;
    assert_eq!((got, shape["error"].as_str()), (status, Some(code)), "{what}: {shape}");
    let fields: Vec<&String> = shape.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["detail", "error"], "{what}");
    assert_eq!(headers["content-type"], "application/json", "{what}");
    assert_eq!(headers.contains_key("www-authenticate"), status == 401, "{what}: {headers:?}");
}

/// Waits for a state; ten minutes mean that it never comes.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..3000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("{what}: not within ten minutes");
}
