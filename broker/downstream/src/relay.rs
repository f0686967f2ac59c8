//! A relay for conversations: the sandbox dials out and waits, its orchestrator dials in and is told, before anything
//! else, who is at the other end. Nobody reaches a sandbox that did not dial.
//!
//! Both are told in one text message each: the orchestrator `{claim_uid, subject, upstream_iss, upstream_sub, agent,
//! expires_at}`, the sandbox `{"orchestrator": <client id>}`. A sandbox that speaks earlier is cut off: nobody would hear
//! it. From then on text and binary messages pass as they are. It ends when one leaves or falls silent, or when either's
//! token expires, with a close code (RFC 6455, section 7.4; 4000 and above are ours).

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::response::Response;
use banlieue_identity::{Caller, bearer};
use banlieue_protocol::names::Uid;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use http::StatusCode;
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::desk::{Place, Turned};
use crate::refusal::Refusal;
use crate::sandbox::Sandbox;
use crate::service::{Service, authorization, shown};

/// Longest message, in bytes.
pub const LONGEST_MESSAGE: usize = 256 * 1024;
/// How often each end is asked whether it lives.
const PING: Duration = Duration::from_secs(20);
/// How long an end may be silent: it answers pings, if nothing else.
const SILENCE: Duration = Duration::from_secs(60);
/// Longest time for an end to take a message.
const SLOW: Duration = Duration::from_secs(20);

/// Close code: the other end left.
pub const LEFT: u16 = 4000;
/// Close code: a token expired; dial again with a new one.
pub const EXPIRED: u16 = 4001;
/// Close code: silent, or too slow.
pub const SILENT: u16 = 4002;
/// Close code: it spoke before anybody was there.
pub const EARLY: u16 = 4003;
/// Close code of RFC 6455: the relay stops.
const GOING_AWAY: u16 = 1001;

/// What an orchestrator brings to the sandbox that it meets.
#[derive(Debug)]
pub struct Coming {
    /// Its connection, once it is one.
    socket: oneshot::Receiver<WebSocket>,
    /// Its client id.
    client: String,
    /// When its token ends.
    until: SystemTime,
}

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

fn upgrade(upgrade: Upgrade) -> Result<WebSocketUpgrade, Refusal> {
    let refuse = |_| {
        let detail = "this route speaks WebSocket: ask for an upgrade over HTTP/1.1 (RFC 6455, section 4.1)";
        Refusal::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", detail)
    };
    Ok(upgrade.map_err(refuse)?.max_message_size(LONGEST_MESSAGE).max_frame_size(LONGEST_MESSAGE))
}

/// `GET /v1/relay`: a sandbox comes and waits.
///
/// # Errors
/// `conflict` when one of the same claim is here, `unavailable` when too many are.
pub async fn sandbox(
    State(service): State<Arc<Service>>,
    sandbox: Sandbox,
    asked: Upgrade,
) -> Result<Response, Refusal> {
    let asked = upgrade(asked)?;
    let place = service.desk.wait(sandbox.clone()).map_err(|turned| match turned {
        Turned::Twice => {
            let detail = "this claim has a connection here already; close it first";
            Refusal::new(StatusCode::CONFLICT, "conflict", detail)
        }
        Turned::Full => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "too many wait here; try again"),
    })?;
    tracing::info!(claim = %sandbox.claim, subject = %sandbox.subject, agent = sandbox.agent, "a sandbox waits");
    Ok(asked.on_upgrade(async move |socket| {
        let ended = converse(socket, place, &sandbox, &service.stop).await;
        tracing::info!(claim = %sandbox.claim, code = ended.0, why = ended.1, "a sandbox left");
    }))
}

/// `GET /v1/relay/{claim}`: an orchestrator comes for the sandbox of a claim.
///
/// # Errors
/// `not_found` for every sandbox that is not here or does not work for the caller.
pub async fn orchestrator(
    State(service): State<Arc<Service>>,
    Path(claim): Path<String>,
    request: http::Request<axum::body::Body>,
) -> Result<Response, Refusal> {
    let (mut parts, _) = request.into_parts();
    let caller = caller(&service, authorization(&parts)).await?;
    let asked = <WebSocketUpgrade as axum::extract::FromRequestParts<()>>::from_request_parts(&mut parts, &()).await;
    let asked = upgrade(asked)?;
    let (sender, socket) = oneshot::channel();
    let coming = Coming { socket, client: caller.client.clone(), until: caller.not_after };
    let met = Uid::parse(&claim).ok().and_then(|claim| service.desk.meet(&claim, &caller, coming));
    let met = met.ok_or_else(|| {
        let detail = "no sandbox of this claim waits here for you; has it dialled yet?";
        Refusal::new(StatusCode::NOT_FOUND, "not_found", detail)
    })?;
    tracing::info!(claim = %met.claim, client = caller.client, path = caller.path.as_str(), "an orchestrator came");
    Ok(asked.on_upgrade(async move |socket| drop(sender.send(socket))))
}

