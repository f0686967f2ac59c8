//! Where sessions stand: a Secret `session-<subject key>` with the sealed refresh token, and a Lease of the same name
//! that locks it. Both are in the first namespace of the configuration. The Lease is there before the Secret and goes
//! after it, so that a list of Leases shows every session, and nobody lists Secrets.

use banlieue_identity::SubjectKey;
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Secret,
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::api::{ListParams, ObjectMeta};

use crate::claims::cluster::{COMPONENT, CallError, Cluster, exactly, limited, ours, post, unless};

/// Value of the component label.
const COMPONENT_VALUE: &str = "session";
/// Key of the Secret.
const KEY: &str = "session";

/// Name of a subject's session.
#[must_use]
pub fn name(subject: &SubjectKey) -> String {
    format!("session-{subject}")
}

/// A sealed session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Which write of it this is.
    pub version: String,
    /// The sealed refresh token.
    pub bytes: Vec<u8>,
}

/// A Lease in one exact state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its resource version.
    pub version: String,
    /// Who has it.
    pub holder: Option<String>,
}

fn lock_of(lease: Lease) -> Option<Lock> {
    Some(Lock {
        name: lease.metadata.name?,
        uid: lease.metadata.uid?,
        version: lease.metadata.resource_version?,
        holder: lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty()),
    })
}

fn lease(name: &str, over: Option<&Lock>, holder: Option<&str>) -> Lease {
    let now = holder.map(|_| MicroTime(Timestamp::now()));
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            uid: over.map(|lock| lock.uid.clone()),
            resource_version: over.map(|lock| lock.version.clone()),
            labels: Some(ours(COMPONENT_VALUE)),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: holder.map(ToOwned::to_owned),
            acquire_time: now.clone(),
            renew_time: now,
            ..LeaseSpec::default()
        }),
    }
}

impl Cluster {
    /// The lock of this name as it is, if it is there.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn session_lock(&self, namespace: &str, name: &str) -> Result<Option<Lock>, CallError> {
        Ok(self.get::<Lease>(namespace, name).await?.and_then(lock_of))
    }

    /// Writes a lock over exactly the state that was seen, or makes it; nothing when another write came first.
    ///
    /// # Errors
    /// When nobody knows.
    pub async fn write_session_lock(
        &self,
        namespace: &str,
        name: &str,
        over: Option<&Lock>,
        holder: Option<&str>,
    ) -> Result<Option<Lock>, CallError> {
        let (api, lease) = (self.api::<Lease>(namespace), lease(name, over, holder));
        let call = format!("locking {namespace}/{name}");
        let made = match over {
            None => unless(409, limited(&call, api.create(&post(), &lease)).await)?,
            Some(_) => match limited(&call, api.replace(name, &post(), &lease)).await {
                Err(error) if matches!(error.code(), Some(404 | 409)) => None,
                other => Some(other?),
            },
        };
        Ok(made.and_then(lock_of))
    }

    /// Deletes a lock in exactly this state. One that is in another stays, and is no error.
    ///
    /// # Errors
    /// When nobody knows.
    pub async fn delete_session_lock(&self, namespace: &str, lock: &Lock) -> Result<(), CallError> {
        let call = format!("deleting lock {namespace}/{}", lock.name);
        let params = exactly(Some(&lock.uid), Some(&lock.version));
        match limited(&call, self.api::<Lease>(namespace).delete(&lock.name, &params)).await {
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Every lock, and with it every session.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn session_locks(&self, namespace: &str) -> Result<Vec<Lock>, CallError> {
        let call = format!("listing sessions in {namespace}");
        let params = ListParams::default().labels(&format!("{COMPONENT}={COMPONENT_VALUE}"));
        let list = limited(&call, self.api::<Lease>(namespace).list(&params)).await?;
        Ok(list.items.into_iter().filter_map(lock_of).collect())
    }

    /// The sealed session of this name, if there is one.
    ///
    /// # Errors
    /// When nobody can tell.
    pub async fn session(&self, namespace: &str, name: &str) -> Result<Option<Sealed>, CallError> {
        let secret: Option<Secret> = self.get(namespace, name).await?;
        Ok(secret.and_then(|secret| {
            let bytes = secret.data.and_then(|mut data| data.remove(KEY)).unwrap_or_default();
            Some(Sealed { version: secret.metadata.resource_version?, bytes: bytes.0 })
        }))
    }

    /// Writes a sealed session over exactly this version, or makes it; whether it was done.
    ///
    /// # Errors
    /// When nobody knows.
    pub async fn write_session(
        &self,
        namespace: &str,
        name: &str,
        over: Option<&str>,
        sealed: Vec<u8>,
    ) -> Result<bool, CallError> {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                resource_version: over.map(ToOwned::to_owned),
                labels: Some(ours(COMPONENT_VALUE)),
                ..ObjectMeta::default()
            },
            data: Some([(KEY.to_owned(), ByteString(sealed))].into()),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        let (api, call) = (self.api::<Secret>(namespace), format!("storing {namespace}/{name}"));
        let outcome = match over {
            None => limited(&call, api.create(&post(), &secret)).await,
            Some(_) => limited(&call, api.replace(name, &post(), &secret)).await,
        };
        was_done(outcome.map(drop))
    }

    /// Deletes a sealed session in exactly this version; whether it was done.
    ///
    /// # Errors
    /// When nobody knows.
    pub async fn delete_session(&self, namespace: &str, name: &str, version: &str) -> Result<bool, CallError> {
        let call = format!("deleting {namespace}/{name}");
        let params = exactly(None, Some(version));
        was_done(limited(&call, self.api::<Secret>(namespace).delete(name, &params)).await.map(drop))
    }
}

fn was_done(outcome: Result<(), CallError>) -> Result<bool, CallError> {
    match outcome {
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(false),
        other => other.map(|()| true),
    }
}
