//! What an API call can answer instead of success, sorted by what the caller must do.

use thiserror::Error;

/// Why the API server refused for good (until the cause changes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// 400 or 422: schema, CEL rule or admission webhook.
    Invalid,
    /// 403 of authorization or of an admission policy.
    Forbidden,
    /// 403 of the quota admission plugin.
    QuotaExceeded,
    /// 403: its namespace is being deleted, and nothing is made there any more.
    Terminating,
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApiError {
    /// 404: no such object.
    #[error("{what}: not found")]
    NotFound {
        /// The call, for a person.
        what: String,
    },
    /// 409: the resourceVersion or uid precondition does not hold.
    #[error("{what}: changed meanwhile")]
    Conflict {
        /// The call.
        what: String,
    },
    /// 409 on create: the name is taken.
    #[error("{what}: exists already")]
    AlreadyExists {
        /// The call.
        what: String,
    },
    /// The server understood and said no.
    #[error("{what}: refused: {message}")]
    Refused {
        /// The call.
        what: String,
        /// Which kind of no.
        refusal: Refusal,
        /// The server's own words.
        message: String,
    },
    /// 429 or 503: surely not done, try later.
    #[error("{what}: the API server is busy: {message}")]
    Busy {
        /// The call.
        what: String,
        /// The server's own words.
        message: String,
    },
    /// A timeout, a broken connection, or a 5xx: it may or may not have been done.
    #[error("{what}: no answer: {message}")]
    Unknown {
        /// The call.
        what: String,
        /// What was seen.
        message: String,
    },
    /// A write that was not sent, since this process does not lead, or not any more.
    #[error("{what}: not sent: this process does not lead")]
    NotLeading {
        /// The call.
        what: String,
    },
    /// The answer did not parse as the kind asked for. The write, if it was one, happened.
    #[error("{what}: unreadable answer: {message}")]
    Unreadable {
        /// The call.
        what: String,
        /// The parser's words.
        message: String,
    },
}

impl ApiError {
    /// A small fixed set for metric labels.
    pub fn category(&self) -> &'static str {
        match self {
            ApiError::NotFound { .. } => "not_found",
            ApiError::Conflict { .. } => "conflict",
            ApiError::AlreadyExists { .. } => "already_exists",
            ApiError::Refused { refusal: Refusal::Invalid, .. } => "invalid",
            ApiError::Refused { refusal: Refusal::Forbidden, .. } => "forbidden",
            ApiError::Refused { refusal: Refusal::QuotaExceeded, .. } => "quota",
            ApiError::Refused { refusal: Refusal::Terminating, .. } => "terminating",
            ApiError::Busy { .. } => "busy",
            ApiError::Unknown { .. } => "unknown",
            ApiError::NotLeading { .. } => "not_leading",
            ApiError::Unreadable { .. } => "unreadable",
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            ApiError::Busy { .. } | ApiError::Unknown { .. } | ApiError::Conflict { .. } | ApiError::NotLeading { .. }
        )
    }

    /// Whether a write may have happened in spite of the error.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, ApiError::Unknown { .. } | ApiError::Unreadable { .. })
    }

    /// Whether we have no right to it.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, ApiError::Refused { refusal: Refusal::Forbidden, .. })
    }

    /// Whether the object is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, ApiError::NotFound { .. })
    }

    /// Whether the name was taken.
    pub fn already_exists(&self) -> bool {
        matches!(self, ApiError::AlreadyExists { .. })
    }

    /// Whether a precondition failed.
    pub fn is_conflict(&self) -> bool {
        matches!(self, ApiError::Conflict { .. })
    }

    /// Sorts an HTTP status code with the `reason` and `message` of the API server's Status object.
    pub fn from_status(what: String, code: u16, reason: &str, message: String) -> Self {
        match (code, reason) {
            (404, _) => ApiError::NotFound { what },
            (409, "AlreadyExists") => ApiError::AlreadyExists { what },
            (409, _) | (412, _) => ApiError::Conflict { what },
            (400 | 405 | 413 | 415 | 422, _) => ApiError::Refused { what, refusal: Refusal::Invalid, message },
            (401, _) => ApiError::Refused { what, refusal: Refusal::Forbidden, message },
            (403, _) => {
                let refusal = if message.contains("exceeded quota") {
                    Refusal::QuotaExceeded
                } else if message.contains("because it is being terminated") {
                    Refusal::Terminating
                } else {
                    Refusal::Forbidden
                };
                ApiError::Refused { what, refusal, message }
            }
            (429 | 503, _) => ApiError::Busy { what, message },
            _ => ApiError::Unknown { what, message },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_sorted_by_what_the_caller_must_do() {
        let sort = |code, reason, message: &str| ApiError::from_status("x".into(), code, reason, message.into());
        assert_eq!(sort(404, "NotFound", "").category(), "not_found");
        assert_eq!(sort(409, "AlreadyExists", "").category(), "already_exists");
        assert_eq!(sort(409, "Conflict", "").category(), "conflict");
        assert_eq!(sort(403, "Forbidden", "pods \"x\" is forbidden: exceeded quota: q").category(), "quota");
        assert_eq!(sort(403, "Forbidden", "no").category(), "forbidden");
        let ending = "unable to create new content in namespace x because it is being terminated";
        assert_eq!(sort(403, "Forbidden", ending).category(), "terminating");
        assert_eq!(sort(422, "Invalid", "no").category(), "invalid");
        assert!(sort(504, "Timeout", "").outcome_unknown());
        assert!(sort(500, "InternalError", "").outcome_unknown());
        assert!(!sort(503, "ServiceUnavailable", "").outcome_unknown());
        assert!(!sort(409, "Conflict", "").outcome_unknown());
    }
}
