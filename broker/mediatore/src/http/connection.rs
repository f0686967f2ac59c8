//! One connection, from its first byte to its end. It lives no longer than what it is used for: every wait for its other
//! end is bounded by one of two times, the handshake's and [`Times::quiet`].

use std::{
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, body::Body};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
};
use rustls::{ServerConfig, pki_types::CertificateDer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::{
    seats::{Full, Seats},
    shape::Shaped,
};

/// Largest head of a request, in bytes: a bearer token of 16 KiB and its company.
pub const HEAD_BYTES: usize = 64 * 1024;
/// Notices an HTTP/2 connection whose other end vanished.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// HTTP/2 requests at once on one connection.
const STREAMS: u32 = 100;
/// How long a connection that is asked to end may take to say so, with nothing under way.
const LINGER: Duration = Duration::from_secs(1);

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// The TLS handshake.
    pub handshake: Duration,
    /// Without a request under way: before the first byte, while a head arrives, while an answer is not read, between
    /// requests. What a request itself may take is for its route.
    pub quiet: Duration,
    /// In all; what is under way then may still end.
    pub age: Duration,
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its certificate, verified, on listeners that ask for one.
    pub certificate: Option<CertificateDer<'static>>,
}

/// Why a connection ended, in one word for metrics.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// As it should.
    #[error("closed")]
    Closed,
    /// Nothing was under way for too long.
    #[error("quiet for too long")]
    Quiet,
    /// It was open for long enough.
    #[error("old")]
    Old,
    /// mediatore stops.
    #[error("mediatore stops")]
    Stopped,
    /// No handshake in time.
    #[error("no handshake in time")]
    HandshakeTime,
    /// No handshake.
    #[error("handshake: {0}")]
    Handshake(std::io::Error),
    /// Its identity has as many connections as one may have.
    #[error("its identity has too many connections")]
    Identity,
    /// What came was no HTTP, or it broke off.
    #[error("HTTP: {0}")]
    Http(hyper::Error),
}

impl Ended {
    /// The word.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Quiet => "quiet",
            Self::Old => "old",
            Self::Stopped => "stopped",
            Self::HandshakeTime => "handshake_time",
            Self::Handshake(_) => "handshake",
            Self::Identity => "identity",
            Self::Http(_) => "http",
        }
    }
}

/// What all connections of a listener have in common.
#[derive(Clone)]
pub struct Kind {
    /// What answers.
    pub router: Router,
    /// TLS, or none.
    pub tls: Option<Arc<ServerConfig>>,
    /// Bounds in time.
    pub times: Times,
    /// Connections for each identity, on listeners that ask for a certificate.
    pub identities: Arc<Seats<String>>,
}

impl Kind {
    /// Serves one connection until it ends, or until `stop` and what is under way then is done.
    pub async fn serve(self, stream: TcpStream, address: SocketAddr, stop: CancellationToken) -> Ended {
        let _ = stream.set_nodelay(true);
        let Some(tls) = self.tls.clone() else {
            let peer = Peer { address, certificate: None };
            return self.http1(stream, peer, &stop).await;
        };
        let handshake = tokio::time::timeout(self.times.handshake, TlsAcceptor::from(tls).accept(stream));
        let stream = match stop.run_until_cancelled(handshake).await {
            None => return Ended::Stopped,
            Some(Err(_)) => return Ended::HandshakeTime,
            Some(Ok(Err(error))) => return Ended::Handshake(error),
            Some(Ok(Ok(stream))) => stream,
        };
        let session = stream.get_ref().1;
        let certificate = session.peer_certificates().and_then(|chain| chain.first().cloned());
        let certificate = certificate.map(CertificateDer::into_owned);
        // Both speak the version that they agreed on. Nothing is guessed from the first bytes, which may never come.
        let h2 = session.alpn_protocol() == Some(b"h2");
        let seat = certificate.as_ref().map(|certificate| self.identities.take(named(certificate))).transpose();
        let _seat = match seat {
            Ok(seat) => seat,
            Err(Full::Own | Full::All) => return Ended::Identity,
        };
        let peer = Peer { address, certificate };
        if h2 { self.http2(stream, peer, &stop).await } else { self.http1(stream, peer, &stop).await }
    }

