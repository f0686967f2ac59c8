//! Everything that mediatore refuses, over HTTP against a real process: tokens of real providers that are not for it, and
//! tokens that only somebody with an issuer's key could make; requests that are malformed at every level. Each answer has
//! its status, its code and the one shape, and each refused token one line in the audit record that says why.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod broker;
#[path = "../../broker/identity/tests/forge/mod.rs"]
mod forge;
#[allow(dead_code)]
#[path = "../../broker/identity/tests/provider/mod.rs"]
mod provider;
mod refusals;

use std::time::Duration;

use banlieue_cluster::Signal;
use banlieue_identity::RefusalReason as Why;
use broker::{body, eventually, refused, request};
use k8s_openapi::jiff::Timestamp;
use refusals::{Asked, World, requests, test, tokens};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

/// Each token is sent with a good request, in turn.
async fn refuse_all(world: &World, rows: Vec<(&str, String, Why)>) {
    let good = request(&world.pool).to_string();
    let begin = Timestamp::now();
    for (what, token, why) in &rows {
        let answer = world.post(token).body(good.clone()).send().await.unwrap();
        let (status, challenge) = (answer.status().as_u16(), answer.headers().get("www-authenticate").cloned());
        let challenge = challenge.map(|value| value.to_str().unwrap().to_owned());
        let shape = body(answer).await;
        let code = why.code();
        assert_eq!((status, shape["error"].as_str()), (code.status(), Some(code.as_str())), "{what}: {shape}");
        assert_eq!(shape.as_object().unwrap().len(), 2, "{what}: {shape}");
        assert_eq!(challenge.is_some(), matches!(status, 401 | 403), "{what}");
        assert!(challenge.is_none_or(|challenge| challenge.starts_with("Bearer ")), "{what}");
        // What was sent does not come back: a log of answers is no place for tokens.
        let longest = token.split('.').max_by_key(|part| part.len()).unwrap();
        assert!(longest.len() < 20 || !shape.to_string().contains(longest), "{what}: {shape}");
    }
    eventually("each has its line", async || world.audit_since(begin).len() >= rows.len()).await;
    let lines = world.audit_since(begin);
    assert_eq!(lines.len(), rows.len(), "one line each");
    for ((what, token, why), line) in rows.iter().zip(lines) {
        assert_eq!(line["reason"], why.as_str(), "{what}: {line}");
        assert_eq!((&line["action"], &line["outcome"]), (&json!("authenticate"), &json!("denied")), "{what}: {line}");
        let signature = token.rsplit('.').next().unwrap();
        assert!(signature.len() < 20 || !line.to_string().contains(signature), "{what}: {line}");
    }
}

#[test]
fn tokens_of_real_providers() {
    test(async |world| {
        let rows = tokens::of_real_providers(world).await;
        assert!(rows.len() >= 10, "{}", rows.len());
        refuse_all(world, rows).await;
    });
}

#[test]
fn tokens_that_only_a_key_could_make() {
    test(async |world| {
        let rows = tokens::forged(world);
        assert!(rows.len() >= 60, "{}", rows.len());
        // The honest one that all are made from is good: each is refused for what it says.
        let honest = world.post(&world.forged.token(&tokens::person(world))).body(request(&world.pool).to_string());
        let honest = honest.send().await.unwrap();
        assert_eq!(honest.status(), 201, "{}", honest.text().await.unwrap());
        refuse_all(world, rows).await;
    });
}

#[test]
fn headers_that_carry_no_token() {
    test(async |world| {
        let token = world.person().await;
        for (what, values) in [
            ("none", vec![]),
            ("empty", vec!["".to_owned()]),
            ("another scheme", vec!["Basic eDp5".to_owned()]),
            ("a scheme alone", vec!["Bearer".to_owned()]),
            ("a scheme and a space", vec!["Bearer ".to_owned()]),
            ("a token alone", vec![token.clone()]),
            ("a token twice", vec![format!("Bearer {token}"), format!("Bearer {token}")]),
            ("two in one", vec![format!("Bearer {token}, Bearer {token}")]),
            ("a token and another scheme", vec![format!("Bearer {token}"), "Basic eDp5".to_owned()]),
            ("no text", vec!["Bearer \u{e9}".to_owned()]),
        ] {
            let mut asking = world.ask(Method::POST, "/v1/claims").body(request(&world.pool).to_string());
            for value in values {
                let value = http::HeaderValue::from_bytes(value.as_bytes()).unwrap();
                asking = asking.header("authorization", value);
            }
            refused(what, asking.send().await.unwrap(), 401, "unauthorized").await;
        }
        for (what, path) in
            [("in the query", format!("/v1/claims?access_token={token}")), ("as a cookie", "/v1/claims".into())]
        {
            let asking = world.ask(Method::GET, &path).header("cookie", format!("access_token={token}"));
            refused(what, asking.send().await.unwrap(), 401, "unauthorized").await;
        }
        // No header stands for an identity.
        let asking =
            world.ask(Method::GET, "/v1/claims").header("x-forwarded-user", "ada").header("x-remote-user", "ada");
        refused("a header of a proxy", asking.send().await.unwrap(), 401, "unauthorized").await;
    });
}