async fn caller(service: &Service, authorization: Option<&str>) -> Result<Caller, Refusal> {
    let token = bearer(authorization)?;
    let Some(issuers) = &service.orchestrators else {
        let detail = "this relay knows no orchestrators; its operator lists their issuers under `orchestrators`";
        return Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", detail));
    };
    Ok(issuers.validate(token, SystemTime::now()).await?)
}

/// Why a conversation ended: close code, and the same in words.
type Ended = (u16, &'static str);

async fn converse(
    mut socket: WebSocket,
    mut place: Place<Coming>,
    sandbox: &Sandbox,
    stop: &CancellationToken,
) -> Ended {
    let expiry = UNIX_EPOCH + Duration::from_secs(u64::try_from(sandbox.expires_at).unwrap_or(0));
    let coming = tokio::select! {
        coming = &mut place.met => coming.ok(),
        ended = alone(&mut socket) => return close(socket, ended).await,
        () = until(expiry) => return close(socket, (EXPIRED, "the token expired")).await,
        () = stop.cancelled() => return close(socket, (GOING_AWAY, "the relay stops")).await,
    };
    let left = (LEFT, "the other end left");
    let Some(coming) = coming else { return close(socket, left).await };
    // The upgrade is under way; one that fails drops its sender.
    let Ok(Ok(mut other)) = tokio::time::timeout(SLOW, coming.socket).await else { return close(socket, left).await };
    let to_sandbox = Message::text(json!({ "orchestrator": coming.client }).to_string());
    let to_orchestrator = Message::text(shown(sandbox).to_string());
    if !told(&mut other, to_orchestrator).await || !told(&mut socket, to_sandbox).await {
        close(other, left).await;
        return close(socket, left).await;
    }
    let (ours, theirs) = (socket.split(), other.split());
    let (mut ours, mut theirs) = (Half(ours.0, ours.1), Half(theirs.0, theirs.1));
    let ended = tokio::select! {
        ended = pass(&mut ours.1, &mut theirs.0) => ended,
        ended = pass(&mut theirs.1, &mut ours.0) => ended,
        () = until(expiry.min(coming.until)) => (EXPIRED, "a token expired"),
        () = stop.cancelled() => (GOING_AWAY, "the relay stops"),
    };
    for half in [ours, theirs] {
        if let Ok(socket) = half.0.reunite(half.1) {
            close(socket, ended).await;
        }
    }
    ended
}

/// The two directions of one end.
struct Half(SplitSink<WebSocket, Message>, SplitStream<WebSocket>);

async fn told(socket: &mut WebSocket, message: Message) -> bool {
    matches!(tokio::time::timeout(SLOW, socket.send(message)).await, Ok(Ok(())))
}

/// A sandbox waits: it says nothing but that it lives. Returns when that is over.
async fn alone(socket: &mut WebSocket) -> Ended {
    let mut heard = Instant::now();
    let mut ticks = tokio::time::interval(PING);
    loop {
        tokio::select! {
            message = socket.recv() => match message {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => heard = Instant::now(),
                Some(Ok(Message::Text(_) | Message::Binary(_))) => return (EARLY, "it spoke before anybody was there"),
                _ => return (LEFT, "it left"),
            },
            _ = ticks.tick() => {
                if heard.elapsed() > SILENCE || !told(socket, Message::Ping(Vec::new().into())).await {
                    return (SILENT, "it is silent");
                }
            }
        }
    }
}

/// Passes messages on in one direction, and pings the end that they go to. Returns when that is over.
async fn pass(from: &mut SplitStream<WebSocket>, to: &mut SplitSink<WebSocket, Message>) -> Ended {
    let mut heard = Instant::now();
    let mut ticks = tokio::time::interval(PING);
    loop {
        let message = tokio::select! {
            message = from.next() => match message {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => { heard = Instant::now(); continue; }
                Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => { heard = Instant::now(); message }
                _ => return (LEFT, "the other end left"),
            },
            _ = ticks.tick() => {
                if heard.elapsed() > SILENCE {
                    return (SILENT, "an end is silent");
                }
                Message::Ping(Vec::new().into())
            }
        };
        // What one end does not take, the other is not asked for: nothing piles up here.
        match tokio::time::timeout(SLOW, to.send(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return (LEFT, "the other end left"),
            Err(_) => return (SILENT, "an end is too slow"),
        }
    }
}

async fn until(time: SystemTime) {
    tokio::time::sleep(time.duration_since(SystemTime::now()).unwrap_or_default()).await;
}

async fn close(mut socket: WebSocket, ended: Ended) -> Ended {
    told(&mut socket, Message::Close(Some(CloseFrame { code: ended.0, reason: ended.1.into() }))).await;
    ended
}
