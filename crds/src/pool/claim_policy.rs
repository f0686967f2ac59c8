//! What claims on a pool may ask for, and the two matchings that admission and controller must agree on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What claims on a pool may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimPolicy {
    /// Longest `ttlSeconds`, counted from bind.
    #[serde(default = "max_ttl")]
    #[schemars(range(min = 1, max = 31536000))]
    pub max_ttl_seconds: u32,
    /// Claims of one subject on this pool that may hold or wait for a member at once.
    #[serde(default = "max_claims")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_claims_per_subject: u32,
    /// Images that a workload may name: exactly, or by a prefix that ends in `*`. An empty list allows none; `*` any.
    #[serde(default)]
    #[schemars(
        length(max = 64),
        inner(length(max = 512)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub allowed_images: Vec<String>,
    /// Whether a workload's image must be named by digest (`…@sha256:…`).
    #[serde(default)]
    pub require_digest: bool,
    /// Audiences that a claim may ask for, exactly. An empty list allows none.
    #[serde(default)]
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 512)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub allowed_audiences: Vec<String>,
    /// Highest `priority`.
    #[serde(default)]
    #[schemars(range(max = 1000000))]
    pub max_priority: u32,
    /// Longest `retentionSeconds`.
    #[serde(default = "max_retention")]
    #[schemars(range(max = 604800))]
    pub max_retention_seconds: u32,
    /// Longest `bindDeadlineSeconds`.
    #[serde(default = "max_bind_deadline")]
    #[schemars(range(min = 1, max = 86400))]
    pub max_bind_deadline_seconds: u32,
}

impl ClaimPolicy {
    /// Whether a workload may name this image: its name matches an entry of `allowedImages` and it is pinned by digest
    /// where the policy asks for that.
    pub fn allows_image(&self, image: &str) -> bool {
        (!self.require_digest || image.contains("@sha256:"))
            && self.allowed_images.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => image.starts_with(prefix),
                None => image == pattern,
            })
    }

    /// The first audience that the policy does not list, or nothing when all are allowed.
    pub fn denied_audience<'a>(&self, audiences: &'a [String]) -> Option<&'a str> {
        audiences.iter().find(|wanted| !self.allowed_audiences.contains(wanted)).map(String::as_str)
    }
}

impl Default for ClaimPolicy {
    fn default() -> Self {
        Self {
            max_ttl_seconds: max_ttl(),
            max_claims_per_subject: max_claims(),
            allowed_images: Vec::new(),
            require_digest: false,
            allowed_audiences: Vec::new(),
            max_priority: 0,
            max_retention_seconds: max_retention(),
            max_bind_deadline_seconds: max_bind_deadline(),
        }
    }
}

fn max_ttl() -> u32 {
    28_800
}
fn max_claims() -> u32 {
    5
}
fn max_retention() -> u32 {
    3600
}
fn max_bind_deadline() -> u32 {
    600
}
