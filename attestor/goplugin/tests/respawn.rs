//! A host as go-plugin plays it, against the real parent and worker: the worker may die, attestation goes on.
//!
//! This program is both sides: with the cookie in its environment it is the plugin, else the test.
#![allow(clippy::unwrap_used, clippy::panic)] // a test with a `main` of its own, which clippy takes for a program

use std::{
    io::{BufRead, BufReader},
    pin::Pin,
    process::{Child, Command, Stdio},
    time::Duration,
};

use banlieue_goplugin::{
    Kind, WORKER_ARG, plugin_config,
    proto::{plugin, spire::service::private::init::v1 as init},
    serve, server,
};
use hyper_util::rt::TokioIo;
use tokio::sync::OnceCell;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming, service::Routes, transport::Channel};

fn main() {
    if std::env::var_os("NodeAttestor").is_some() || std::env::args().next_back().as_deref() == Some(WORKER_ARG) {
        serve(Kind::Server, || {
            let echo = std::sync::Arc::new(Echo::default());
            Routes::new(server::node_attestor_server::NodeAttestorServer::from_arc(echo.clone()))
                .add_service(plugin_config::config_server::ConfigServer::from_arc(echo))
        })
        .unwrap();
        return;
    }
    by_hand_says_what_to_do();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        respawn().await;
        host_death_ends_the_plugin().await;
    });
    println!("test respawn ... ok");
}

/// Answers every attestation with its process id and its configuration.
#[derive(Default)]
struct Echo {
    config: OnceCell<String>,
}

#[tonic::async_trait]
impl server::node_attestor_server::NodeAttestor for Echo {
    type AttestStream = Pin<Box<dyn Stream<Item = Result<server::AttestResponse, Status>> + Send>>;

