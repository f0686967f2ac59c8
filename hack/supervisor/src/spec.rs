//! What a process is started with, and what is known of it afterwards.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A process to start. Its standard input is empty; its standard output and error go to `log`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Unique among the running processes. A name whose process has ended may be used again.
    pub name: String,
    /// Program and arguments. A program without a slash is looked up in `PATH`.
    pub argv: Vec<String>,
    /// The whole environment, apart from `PATH` and `HOME`, which are the supervisor's, and `TMPDIR`, a folder of the
    /// cluster; each unless named here.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; the cluster's directory by default.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// File that standard output and error are appended to.
    pub log: PathBuf,
    /// Gives the process a mount namespace of its own. Implied by `binds`.
    #[serde(default)]
    pub unshare_mount: bool,
    /// Files or folders mounted over others, in this order, in the process's own mount namespace.
    #[serde(default)]
    pub binds: Vec<Bind>,
    /// User id; the supervisor's by default. Supplementary groups are dropped when it is set.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Group id; that of `uid` by default.
    #[serde(default)]
    pub gid: Option<u32>,
}

/// One bind mount. Both ends must exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// What is shown.
    pub source: PathBuf,
    /// Where it is shown.
    pub target: PathBuf,
    /// Refuses writes through the target.
    #[serde(default)]
    pub read_only: bool,
}

/// A signal that the supervisor may be asked to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// SIGTERM
    Term,
    /// SIGKILL
    Kill,
    /// SIGINT
    Int,
    /// SIGHUP
    Hup,
    /// SIGUSR1
    Usr1,
    /// SIGUSR2
    Usr2,
    /// SIGSTOP: the process freezes, as one does that lost its machine.
    Stop,
    /// SIGCONT
    Cont,
}

impl Signal {
    pub(crate) fn raw(self) -> rustix::process::Signal {
        use rustix::process::Signal as Raw;
        match self {
            Self::Term => Raw::TERM,
            Self::Kill => Raw::KILL,
            Self::Int => Raw::INT,
            Self::Hup => Raw::HUP,
            Self::Usr1 => Raw::USR1,
            Self::Usr2 => Raw::USR2,
            Self::Stop => Raw::STOP,
            Self::Cont => Raw::CONT,
        }
    }
}

/// Where a process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum State {
    /// Not ended yet.
    Running,
    /// Ended by itself.
    Exited {
        /// Its exit status.
        code: i32,
    },
    /// Ended by a signal.
    Killed {
        /// The signal's number.
        signal: i32,
    },
}

impl State {
    /// True until the process has ended and been reaped, together with everything it left running.
    #[must_use]
    pub fn is_running(self) -> bool {
        self == Self::Running
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Running => write!(out, "running"),
            Self::Exited { code } => write!(out, "exited with status {code}"),
            Self::Killed { signal } => write!(out, "killed by signal {signal}"),
        }
    }
}

/// What the supervisor knows of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// As in its [`Spec`].
    pub name: String,
    /// Process id inside the supervisor's PID namespace: the one that programs in the cluster see, not the one that
    /// `ps` shows outside.
    pub pid: i32,
    /// Running, or how it ended.
    pub state: State,
    /// As in its [`Spec`].
    pub log: PathBuf,
}
