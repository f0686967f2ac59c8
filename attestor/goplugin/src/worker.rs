//! Starting, configuring, watching and restarting the worker.
//!
//! The worker is this very program (`/proc/self/exe`: the file that runs, whatever has replaced it on disk since)
//! with the parent's arguments and [`WORKER_ARG`] at the end. Its standard input is one end of a socket pair.

use std::{
    os::unix::{net::UnixStream as StdUnixStream, process::CommandExt as _},
    process::{Command as StdCommand, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    net::UnixStream,
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use crate::{
    plugin_config::{ConfigureRequest, config_client::ConfigClient},
    proto::grpc::health::v1::{HealthCheckRequest, health_client::HealthClient},
};

/// The last argument of a worker's command line. A program that parses its arguments must accept it.
pub const WORKER_ARG: &str = "--plugin-worker";

/// How long a call waits for a worker that is being restarted. Well below SPIRE's own patience of about 40 s.
const PATIENCE: Duration = Duration::from_secs(15);
/// A worker that does not take its configuration in this time is killed.
const CONFIGURE_LIMIT: Duration = Duration::from_secs(20);
/// How often a worker is asked whether it lives, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_LIMIT: Duration = Duration::from_secs(10);
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LAST_BACKOFF: Duration = Duration::from_secs(10);
/// A worker that lived this long starts the backoff anew.
const SETTLED: Duration = Duration::from_secs(60);

#[derive(Clone)]
enum State {
    /// None is running.
    Down,
    /// Running, not configured: only configuration calls may pass. With the number of the worker's life.
    Living(u64, Channel),
    /// Configured.
    Ready(Channel),
}

/// What the parent knows of its worker; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    state: watch::Receiver<State>,
    settle: watch::Sender<State>,
    saved: Arc<Mutex<Option<ConfigureRequest>>>,
}

/// The task that keeps a worker running.
pub struct Worker {
    handle: Handle,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Worker {
    /// Starts keeping a worker. Must be called inside a runtime.
    #[must_use]
    pub fn start() -> Self {
        let (settle, state) = watch::channel(State::Down);
        let (stop, stopped) = watch::channel(false);
        let handle = Handle { state, settle, saved: Arc::default() };
        let task = tokio::spawn(keep(handle.clone(), stopped));
        Self { handle, stop, task }
    }

    /// For the services that pass calls on.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Ends the worker and waits for it.
    pub async fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.task.await;
    }
}

impl Handle {
    /// A channel to a configured worker.
    ///
    /// # Errors
    /// `Unavailable` when there is none for a while.
    pub async fn ready(&self) -> Result<Channel, Status> {
        self.wait(|state| match state {
            State::Ready(channel) => Some(channel.clone()),
            _ => None,
        })
        .await
    }

    /// A channel to any worker.
    ///
    /// # Errors
    /// `Unavailable` when there is none for a while.
    pub async fn living(&self) -> Result<Channel, Status> {
        self.wait(|state| match state {
            State::Ready(channel) | State::Living(_, channel) => Some(channel.clone()),
            State::Down => None,
        })
        .await
    }

    async fn wait<T>(&self, pick: impl Fn(&State) -> Option<T>) -> Result<T, Status> {
        let mut state = self.state.clone();
        let found = timeout(PATIENCE, state.wait_for(|state| pick(state).is_some())).await;
        match found {
            Ok(Ok(state)) => pick(&state),
            _ => None,
        }
        .ok_or_else(|| Status::unavailable("attestation is restarting, try again"))
    }

    /// Configures the worker, and keeps the request for those that follow it once it was accepted.
    ///
    /// # Errors
    /// The worker's refusal, or `Unavailable`.
    pub async fn configure(&self, request: ConfigureRequest) -> Result<(), Status> {
        loop {
            let (life, channel) = self
                .wait(|state| match state {
                    State::Living(life, channel) => Some((Some(*life), channel.clone())),
                    State::Ready(channel) => Some((None, channel.clone())),
                    State::Down => None,
                })
                .await?;
            apply(channel.clone(), request.clone()).await?;
            *self.saved.lock().unwrap_or_else(PoisonError::into_inner) = Some(request.clone());
            let Some(life) = life else { return Ok(()) };
            // Only if this worker is still the one: a dead one must not be shown as ready, and its successor may have
            // looked for a saved configuration just before there was one.
            let mut same = false;
            self.settle.send_if_modified(|state| {
                same = matches!(state, State::Living(now, _) if *now == life);
                if same {
                    *state = State::Ready(channel.clone());
                }
                same
            });
            if same {
                return Ok(());
            }
        }
    }

    fn saved(&self) -> Option<ConfigureRequest> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn apply(channel: Channel, request: ConfigureRequest) -> Result<(), Status> {
    timeout(CONFIGURE_LIMIT, ConfigClient::new(channel).configure(request))
        .await
        .map_err(|_| Status::unavailable("the plugin took too long to configure"))?
        .map_err(translate)?;
    Ok(())
}

/// Starts workers until told to stop.
async fn keep(handle: Handle, mut stopped: watch::Receiver<bool>) {
    let mut backoff = FIRST_BACKOFF;
    for life in 0_u64.. {
        let born = Instant::now();
        tokio::select! {
            why = one_life(&handle, life) => tracing::error!(reason = %why, "the plugin's worker ended, starting another"),
            _ = stopped.wait_for(|stop| *stop) => {
                // Dropping the life above killed its process (`kill_on_drop`) and waited for nothing; the socket
                // pair's end is closed as well.
                handle.settle.send_replace(State::Down);
                return;
            }
        }
        handle.settle.send_replace(State::Down);
        if born.elapsed() >= SETTLED {
            backoff = FIRST_BACKOFF;
        }
        tokio::select! {
            () = sleep(backoff) => {}
            _ = stopped.wait_for(|stop| *stop) => return,
        }
        backoff = (backoff * 2).min(LAST_BACKOFF);
    }
}

/// Runs one worker to its end and says why it ended.
async fn one_life(handle: &Handle, life: u64) -> String {
    let (mut child, stream) = match spawn() {
        Ok(started) => started,
        Err(error) => return format!("it could not be started: {error}"),
    };
    let channel = match connect(stream).await {
        Ok(channel) => channel,
        Err(error) => return format!("it could not be reached: {error}"),
    };
    if let Some(request) = handle.saved() {
        // Replayed before anything may call it, so nobody meets a worker without configuration.
        if let Err(status) = apply(channel.clone(), request).await {
            return format!("it refused its saved configuration: {}", status.message());
        }
        handle.settle.send_replace(State::Ready(channel.clone()));
    } else {
        handle.settle.send_replace(State::Living(life, channel.clone()));
    }
    tokio::select! {
        status = child.wait() => match status {
            Ok(status) => status.to_string(),
            Err(error) => format!("it cannot be waited for: {error}"),
        },
        () = silent(channel) => "it did not answer".to_owned(),
    }
}

/// Returns when the worker stops answering: alive is not enough.
async fn silent(channel: Channel) {
    loop {
        sleep(PING_EVERY).await;
        let mut client = HealthClient::new(channel.clone());
        match timeout(PING_LIMIT, client.check(HealthCheckRequest { service: String::new() })).await {
            Ok(Ok(_)) => {}
            _ => return,
        }
    }
}

fn spawn() -> std::io::Result<(Child, UnixStream)> {
    let (ours, theirs) = StdUnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut command = StdCommand::new("/proc/self/exe");
    // Its own name in process lists.
    command
        .arg0(std::env::args_os().next().unwrap_or_default())
        .args(std::env::args_os().skip(1))
        .arg(WORKER_ARG)
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        // Standard output belongs to the handshake.
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    let mut command = Command::from(command);
    command.kill_on_drop(true);
    let child = command.spawn()?;
    // The command still holds the worker's end; while it does, the worker's death would not end the connection.
    drop(command);
    Ok((child, UnixStream::from_std(ours)?))
}

/// A channel over the one connection there will ever be to this worker.
async fn connect(stream: UnixStream) -> Result<Channel, tonic::transport::Error> {
    let mut once = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        std::future::ready(once.take().ok_or_else(|| std::io::Error::other("the worker's connection is gone")))
    });
    Endpoint::from_static("http://worker.invalid").connect_with_connector(connector).await
}

/// A worker that dies in the middle of a call gives `Unknown`, `Internal` or `Cancelled`, codes our services never
/// use. SPIRE's agents retry only `Unavailable`.
pub(crate) fn translate(status: Status) -> Status {
    match status.code() {
        Code::Unknown | Code::Internal | Code::Cancelled => {
            tracing::warn!(code = %status.code(), error = status.message(), "the plugin's worker failed during a call");
            Status::unavailable("attestation is restarting, try again")
        }
        _ => status,
    }
}