    async fn attest(
        &self,
        request: Request<Streaming<server::AttestRequest>>,
    ) -> Result<Response<Self::AttestStream>, Status> {
        let config = self.config.get().cloned().unwrap_or_default();
        let answers = request.into_inner().map(move |request| match request?.request {
            Some(server::attest_request::Request::Payload(payload)) if payload == b"die" => std::process::abort(),
            Some(server::attest_request::Request::Payload(payload)) if payload == b"no" => {
                Err(Status::permission_denied("refused"))
            }
            _ => {
                let text = format!("{} {config}", std::process::id());
                let response = server::attest_response::Response::Challenge(text.into_bytes());
                Ok(server::AttestResponse { response: Some(response) })
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

#[tonic::async_trait]
impl plugin_config::config_server::Config for Echo {
    async fn configure(
        &self,
        request: Request<plugin_config::ConfigureRequest>,
    ) -> Result<Response<plugin_config::ConfigureResponse>, Status> {
        let text = request.into_inner().hcl_configuration;
        if text == "bad" {
            return Err(Status::invalid_argument("bad"));
        }
        let _ = self.config.set(text);
        Ok(Response::new(plugin_config::ConfigureResponse {}))
    }

    async fn validate(
        &self,
        _: Request<plugin_config::ValidateRequest>,
    ) -> Result<Response<plugin_config::ValidateResponse>, Status> {
        Ok(Response::new(plugin_config::ValidateResponse { valid: true, notes: vec![] }))
    }
}

struct Host {
    child: Child,
    socket: String,
    channel: Channel,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn start() -> Host {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .env("NodeAttestor", "NodeAttestor")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let parts: Vec<&str> = line.trim_end_matches('\n').split('|').collect();
    let [core, app, network, socket, protocol, ""] = parts.as_slice() else { panic!("handshake: {line:?}") };
    assert_eq!([core, app, network, protocol], [&"1", &"1", &"unix", &"grpc"]);
    let path = (*socket).to_owned();
    let socket = path.clone();
    let channel = tonic::transport::Endpoint::from_static("http://unused.invalid")
        .connect_with_connector(tower::service_fn(move |_| {
            let path = path.clone();
            async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
        }))
        .await
        .unwrap();
    Host { child, socket, channel }
}

impl Host {
    async fn say(&self, payload: &[u8]) -> Result<(u32, String), Status> {
        let request =
            server::AttestRequest { request: Some(server::attest_request::Request::Payload(payload.to_vec())) };
        // Open after the message, as SPIRE leaves it.
        let outbound = tokio_stream::iter([request]).chain(tokio_stream::pending());
        let mut client = server::node_attestor_client::NodeAttestorClient::new(self.channel.clone());
        let mut answers = client.attest(outbound).await?.into_inner();
        let answer = tokio::time::timeout(Duration::from_secs(60), answers.message()).await.unwrap()?.unwrap();
        let Some(server::attest_response::Response::Challenge(text)) = answer.response else { panic!("no challenge") };
        let text = String::from_utf8(text).unwrap();
        let (pid, config) = text.split_once(' ').unwrap();
        Ok((pid.parse().unwrap(), config.to_owned()))
    }

    async fn configure(&self, text: &str) -> Result<(), Status> {
        let mut client = plugin_config::config_client::ConfigClient::new(self.channel.clone());
        let core = plugin_config::CoreConfiguration { trust_domain: "td".to_owned() };
        client
            .configure(plugin_config::ConfigureRequest {
                core_configuration: Some(core),
                hcl_configuration: text.to_owned(),
            })
            .await?;
        Ok(())
    }
}

fn gone(pid: u32) -> bool {
    // A zombie's command line is empty.
    std::fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |line| line.is_empty())
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("still not so after a minute: {what}");
}

fn by_hand_says_what_to_do() {
    let output = Command::new(std::env::current_exe().unwrap()).arg(WORKER_ARG).stdin(Stdio::null()).output();
    assert!(!output.unwrap().status.success(), "a worker without a parent must not run");
}

async fn respawn() {
    let host = start().await;
    let mut broker = plugin::grpc_broker_client::GrpcBrokerClient::new(host.channel.clone());
    let mut held = broker.start_stream(tokio_stream::pending()).await.unwrap().into_inner();
    let mut init = init::init_client::InitClient::new(host.channel.clone());
    let names = init.init(init::InitRequest { host_service_names: vec![] }).await.unwrap().into_inner();
    assert_eq!(names.plugin_service_names, Kind::Server.service_names());

    assert_eq!(host.configure("bad").await.unwrap_err().code(), Code::InvalidArgument);
    host.configure("good").await.unwrap();
    let (first, config) = host.say(b"x").await.unwrap();
    assert_eq!(config, "good");
    assert_eq!(host.say(b"no").await.unwrap_err().code(), Code::PermissionDenied);

    // Killed between calls.
    let status = Command::new("kill").args(["-9", &first.to_string()]).status().unwrap();
    assert!(status.success());
    let (second, config) = loop {
        // A call that meets the dying worker is told to come again.
        match host.say(b"x").await {
            Ok(answer) => break answer,
            Err(status) => assert_eq!(status.code(), Code::Unavailable),
        }
    };
    assert_ne!(first, second);
    assert_eq!(config, "good");

    // Killed inside a call.
    assert_eq!(host.say(b"die").await.unwrap_err().code(), Code::Unavailable);
    let (third, config) = host.say(b"x").await.unwrap();
    assert_ne!(second, third);
    assert_eq!(config, "good");

    // The broker's stream has seen nothing of all that.
    let open = tokio::time::timeout(Duration::from_millis(10), held.message()).await;
    assert!(open.is_err(), "the broker's stream ended: {open:?}");

    let mut controller = plugin::grpc_controller_client::GrpcControllerClient::new(host.channel.clone());
    controller.shutdown(plugin::Empty {}).await.unwrap();
    let mut host = host;
    let socket = host.socket.clone();
    assert!(host.child.wait().unwrap().success());
    assert!(!std::path::Path::new(&socket).exists(), "the socket was left behind");
    until("the worker ends with its parent", || gone(third)).await;
}

async fn host_death_ends_the_plugin() {
    // A killed parent takes its worker along.
    let mut host = start().await;
    host.configure("good").await.unwrap();
    let (worker, _) = host.say(b"x").await.unwrap();
    host.child.kill().unwrap();
    until("the worker of a killed parent ends", || gone(worker)).await;
    drop(host);

    // A host that goes away without a word is noticed by the end of its connection.
    let host = start().await;
    let mut broker = plugin::grpc_broker_client::GrpcBrokerClient::new(host.channel.clone());
    let (open, outbound) = tokio::sync::mpsc::channel(1);
    let held = broker.start_stream(tokio_stream::wrappers::ReceiverStream::new(outbound)).await.unwrap();
    drop((held, open, broker));
    let mut host = host;
    let socket = host.socket.clone();
    until("the plugin of a host that is gone ends", || host.child.try_wait().unwrap().is_some()).await;
    assert!(!std::path::Path::new(&socket).exists(), "the socket was left behind");
}
