//! The services the parent serves to SPIRE: go-plugin's own, SPIRE's `Init`, and a proxy for the worker's.

use std::{pin::Pin, sync::Arc};

use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, service::Routes};

use crate::{
    agent,
    kind::Kind,
    plugin_config as config,
    proto::{
        grpc::health::v1::{
            HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server,
        },
        plugin::{self, ConnInfo, StdioData},
        spire::service::private::init::v1 as init,
    },
    server,
    worker::{Handle, translate},
};

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send + 'static>>;

/// SPIRE's wish that the plugin ends.
#[derive(Debug, Clone)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Default for Stop {
    fn default() -> Self {
        Self(Arc::new(watch::channel(false).0))
    }
}

impl Stop {
    /// Ends the plugin.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Returns once somebody asked.
    pub async fn asked(&self) {
        let mut seen = self.0.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = seen.wait_for(|asked| *asked).await;
    }
}

/// Everything SPIRE may call on a plugin of this kind.
pub fn routes(kind: Kind, worker: Handle, stop: Stop) -> Routes {
    let routes = Routes::new(plugin::grpc_broker_server::GrpcBrokerServer::new(Broker { stop: stop.clone() }))
        .add_service(plugin::grpc_controller_server::GrpcControllerServer::new(Controller { stop: stop.clone() }))
        .add_service(plugin::grpc_stdio_server::GrpcStdioServer::new(Stdio { stop }))
        .add_service(health_server::HealthServer::new(Health))
        .add_service(init::init_server::InitServer::new(Init { kind }))
        .add_service(config::config_server::ConfigServer::new(Proxy { worker: worker.clone() }));
    match kind {
        Kind::Server => routes.add_service(server::node_attestor_server::NodeAttestorServer::new(Proxy { worker })),
        Kind::Agent => routes.add_service(agent::node_attestor_server::NodeAttestorServer::new(Proxy { worker })),
    }
}

/// go-plugin's broker. We ask the host for no service, but go-plugin needs the stream open for as long as it runs.
struct Broker {
    stop: Stop,
}

#[tonic::async_trait]
impl plugin::grpc_broker_server::GrpcBroker for Broker {
    type StartStreamStream = BoxStream<ConnInfo>;

    async fn start_stream(
        &self,
        request: Request<Streaming<ConnInfo>>,
    ) -> Result<Response<Self::StartStreamStream>, Status> {
        let mut inbound = request.into_inner();
        let stop = self.stop.clone();
        let (hold, open) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Some(Ok(_)) = inbound.next().await {}
            // The host opens this stream once and closes it only when it goes, so its end is the host's end.
            drop(hold);
            stop.ask();
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(open))))
    }
}

struct Controller {
    stop: Stop,
}

#[tonic::async_trait]
impl plugin::grpc_controller_server::GrpcController for Controller {
    async fn shutdown(&self, _: Request<plugin::Empty>) -> Result<Response<plugin::Empty>, Status> {
        self.stop.ask();
        Ok(Response::new(plugin::Empty {}))
    }
}

/// go-plugin mirrors stdout and stderr over this; we log on the real stderr and say nothing here.
struct Stdio {
    stop: Stop,
}

#[tonic::async_trait]
impl plugin::grpc_stdio_server::GrpcStdio for Stdio {
    type StreamStdioStream = BoxStream<StdioData>;

    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        let stop = self.stop.clone();
        let (hold, open) = mpsc::channel(1);
        tokio::spawn(async move {
            stop.asked().await;
            drop(hold);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(open))))
    }
}

/// `grpc.health.v1.Health`, served by parent and worker: whoever answers, lives.
pub(crate) struct Health;

#[tonic::async_trait]
impl health_server::Health for Health {
    type WatchStream = BoxStream<HealthCheckResponse>;

    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() }))
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("use Check"))
    }
}

struct Init {
    kind: Kind,
}

#[tonic::async_trait]
impl init::init_server::Init for Init {
    async fn init(&self, _: Request<init::InitRequest>) -> Result<Response<init::InitResponse>, Status> {
        let plugin_service_names = self.kind.service_names().map(str::to_owned).to_vec();
        Ok(Response::new(init::InitResponse { plugin_service_names }))
    }

    async fn deinit(&self, _: Request<init::DeinitRequest>) -> Result<Response<init::DeinitResponse>, Status> {
        Ok(Response::new(init::DeinitResponse {}))
    }
}

/// Hands calls to the worker of the moment.
struct Proxy {
    worker: Handle,
}

#[tonic::async_trait]
impl config::config_server::Config for Proxy {
    async fn configure(
        &self,
        request: Request<config::ConfigureRequest>,
    ) -> Result<Response<config::ConfigureResponse>, Status> {
        self.worker.configure(request.into_inner()).await?;
        Ok(Response::new(config::ConfigureResponse {}))
    }

    async fn validate(
        &self,
        request: Request<config::ValidateRequest>,
    ) -> Result<Response<config::ValidateResponse>, Status> {
        let channel = self.worker.living().await?;
        config::config_client::ConfigClient::new(channel).validate(request.into_inner()).await.map_err(translate)
    }
}

#[tonic::async_trait]
impl server::node_attestor_server::NodeAttestor for Proxy {
    type AttestStream = BoxStream<server::AttestResponse>;

    async fn attest(
        &self,
        request: Request<Streaming<server::AttestRequest>>,
    ) -> Result<Response<Self::AttestStream>, Status> {
        let outbound = upstream(request.into_inner());
        let worker = self.worker.clone();
        Ok(Response::new(downstream(async move {
            server::node_attestor_client::NodeAttestorClient::new(worker.ready().await?).attest(outbound).await
        })))
    }
}

#[tonic::async_trait]
impl agent::node_attestor_server::NodeAttestor for Proxy {
    type AidAttestationStream = BoxStream<agent::PayloadOrChallengeResponse>;

    async fn aid_attestation(
        &self,
        request: Request<Streaming<agent::Challenge>>,
    ) -> Result<Response<Self::AidAttestationStream>, Status> {
        let outbound = upstream(request.into_inner());
        let worker = self.worker.clone();
        Ok(Response::new(downstream(async move {
            agent::node_attestor_client::NodeAttestorClient::new(worker.ready().await?).aid_attestation(outbound).await
        })))
    }
}

/// What the host sends, up to its end or its first error: a host that goes away ends the worker's stream as well.
fn upstream<T: Send + 'static>(inbound: Streaming<T>) -> impl Stream<Item = T> + Send + 'static {
    inbound.map_while(Result::ok)
}

/// Returns a stream at once and fills it from the worker's answer. SPIRE waits for the stream before it sends
/// anything, and the agent half is waited on before it gets anything, so neither side may be kept.
fn downstream<T, F>(call: F) -> BoxStream<T>
where
    T: Send + 'static,
    F: Future<Output = Result<Response<Streaming<T>>, Status>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(2);
    tokio::spawn(async move {
        let relay = async {
            let mut answers = match call.await {
                Ok(response) => response.into_inner(),
                Err(status) => {
                    let _ = sender.send(Err(translate(status))).await;
                    return;
                }
            };
            while let Some(answer) = answers.next().await {
                let failed = answer.is_err();
                if sender.send(answer.map_err(translate)).await.is_err() || failed {
                    return;
                }
            }
        };
        tokio::select! {
            () = relay => {}
            // The host gave up: dropping the call cancels it in the worker.
            () = sender.closed() => {}
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}
