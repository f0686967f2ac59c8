//! Playing guest and workload: the test program runs itself inside the cluster, where SPIRE's agent can see who it is,
//! and asks mediatore's sandbox side with a real SVID.
#![allow(dead_code)] // each test binary uses its part
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests, though not functions of a test

use std::sync::Arc;
use std::time::Duration;

use banlieue_cluster::Cluster;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use spiffe::x509_source::SvidPicker;
use spiffe::{X509Source, X509Svid};

use crate::inside;

struct Named(String);

impl SvidPicker for Named {
    fn pick_svid(&self, svids: &[Arc<X509Svid>]) -> Option<usize> {
        svids.iter().position(|svid| svid.spiffe_id().path() == self.0)
    }
}

/// What this process was told by the one that runs it.
pub fn told(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// A client with the SVID of `path`, for which mediatore is only who has mediatore's SPIFFE id.
pub async fn client(path: &str) -> Client {
    let place = inside::Place::ours();
    let source = X509Source::builder()
        .endpoint(&place.workload_api)
        .picker(Named(path.to_owned()))
        .initial_sync_timeout(Duration::from_secs(120))
        .build()
        .await
        .unwrap();
    let only = spiffe_rustls::authorizer::exact([format!("spiffe://{}/mediatore", place.trust_domain)]).unwrap();
    let tls = spiffe_rustls::mtls_client(source).authorize(only).build().unwrap();
    Client::builder().tls_backend_preconfigured(tls).timeout(Duration::from_secs(120)).build().unwrap()
}

/// Status and body of one request to the sandbox side.
pub async fn ask(client: &Client, method: Method, route: &str, body: Option<String>) -> (u16, Value) {
    let mut request = client.request(method, format!("https://{}{route}", told("SANDBOX")));
    if let Some(body) = body {
        request = request.body(body);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// Sends the same request so many times at once, as one identity. Repeated until every answer has the status that is
/// waited for, since what mediatore's watches show may be a little old; only 404, 429 and 503 mean that it is too early.
/// The last answer is written down.
pub async fn play() {
    let client = client(&told("IDENTITY")).await;
    let method: Method = told("METHOD").parse().unwrap();
    let (expected, times): (u16, usize) = (told("STATUS").parse().unwrap(), told("TIMES").parse().unwrap());
    let (route, mut last) = (told("ROUTE"), Vec::new());
    for _ in 0..600 {
        let asking = (0..times).map(|_| ask(&client, method.clone(), &route, std::env::var("BODY").ok()));
        last = futures::future::join_all(asking).await;
        if last.iter().all(|(status, _)| *status == expected) {
            std::fs::write(told("ANSWER"), last[0].1.to_string()).unwrap();
            return;
        }
        for (status, body) in &last {
            assert!(*status == expected || matches!(status, 404 | 429 | 503), "{status} {body}");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("never {expected}: {last:?}");
}

/// The sandbox side of one replica.
#[derive(Clone)]
pub struct Sandbox<'a> {
    pub cluster: &'a Cluster,
    /// `host:port`.
    pub address: String,
}

impl Sandbox<'_> {
    /// Plays a process inside which has this identity and sends one request; the answer must come to have this status.
    pub async fn ask(&self, identity: &str, route: (&str, &str), body: Option<Value>, status: u16) -> Value {
        self.ask_often(identity, route, body, 1, status).await
    }

    /// The same request so many times at once.
    pub async fn ask_often(
        &self,
        identity: &str,
        (method, route): (&str, &str),
        body: Option<Value>,
        times: usize,
        status: u16,
    ) -> Value {
        let role = format!("{}{}", self.address.replace(':', "-"), identity.replace('/', "-"));
        let answer = self.cluster.dir().join(format!("answer-{role}"));
        let (status, times, answer_path) = (status.to_string(), times.to_string(), answer.display().to_string());
        let text = body.map(|body| body.to_string());
        let mut told = vec![
            ("SANDBOX", self.address.as_str()),
            ("IDENTITY", identity),
            ("METHOD", method),
            ("ROUTE", route),
            ("STATUS", &status),
            ("TIMES", &times),
            ("ANSWER", &answer_path),
        ];
        if let Some(text) = &text {
            told.push(("BODY", text));
        }
        inside::run(self.cluster, &role, &told).await;
        serde_json::from_str(&std::fs::read_to_string(answer).unwrap()).unwrap()
    }

    /// The guest says that it is latched and its workload runs.
    pub async fn latch(&self, node: &str) {
        let running = json!({ "latched": true, "workload_state": "running" });
        self.ask(node, ("POST", "/v1/me/status"), Some(running), 204).await;
    }

    /// The workload asks for a token.
    pub async fn token(&self, workload: &str, audience: &str, status: u16) -> Value {
        self.ask(workload, ("POST", "/v1/token"), Some(json!({ "audience": audience })), status).await
    }
}
