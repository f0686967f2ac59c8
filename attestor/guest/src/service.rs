//! The plugin's services: `Config` and the agent's `NodeAttestor`.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use banlieue_goplugin::{
    agent::{
        Challenge, PayloadOrChallengeResponse, node_attestor_server::NodeAttestor,
        node_attestor_server::NodeAttestorServer, payload_or_challenge_response::Data,
    },
    config,
    plugin_config::{
        ConfigureRequest, ConfigureResponse, ValidateRequest, ValidateResponse,
        config_server::{Config as ConfigService, ConfigServer},
    },
};
use tokio::{sync::mpsc, task::spawn_blocking, time::timeout};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, service::Routes};

use crate::{config::Config, evidence::Attestation};

/// Longest that one step on the TPM may take: SPIRE sets no deadline of its own. A TPM that hangs for longer keeps one
/// thread; the attestation fails and is tried again.
const STEP_LIMIT: Duration = Duration::from_secs(20);
/// Longest that the server may keep us waiting for its challenge.
const CHALLENGE_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Configured {
    config: Config,
    trust_domain: String,
}

/// Both services; one configuration.
#[derive(Debug, Clone, Default)]
pub struct Plugin {
    configured: Arc<Mutex<Option<Arc<Configured>>>>,
    // The TPM has room for few keys: attestations of one guest stand in line.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Plugin {
    /// The services, for `banlieue_goplugin::serve`.
    pub fn routes(self) -> Routes {
        Routes::new(ConfigServer::new(self.clone())).add_service(NodeAttestorServer::new(self))
    }

    fn current(&self) -> Result<Arc<Configured>, Status> {
        let configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
        configured.clone().ok_or_else(|| Status::failed_precondition("the plugin is not configured"))
    }
}

#[tonic::async_trait]
impl ConfigService for Plugin {
    async fn configure(&self, request: Request<ConfigureRequest>) -> Result<Response<ConfigureResponse>, Status> {
        let (config, trust_domain) = config::parse::<Config>(request.get_ref())?;
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Arc::new(Configured { config, trust_domain }));
        Ok(Response::new(ConfigureResponse {}))
    }

    async fn validate(&self, request: Request<ValidateRequest>) -> Result<Response<ValidateResponse>, Status> {
        let ValidateRequest { core_configuration, hcl_configuration } = request.into_inner();
        let checked = config::parse::<Config>(&ConfigureRequest { core_configuration, hcl_configuration });
        let notes = checked.as_ref().err().map(|status| status.message().to_owned()).into_iter().collect();
        Ok(Response::new(ValidateResponse { valid: checked.is_ok(), notes }))
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<PayloadOrChallengeResponse, Status>> + Send + 'static>>;

#[tonic::async_trait]
impl NodeAttestor for Plugin {
    type AidAttestationStream = Responses;

    async fn aid_attestation(
        &self,
        request: Request<Streaming<Challenge>>,
    ) -> Result<Response<Self::AidAttestationStream>, Status> {
        let configured = self.current()?;
        let turn = self.turn.clone();
        let challenges = request.into_inner();
        let (send, responses) = mpsc::channel(2);
        // SPIRE waits for this stream before it does anything: the work goes on behind it.
        tokio::spawn(async move {
            let _turn = turn.lock_owned().await;
            tokio::select! {
                ended = attest(&configured, challenges, &send) => if let Err(status) = ended {
                    tracing::warn!(error = status.message(), "attestation failed in the guest");
                    let _ = send.send(Err(status)).await;
                },
                () = send.closed() => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}

type Sender = mpsc::Sender<Result<PayloadOrChallengeResponse, Status>>;

async fn attest(
    configured: &Arc<Configured>,
    mut challenges: Streaming<Challenge>,
    send: &Sender,
) -> Result<(), Status> {
    let ours = configured.clone();
    let (attestation, m1) =
        step("the first message", move || Attestation::begin(&ours.config, &ours.trust_domain)).await?;
    tell(send, Data::Payload(m1)).await?;

    let challenge = timeout(CHALLENGE_LIMIT, challenges.message())
        .await
        .map_err(|_| Status::unavailable("the server sent no challenge in time"))??
        .ok_or_else(|| Status::unavailable("the server sent no challenge"))?;
    let ours = configured.clone();
    let m3 = step("the evidence", move || {
        attestation.answer(&challenge.challenge, &ours.config.event_log, &ours.config.boot_id)
    });
    tell(send, Data::ChallengeResponse(m3.await?)).await
}

async fn tell(send: &Sender, data: Data) -> Result<(), Status> {
    let response = PayloadOrChallengeResponse { data: Some(data) };
    send.send(Ok(response)).await.map_err(|_| Status::cancelled("SPIRE gave up"))
}

/// Runs one blocking step with a deadline. What fails here fails on this side, so it is always "not yet".
async fn step<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T, crate::evidence::Error> + Send + 'static,
) -> Result<T, Status> {
    match timeout(STEP_LIMIT, spawn_blocking(work)).await {
        Ok(Ok(done)) => done.map_err(|e| Status::unavailable(format!("cannot make {what}: {e}"))),
        Ok(Err(_)) => Err(Status::unavailable(format!("making {what} broke off"))),
        Err(_) => Err(Status::unavailable(format!("making {what} took longer than {} s", STEP_LIMIT.as_secs()))),
    }
}
