//! Connections that are silent, slow, many or old, on real sockets and real TLS; and stopping.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod socket;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use banlieue_mediatore::http::listen::{Bounds, Times};
use hyper_util::rt::{TokioExecutor, TokioIo};
use socket::{Authority, LONG, PATIENT, SOON, Side, bounds, eventually, rest, talk};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore};

const ASK: &[u8] = b"GET /here HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
const ASK_ON: &[u8] = b"GET /here HTTP/1.1\r\nhost: localhost\r\n\r\n";

fn here() -> Router {
    Router::new().route("/here", get(async || "here"))
}

#[tokio::test]
async fn silent_and_slow_connections_lock_nobody_out() {
    let authority = Authority::new();
    let (h1, h2) = (authority.client(None, "http/1.1"), authority.client(None, "h2"));
    let times = Times { handshake: SOON, quiet: SOON, age: LONG };
    let few = Bounds { connections: 6, ..bounds(times) };
    let side = Side::start(here(), Some(authority.server(false)), few, LONG).await;

    // Every seat is taken by somebody who does nothing, or hardly anything, and stays.
    let mut without_tls = side.connect().await;
    let mut half_tls = side.connect().await;
    half_tls.write_all(&[22, 3, 1]).await.unwrap();
    let (mut no_head, mut no_preface) = (side.connect_tls(&h1).await, side.connect_tls(&h2).await);
    let mut half_head = side.connect_tls(&h1).await;
    half_head.write_all(b"GET /here HTTP/1.1\r\n").await.unwrap();
    let mut idle = side.connect_tls(&h1).await;
    idle.write_all(ASK_ON).await.unwrap();
    let mut begin = [0; 12];
    idle.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");

    // A head that arrives byte by byte does not count as one that arrives.
    let (mut dribble, mut dribbled) = tokio::io::split(half_head);
    let drips = tokio::spawn(async move {
        while dribbled.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    rest(&mut without_tls).await;
    rest(&mut half_tls).await;
    rest(&mut no_head).await;
    rest(&mut no_preface).await;
    rest(&mut idle).await;
    rest(&mut dribble).await;
    drips.await.unwrap();
    eventually("all are counted", async || side.ended("handshake_time") == 2 && side.ended("quiet") == 4).await;
    assert!(talk(side.connect_tls(&h1).await, ASK).await.ends_with("here"));
}

#[tokio::test]
async fn who_does_not_read_an_answer_does_not_keep_its_seat() {
    let large = Router::new().route("/large", get(async || vec![0_u8; 64 << 20]));
    let times = Times { quiet: SOON, ..PATIENT };
    let side = Side::start(large, None, bounds(times), LONG).await;
    let mut stream = side.connect().await;
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    eventually("it is closed", async || side.ended("quiet") == 1).await;
}

#[tokio::test]
async fn one_address_takes_nobody_elses_place() {
    let few = Bounds { connections: 6, each_address: Some(3), ..bounds(PATIENT) };
    let side = Side::start(here(), None, few, LONG).await;
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(side.connect().await);
    }
    for _ in 0..10 {
        assert_eq!(talk(side.connect().await, ASK).await, "", "turned away at once");
    }
    assert_eq!(side.ended("address"), 10);
    assert!(talk(side.connect_from([127, 0, 0, 2]).await, ASK).await.ends_with("here"));
    drop(silent);
    eventually("their seats are free again", async || talk(side.connect().await, ASK).await.ends_with("here")).await;
}

#[tokio::test]
async fn one_identity_takes_nobody_elses_place() {
    let authority = Authority::new();
    let few = Bounds { each_identity: 2, ..bounds(PATIENT) };
    let side = Side::start(here(), Some(authority.server(true)), few, LONG).await;
    let (greedy, other) = (
        authority.client(Some("spiffe://banlieue.local/banlieue/node/a"), "http/1.1"),
        authority.client(Some("spiffe://banlieue.local/banlieue/node/b"), "http/1.1"),
    );
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = side.connect_tls(&greedy).await;
        stream.write_all(ASK_ON).await.unwrap();
        // Served, so it has its seat.
        stream.read_exact(&mut [0; 12]).await.unwrap();
        held.push(stream);
    }
    assert_eq!(talk(side.connect_tls(&greedy).await, ASK).await, "");
    assert_eq!(side.ended("identity"), 1);
    assert!(talk(side.connect_tls(&other).await, ASK).await.ends_with("here"));
    drop(held);
    eventually("its seats are free again", async || talk(side.connect_tls(&greedy).await, ASK).await.ends_with("here"))
        .await;
}

#[tokio::test]
async fn a_connection_ends_with_its_age_however_busy() {
    let times = Times { age: SOON, ..PATIENT };
    let side = Side::start(here(), None, bounds(times), LONG).await;
    let mut stream = side.connect().await;
    let asked = async {
        let mut answers = 0;
        while stream.write_all(ASK_ON).await.is_ok() {
            let mut answer = [0; 1024];
            match stream.read(&mut answer).await {
                Ok(1..) => answers += 1,
                _ => break,
            }
        }
        answers
    };
    assert!(tokio::time::timeout(LONG, asked).await.unwrap() > 0);
    eventually("it is counted", async || side.ended("old") == 1).await;
}

#[tokio::test]
async fn alpn_alone_decides_the_version() {
    let authority = Authority::new();
    let side = Side::start(here(), Some(authority.server(false)), bounds(PATIENT), LONG).await;
    let stream = side.connect_tls(&authority.client(None, "h2")).await;
    let (mut ask, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("https://localhost/here").body(axum::body::Body::empty()).unwrap();
    assert_eq!(ask.send_request(request).await.unwrap().status(), 200);
    // The other version's bytes are nonsense, whoever sends them.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let answer = talk(side.connect_tls(&authority.client(None, "http/1.1")).await, preface).await;
    assert!(!answer.contains("200"), "{answer}");
    let answer = talk(side.connect_tls(&authority.client(None, "h2")).await, ASK).await;
    assert!(!answer.contains("here"), "{answer}");
}

#[tokio::test]
async fn stopping_lets_requests_end_and_takes_no_new_ones() {
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let (handler_begun, handler_go) = (begun.clone(), go.clone());
    let slow = here().route(
        "/slow",
        get(move || async move {
            handler_begun.add_permits(1);
            handler_go.notified().await;
            "done"
        }),
    );
    let side = Side::start(slow, None, bounds(PATIENT), LONG).await;
    let (mut silent, mut idle, mut busy) = (side.connect().await, side.connect().await, side.connect().await);
    idle.write_all(ASK_ON).await.unwrap();
    idle.read_exact(&mut [0; 12]).await.unwrap();
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let _ = begun.acquire().await.unwrap();
    side.stop.cancel();
    rest(&mut silent).await;
    rest(&mut idle).await;
    eventually("the port is closed", async || tokio::net::TcpStream::connect(side.address).await.is_err()).await;
    assert!(!side.served.is_finished(), "somebody is still served");
    go.notify_one();
    assert!(rest(&mut busy).await.ends_with("done"));
    tokio::time::timeout(LONG, side.served).await.unwrap().unwrap();
}

#[tokio::test]
async fn stopping_waits_for_nobody_longer_than_it_may() {
    let never = Router::new().route("/never", get(async || std::future::pending::<&str>().await));
    let side = Side::start(never, None, bounds(PATIENT), SOON).await;
    let mut stream = side.connect().await;
    stream.write_all(b"GET /never HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    side.stop.cancel();
    tokio::time::timeout(LONG, side.served).await.unwrap().unwrap();
    assert_eq!(rest(&mut stream).await, "");
}
