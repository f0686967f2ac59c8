//! Every error has one shape, whoever of router, framework and HTTP library refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod socket;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use banlieue_mediatore::http::answer::{Code, Failure};
use banlieue_mediatore::http::body::{self, BodyLimits};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use socket::{Authority, LONG, PATIENT, SOON, Side, bounds, talk};

fn router() -> Router {
    let limits = |time: Duration| BodyLimits { bytes: 1024, time };
    let patient = async move |body: Body| {
        body::read::<std::collections::BTreeMap<String, u8>>(body, limits(LONG)).await.map(drop)
    };
    let hasty =
        async move |body: Body| -> Result<(), Failure> { body::read::<Value>(body, limits(SOON)).await.map(drop) };
    Router::new()
        .route("/v1", post(patient))
        .route("/hasty", post(hasty))
        .route("/closed", post(async || Failure::new(Code::Forbidden, "to everybody")))
        .route("/panic", get(async || -> String { panic!("as a test asks") }))
}

/// Status, headers and body of a raw answer.
fn parts(answer: &str) -> (u16, String, Value) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {answer:?}"));
    (status, head.to_ascii_lowercase(), body)
}

#[tokio::test]
async fn over_http_1() {
    let side = Side::start(router(), None, bounds(PATIENT), LONG).await;
    let get = |rest: &str| format!("GET /v1 HTTP/1.1\r\nhost: localhost\r\n{rest}\r\n\r\n");
    let post = |rest: &str| format!("POST /v1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{rest}");
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    for (what, request, status, code) in [
        ("no HTTP", "nonsense\r\n\r\n".to_owned(), 400, "invalid_request"),
        ("HTTP/0.9", "GET /v1\r\n\r\n".to_owned(), 400, "invalid_request"),
        ("HTTP/3.0", "GET /v1 HTTP/3.0\r\n\r\n".to_owned(), 400, "invalid_request"),
        ("a TLS hello", "\x16\x03\x01\x00\x05hello\r\n\r\n".to_owned(), 400, "invalid_request"),
        ("a method that is none", "G(T /v1 HTTP/1.1\r\n\r\n".to_owned(), 400, "invalid_request"),
        ("a control character in a field", get("x: a\0b"), 400, "invalid_request"),
        ("a field without a colon", get("nonsense"), 400, "invalid_request"),
        ("a space before the colon", get("x : y"), 400, "invalid_request"),
        ("a length that is no number", post("content-length: ten\r\n\r\n"), 400, "invalid_request"),
        ("a negative length", post("content-length: -1\r\n\r\n"), 400, "invalid_request"),
        ("a length with a sign", post("content-length: +2\r\n\r\n{}"), 400, "invalid_request"),
        ("two lengths", post("content-length: 2\r\ncontent-length: 3\r\n\r\n{}"), 400, "invalid_request"),
        ("an encoding that nobody knows", post("transfer-encoding: gzip\r\n\r\n"), 400, "invalid_request"),
        ("a chunk without a size", post("transfer-encoding: chunked\r\n\r\nxyz\r\n"), 400, "invalid_request"),
        ("a long field", get(&format!("x: {}", "y".repeat(80_000))), 431, "headers_too_large"),
        ("many fields", get(&many), 431, "headers_too_large"),
        ("a long URI", format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(66_000)), 431, "headers_too_large"),
        ("no route", "GET /else HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(), 404, "not_found"),
        ("all of it", "OPTIONS * HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(), 404, "not_found"),
        ("a tunnel", "CONNECT a:1 HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(), 404, "not_found"),
        ("no such method", get("connection: close"), 405, "method_not_allowed"),
        ("a panic", "GET /panic HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(), 500, "internal"),
        ("a long body", post(&format!("content-length: 2000\r\n\r\n{}", " ".repeat(2000))), 413, "payload_too_large"),
        (
            "a body that is still being sent",
            post(&format!("content-length: 300000\r\n\r\n{}", " ".repeat(300_000))),
            413,
            "payload_too_large",
        ),
        ("a body said to be huge", post("content-length: 1000000000\r\n\r\n{"), 413, "payload_too_large"),
        (
            "a body that nobody reads",
            post(&format!("content-length: 300000\r\n\r\n{}", " ".repeat(300_000))).replace("/v1", "/closed"),
            403,
            "forbidden",
        ),
        ("a body that ends early", post("content-length: 10\r\n\r\n{}"), 408, "request_timeout"),
    ] {
        let request = if what == "a body that ends early" { request.replace("/v1", "/hasty") } else { request };
        let (got, head, body) = parts(&talk(side.connect().await, request.as_bytes()).await);
        assert_eq!((got, body["error"].as_str()), (status, Some(code)), "{what}: {body}");
        let fields: Vec<&String> = body.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["detail", "error"], "{what}");
        assert!(head.contains("content-type: application/json"), "{what}: {head}");
        assert!(head.contains("cache-control: no-store"), "{what}: {head}");
    }
}

#[tokio::test]
async fn what_came_before_an_error_is_answered_before_it() {
    let side = Side::start(router(), None, bounds(PATIENT), LONG).await;
    let answer =
        talk(side.connect().await, b"GET /else HTTP/1.1\r\n\r\nGET /else HTTP/1.1\r\n\r\nnonsense\r\n\r\n").await;
    let answers: Vec<&str> = answer.split("HTTP/1.1 ").skip(1).collect();
    let statuses: Vec<&str> = answers.iter().map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["404", "404", "400"], "{answer}");
    assert!(answers.iter().all(|answer| answer.ends_with('}')), "{answer}");
}

#[tokio::test]
async fn over_http_2() {
    let authority = Authority::new();
    let side = Side::start(router(), Some(authority.server(false)), bounds(PATIENT), LONG).await;
    let stream = side.connect_tls(&authority.client(None, "h2")).await;
    let (ask, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request =
        |method: &str, path: &str| http::Request::builder().method(method).uri(format!("https://localhost{path}"));
    for (what, request, status, code) in [
        ("no route", request("GET", "/else").body(Body::empty()), 404, "not_found"),
        ("no such method", request("GET", "/v1").body(Body::empty()), 405, "method_not_allowed"),
        ("a long body", request("POST", "/v1").body(Body::from(vec![b' '; 2000])), 413, "payload_too_large"),
        ("a list", request("POST", "/v1").body(Body::from("[]")), 400, "invalid_request"),
        (
            "long fields",
            (0..8)
                .fold(request("GET", "/v1"), |request, n| request.header(format!("x-{n}"), "y".repeat(10_000)))
                .body(Body::empty()),
            431,
            "headers_too_large",
        ),
        (
            "a long path",
            request("GET", &format!("/{}", "x".repeat(60_000))).header("x", "y".repeat(6_000)).body(Body::empty()),
            431,
            "headers_too_large",
        ),
    ] {
        let response = ask.clone().send_request(request.unwrap()).await.unwrap();
        let (got, json) = (response.status().as_u16(), response.headers()["content-type"] == "application/json");
        let body: Value = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!((got, body["error"].as_str(), json), (status, Some(code), true), "{what}: {body}");
    }
}
