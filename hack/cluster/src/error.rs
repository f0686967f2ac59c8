//! What can go wrong with a local cluster, said so that a person knows where to look.

use std::io;
use std::path::{Path, PathBuf};

/// How many lines of a component's log an error carries.
const LAST_LINES: usize = 15;

/// Result of everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a local cluster did not start or did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program that `hack/tools` builds is not there.
    #[error("{program} is missing: run `cargo xtask tools`")]
    Tool {
        /// Where it was looked for.
        program: PathBuf,
    },
    /// A program of this workspace is not there.
    #[error("{program} is missing: run `cargo build --workspace --bins`")]
    Binary {
        /// Where it was looked for.
        program: PathBuf,
    },
    /// A file of this repository is not there.
    #[error("{path} is missing or not readable: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A component ended, or was not ready in time.
    #[error("{component} {what}\n  its log: {log}\n{tail}", log = log.display())]
    Component {
        /// Its name in the cluster.
        component: String,
        /// What happened.
        what: String,
        /// Its whole log.
        log: PathBuf,
        /// The log's last lines, indented.
        tail: String,
    },
    /// The supervisor did not start, or refused.
    #[error(transparent)]
    Supervisor(#[from] banlieue_supervisor::Error),
    /// The API server refused, or was not reached.
    #[error("cannot {act}: {source}")]
    Api {
        /// What was tried.
        act: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// Something that should have become true in the API server did not.
    #[error("gave up waiting until {0}")]
    Waited(String),
    /// A manifest is not what it should be.
    #[error("{path}: {what}")]
    Manifest {
        /// The file, or the program that printed it.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// A key or certificate could not be made.
    #[error("cannot make the certificate of {name}: {source}")]
    Certificate {
        /// Whose.
        name: String,
        /// Why.
        source: rcgen::Error,
    },
    /// A file of the cluster could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No port could be had.
    #[error("no free port on 127.0.0.1 between {first} and {last}")]
    Ports {
        /// First one tried.
        first: u16,
        /// Last one tried.
        last: u16,
    },
    /// The caller asked for something that this cluster does not have.
    #[error("{0}")]
    Missing(String),
}

impl Error {
    /// A small fixed set.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self {
            Self::Tool { .. } | Self::Binary { .. } | Self::File { .. } => "missing",
            Self::Component { .. } => "component",
            Self::Supervisor(_) => "supervisor",
            Self::Api { .. } => "api",
            Self::Waited(_) => "timeout",
            Self::Manifest { .. } => "manifest",
            Self::Certificate { .. } | Self::Write { .. } | Self::Ports { .. } => "system",
            Self::Missing(_) => "request",
        }
    }

    pub(crate) fn component(component: &str, what: impl Into<String>, log: &Path) -> Self {
        Self::Component { component: component.to_owned(), what: what.into(), log: log.to_owned(), tail: tail(log) }
    }

    pub(crate) fn api(act: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let act = act.into();
        move |source| Self::Api { act, source: Box::new(source) }
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }
}

/// The last lines of a log, indented; empty when there is none.
fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    let start = lines.len().saturating_sub(LAST_LINES);
    lines.iter().skip(start).map(|line| format!("  | {line}\n")).collect()
}
