//! What an identity provider knows. The ready-made ones ([`OidcConfig::entra`], [`OidcConfig::plain`],
//! [`DexConfig::default`]) name the same people and applications, so that a test reads alike on each.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

/// The API of mediatore at an Entra-shaped provider; its tokens have audience `mediatore`.
pub const MEDIATORE: &str = "api://mediatore";
/// The scope that a person's token needs.
pub const SANDBOX_ACCESS: &str = "api://mediatore/sandbox.access";
/// The application role that a service's token needs.
pub const SANDBOX_ROLE: &str = "Sandbox.Access";
/// At Dex: the scope that puts mediatore into an ID token's audience.
pub const CROSS_CLIENT: &str = "audience:server:client_id:mediatore";

/// Somebody who can log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Person {
    /// Never changes: Entra's `oid`, the inner id of Dex's `sub`.
    pub id: String,
    /// What is typed into the form; may be renamed. Entra's `preferred_username`, Dex's `name`.
    pub login: String,
    /// The password.
    pub password: String,
    /// Entra's `name`.
    pub name: String,
    /// Dex's `email`.
    pub email: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Application roles by resource, in Entra-shaped tokens.
    pub roles: BTreeMap<String, Vec<String>>,
    /// A disabled person cannot log in or refresh.
    pub disabled: bool,
}

impl Person {
    /// Somebody with this id and login and a password made from the login.
    #[must_use]
    pub fn new(id: &str, login: &str) -> Self {
        Self {
            id: id.into(),
            login: login.into(),
            password: format!("{login}'s password"),
            name: login.to_uppercase(),
            email: format!("{login}@example.org"),
            groups: vec!["staff".into()],
            roles: BTreeMap::new(),
            disabled: false,
        }
    }

    /// Ada, whom every ready-made provider knows.
    #[must_use]
    pub fn ada() -> Self {
        Self::new("0a0a0a0a-1111-4222-8333-0000000000ad", "ada")
    }

    /// Grace, whom every ready-made provider knows.
    #[must_use]
    pub fn grace() -> Self {
        Self::new("0b0b0b0b-1111-4222-8333-0000000009ce", "grace")
    }

    pub(crate) fn for_dex(&self) -> serde_json::Value {
        let Self { id, login, password, email, groups, disabled, .. } = self;
        serde_json::json!({
            "id": id, "login": login, "password": password, "email": email, "groups": groups, "disabled": disabled,
        })
    }
}

/// How access tokens look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// As Entra ID's v2.0 tokens: `oid`, `tid`, `scp`, `roles`, `azp`, `idtyp`, `ver`; header `typ` is `JWT`.
    Entra,
    /// As RFC 9068 says: `scope`, `client_id`; header `typ` is `at+jwt`.
    Plain,
}

/// How an application proves itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// Not at all: it runs on people's machines.
    Public,
    /// A shared secret.
    Secret(String),
    /// A certificate with an RSA key, made when the provider starts; [`crate::Provider::certificate`] says where it is.
    Certificate,
}

/// An application at an OpenID provider.
#[derive(Clone, Debug)]
pub struct Application {
    /// Its client id, Entra's `azp`.
    pub client_id: String,
    /// Its object id, the `oid` of its own tokens.
    pub oid: String,
    /// How it proves itself.
    pub credential: Credential,
    /// Where people may be sent back to. A public application may use any port of a loopback address.
    pub redirect_uris: Vec<String>,
    /// Scopes it may ask people for, by resource.
    pub delegated: BTreeMap<String, Vec<String>>,
    /// Roles it has itself, by resource.
    pub roles: BTreeMap<String, Vec<String>>,
}

impl Application {
    /// An application without any rights.
    #[must_use]
    pub fn new(client_id: &str, credential: Credential) -> Self {
        let redirect_uris = if credential == Credential::Public {
            vec!["http://127.0.0.1/callback".into(), "http://localhost/callback".into()]
        } else {
            Vec::new()
        };
        Self {
            client_id: client_id.into(),
            oid: format!("{client_id}-object"),
            credential,
            redirect_uris,
            delegated: BTreeMap::new(),
            roles: BTreeMap::new(),
        }
    }

    /// Lets it ask people for a scope of a resource.
    #[must_use]
    pub fn delegated(mut self, resource: &str, scope: &str) -> Self {
        self.delegated.entry(resource.into()).or_default().push(scope.into());
        self
    }

    /// Gives it a role on a resource.
    #[must_use]
    pub fn role(mut self, resource: &str, role: &str) -> Self {
        self.roles.entry(resource.into()).or_default().push(role.into());
        self
    }
}

/// An API that tokens are for.
#[derive(Clone, Debug, Serialize)]
pub struct Resource {
    /// Its URI, such as `api://mediatore`.
    pub id: String,
    /// `aud` of its tokens.
    pub audience: String,
    /// The application whose own API it is.
    pub app: String,
    /// Algorithm of its tokens: `RS256`, `PS256` or `ES256`.
    pub alg: String,
}

impl Resource {
    /// `api://NAME` with audience and application `NAME`, signed with RS256.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { id: format!("api://{name}"), audience: name.into(), app: name.into(), alg: "RS256".into() }
    }
}

