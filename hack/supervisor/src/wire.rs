//! The control protocol: one JSON object on one line each way, over `<dir>/supervisor.sock`.
//!
//! A connection carries any number of requests, one after the other; the answer to one comes before the next is read.

use serde::{Deserialize, Serialize};

use crate::{Signal, Spec, Status};

/// Longest line either side accepts, in bytes.
pub const MAX_LINE: u64 = 1 << 20;

/// What a client may ask.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Request {
    /// Starts a process. Answer: [`Response::Spawned`].
    Spawn(Box<Spec>),
    /// Sends a signal to the process and returns at once. Answer: [`Response::Done`].
    Signal {
        /// Whom to.
        name: String,
        /// Which one.
        signal: Signal,
    },
    /// Sends a signal, waits, kills what is left after the grace period. Answer: [`Response::Status`] once it has ended.
    #[serde(rename_all = "camelCase")]
    Stop {
        /// Which process.
        name: String,
        /// The first signal.
        signal: Signal,
        /// Time until SIGKILL, in milliseconds.
        grace_ms: u64,
    },
    /// Waits until a process has ended. Answer: [`Response::Status`].
    Wait {
        /// Which process.
        name: String,
    },
    /// Answer: [`Response::Status`].
    Status {
        /// Which process.
        name: String,
    },
    /// Answer: [`Response::List`], by name, ended processes included.
    List,
    /// Drops the record of an ended process. Answer: [`Response::Done`].
    Forget {
        /// Which process.
        name: String,
    },
    /// Keeps log files when the cluster ends. Answer: [`Response::Done`].
    KeepLogs,
    /// Lets everything outlive the starter, until [`Request::Shutdown`]. Answer: [`Response::Done`].
    Detach,
    /// Ends everything, the supervisor last. Answer: [`Response::Done`].
    Shutdown,
}

/// What the supervisor answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Response {
    /// The process was started.
    Spawned {
        /// Its id inside the supervisor's PID namespace.
        pid: i32,
    },
    /// One process.
    Status(Status),
    /// All of them.
    List(Vec<Status>),
    /// It was done.
    Done,
    /// It was not done.
    Refused {
        /// For programs.
        kind: Refusal,
        /// For people.
        message: String,
    },
}

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Refusal {
    /// No process of that name was ever started, or it was forgotten.
    NotFound,
    /// A process of that name is running.
    NameTaken,
    /// The process has ended.
    NotRunning,
    /// The request makes no sense: no program, a missing file, a broken line.
    Invalid,
    /// The operating system said no.
    Failed,
}
