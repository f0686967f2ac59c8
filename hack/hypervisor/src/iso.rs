//! Secrets as read-only ISO9660 disks, made with the program and the options of KubeVirt's virt-launcher
//! (`pkg/config/config.go`).

use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

/// KubeVirt's volume label for a Secret whose volume names none.
pub const DEFAULT_LABEL: &str = "cfgdata";

/// Why a disk could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key of the Secret cannot be a file's name here.
    #[error("the Secret's key {0:?} cannot be a file name")]
    Key(String),
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The program is missing.
    #[error("cannot run xorrisofs: {0}. It comes with: apt-get install xorriso")]
    Missing(std::io::Error),
    /// The program failed.
    #[error("xorrisofs could not make {path}: {output}")]
    Make {
        /// The image.
        path: PathBuf,
        /// Its last words.
        output: String,
    },
}

/// Writes each key as a file of mode 0400 into a new folder of mode 0700.
///
/// # Errors
/// A key with a path in it, or a file system that refuses.
pub fn write_files(folder: &Path, files: &BTreeMap<String, Vec<u8>>) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Write { path, source }
    };
    std::fs::DirBuilder::new().mode(0o700).create(folder).map_err(failed(folder))?;
    for (key, value) in files {
        // Secret keys are [-._a-zA-Z0-9]+ (Kubernetes' IsConfigMapKey), which still allows these two.
        if key == "." || key == ".." || key.contains('/') || key.contains('=') || key.is_empty() {
            return Err(Error::Key(key.clone()));
        }
        let path = folder.join(key);
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o400).open(&path).map_err(failed(&path))?;
        std::io::Write::write_all(&mut file, value).map_err(failed(&path))?;
    }
    Ok(())
}

/// Makes a read-only disk with a file for each key: ISO9660 with Joliet and Rock Ridge. Replaces what an earlier,
/// interrupted try left.
///
/// # Errors
/// A key that is no file name, or a missing or failing xorrisofs.
pub async fn make(image: &Path, label: &str, files: &BTreeMap<String, Vec<u8>>) -> Result<(), Error> {
    let staging = image.with_extension("files");
    let cleared = |result: std::io::Result<()>| match result {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Write { path: staging.clone(), source })
        }
        _ => Ok(()),
    };
    cleared(std::fs::remove_dir_all(&staging))?;
    write_files(&staging, files)?;
    let made = run(image, label, &staging, files.keys()).await;
    cleared(std::fs::remove_dir_all(&staging))?;
    made
}

async fn run(image: &Path, label: &str, staging: &Path, keys: impl Iterator<Item = &String>) -> Result<(), Error> {
    let output = Command::new("xorrisofs")
        .args(["-quiet", "-output"])
        .arg(image)
        .args(["-follow-links", "-volid", label, "-joliet", "-rock", "-graft-points", "-partition_cyl_align", "on"])
        .args(keys.map(|key| format!("{key}={}", staging.join(key).display())))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(Error::Missing)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let output = said.lines().rev().take(3).collect::<Vec<_>>().join("; ");
    Err(Error::Make { path: image.to_owned(), output })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> BTreeMap<String, Vec<u8>> {
        [("bundle.pem", b"-----BEGIN".to_vec()), ("member", b"demo-x2x4z".to_vec()), ("empty", vec![])]
            .map(|(key, value)| (key.to_owned(), value))
            .into()
    }

    async fn xorriso(image: &Path, args: &[&str]) -> String {
        let output = Command::new("xorriso").args(["-indev"]).arg(image).args(args).output().await.unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[tokio::test]
    async fn every_key_is_a_file_of_the_disk_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let image = root.path().join("seed.iso");
        // What an earlier try left must neither hinder nor leak into the disk.
        std::fs::create_dir(root.path().join("seed.files")).unwrap();
        std::fs::write(root.path().join("seed.files/old"), "x").unwrap();
        make(&image, "banlieue-enrol", &files()).await.unwrap();
        let listed = xorriso(&image, &["-find", "/", "-type", "f"]).await;
        let mut names: Vec<_> = listed.lines().map(|line| line.trim_matches('\'')).collect();
        names.sort_unstable();
        assert_eq!(names, ["/bundle.pem", "/empty", "/member"]);
        let out = root.path().join("out");
        let target = out.display().to_string();
        xorriso(&image, &["-osirrox", "on", "-extract", "/", &target]).await;
        assert_eq!(std::fs::read_to_string(out.join("member")).unwrap(), "demo-x2x4z");
        let descriptor = std::fs::read(&image).unwrap()[0x8000 + 40..0x8000 + 72].to_vec();
        assert_eq!(String::from_utf8(descriptor).unwrap().trim_end(), "banlieue-enrol");
        assert!(!root.path().join("seed.files").exists(), "the secret stays nowhere but on the disk");
    }

    #[tokio::test]
    async fn keys_that_leave_the_folder_are_refused() {
        let root = tempfile::tempdir().unwrap();
        for key in ["..", ".", "a/b", "a=b", ""] {
            let files = [(key.to_owned(), vec![])].into();
            assert!(matches!(make(&root.path().join("s.iso"), "x", &files).await, Err(Error::Key(_))), "{key}");
        }
    }
}
