//! A machine's folder: `<state>/vms/<instance uid>/`. It exists from before the first process until after the last.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::Error;
use crate::identity::Identity;
use crate::plan::file;

const IDENTITY: &str = "instance.json";
const ENDORSEMENT: &str = "endorsement.json";

/// Paths of one machine.
#[derive(Clone, Debug)]
pub struct Home {
    folder: PathBuf,
    logs: PathBuf,
    label: String,
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

impl Home {
    /// The folder of an instance, made or not.
    pub fn new(state: &Path, id: &Identity) -> Self {
        let short: String = id.uid.chars().take(8).collect();
        Self {
            folder: folders(state).join(&id.uid),
            // Logs outlive machines: they are how people find out why one never became ready.
            logs: state.join("logs"),
            label: format!("{}.{}.{short}", id.namespace, id.name),
        }
    }

    /// Instances that have a folder.
    ///
    /// # Errors
    /// The state folder cannot be read.
    pub fn all(state: &Path) -> Result<Vec<Identity>, Error> {
        let root = folders(state);
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&root).map_err(failed(&root))? {
            let path = entry.map_err(failed(&root))?.path();
            match std::fs::read(path.join(IDENTITY)).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
                Some(identity) => all.push(identity),
                // Its maker died between making the folder and writing whose it is; nothing was started.
                None => std::fs::remove_dir_all(&path).map_err(failed(&path))?,
            }
        }
        Ok(all)
    }

    /// Makes the folders that all machines share.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn prepare(state: &Path) -> Result<(), Error> {
        for folder in [folders(state), state.join("logs")] {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed(&folder))?;
        }
        Ok(())
    }

    /// Makes the folder and writes down whose it is.
    pub(super) fn create(&self, id: &Identity) -> Result<(), Error> {
        match std::fs::DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(failed(&self.folder)(error)),
            _ => self.write(IDENTITY, id),
        }
    }

    /// Removes the folder with all in it.
    pub(super) fn remove(&self) -> Result<(), Error> {
        self.clear_tpm()?;
        absent(std::fs::remove_dir_all(&self.folder)).map_err(failed(&self.folder))
    }

    pub(super) fn clear_tpm(&self) -> Result<(), Error> {
        absent(std::fs::remove_dir_all(self.tpm())).map_err(failed(&self.tpm()))
    }

    /// Endorsement digests of vTPM state that is complete.
    pub(super) fn endorsement(&self) -> Result<Option<Vec<String>>, Error> {
        let path = self.path(ENDORSEMENT);
        match std::fs::read(&path) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&path)(error)),
        }
    }

    pub(super) fn record_endorsement(&self, digests: &[String]) -> Result<(), Error> {
        self.write(ENDORSEMENT, digests)
    }

    /// Written beside and renamed, so that a reader finds all of it or nothing.
    fn write(&self, name: &str, value: &(impl serde::Serialize + ?Sized)) -> Result<(), Error> {
        let path = self.path(name);
        let text = serde_json::to_vec(value).map_err(|error| failed(&path)(error.into()))?;
        let staging = self.path(&format!("{name}.new"));
        std::fs::write(&staging, text).map_err(failed(&staging))?;
        std::fs::rename(&staging, &path).map_err(failed(&path))
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Folder of the vTPM's state.
    pub fn tpm(&self) -> PathBuf {
        self.path(file::TPM)
    }

    /// QEMU's control socket.
    pub fn qmp(&self) -> PathBuf {
        self.path(file::QMP)
    }

    /// A log file, outside of the folder.
    pub fn log(&self, what: &str) -> PathBuf {
        self.logs.join(format!("{}.{what}.log", self.label))
    }
}

fn folders(state: &Path) -> PathBuf {
    state.join("vms")
}

pub(super) fn absent(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_started_is_found_again_and_what_was_not_is_removed() {
        let root = tempfile::tempdir().unwrap();
        Home::prepare(root.path()).unwrap();
        let id = Identity { uid: "u-1".into(), namespace: "a".into(), name: "m".into(), node: "full-1".into() };
        let home = Home::new(root.path(), &id);
        home.create(&id).unwrap();
        home.create(&id).unwrap();
        std::fs::create_dir(home.tpm()).unwrap();
        std::fs::create_dir(root.path().join("vms/half")).unwrap();
        assert_eq!(home.endorsement().unwrap(), None);
        home.record_endorsement(&["ab".into()]).unwrap();
        assert_eq!(home.endorsement().unwrap(), Some(vec!["ab".into()]));
        assert_eq!(Home::all(root.path()).unwrap(), [id]);
        assert!(!root.path().join("vms/half").exists());
        home.remove().unwrap();
        home.remove().unwrap();
        assert_eq!(Home::all(root.path()).unwrap(), []);
    }
}
