//! Who talks to the API server, and with which credentials.

use std::path::{Path, PathBuf};

use banlieue_crds::names::accounts;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::pki;

/// Lifetime asked for service account tokens, in seconds: longer than any local cluster lives.
const TOKEN_SECONDS: i64 = 30 * 24 * 3600;

/// Somebody known to the local cluster. Programs use their own service account and Role, people a token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// Cluster admin: for the harness itself, never for a part of the product.
    Admin,
    /// `banlieue-controller`.
    Controller,
    /// The server plugin in spire-server.
    AttestorPlugin,
    /// The attestor controller.
    AttestorController,
    /// Writer of endorsement reports, with a token bound to the Node of that name.
    NodeReporter(String),
    /// mediatore.
    Broker,
    /// The local hypervisor: KubeVirt's handler account with a kubelet's rights added.
    Hypervisor,
    /// spire-server's bundle notifier.
    SpireServer,
    /// KubeVirt's virt-api.
    VirtApi,
    /// KubeVirt's virt-controller.
    VirtController,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// A person who may write pools and measurements in namespace `sandboxes`.
    PoolAuthor,
    /// A person who may release by force, revoke and debug.
    Operator,
    /// A person who may claim, like the next.
    Alice,
    /// Another one, to show that people see their own claims only.
    Bob,
    /// A person with an account and no rights.
    Stranger,
}

/// What an identity shows to the API server.
enum Credentials {
    Certificate { user: &'static str, group: Option<&'static str> },
    Person,
    Account { namespace: &'static str, name: &'static str, node: Option<String> },
}

/// People in the token file, with their group.
pub(crate) const PEOPLE: [(Identity, &str); 5] = [
    (Identity::PoolAuthor, "banlieue:pool-authors"),
    (Identity::Operator, "banlieue:operators"),
    (Identity::Alice, "banlieue:claimants"),
    (Identity::Bob, "banlieue:claimants"),
    (Identity::Stranger, "banlieue:strangers"),
];

impl Identity {
    /// Name of its kubeconfig, without extension; for people also their user name.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Admin => "admin".into(),
            Self::Controller => "controller".into(),
            Self::AttestorPlugin => "attestor-plugin".into(),
            Self::AttestorController => "attestor-controller".into(),
            Self::NodeReporter(node) => format!("node-reporter-{node}"),
            Self::Broker => "broker".into(),
            Self::Hypervisor => "hypervisor".into(),
            Self::SpireServer => "spire-server".into(),
            Self::VirtApi => "virt-api".into(),
            Self::VirtController => "virt-controller".into(),
            Self::ControllerManager => "kube-controller-manager".into(),
            Self::Scheduler => "kube-scheduler".into(),
            Self::PoolAuthor => "pool-author".into(),
            Self::Operator => "operator".into(),
            Self::Alice => "alice".into(),
            Self::Bob => "bob".into(),
            Self::Stranger => "stranger".into(),
        }
    }

    fn credentials(&self) -> Credentials {
        let account = |namespace, name| Credentials::Account { namespace, name, node: None };
        let ours = |name| account(accounts::SYSTEM_NAMESPACE, name);
        match self {
            Self::Admin => Credentials::Certificate { user: "admin", group: Some("system:masters") },
            Self::ControllerManager => Credentials::Certificate { user: "system:kube-controller-manager", group: None },
            Self::Scheduler => Credentials::Certificate { user: "system:kube-scheduler", group: None },
            Self::Controller => ours(accounts::CONTROLLER),
            Self::AttestorPlugin => ours(accounts::ATTESTOR),
            Self::AttestorController => ours(accounts::ATTESTOR_CONTROLLER),
            Self::Broker => ours(accounts::MEDIATORE),
            Self::SpireServer => ours("spire-server"),
            Self::NodeReporter(node) => Credentials::Account {
                namespace: accounts::SYSTEM_NAMESPACE,
                name: accounts::NODE_REPORTER,
                node: Some(node.clone()),
            },
            Self::Hypervisor => account("kubevirt", "kubevirt-handler"),
            Self::VirtApi => account("kubevirt", "kubevirt-apiserver"),
            Self::VirtController => account("kubevirt", "kubevirt-controller"),
            Self::PoolAuthor | Self::Operator | Self::Alice | Self::Bob | Self::Stranger => Credentials::Person,
        }
    }
}

