//! The Rust side of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::wire::{MAX_LINE, Refusal, Request, Response};
use crate::{SOCKET, Signal, Spec, Status};

/// Why a supervisor could not be started or did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing answers on the control socket.
    #[error("no supervisor answers on {path}: {source}")]
    Unreachable {
        /// The control socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The connection broke: the supervisor ended, and everything it owned with it.
    #[error("the supervisor on {path} went away while it was asked to {act}")]
    Gone {
        /// The control socket.
        path: PathBuf,
        /// What it was asked for.
        act: String,
    },
    /// The supervisor answered something this version does not understand.
    #[error("the supervisor's answer makes no sense: {0}")]
    Answer(String),
    /// The supervisor refused.
    #[error("{message}")]
    Refused {
        /// For programs.
        kind: Refusal,
        /// For people.
        message: String,
    },
    /// The supervisor could not be started.
    #[error("cannot start the supervisor: {0}")]
    Launch(String),
}

impl Error {
    /// A small fixed set for metrics and decisions.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } | Self::Gone { .. } => "unreachable",
            Self::Answer(_) => "protocol",
            Self::Refused { kind, .. } => match kind {
                Refusal::NotFound => "not-found",
                Refusal::NameTaken => "name-taken",
                Refusal::NotRunning => "not-running",
                Refusal::Invalid => "invalid",
                Refusal::Failed => "failed",
            },
            Self::Launch(_) => "launch",
        }
    }

    /// True when no process of that name is known.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { kind: Refusal::NotFound, .. })
    }

    /// True when a process of that name is already running.
    #[must_use]
    pub fn is_name_taken(&self) -> bool {
        matches!(self, Self::Refused { kind: Refusal::NameTaken, .. })
    }
}

/// Talks to the supervisor of one cluster. Cheap to clone; each call has its own connection, so that a call that
/// waits holds up no other.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// Reaches the supervisor of the cluster in `dir`.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when none answers there.
    pub async fn connect(dir: &Path) -> Result<Self, Error> {
        let client = Self { socket: dir.join(SOCKET) };
        client.open().await?;
        Ok(client)
    }

    /// Starts a process and returns its id inside the supervisor's PID namespace.
    ///
    /// # Errors
    /// Refused when the name is taken, a file is missing or the system has no room.
    pub async fn spawn(&self, spec: Spec) -> Result<i32, Error> {
        match self.ask(Request::Spawn(Box::new(spec))).await? {
            Response::Spawned { pid } => Ok(pid),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a signal to one process and does not wait for what it does.
    ///
    /// # Errors
    /// Refused when no such process runs.
    pub async fn signal(&self, name: &str, signal: Signal) -> Result<(), Error> {
        self.done(Request::Signal { name: name.to_owned(), signal }).await
    }

    /// Ends a process and everything it forked: the signal first, SIGKILL after `grace`. Returns how it ended; a
    /// process that had ended before is no error.
    ///
    /// # Errors
    /// Refused when no process of that name is known.
    pub async fn stop(&self, name: &str, signal: Signal, grace: Duration) -> Result<Status, Error> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.status_of(Request::Stop { name: name.to_owned(), signal, grace_ms }).await
    }

    /// Waits until a process has ended, by whatever cause.
    ///
    /// # Errors
    /// Refused when no process of that name is known.
    pub async fn wait(&self, name: &str) -> Result<Status, Error> {
        self.status_of(Request::Wait { name: name.to_owned() }).await
    }

    /// What is known of one process.
    ///
    /// # Errors
    /// Refused when no process of that name is known.
    pub async fn status(&self, name: &str) -> Result<Status, Error> {
        self.status_of(Request::Status { name: name.to_owned() }).await
    }

    /// All processes by name, ended ones included until they are forgotten.
    ///
    /// # Errors
    /// When the supervisor is gone.
    pub async fn list(&self) -> Result<Vec<Status>, Error> {
        match self.ask(Request::List).await? {
            Response::List(list) => Ok(list),
            other => Err(unexpected(&other)),
        }
    }

    /// Drops the record of an ended process.
    ///
    /// # Errors
    /// Refused while it runs or when it is not known.
    pub async fn forget(&self, name: &str) -> Result<(), Error> {
        self.done(Request::Forget { name: name.to_owned() }).await
    }

    /// Lets the log files outlive the cluster.
    ///
    /// # Errors
    /// When the supervisor is gone or cannot write in its directory.
    pub async fn keep_logs(&self) -> Result<(), Error> {
        self.done(Request::KeepLogs).await
    }

    /// Cuts the lifeline without ending anything: from now on only [`Client::shutdown`] does.
    ///
    /// # Errors
    /// When the supervisor is gone or cannot write in its directory.
    pub async fn detach(&self) -> Result<(), Error> {
        self.done(Request::Detach).await
    }

    /// Ends everything, the supervisor last. Returns when it has begun. The control socket vanishes when it is over, and
    /// right after it the directory, unless logs are kept.
    ///
    /// # Errors
    /// When the supervisor is gone already.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.done(Request::Shutdown).await
    }

    async fn done(&self, request: Request) -> Result<(), Error> {
        match self.ask(request).await? {
            Response::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn status_of(&self, request: Request) -> Result<Status, Error> {
        match self.ask(request).await? {
            Response::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    async fn open(&self) -> Result<UnixStream, Error> {
        UnixStream::connect(&self.socket)
            .await
            .map_err(|source| Error::Unreachable { path: self.socket.clone(), source })
    }

    async fn ask(&self, request: Request) -> Result<Response, Error> {
        let mut line = serde_json::to_vec(&request).map_err(|error| Error::Answer(error.to_string()))?;
        line.push(b'\n');
        let stream = self.open().await?;
        let gone = || Error::Gone { path: self.socket.clone(), act: act(&request) };
        let (read, mut write) = stream.into_split();
        write.write_all(&line).await.map_err(|_| gone())?;
        let mut answer = Vec::new();
        BufReader::new(read.take(MAX_LINE)).read_until(b'\n', &mut answer).await.map_err(|_| gone())?;
        if answer.last() != Some(&b'\n') {
            return Err(gone());
        }
        match serde_json::from_slice(&answer).map_err(|error| Error::Answer(error.to_string()))? {
            Response::Refused { kind, message } => Err(Error::Refused { kind, message }),
            response => Ok(response),
        }
    }
}

fn unexpected(response: &Response) -> Error {
    Error::Answer(format!("{response:?}"))
}

fn act(request: &Request) -> String {
    match request {
        Request::Spawn(spec) => format!("start {}", spec.name),
        Request::Signal { name, .. } => format!("signal {name}"),
        Request::Stop { name, .. } => format!("stop {name}"),
        Request::Wait { name } => format!("wait for {name}"),
        Request::Status { name } => format!("show {name}"),
        Request::Forget { name } => format!("forget {name}"),
        Request::List => "list its processes".to_owned(),
        Request::KeepLogs => "keep the logs".to_owned(),
        Request::Detach => "outlive its starter".to_owned(),
        Request::Shutdown => "end".to_owned(),
    }
}
