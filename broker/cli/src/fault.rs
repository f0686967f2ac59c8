//! What went wrong: a sentence for a person, an exit code for a script.

use crate::show::plain;

/// Kinds of failures, with their exit codes. Stable: scripts rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Anything else.
    Other = 1,
    /// The command line or the configuration; clap uses the same code.
    Usage = 2,
    /// No token, or none that mediatore takes.
    Login = 3,
    /// A genuine caller who may not.
    Forbidden = 4,
    /// No such claim or pool.
    NotFound = 5,
    /// Too many claims, or too many requests.
    Limit = 6,
    /// Something did not answer; the same command may work later.
    Unavailable = 7,
    /// The claim failed, or its workload did.
    Workload = 8,
    /// Control-C.
    Interrupted = 130,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Fault {
    /// For the exit code.
    pub kind: Kind,
    /// mediatore's code, when it was mediatore who refused, or a word of ours.
    pub code: String,
    /// What is wrong and what to do. Safe to print: what came from elsewhere has no control characters.
    pub detail: String,
}

impl Fault {
    /// A failure found here.
    #[must_use]
    pub fn new(kind: Kind, detail: impl AsRef<str>) -> Self {
        let code = match kind {
            Kind::Other => "failed",
            Kind::Usage => "usage",
            Kind::Login => "login",
            Kind::Forbidden => "forbidden",
            Kind::NotFound => "not_found",
            Kind::Limit => "limit",
            Kind::Unavailable => "unavailable",
            Kind::Workload => "workload",
            Kind::Interrupted => "interrupted",
        };
        Self { kind, code: code.to_owned(), detail: plain(detail.as_ref()) }
    }

    /// What mediatore answered with this status.
    #[must_use]
    pub fn answered(status: u16, code: &str, detail: &str) -> Self {
        let kind = match (status, code) {
            (401, _) => Kind::Login,
            (403, _) => Kind::Forbidden,
            (404, _) => Kind::NotFound,
            (429, _) => Kind::Limit,
            (408 | 500.., _) => Kind::Unavailable,
            (400 | 409 | 413 | 431, _) => Kind::Usage,
            _ => Kind::Other,
        };
        Self { kind, code: plain(code), detail: plain(detail) }
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::new(Kind::Other, error.to_string())
    }
}