/// Where the API server is, and what vouches for it.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub url: String,
    pub authority_pem: String,
}

/// Makes kubeconfigs, each once.
pub(crate) struct Identities {
    pub folder: PathBuf,
    pub endpoint: Endpoint,
    pub authority: pki::Authority,
    /// Token of each person.
    pub people: Vec<(Identity, String)>,
}

impl Identities {
    /// Tokens for everybody in [`PEOPLE`], and the text of the API server's token file.
    pub fn people() -> (Vec<(Identity, String)>, String) {
        let people: Vec<_> =
            PEOPLE.iter().map(|(who, _)| (who.clone(), hex::encode(rand::random::<[u8; 16]>()))).collect();
        let lines = PEOPLE.iter().zip(&people).map(|((who, group), (_, token))| {
            let name = who.name();
            format!("{token},{name},{name},\"{group}\"\n")
        });
        let file = lines.collect();
        (people, file)
    }

    /// The kubeconfig of `who`. `admin` mints what is asked of the API server.
    pub async fn kubeconfig(&self, who: &Identity, admin: Option<&Client>) -> Result<PathBuf> {
        let path = self.folder.join(format!("{}.yaml", who.name()));
        if path.exists() {
            return Ok(path);
        }
        let user = match who.credentials() {
            Credentials::Certificate { user, group } => {
                let pair = self.authority.client(&self.folder, &who.name(), user, group)?;
                json!({ "client-certificate": pair.cert, "client-key": pair.key })
            }
            Credentials::Person => {
                let token = self.people.iter().find(|(it, _)| it == who).map(|(_, token)| token);
                json!({ "token": token })
            }
            Credentials::Account { namespace, name, node } => {
                let admin =
                    admin.ok_or_else(|| Error::Missing(format!("no API server to ask for a token of {name}")))?;
                json!({ "token": token(admin, namespace, name, node.as_deref()).await? })
            }
        };
        self.write(&path, &who.name(), user)?;
        Ok(path)
    }

    fn write(&self, path: &Path, name: &str, user: Value) -> Result<()> {
        use base64::Engine as _;
        let authority = base64::engine::general_purpose::STANDARD.encode(&self.endpoint.authority_pem);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "local", "cluster": { "server": self.endpoint.url, "certificate-authority-data": authority } }],
            "users": [{ "name": name, "user": user }],
            "contexts": [{ "name": name, "context": { "cluster": "local", "user": name } }],
            "current-context": name,
        });
        // JSON is YAML. Written beside and renamed: a reader that finds the file finds all of it.
        let part = path.with_extension("part");
        pki::write(&part, &format!("{config:#}\n"))?;
        std::fs::rename(&part, path).map_err(Error::write(path))
    }
}

/// A client that uses this kubeconfig and nothing from the environment.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    let wrong = |what: String| Error::Manifest { path: kubeconfig.display().to_string(), what };
    let parsed = Kubeconfig::read_from(kubeconfig).map_err(|error| wrong(error.to_string()))?;
    let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await;
    let config = config.map_err(|error| wrong(error.to_string()))?;
    Client::try_from(config).map_err(Error::api("make a client"))
}

async fn token(admin: &Client, namespace: &str, name: &str, node: Option<&str>) -> Result<String> {
    let bound = match node {
        None => None,
        Some(node) => {
            let nodes: Api<Node> = Api::all(admin.clone());
            let object = nodes.get(node).await.map_err(Error::api(format!("get node {node}")))?;
            Some(BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Node".into()),
                name: Some(node.to_owned()),
                uid: object.metadata.uid,
            })
        }
    };
    let spec =
        TokenRequestSpec { audiences: Vec::new(), bound_object_ref: bound, expiration_seconds: Some(TOKEN_SECONDS) };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
    let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;
    let answer = answer.map_err(Error::api(format!("get a token for service account {namespace}/{name}")))?;
    answer.status.map(|it| it.token).ok_or_else(|| Error::Missing(format!("the API server gave no token for {name}")))
}
