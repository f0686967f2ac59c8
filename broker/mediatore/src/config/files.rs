//! Every file that the configuration refers to, looked into before anything depends on it.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    path::{Path, PathBuf},
    time::Duration,
};

use banlieue_identity::{config::Issuer, discovery};

use super::{Registry, SealingKey, Sts, Tls, secrets};
use crate::tokens::settings::{self, Upstream};

/// Files, each with what it is for. Taken from what of the configuration could be read, whether or not the rest is
/// usable: who mends it learns everything at once.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub tls: Option<Tls>,
    pub sealing: Vec<SealingKey>,
    pub signing: Vec<PathBuf>,
    /// Of issuers, by their names.
    pub authorities: Vec<(String, PathBuf)>,
    pub registry: Option<PathBuf>,
    pub upstreams: Vec<Upstream>,
    pub audit: Option<PathBuf>,
}

impl Files {
    pub fn of(
        tls: Option<&Tls>,
        sealing: &[SealingKey],
        sts: Option<&Sts>,
        issuers: &[Issuer],
        registry: Option<&Registry>,
        audit: Option<&PathBuf>,
    ) -> Self {
        let authority = |issuer: &Issuer| Some((issuer.name.clone(), issuer.ca_file.clone()?));
        Self {
            tls: tls.cloned(),
            sealing: sealing.to_vec(),
            signing: sts.map(|sts| sts.key_files.clone()).unwrap_or_default(),
            authorities: issuers.iter().filter_map(authority).collect(),
            upstreams: Vec::new(),
            registry: registry.and_then(|registry| registry.ca_file.clone()),
            audit: audit.cloned(),
        }
    }

    /// Every problem of them.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(tls) = &self.tls
            && let Err(error) = secrets::certificate(tls)
        {
            problems.push(format!("listeners.user.tls: {error}"));
        }
        for key in &self.sealing {
            if let Err(error) = secrets::sealing_key(&key.file) {
                problems.push(format!("sealing_keys ({}): {error}", key.id));
            }
        }
        let mut signing: BTreeMap<String, &Path> = BTreeMap::new();
        for file in &self.signing {
            match secrets::signing_key(file) {
                Err(error) => problems.push(format!("sts.key_files: {error}")),
                Ok(key) => {
                    if let Some(first) = signing.insert(key.id().to_owned(), file) {
                        let (file, first) = (file.display(), first.display());
                        problems.push(format!("sts.key_files: {file} has the same key as {first}"));
                    }
                }
            }
        }
        for (issuer, file) in &self.authorities {
            // As it will be made for each fetch of the issuer's keys.
            if let Err(failure) = discovery::client(Some(file), Duration::from_secs(1)) {
                problems.push(format!("issuers ({issuer}).ca_file: {failure}"));
            }
        }
        problems.extend(settings::file_problems(&self.upstreams));
        if let Some(file) = &self.registry
            && let Err(error) = secrets::authorities(file)
        {
            problems.push(format!("registry.ca_file: {error}"));
        }
        if let Some(file) = &self.audit
            && let Err(error) = appendable(file)
        {
            problems.push(format!("audit_file: cannot write {}: {error}", file.display()));
        }
        problems
    }
}

/// Whether a file can be appended to, without making it.
fn appendable(file: &Path) -> std::io::Result<()> {
    match OpenOptions::new().append(true).open(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            // There is no file of it yet, so the folder must be one.
            std::fs::read_dir(folder).map(drop)
        }
        other => other.map(drop),
    }
}