    async fn http1<S>(self, stream: S, peer: Peer, stop: &CancellationToken) -> Ended
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (activity, times) = (Activity::new(), self.times);
        let quiet = activity.watch();
        let router = self.router;
        let service = service_fn(move |request| answer(router.clone(), peer.clone(), activity.clone(), request));
        let connection = http1::Builder::new()
            .header_read_timeout(None)
            .max_buf_size(HEAD_BYTES)
            .max_header_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(Shaped::new(stream)), service);
        drive(connection, quiet, times, stop).await
    }

    async fn http2<S>(self, stream: S, peer: Peer, stop: &CancellationToken) -> Ended
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (activity, times) = (Activity::new(), self.times);
        let quiet = activity.watch();
        let router = self.router;
        let service = service_fn(move |request| answer(router.clone(), peer.clone(), activity.clone(), request));
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE)
            .max_concurrent_streams(STREAMS)
            // The guard refuses a head that is longer than HTTP/1.1's may be, in our shape; this is for what is absurd.
            .max_header_list_size(4 * HEAD_BYTES as u32)
            .serve_connection(TokioIo::new(stream), service);
        drive(connection, quiet, times, stop).await
    }
}

async fn answer(
    router: Router,
    peer: Peer,
    activity: Activity,
    request: http::Request<Incoming>,
) -> Result<axum::response::Response, std::convert::Infallible> {
    let _underway = activity.begin();
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    router.oneshot(request).await
}

async fn drive<C>(connection: C, mut activity: watch::Receiver<State>, times: Times, stop: &CancellationToken) -> Ended
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut connection = pin!(connection);
    let ended = |done: Result<(), hyper::Error>| done.map_or_else(Ended::Http, |()| Ended::Closed);
    let why = tokio::select! {
        biased;
        done = connection.as_mut() => return ended(done),
        () = stop.cancelled() => Ended::Stopped,
        () = quiet(&mut activity, times.quiet) => Ended::Quiet,
        () = tokio::time::sleep(times.age) => Ended::Old,
    };
    // No further request; what is under way may end, and its answer be read.
    connection.as_mut().graceful_shutdown();
    let rest = if matches!(why, Ended::Quiet) { LINGER } else { times.quiet };
    tokio::select! {
        biased;
        _ = connection.as_mut() => {}
        () = quiet(&mut activity, rest) => {}
    }
    why
}

/// What is under way on a connection.
#[derive(Debug, Clone, Copy)]
struct State {
    requests: usize,
    /// When that last changed.
    since: Instant,
}

#[derive(Clone)]
struct Activity(watch::Sender<State>);

struct Underway(Activity);

impl Activity {
    fn new() -> Self {
        Self(watch::Sender::new(State { requests: 0, since: Instant::now() }))
    }

    fn watch(&self) -> watch::Receiver<State> {
        self.0.subscribe()
    }

    fn begin(&self) -> Underway {
        self.0.send_modify(|state| *state = State { requests: state.requests + 1, since: Instant::now() });
        Underway(self.clone())
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| *state = State { requests: state.requests - 1, since: Instant::now() });
    }
}

/// Returns once no request was under way for this long.
async fn quiet(activity: &mut watch::Receiver<State>, longest: Duration) {
    loop {
        let state = *activity.borrow_and_update();
        let changed = if state.requests > 0 {
            Ok(activity.changed().await)
        } else {
            tokio::time::timeout_at((state.since + longest).into(), activity.changed()).await
        };
        match changed {
            Ok(Ok(())) => {}
            // Time is up, or nothing can begin any more.
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

/// The identity in a certificate, for counting: who that is, and whether it is anybody, is decided for each request.
fn named(certificate: &CertificateDer<'_>) -> String {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return String::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return String::new() };
    let mut names = names.value.general_names.iter();
    let uri = names.find_map(|name| if let GeneralName::URI(uri) = name { Some((*uri).to_owned()) } else { None });
    uri.unwrap_or_default()
}
