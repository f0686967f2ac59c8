//! [`Api`] over a real API server.

use std::time::Duration;

use async_trait::async_trait;
use banlieue_leader::Leadership;
use http::{Method, header};
use serde_json::json;

use super::{Api, ApiError, Kind, Operation, Request};
use crate::metrics::Metrics;

/// A connection to the API server with its own pool, no retries and a deadline for every call.
///
/// kube's client retries 429, 503 and 504 up to fifteen times by default; here the work queue owns retries, so that
/// a call that is stuck does not hold its worker, and the binding path decides for itself.
#[derive(Clone)]
pub struct Kubernetes {
    client: kube::Client,
    deadline: Duration,
    metrics: Metrics,
    leadership: Option<Leadership>,
}

impl Kubernetes {
    /// Wraps a client made by [`connect`]; `deadline` bounds each call.
    pub fn new(client: kube::Client, deadline: Duration, metrics: Metrics) -> Self {
        Self { client, deadline, metrics, leadership: None }
    }

    /// Sends writes only while this process leads, and gives them up when it does not any more.
    #[must_use]
    pub fn only_leading(self, leadership: Leadership) -> Self {
        Self { leadership: Some(leadership), ..self }
    }

    /// The client, for watches.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }
}

/// A client for `config` with its own connection pool and without kube's retries.
pub fn connect(mut config: kube::Config) -> Result<kube::Client, kube::Error> {
    config.default_retry = false;
    kube::Client::try_from(config)
}

#[async_trait]
impl Api for Kubernetes {
    async fn call(&self, request: Request) -> Result<String, ApiError> {
        let what = describe(&request);
        let (kind, verb, write) = (request.kind, request.operation.verb(), request.operation.is_write());
        let http_request = encode(&request).map_err(|e| ApiError::Refused {
            what: what.clone(),
            refusal: super::Refusal::Invalid,
            message: e,
        })?;
        let mut deadline = self.deadline;
        if write && let Some(leadership) = &self.leadership {
            match leadership.remaining() {
                Some(remaining) => deadline = deadline.min(remaining),
                None => return Err(ApiError::NotLeading { what }),
            }
        }
        let outcome = match tokio::time::timeout(deadline, self.client.request_text(http_request)).await {
            Err(_) => Err(ApiError::Unknown { what, message: format!("nothing within {deadline:?}") }),
            Ok(Ok(text)) => Ok(text),
            Ok(Err(kube::Error::Api(status))) => {
                Err(ApiError::from_status(what, status.code, &status.reason, status.message.clone()))
            }
            Ok(Err(other)) => Err(ApiError::Unknown { what, message: chain(&other) }),
        };
        if write {
            let category = outcome.as_ref().err().map_or("ok", ApiError::category);
            self.metrics.api_write(verb, kind.plural(), category);
        }
        outcome
    }
}

/// The error and its causes in one line: kube's own text names the layer, the cause names the reason. Of a cause that
/// has several lines (a parser that quotes its input) the first says it.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let first = |error: &dyn std::error::Error| error.to_string().lines().next().unwrap_or_default().trim().to_owned();
    let mut text = first(error);
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = first(cause);
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// `create virtualmachineinstances sandboxes/p-x7k2q`, for messages.
pub fn describe(request: &Request) -> String {
    let verb = request.operation.verb();
    let sub = match &request.operation {
        Operation::Apply { status: true, .. } | Operation::Merge { status: true, .. } => "/status",
        _ => "",
    };
    format!("{verb} {}{sub} {}/{}", request.kind.plural(), request.namespace, request.name)
}

