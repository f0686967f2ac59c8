//! Files that are read again when they change: certificates and keys turn without a restart.

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio_util::sync::CancellationToken;

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(5);

/// A value that comes from files.
pub struct Reloaded<T> {
    value: RwLock<Arc<T>>,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// With the value that was read at start.
    #[must_use]
    pub fn new(value: T) -> Arc<Self> {
        Arc::new(Self { value: RwLock::new(Arc::new(value)) })
    }

    /// The newest.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another in its place.
    pub fn set(&self, value: T) {
        *self.value.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }

    /// Reads again whenever the content of `files` changed, until `stop`. What cannot be used is logged and the old
    /// value stays: a certificate and its key are never replaced in one step.
    pub fn watch(
        self: &Arc<Self>,
        what: &'static str,
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<T, String> + Send + 'static,
        stop: CancellationToken,
    ) {
        let this = self.clone();
        let content = move || -> Vec<Option<Vec<u8>>> { files.iter().map(|file| std::fs::read(file).ok()).collect() };
        let mut before = digest(&content());
        tokio::spawn(async move {
            while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
                let now = digest(&content());
                if now == before {
                    continue;
                }
                match read() {
                    Ok(value) => {
                        this.set(value);
                        before = now;
                        tracing::info!(what, "read again from its files");
                    }
                    Err(why) => tracing::warn!(what, why, "its files changed and cannot be used; the old ones stay"),
                }
            }
        });
    }
}

/// Keys are not kept in memory a second time to notice a change.
fn digest(contents: &[Option<Vec<u8>>]) -> crate::claims::name::Digest {
    let mut parts = crate::claims::name::Parts::new("files");
    for content in contents {
        parts.add([u8::from(content.is_some())]);
        parts.add(content.as_deref().unwrap_or_default());
    }
    parts.finish()
}

/// Gives the newest certificate to each handshake.
pub struct NewestCertificate(pub Arc<Reloaded<CertifiedKey>>);

impl std::fmt::Debug for NewestCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NewestCertificate")
    }
}

impl ResolvesServerCert for NewestCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.get())
    }
}
