//! The controller's immutable copies of measurements documents, read by digest and kept parsed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use banlieue_crds::names::{MEASUREMENTS_KEY, policy_config_map};
use banlieue_policy::{Digest, Measurements, document::MAX_DOCUMENT};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};

use crate::{cluster::CALL_LIMIT, facts::Policy};

/// Documents kept; a cluster has a handful.
const MOST: usize = 64;

/// A reader with a memory. A document is known by its digest, so what is remembered is never out of date.
pub struct Policies {
    client: Client,
    known: Mutex<HashMap<Digest, Arc<Policy>>>,
}

impl Policies {
    /// With a client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// The document of this digest, from the pool's copy; `None` when there is no usable copy.
    ///
    /// # Errors
    /// When the API server cannot be asked.
    pub async fn get(&self, namespace: &str, pool: &str, digest: Digest) -> Result<Option<Arc<Policy>>, String> {
        if let Some(policy) = self.lock().get(&digest) {
            return Ok(Some(policy.clone()));
        }
        let name = policy_config_map(pool, &digest.to_string());
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), namespace);
        let found = tokio::time::timeout(CALL_LIMIT, api.get_opt(&name))
            .await
            .map_err(|_| "no answer in time".to_owned())?
            .map_err(|error| error.to_string())?;
        let Some(found) = found else { return Ok(None) };
        let text = found.data.unwrap_or_default().remove(MEASUREMENTS_KEY).unwrap_or_default();
        match parse(&text, digest) {
            Ok(policy) => {
                let policy = Arc::new(policy);
                let mut known = self.lock();
                if known.len() >= MOST {
                    known.clear();
                }
                known.insert(digest, policy.clone());
                Ok(Some(policy))
            }
            Err(why) => {
                tracing::warn!(config_map = %format!("{namespace}/{name}"), %why, "a policy copy is not usable");
                Ok(None)
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Digest, Arc<Policy>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that the copy is the very document, and reads it.
fn parse(text: &str, digest: Digest) -> Result<Policy, String> {
    let found = Digest::of(text.as_bytes());
    if found != digest {
        return Err(format!("its content has digest {found}, not {digest}"));
    }
    let document = Measurements::parse(text.as_bytes(), MAX_DOCUMENT).map_err(|error| error.to_string())?;
    Ok(Policy { digest, document })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_content_is_no_policy() {
        let digest = Digest::of(b"something else");
        assert!(parse("apiVersion: x", digest).unwrap_err().contains("digest"));
    }
}
