//! The API server's audit log: who asked for what.

use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};

/// One answered request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// `create`, `update`, `patch`, `delete`, `deletecollection`, `get`, `list`, `watch`.
    pub verb: String,
    /// Who asked.
    pub user: User,
    /// What for. Absent for requests that concern no object.
    #[serde(default)]
    pub object_ref: Option<ObjectRef>,
    /// The answer.
    #[serde(default)]
    pub response_status: Option<Answer>,
    /// Path and query of the request.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// RFC 3339, microseconds.
    pub request_received_timestamp: String,
    /// `ResponseComplete` for most; a watch has `ResponseStarted` too.
    pub stage: String,
}

/// Who asked.
#[derive(Clone, Debug, Deserialize)]
pub struct User {
    /// `system:serviceaccount:<namespace>:<name>` for programs.
    pub username: String,
}

/// What a request was for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// Plural, `poolmembers` for example.
    pub resource: String,
    /// `status`, `scale`; empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-wide objects.
    pub namespace: String,
    /// Empty for a create whose name the server chooses, and for lists.
    pub name: String,
    /// Only when the request itself carried it.
    pub uid: String,
    /// Empty for the core group.
    pub api_group: String,
}

/// How a request was answered.
#[derive(Clone, Debug, Deserialize)]
pub struct Answer {
    /// HTTP status.
    #[serde(default)]
    pub code: u16,
}

impl Event {
    /// Whether it asked for a change.
    #[must_use]
    pub fn is_write(&self) -> bool {
        ["create", "update", "patch", "delete", "deletecollection"].contains(&self.verb.as_str())
    }

    /// Whether it was granted.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.response_status.as_ref().is_some_and(|it| (200..300).contains(&it.code))
    }
}

/// Everything in the log up to now.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// In the order of the answers.
    pub events: Vec<Event>,
}

impl Audit {
    /// Reads a log. A last line that is still being written is left out.
    ///
    /// # Errors
    /// When the file is not there, or a whole line in it is no event.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
        Self::parse(&text)
            .map_err(|error| Error::Manifest { path: path.display().to_string(), what: error.to_string() })
    }

    fn parse(text: &str) -> serde_json::Result<Self> {
        let whole = text.rfind('\n').and_then(|end| text.get(..end)).unwrap_or_default();
        let events: serde_json::Result<Vec<Event>> = whole.lines().map(serde_json::from_str).collect();
        let mut events = events?;
        events.retain(|it| it.stage == "ResponseComplete");
        Ok(Self { events })
    }

    /// Requests for changes by `user` that were granted.
    pub fn writes<'a>(&'a self, user: &'a str) -> impl Iterator<Item = &'a Event> {
        self.events.iter().filter(move |it| it.is_write() && it.succeeded() && it.user.username == user)
    }

    /// Number of granted changes by `user` to the object of that resource (plural), namespace and name, subresources
    /// included. Deleting and creating an object of the same name again counts for both: compare times when it matters.
    #[must_use]
    pub fn count_writes(&self, user: &str, resource: &str, namespace: &str, name: &str) -> usize {
        self.writes(user)
            .filter_map(|it| it.object_ref.as_ref())
            .filter(|it| it.resource == resource && it.namespace == namespace && it.name == name)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = concat!(
        r#"{"kind":"Event","level":"Metadata","stage":"ResponseComplete","requestURI":"/x","verb":"patch","user":{"username":"u"},"objectRef":{"resource":"poolmembers","namespace":"n","name":"a","subresource":"status"},"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-11-30T20:00:00.000000Z"}"#,
        "\n",
        r#"{"kind":"Event","level":"Metadata","stage":"ResponseComplete","requestURI":"/x","verb":"patch","user":{"username":"u"},"objectRef":{"resource":"poolmembers","namespace":"n","name":"a"},"responseStatus":{"code":409},"requestReceivedTimestamp":"2026-11-30T20:00:00.000000Z"}"#,
        "\n",
        r#"{"kind":"Event","stage":"Resp"#,
    );

    #[test]
    fn granted_writes_are_counted_and_a_torn_line_is_not_read() {
        let audit = Audit::parse(LOG).unwrap();
        assert_eq!(audit.events.len(), 2);
        assert_eq!(audit.count_writes("u", "poolmembers", "n", "a"), 1);
        assert_eq!(audit.count_writes("v", "poolmembers", "n", "a"), 0);
    }

    #[test]
    fn a_broken_line_is_an_error() {
        assert!(Audit::parse("{}\n").is_err());
    }
}
