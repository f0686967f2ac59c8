//! `serve`: the one call a plugin's `main` makes.

use std::{ffi::OsStr, time::Duration};

use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;

use crate::{
    Error, Kind,
    error::system,
    handshake::{Socket, check_cookie},
    hclog, host, inner,
    worker::{WORKER_ARG, Worker},
};

/// How long running calls may take to end when SPIRE asks the plugin to stop.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Serves a plugin until SPIRE ends it. Blocks; builds its own runtime; call it from `main`.
///
/// `services` makes the `NodeAttestor` and `Config` services. It runs in the worker only, inside its runtime.
/// The handler of an attestation must return its stream before it waits for anything.
///
/// # Errors
/// When the process was not started by SPIRE, or the system refuses sockets or processes.
pub fn serve<F>(kind: Kind, services: F) -> Result<(), Error>
where
    F: FnOnce() -> Routes,
{
    if std::env::args_os().next_back().as_deref() == Some(OsStr::new(WORKER_ARG)) {
        hclog::init();
        return inner::run(services);
    }
    check_cookie()?;
    hclog::init();
    // Bound while there is one thread only: see `Socket::bind`.
    let (socket, listener) = Socket::bind()?;
    // One thread: the worker's parent-death signal is tied to the thread that started it, so that thread must live
    // as long as the process.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system("start the runtime"))?;
    runtime.block_on(parent(kind, &socket, listener))
}

async fn parent(kind: Kind, socket: &Socket, listener: std::os::unix::net::UnixListener) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(system("listen for signals"))?;
    // A terminal sends its interrupt to SPIRE and to us alike; SPIRE then stops us in its own time.
    let _interrupt = signal(SignalKind::interrupt()).map_err(system("listen for signals"))?;
    let listener = UnixListener::from_std(listener).map_err(system("listen on the plugin socket"))?;

    let worker = Worker::start();
    let stop = host::Stop::default();
    let routes = host::routes(kind, worker.handle(), stop.clone());
    socket.announce()?;

    let stopping = stop.clone();
    let serving = tonic::transport::Server::builder()
        .add_routes(routes)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move { stopping.asked().await });
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => Some(ended),
        _ = terminate.recv() => None,
        () = stop.asked() => None,
    };
    let result = match ended {
        Some(result) => result,
        // The broker's stream stays open for ever, so waiting for all calls to end needs a limit.
        None => {
            stop.ask();
            tokio::time::timeout(STOP_GRACE, serving).await.unwrap_or(Ok(()))
        }
    };
    worker.stop().await;
    Ok(result?)
}
