//! Endorsement reports: which endorsement keys this node plugged into which instance.
//!
//! Written as `banlieue-node-reporter` with a token bound to the node, the only identity whose reports count. The token
//! is asked of the API server with the hypervisor's own rights, as a node's daemon gets it from its kubelet.

use std::collections::HashMap;
use std::time::Duration;

use banlieue_crds::names::{self, accounts};
use banlieue_crds::report::{EndorsementReport, EndorsementReportSpec, ReportedInstance};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::{Api, Client, Config};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::identity::Identity;

/// Lifetime asked for a token. Kubernetes gives none shorter than ten minutes.
const TOKEN_SECONDS: u32 = 3600;
/// A token is replaced when this much of its life is left.
const MARGIN: Duration = Duration::from_secs(600);

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No token for the node.
    #[error(
        "cannot get a token of {}/{} bound to node {node}: {source}",
        accounts::SYSTEM_NAMESPACE,
        accounts::NODE_REPORTER
    )]
    Token {
        /// The node.
        node: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// The report was refused.
    #[error("cannot write endorsement report {name}: {source}")]
    Write {
        /// The report's name.
        name: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// There is another report about this instance by this node.
    #[error("endorsement report {0} names other keys than this instance's vTPM has")]
    Conflict(String),
}

/// Writes reports for any of our nodes.
pub struct Reporter {
    config: Config,
    own: Client,
    clients: Mutex<HashMap<String, Bound>>,
}

struct Bound {
    client: Client,
    until: Instant,
}

impl Reporter {
    /// `config` says where the API server is, `own` is the hypervisor's client.
    pub fn new(config: Config, own: Client) -> Self {
        Self { config, own, clients: Mutex::default() }
    }

    /// Makes sure that the report is there. Reports are immutable, so an existing one must say the same.
    ///
    /// # Errors
    /// The API server refuses, or another key was reported before.
    pub async fn ensure(&self, id: &Identity, digests: &[String]) -> Result<(), Error> {
        let name = names::endorsement_report(&id.uid, &id.node);
        let failed = |source| Error::Write { name: name.clone(), source: Box::new(source) };
        let reports: Api<EndorsementReport> = Api::namespaced(self.client(&id.node).await?, &id.namespace);
        let spec = EndorsementReportSpec {
            instance_uid: id.uid.clone(),
            instance_ref: ReportedInstance {
                api_version: banlieue_crds::kubevirt::API_VERSION.into(),
                kind: banlieue_crds::kubevirt::KIND.into(),
                name: id.name.clone(),
            },
            node_name: id.node.clone(),
            ek_digests: digests.to_vec(),
            source: "swtpm".into(),
            observed_at: MicroTime(jiff::Timestamp::now()),
        };
        let params = PostParams { field_manager: Some(names::managers::NODE_REPORTER.into()), ..PostParams::default() };
        match reports.create(&params, &EndorsementReport::new(&name, spec)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let there = reports.get(&name).await.map_err(failed)?;
                let same = there.spec.ek_digests.iter().all(|digest| digests.contains(digest))
                    && there.spec.ek_digests.len() == digests.len();
                if same { Ok(()) } else { Err(Error::Conflict(name)) }
            }
            Err(error) => {
                // The node may have been deleted and made again, which ends tokens bound to it.
                self.clients.lock().await.remove(&id.node);
                Err(failed(error))
            }
        }
    }

    async fn client(&self, node: &str) -> Result<Client, Error> {
        let mut clients = self.clients.lock().await;
        if let Some(bound) = clients.get(node).filter(|bound| bound.until > Instant::now()) {
            return Ok(bound.client.clone());
        }
        let bound =
            self.bind(node).await.map_err(|source| Error::Token { node: node.into(), source: Box::new(source) })?;
        let client = bound.client.clone();
        clients.insert(node.to_owned(), bound);
        Ok(client)
    }

    async fn bind(&self, node: &str) -> Result<Bound, kube::Error> {
        let object = Api::<Node>::all(self.own.clone()).get(node).await?;
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: Vec::new(),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Node".into()),
                    name: Some(node.to_owned()),
                    uid: object.metadata.uid,
                }),
                expiration_seconds: Some(i64::from(TOKEN_SECONDS)),
            },
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.own.clone(), accounts::SYSTEM_NAMESPACE);
        let until = Instant::now() + Duration::from_secs(u64::from(TOKEN_SECONDS)) - MARGIN;
        let answer = accounts.create_token_request(accounts::NODE_REPORTER, &PostParams::default(), &request).await?;
        let token = answer.status.map(|status| status.token).unwrap_or_default();
        let mut config = self.config.clone();
        config.auth_info =
            serde_json::from_value(serde_json::json!({ "token": token })).map_err(kube::Error::SerdeError)?;
        Ok(Bound { client: Client::try_from(config)?, until })
    }
}
