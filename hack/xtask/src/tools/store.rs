//! `target/tools`: programs, their stamps, and the lock under which they change.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Folders under `target/tools`.
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// Of this checkout.
    pub fn new(root: &Path) -> Self {
        Self { folder: root.join("target/tools") }
    }

    /// Where the programs lie.
    pub fn bin(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// The file that vouches for a program.
    pub fn stamp(&self, name: &str) -> PathBuf {
        self.folder.join("stamps").join(name)
    }

    /// Output of the last build of a program.
    pub fn log(&self, name: &str) -> PathBuf {
        self.folder.join("log").join(format!("{name}.log"))
    }

    /// Where a program is linked before it is renamed into place: the same file system, never in `bin`.
    pub fn partial(&self, name: &str) -> PathBuf {
        self.folder.join("partial").join(format!("{name}.{}", std::process::id()))
    }

    /// Where a script lives with its packages.
    pub fn script(&self, name: &str) -> PathBuf {
        self.folder.join("scripts").join(name)
    }

    /// Under the lock: what is in `partial` is left from builds that were killed.
    pub fn sweep(&self) {
        for entry in fs::read_dir(self.folder.join("partial")).into_iter().flatten().flatten() {
            // One that will not go only takes space.
            let _ =
                if entry.path().is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        }
    }

    /// Everything below, empty.
    pub fn make_folders(&self) -> anyhow::Result<()> {
        for name in ["bin", "stamps", "log", "partial", "scripts"] {
            let folder = self.folder.join(name);
            fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        Ok(())
    }

    /// Held until the file is dropped, or the process ends in any way.
    pub fn lock(&self) -> anyhow::Result<File> {
        let path = self.folder.join("lock");
        let file = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                println!("waiting for another process that builds the pinned programs …");
                file.lock().with_context(|| format!("locking {}", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("locking {}", path.display()));
            }
        }
        Ok(file)
    }

    /// Whether a program was built from what this stamp is the digest of.
    pub fn is_current(&self, name: &str, stamp: &str) -> bool {
        let recorded = fs::read_to_string(self.stamp(name)).unwrap_or_default();
        recorded.trim_end() == stamp && self.bin().join(name).is_file()
    }
}

/// Removes a file; that it is not there is no error.
pub fn remove_if_there(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_current_only_with_its_stamp_and_its_binary() {
        let folder = std::env::temp_dir().join(format!("xtask-tools-{}", std::process::id()));
        let store = Store { folder: folder.clone() };
        store.make_folders().unwrap();
        assert!(!store.is_current("etcd", "one"), "neither");
        fs::write(store.stamp("etcd"), "one").unwrap();
        assert!(!store.is_current("etcd", "one"), "no binary");
        fs::write(store.bin().join("etcd"), "").unwrap();
        assert!(store.is_current("etcd", "one"));
        assert!(!store.is_current("etcd", "another"), "the stamp of another build");
        fs::remove_dir_all(folder).unwrap();
    }
}
