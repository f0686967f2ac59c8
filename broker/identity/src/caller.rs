//! Who calls.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::subject::SubjectKey;

/// How a caller came by its token; decides who the subject is and how downstream tokens are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// A: a person, who logged in with one of the issuer's `clients`.
    Person,
    /// B: an agent, one of the issuer's `peers`, for a person. The subject is the person.
    AgentForPerson,
    /// C: a service as itself. The subject is the service.
    Service,
}

impl Path {
    /// `person`, `agent_for_person` or `service`: as in JSON, and as a metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::AgentForPerson => "agent_for_person",
            Self::Service => "service",
        }
    }
}

/// A caller whose token was verified and judged. Made by [`crate::judge()`] only, outside tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The issuer entry's `name`.
    pub issuer_name: String,
    /// The token's `iss`, byte for byte.
    pub issuer: String,
    /// The token's subject, from the claim that the issuer entry names: 1 to 255 bytes without control characters.
    pub id: String,
    /// A name to show to people, at most 255 bytes. It may change and is never compared.
    pub display: Option<String>,
    /// How the caller came by its token.
    pub path: Path,
    /// The client that asked the issuer for this token: the person's tool on path A, the agent on B, the service on C.
    pub client: String,
    /// The agent, on path B; nobody otherwise.
    pub azp: Option<String>,
    /// The subject's key.
    pub key: SubjectKey,
    /// The token's `exp`, without the skew that validation allows.
    pub not_after: SystemTime,
}