/// An OpenID provider to be started.
#[derive(Clone, Debug)]
pub struct OidcConfig {
    /// Name of its process and folder in the cluster; give another one to start several.
    pub name: String,
    /// How access tokens look.
    pub shape: Shape,
    /// `tid` of Entra-shaped tokens, part of their issuer.
    pub tenant: String,
    /// Lifetime of tokens.
    pub token_seconds: u32,
    /// Who can log in.
    pub people: Vec<Person>,
    /// What tokens are for.
    pub resources: Vec<Resource>,
    /// Who asks for tokens.
    pub applications: Vec<Application>,
}

impl OidcConfig {
    /// An Entra-shaped provider. People: Ada, Grace. Public applications: `mediatore-cli`, `agent-app`. With a secret:
    /// `agent` and `other-agent`, which may act for people towards mediatore; `pipeline`, a service with the role;
    /// `stranger`, a service without. With a certificate: `mediatore`, which may go on to `api://trading-data`.
    #[must_use]
    pub fn entra() -> Self {
        let secret = |name: &str| Application::new(name, Credential::Secret(format!("{name}'s secret")));
        let public = |name: &str| Application::new(name, Credential::Public);
        Self {
            name: crate::component::OIDC.into(),
            shape: Shape::Entra,
            tenant: "7e7e7e7e-1111-4222-8333-444444444444".into(),
            token_seconds: 3600,
            people: vec![Person::ada(), Person::grace()],
            resources: ["mediatore", "agent", "other-agent", "trading-data", "kubernetes"].map(Resource::new).into(),
            applications: vec![
                public("mediatore-cli").delegated(MEDIATORE, "sandbox.access").delegated("api://kubernetes", "access"),
                public("agent-app").delegated("api://agent", "access").delegated("api://other-agent", "access"),
                secret("agent").delegated(MEDIATORE, "sandbox.access"),
                secret("other-agent").delegated(MEDIATORE, "sandbox.access"),
                secret("pipeline").role(MEDIATORE, SANDBOX_ROLE),
                secret("stranger"),
                Application::new("mediatore", Credential::Certificate)
                    .delegated("api://trading-data", "read")
                    .role("api://trading-data", "Data.Read"),
            ],
        }
    }

    /// The same with RFC 9068's access tokens. It has no on-behalf-of grant.
    #[must_use]
    pub fn plain() -> Self {
        Self { shape: Shape::Plain, ..Self::entra() }
    }
}

/// A client in Dex's own words.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DexClient {
    /// Its client id.
    pub id: String,
    /// Its secret; empty for a public one.
    pub secret: String,
    /// Where people may be sent back to; a public client may use any port of `localhost`.
    #[serde(rename = "redirectURIs")]
    pub redirect_uris: Vec<String>,
    /// Clients that may put this one into the audience of their people's ID tokens.
    pub trusted_peers: Vec<String>,
    /// Runs on people's machines.
    pub public: bool,
}

impl DexClient {
    /// A client with a secret made from its name.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self {
            id: id.into(),
            secret: format!("{id}'s secret"),
            redirect_uris: vec![format!("https://{id}.example.org/callback")],
            trusted_peers: Vec::new(),
            public: false,
        }
    }

    /// Lets these clients name this one as an audience.
    #[must_use]
    pub fn trusts(mut self, peers: &[&str]) -> Self {
        self.trusted_peers = peers.iter().map(|&it| it.to_owned()).collect();
        self
    }
}

/// A Dex to be started.
#[derive(Clone, Debug)]
pub struct DexConfig {
    /// Name of its process and folder in the cluster; give another one to start several.
    pub name: String,
    /// Lifetime of ID tokens.
    pub token_seconds: u32,
    /// Who can log in.
    pub people: Vec<Person>,
    /// Who asks for tokens.
    pub clients: Vec<DexClient>,
}

impl Default for DexConfig {
    /// People: Ada, Grace. Clients: `mediatore`, which trusts the public `mediatore-cli` and the confidential `agent`
    /// and `other-agent`; `stranger`, whom it does not trust; `kubernetes`, which trusts `mediatore-cli`.
    fn default() -> Self {
        let cli = DexClient { secret: String::new(), public: true, ..DexClient::new("mediatore-cli") };
        Self {
            name: crate::component::DEX.into(),
            token_seconds: 3600,
            people: vec![Person::ada(), Person::grace()],
            clients: vec![
                DexClient::new("mediatore").trusts(&["mediatore-cli", "agent", "other-agent"]),
                DexClient { redirect_uris: vec!["http://localhost/callback".into()], ..cli },
                DexClient::new("agent"),
                DexClient::new("other-agent"),
                DexClient::new("stranger"),
                DexClient::new("kubernetes").trusts(&["mediatore-cli"]),
            ],
        }
    }
}

/// What [`crate::Provider`] must know of a client to act as it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub credential: Proof,
    pub redirect_uri: String,
}

/// A credential with its files.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    Public,
    Secret(String),
    Certificate { cert: PathBuf, key: PathBuf },
}