#[test]
fn requests_that_are_malformed() {
    test(async |world| {
        let token = world.person().await;
        let bodies = requests::bodies(&world.pool);
        assert!(bodies.len() >= 50, "{}", bodies.len());
        for (what, text, status, code) in bodies {
            refused(what, world.post(&token).body(text).send().await.unwrap(), status, code).await;
        }
        for (what, keys) in requests::idempotency_keys() {
            let mut asking = world.post(&token).body(request(&world.pool).to_string());
            for key in keys {
                asking = asking.header("idempotency-key", http::HeaderValue::from_bytes(&key).unwrap());
            }
            refused(what, asking.send().await.unwrap(), 400, "invalid_request").await;
        }
        for (what, method, path, status, code) in requests::routes() {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let answer = world.ask(method, path).bearer_auth(&token).send().await.unwrap();
            assert_eq!(answer.headers().contains_key("allow"), status == 405, "{what}");
            refused(what, answer, status, code).await;
        }
        let list = body(world.ask(Method::GET, "/v1/claims").bearer_auth(&token).send().await.unwrap()).await;
        assert_eq!(list["claims"], json!([]), "nothing refused left anything");
    });
}

#[test]
fn bytes_that_are_no_request() {
    test(async |world| {
        let token = world.person().await;
        for (what, bytes, status, code) in requests::raw(&token) {
            let answer = world.raw(&bytes).await;
            let (head, text) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{what}: {answer:?}"));
            let got: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
            let shape: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{what}: {answer:?}"));
            assert_eq!((got, shape["error"].as_str()), (status, Some(code)), "{what}: {shape}");
            assert!(head.to_lowercase().contains("content-type: application/json"), "{what}: {head}");
        }
    });
}

#[test]
fn one_address_fails_so_often_and_no_more() {
    test(async |world| {
        let asked = world.another("limited", |config| config["limits"]["failures_per_minute"] = json!(3)).await;
        let Asked { listening, client, audit, .. } = asked;
        let ask = async |token: &str| {
            client.get(format!("{}/v1/pools", listening.user)).bearer_auth(token).send().await.unwrap()
        };
        let mut limited = 0;
        for _ in 0..10 {
            let answer = ask("nonsense").await;
            match answer.status().as_u16() {
                401 => {}
                429 => {
                    assert!(answer.headers().contains_key("retry-after"));
                    limited += 1;
                    refused("limited", answer, 429, "rate_limited").await;
                }
                other => panic!("{other}"),
            }
        }
        assert!(limited > 0);
        assert_eq!(ask(&world.person().await).await.status(), 200, "a good token is served all the same");
        // What is beyond the limit is counted, not recorded.
        let lines = std::fs::read_to_string(&audit).unwrap().lines().count();
        assert!(lines <= 10 - limited, "{lines} lines, {limited} limited");
    });
}

#[test]
fn probes_are_answered_however_many_connections_there_are_and_a_stop_is_one() {
    test(async |world| {
        let asked = world
            .another("crowded", |config| {
                config["limits"]["connections"] = json!(3);
                config["limits"]["quiet_seconds"] = json!(600);
                config["limits"]["stop_seconds"] = json!(5);
                config["listeners"]["metrics"] = json!("127.0.0.1:0");
            })
            .await;
        let said = std::fs::read_to_string(&asked.log).unwrap();
        let (_, operators) = said.split_once("mediatore listens operators=").unwrap();
        let operators = operators.split_whitespace().next().unwrap().to_owned();
        let user = asked.listening.user.strip_prefix("https://").unwrap();
        // Every seat is taken, by connections that say nothing.
        let mut silent = Vec::new();
        eventually("nobody else is let in", async || {
            let mut stream = tokio::net::TcpStream::connect(user).await.unwrap();
            // Turned away at once, or left in silence.
            let read = tokio::time::timeout(Duration::from_millis(500), stream.read(&mut [0])).await;
            silent.push(stream);
            read.is_ok()
        })
        .await;
        let probes = reqwest::Client::new();
        for path in ["healthz", "readyz", "metrics"] {
            let answer = probes.get(format!("http://{operators}/{path}")).send().await.unwrap();
            assert_eq!(answer.status(), 200, "{path}");
        }
        let metrics = probes.get(format!("http://{operators}/metrics")).send().await.unwrap().text().await.unwrap();
        assert!(metrics.contains(r#"mediatore_connections_ended_total{side="user",why="full"}"#), "{metrics}");
        let nothing = probes.get(format!("http://{operators}/v1/pools")).send().await.unwrap();
        refused("the callers' routes", nothing, 404, "not_found").await;

        let supervisor = world.cluster.supervisor();
        supervisor.stop(&asked.component, Signal::Term, Duration::from_secs(300)).await.unwrap();
        let said = std::fs::read_to_string(&asked.log).unwrap();
        assert!(said.contains("mediatore stopped"), "it stopped by itself, whoever was connected: {said}");
    });
}
