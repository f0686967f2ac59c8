//! The gRPC services that SPIRE calls in the worker.

use std::{pin::Pin, sync::Arc};

use aws_lc_rs::rand::SystemRandom;
use banlieue_goplugin::{
    plugin_config::{ConfigureRequest, ConfigureResponse, ValidateRequest, ValidateResponse, config_server},
    server::{AgentAttributes, AttestRequest, AttestResponse, attest_request, attest_response, node_attestor_server},
};
use banlieue_protocol::reason::{GENERIC_RETRY, Reason};
use tokio::sync::{RwLock, mpsc};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Code, Request, Response, Status, Streaming};

use super::{
    config::{Config, Written},
    kube_store::KubeStore,
    limits::Limits,
    metrics::Metrics,
    session::{Identity, Peer, STREAM_LIMIT, Sessions},
    store::Store,
};
use crate::{checks::Refusal, http};

/// What the attestor controller sends through SPIRE to see whether the plugin decides. No M1 starts like this.
pub const PROBE: &[u8] = b"banlieue-probe/1";

type Answers = Pin<Box<dyn Stream<Item = Result<AttestResponse, Status>> + Send + 'static>>;

/// The plugin in the worker.
#[derive(Default)]
pub struct Plugin {
    running: RwLock<Option<Running>>,
    metrics: Metrics,
}

struct Running {
    sessions: Sessions,
    /// Ends with the configuration it was made for.
    _http: Option<http::Server>,
}

impl Plugin {
    /// A plugin that decides by this, for tests that bring their own store.
    #[must_use]
    pub fn with(sessions: Sessions) -> Self {
        let metrics = sessions.metrics.clone();
        Self { running: RwLock::new(Some(Running { sessions, _http: None })), metrics }
    }

    async fn sessions(&self) -> Result<Sessions, Status> {
        let running = self.running.read().await;
        running.as_ref().map(|running| running.sessions.clone()).ok_or_else(|| Status::unavailable(GENERIC_RETRY))
    }
}

#[tonic::async_trait]
impl config_server::Config for Plugin {
    async fn configure(&self, request: Request<ConfigureRequest>) -> Result<Response<ConfigureResponse>, Status> {
        let (written, trust_domain) = banlieue_goplugin::config::parse::<Written>(request.get_ref())?;
        let config = Config::check(written, &trust_domain).map_err(Status::invalid_argument)?;
        let store = KubeStore::connect(config.kubeconfig.as_deref(), self.metrics.unread.clone())
            .await
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let store: Arc<dyn Store> = Arc::new(store);
        // The old one's address must be free before the new one takes it.
        let mut running = self.running.write().await;
        *running = None;
        let http = match config.metrics {
            Some(address) => {
                let (store, registry) = (store.clone(), self.metrics.registry());
                let ready: http::Ready = Arc::new(move || {
                    let store = store.clone();
                    Box::pin(async move { store.ready().await.map_err(|error| error.to_string()) })
                });
                Some(
                    http::Server::start(address, registry, ready)
                        .await
                        .map_err(|error| Status::invalid_argument(format!("metrics: {error}")))?,
                )
            }
            None => None,
        };
        let sessions = Sessions {
            store,
            limits: Limits::new(config.limits),
            metrics: self.metrics.clone(),
            trust_domain: config.trust_domain,
            cluster: config.cluster,
            random: Arc::new(SystemRandom::new()),
            stream_limit: STREAM_LIMIT,
            now: jiff::Timestamp::now,
        };
        *running = Some(Running { sessions, _http: http });
        Ok(Response::new(ConfigureResponse {}))
    }

    async fn validate(&self, request: Request<ValidateRequest>) -> Result<Response<ValidateResponse>, Status> {
        let ValidateRequest { core_configuration, hcl_configuration } = request.into_inner();
        let request = ConfigureRequest { core_configuration, hcl_configuration };
        let checked = banlieue_goplugin::config::parse::<Written>(&request)
            .map_err(|status| status.message().to_owned())
            .and_then(|(written, trust_domain)| Config::check(written, &trust_domain));
        Ok(Response::new(match checked {
            Ok(_) => ValidateResponse { valid: true, notes: vec![] },
            Err(note) => ValidateResponse { valid: false, notes: vec![note] },
        }))
    }
}

#[tonic::async_trait]
impl node_attestor_server::NodeAttestor for Plugin {
    type AttestStream = Answers;

    async fn attest(&self, request: Request<Streaming<AttestRequest>>) -> Result<Response<Answers>, Status> {
        let sessions = self.sessions().await?;
        let (answers, outbound) = mpsc::channel(2);
        let mut conversation = Conversation { inbound: request.into_inner(), answers: answers.clone() };
        tokio::spawn(async move {
            let work = async {
                let last = converse(&sessions, &mut conversation).await;
                let _ = answers.send(last).await;
            };
            tokio::select! {
                () = work => {}
                // SPIRE gave up: nothing that happens from here on may admit anybody.
                () = answers.closed() => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(outbound))))
    }
}

struct Conversation {
    inbound: Streaming<AttestRequest>,
    answers: mpsc::Sender<Result<AttestResponse, Status>>,
}

async fn converse(sessions: &Sessions, conversation: &mut Conversation) -> Result<AttestResponse, Status> {
    let payload = match tokio::time::timeout(sessions.stream_limit, conversation.next()).await {
        Ok(Some(attest_request::Request::Payload(payload))) => payload,
        Ok(_) => return Err(answer(&order("the first message is no payload"))),
        Err(_) => return Err(answer(&Refusal::stranger(Reason::DeadlineExceeded, "no payload came"))),
    };
    if payload == PROBE {
        return Err(match sessions.store.ready().await {
            Ok(()) => Status::aborted("serving"),
            Err(error) => Status::unavailable(format!("not serving: {error}")),
        });
    }
    let Identity { id, selectors } = sessions.run(&payload, conversation).await.map_err(|refusal| answer(&refusal))?;
    let attributes = AgentAttributes { spiffe_id: id, selector_values: selectors, can_reattest: true };
    Ok(AttestResponse { response: Some(attest_response::Response::AgentAttributes(attributes)) })
}

impl Conversation {
    async fn next(&mut self) -> Option<attest_request::Request> {
        self.inbound.next().await?.ok()?.request
    }
}

#[tonic::async_trait]
impl Peer for Conversation {
    async fn challenge(&mut self, m2: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let challenge = AttestResponse { response: Some(attest_response::Response::Challenge(m2)) };
        self.answers
            .send(Ok(challenge))
            .await
            .map_err(|_| Refusal::stranger(Reason::ProtocolOrder, "SPIRE gave the stream up"))?;
        match self.next().await {
            Some(attest_request::Request::ChallengeResponse(m3)) => Ok(m3),
            Some(attest_request::Request::Payload(_)) => Err(order("a payload came where the evidence was due")),
            None => Err(order("the stream ended where the evidence was due")),
        }
    }
}

fn order(detail: &str) -> Refusal {
    Refusal::stranger(Reason::ProtocolOrder, detail)
}

/// `PermissionDenied` ends the agent at once; `Unavailable` is tried again for a while. Neither says why.
fn answer(refusal: &Refusal) -> Status {
    let code = if refusal.reason.is_transient() { Code::Unavailable } else { Code::PermissionDenied };
    Status::new(code, refusal.reason.guest_message())
}