fn encode(request: &Request) -> Result<http::Request<Vec<u8>>, String> {
    let (prefix, plural) = request.kind.path();
    let collection = match request.kind {
        Kind::Namespace => format!("/{prefix}/{plural}"),
        _ => format!("/{prefix}/namespaces/{}/{plural}", request.namespace),
    };
    let object = |status: bool| format!("{collection}/{}{}", request.name, if status { "/status" } else { "" });
    let body = || request.body.as_ref().map(|b| b.to_string().into_bytes()).unwrap_or_default();
    let json_type = "application/json";
    let (method, uri, content, body) = match &request.operation {
        Operation::Get => (Method::GET, object(false), json_type, Vec::new()),
        Operation::List { labels } => {
            (Method::GET, format!("{collection}?labelSelector={}", escape(labels)), json_type, Vec::new())
        }
        Operation::Create { dry_run, manager } => {
            let dry = if *dry_run { "&dryRun=All" } else { "" };
            (Method::POST, format!("{collection}?fieldManager={manager}{dry}"), json_type, body())
        }
        Operation::Apply { manager, status } => (
            Method::PATCH,
            format!("{}?fieldManager={manager}&force=true", object(*status)),
            "application/apply-patch+yaml",
            body(),
        ),
        Operation::Merge { manager, status } => (
            Method::PATCH,
            format!("{}?fieldManager={manager}", object(*status)),
            "application/merge-patch+json",
            body(),
        ),
        Operation::Delete { uid, resource_version } => {
            let preconditions = match resource_version {
                Some(version) => json!({ "uid": uid, "resourceVersion": version }),
                None => json!({ "uid": uid }),
            };
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions",
                "preconditions": preconditions, "propagationPolicy": "Background",
            });
            (Method::DELETE, object(false), json_type, options.to_string().into_bytes())
        }
    };
    http::Request::builder()
        .method(method)
        .uri(uri)
        .header(header::ACCEPT, json_type)
        .header(header::CONTENT_TYPE, content)
        .body(body)
        .map_err(|e| e.to_string())
}

/// Percent-encodes a label selector for a query. Selectors hold label characters, `=`, `,` and spaces only.
fn escape(selector: &str) -> String {
    let mut out = String::with_capacity(selector.len() + 8);
    for byte in selector.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_encoded_as_the_api_conventions_say() {
        let request = |operation| Request {
            kind: Kind::Member,
            namespace: "ns".into(),
            name: "p-abcde".into(),
            operation,
            body: None,
        };
        let apply = encode(&request(Operation::Apply { manager: "m", status: true })).unwrap();
        assert_eq!(
            apply.uri(),
            "/apis/banlieue.io/v1alpha1/namespaces/ns/poolmembers/p-abcde/status?fieldManager=m&force=true"
        );
        let delete =
            encode(&request(Operation::Delete { uid: "u".into(), resource_version: Some("7".into()) })).unwrap();
        let options: serde_json::Value = serde_json::from_slice(delete.body()).unwrap();
        assert_eq!(options["preconditions"], json!({"uid": "u", "resourceVersion": "7"}));
        let list = encode(&request(Operation::List { labels: "a/b=c".into() })).unwrap();
        assert_eq!(list.uri().query(), Some("labelSelector=a%2Fb%3Dc"));
        let dry = encode(&request(Operation::Create { dry_run: true, manager: "m" })).unwrap();
        assert_eq!(dry.uri().query(), Some("fieldManager=m&dryRun=All"));
        let namespace = Request { kind: Kind::Namespace, namespace: String::new(), ..request(Operation::Get) };
        assert_eq!(encode(&namespace).unwrap().uri(), "/api/v1/namespaces/p-abcde");
    }

    /// Nobody listens on port 9: whatever is sent comes back as "no answer".
    #[tokio::test]
    async fn a_write_is_not_even_sent_by_a_process_that_does_not_lead() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let config = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        let client = connect(config).unwrap();
        let of = |leadership| {
            Kubernetes::new(client.clone(), Duration::from_secs(60), Metrics::default()).only_leading(leadership)
        };
        let request = |operation| Request {
            kind: Kind::Member,
            namespace: "ns".into(),
            name: "m".into(),
            operation,
            body: Some(json!({})),
        };
        let write = || request(Operation::Merge { manager: "m", status: false });
        let (leader, follower) = (of(Leadership::always()), of(Leadership::follower()));
        assert!(matches!(follower.call(write()).await, Err(ApiError::NotLeading { .. })));
        assert!(matches!(leader.call(write()).await, Err(ApiError::Unknown { .. })));
        assert!(matches!(follower.call(request(Operation::Get)).await, Err(ApiError::Unknown { .. })), "reads go on");
    }
}
