//! The downstream example as a process of the cluster, and what calls it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests, though not functions of a test

use std::collections::BTreeMap;
use std::path::PathBuf;

use banlieue_cluster::idp::{Person, Provider};
use banlieue_cluster::{Cluster, programs};
use banlieue_identity::SubjectKey;
use banlieue_supervisor::Spec;
use futures::{SinkExt, StreamExt};
use http::Uri;
use reqwest::Response;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::broker::{Setup, body, eventually};
use crate::{TRADING, Working};

type Socket = WebSocketStream<TlsStream<TcpStream>>;

pub struct Downstream {
    /// `host:port`.
    address: String,
    log: PathBuf,
    client: reqwest::Client,
    roots: rustls::RootCertStore,
}

impl Downstream {
    /// It trusts the mediatore whose issuer is `issuer`, and callers of the provider at its relay.
    pub async fn start(cluster: &Cluster, setup: &Setup, issuer: &str, entra: &Provider) -> Self {
        let folder = setup.config.parent().unwrap();
        let certificate = folder.join("tls.crt");
        let config = json!({
            "address": "127.0.0.1:0",
            // The name is the same: 127.0.0.1.
            "certificate_file": certificate, "key_file": folder.join("tls.key"),
            "audience": TRADING,
            "trust_domain": cluster.settings().trust_domain,
            "mediatore": { "issuer": issuer, "ca_file": certificate },
            "orchestrators": [{
                "name": "entra", "url": entra.issuer, "client_id": "trading-data", "ca_file": entra.ca_file,
                "accepts": "access_token", "subject_claim": "oid", "require": { "scope": "read" },
                "clients": ["mediatore-cli"], "peers": ["agent"],
            }],
        });
        let file = folder.join("downstream.yaml");
        std::fs::write(&file, config.to_string()).unwrap();
        let program = programs::binary("downstream").unwrap_or_else(|error| panic!("{error}"));
        let argv = vec![program.display().to_string(), "--config".into(), file.display().to_string()];
        let log = cluster.log("downstream");
        let spec = Spec { name: "downstream".into(), argv, env: BTreeMap::new(), log: log.clone(), ..Spec::default() };
        cluster.supervisor().spawn(spec).await.unwrap();
        let mut address = None;
        eventually("downstream listens", async || {
            address = lines(&log).find_map(|line| {
                (line["message"] == "downstream listens").then(|| line["address"].as_str().unwrap().to_owned())
            });
            address.is_some()
        })
        .await;
        let mut roots = rustls::RootCertStore::empty();
        let pem = std::fs::read(&certificate).unwrap();
        for certificate in rustls::pki_types::pem::PemObject::pem_slice_iter(&pem) {
            roots.add(certificate.unwrap()).unwrap();
        }
        Self { address: address.unwrap(), log, client: setup.client.clone(), roots }
    }

    pub async fn reports(&self, token: &str) -> Response {
        let request = self.client.post(format!("https://{}/v1/reports", self.address)).body("the ledgers agree");
        let request = if token.is_empty() { request } else { request.bearer_auth(token) };
        request.send().await.unwrap()
    }

    pub async fn accepts(&self, token: &str) -> Value {
        let response = self.reports(token).await;
        let status = response.status();
        let said = body(response).await;
        assert_eq!(status, 202, "{said}");
        said
    }

    /// The reason for which a token is refused, from the log; the answer has the one shape.
    pub async fn refuses(&self, token: &str) -> String {
        let before = lines(&self.log).filter(|line| line["message"] == "refused").count();
        let response = self.reports(token).await;
        let (status, challenged) = (response.status().as_u16(), response.headers().contains_key("www-authenticate"));
        let said = body(response).await;
        assert_eq!((status, challenged, &said["error"]), (401, true, &json!("unauthorized")), "{said}");
        let mut reason = None;
        eventually("the refusal is in the log", async || {
            reason = lines(&self.log).filter(|line| line["message"] == "refused").nth(before);
            reason.is_some()
        })
        .await;
        reason.unwrap()["reason"].as_str().unwrap().to_owned()
    }

    /// The call of a workload: the answer and the log say which sandbox it is and for whom it acts.
    pub async fn takes(&self, working: &Working, issuer: &str, id: &str, agent: Option<&str>) {
        let said = self.accepts(&working.token).await;
        let key = SubjectKey::of(issuer, id).to_string();
        assert_eq!((&said["claim_uid"], &said["subject"]), (&json!(working.uid), &json!(key)));
        assert_eq!((&said["upstream_sub"], &said["agent"]), (&json!(id), &json!(agent)));
        let line =
            lines(&self.log).find(|line| line["message"] == "report of a sandbox" && line["claim"] == working.uid);
        let line = line.unwrap();
        assert_eq!((&line["subject"], &line["upstream_sub"]), (&json!(key), &json!(id)));
        assert_eq!(line["agent"].as_str(), agent);
    }

    async fn dial(&self, path: &str, token: &str) -> Result<Socket, u16> {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let tls = rustls::ClientConfig::builder().with_root_certificates(self.roots.clone()).with_no_client_auth();
        let name = "127.0.0.1".try_into().unwrap();
        let stream = tokio_rustls::TlsConnector::from(std::sync::Arc::new(tls)).connect(name, stream).await.unwrap();
        let uri: Uri = format!("wss://{}{path}", self.address).parse().unwrap();
        let mut request = uri.into_client_request().unwrap();
        if !token.is_empty() {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        match tokio_tungstenite::client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    /// A sandbox dials out, and its orchestrator talks to it; nobody else does.
    pub async fn conversation(&self, entra: &Provider, agents: &Working, persons: &Working) {
        let ada = Person::ada();
        let read = format!("openid {TRADING}/read");
        let orchestrator =
            async |person: &Person| entra.login("mediatore-cli", person, &read).await.unwrap().access_token;
        let (of_ada, of_grace) = (orchestrator(&ada).await, orchestrator(&Person::grace()).await);
        let own = entra.login("agent-app", &ada, "api://agent/access").await.unwrap().access_token;
        let of_agent = entra.on_behalf_of("agent", &own, &format!("{TRADING}/read")).await.unwrap().access_token;
        let (to_agents, to_persons) = (format!("/v1/relay/{}", agents.uid), format!("/v1/relay/{}", persons.uid));

        assert_eq!(self.dial("/v1/relay", "").await.err(), Some(401));
        assert_eq!(self.dial("/v1/relay", &of_ada).await.err(), Some(401), "a person is no sandbox");
        assert_eq!(self.dial(&to_agents, &agents.token).await.err(), Some(401), "a sandbox is no orchestrator");
        assert_eq!(self.dial(&to_agents, &of_agent).await.err(), Some(404), "it has not dialled");

        let mut sandbox = self.dial("/v1/relay", &agents.token).await.unwrap();
        let mut other = self.dial("/v1/relay", &persons.token).await.unwrap();
        assert_eq!(self.dial("/v1/relay", &agents.token).await.err(), Some(409), "one for each claim");
        assert_eq!(self.dial(&to_agents, &of_grace).await.err(), Some(404), "somebody else's");
        assert_eq!(self.dial(&to_persons, &of_agent).await.err(), Some(404), "the person's own");
        assert_eq!(self.dial("/v1/relay/nonsense", &of_ada).await.err(), Some(404));

        let mut client = self.dial(&to_agents, &of_agent).await.unwrap();
        let who = next(&mut client).await;
        assert_eq!((&who["claim_uid"], &who["agent"]), (&json!(agents.uid), &json!("agent")));
        assert_eq!(who["subject"], json!(SubjectKey::of(&entra.issuer, &ada.id).to_string()));
        assert_eq!(next(&mut sandbox).await, json!({ "orchestrator": "agent" }));
        assert_eq!(self.dial(&to_agents, &of_ada).await.err(), Some(404), "it talks to one already");
        client.send(Message::text(r#"{"ask":"the ledgers?"}"#)).await.unwrap();
        assert_eq!(next(&mut sandbox).await["ask"], "the ledgers?");
        for n in 0..100 {
            sandbox.send(Message::text(json!({ "n": n }).to_string())).await.unwrap();
            assert_eq!(next(&mut client).await["n"], n);
        }
        sandbox.close(None).await.unwrap();
        assert_eq!(closed(&mut client).await, Some(4000));

        // Before anybody is there, nobody would hear it.
        other.send(Message::text("hello?")).await.unwrap();
        assert_eq!(closed(&mut other).await, Some(4003));
        // The place is free again, and the person meets the sandbox that works for her.
        let mut again = None;
        eventually("its place is free", async || {
            again = self.dial("/v1/relay", &persons.token).await.ok();
            again.is_some()
        })
        .await;
        let mut client = self.dial(&to_persons, &of_ada).await.unwrap();
        assert_eq!(next(&mut client).await["agent"], Value::Null);
        client.send(Message::binary(vec![0; 300 * 1024])).await.unwrap();
        assert!(
            closed(&mut client).await.is_none_or(|code| code == 4000 || code == 1009),
            "longer than a message may be"
        );
    }
}

fn lines(log: &std::path::Path) -> impl Iterator<Item = Value> + use<> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    lines.into_iter()
}

/// The next message, as JSON.
async fn next(socket: &mut Socket) -> Value {
    loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The code that the relay closes with, if it says one.
async fn closed(socket: &mut Socket) -> Option<u16> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Close(frame))) => return frame.map(|CloseFrame { code, .. }| code.into()),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return None,
        }
    }
}
