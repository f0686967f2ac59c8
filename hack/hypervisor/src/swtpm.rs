//! Software TPMs: making fresh state, reading the endorsement keys, and the command lines that serve it.
//!
//! Every instance gets state of its own, hence its own endorsement seed: KubeVirt's non-persistent TPM does the same.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::tpm::{self, Tpm};

/// How long making state may take on a busy machine; `swtpm_setup` needs about 0.1 s on an idle one.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why there is no software TPM.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be written.
    #[error("cannot prepare the vTPM's folder {path}: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A program is missing.
    #[error("cannot run {program}: {source}. It comes with: apt-get install swtpm swtpm-tools")]
    Missing {
        /// The program.
        program: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// swtpm_setup failed.
    #[error("swtpm_setup could not make vTPM state in {path}: {output}")]
    Setup {
        /// The folder.
        path: PathBuf,
        /// Its last words.
        output: String,
    },
    /// A program took too long.
    #[error("{0} did not answer within {PATIENCE:?}")]
    Slow(&'static str),
    /// The TPM did not answer as it should.
    #[error(transparent)]
    Tpm(#[from] tpm::Error),
}

/// Makes fresh TPM 2.0 state with RSA-2048 and P-384 endorsement keys and only the SHA-256 bank of PCRs.
///
/// No certificates: KubeVirt's throw-away authority proves nothing (`attestation.md`), and the authority that
/// `swtpm_setup` would make is shared by the whole host.
///
/// # Errors
/// The folder exists already, or swtpm_setup failed.
pub async fn manufacture(folder: &Path) -> Result<(), Error> {
    std::fs::create_dir(folder).map_err(|source| Error::Folder { path: folder.to_owned(), source })?;
    let run = Command::new("swtpm_setup")
        .args(["--tpm2", "--createek", "--pcr-banks", "sha256", "--config", "/dev/null", "--tpmstate"])
        .arg(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, run)
        .await
        .map_err(|_| Error::Slow("swtpm_setup"))?
        .map_err(|source| Error::Missing { program: "swtpm_setup", source })?;
    if !output.status.success() {
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        let output = said.lines().rev().take(3).collect::<Vec<_>>().join("; ");
        return Err(Error::Setup { path: folder.to_owned(), output });
    }
    Ok(())
}

/// Reads the endorsement digests from state that nothing serves yet, through an swtpm that ends with the question.
///
/// # Errors
/// swtpm did not start or did not answer.
pub async fn endorsement_digests(folder: &Path) -> Result<Vec<[u8; 32]>, Error> {
    let socket = folder.join("host.sock");
    let mut child = Command::new("swtpm")
        .args(data_arguments(folder, &socket))
        .arg("--terminate")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| Error::Missing { program: "swtpm", source })?;
    let asked = async {
        let mut tpm = listening(&socket).await?;
        let digests = tpm.endorsement_digests().await?;
        tpm.shut_down().await?;
        drop(tpm);
        // `--terminate` ends it once the connection is closed; what it writes on the way must be on disk before the
        // machine's own swtpm opens the state.
        child.wait().await.map_err(tpm::Error::Io)?;
        Ok(digests)
    };
    let digests = tokio::time::timeout(PATIENCE, asked).await.map_err(|_| Error::Slow("swtpm"))?;
    // The socket file stays behind when swtpm ends.
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::Folder { path: socket, source: error });
        }
        _ => {}
    }
    digests
}

/// Connects as soon as swtpm listens. Has no deadline of its own.
///
/// # Errors
/// The connection is refused for another reason than being early.
pub async fn listening(socket: &Path) -> Result<Tpm, tpm::Error> {
    loop {
        match Tpm::connect(socket).await {
            Err(tpm::Error::Io(error))
                if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused) =>
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            other => return other,
        }
    }
}

/// Arguments of `swtpm` for a machine: QEMU drives it through the control socket, and it ends with QEMU's connection.
pub fn machine_arguments(folder: &Path, control: &Path) -> Vec<String> {
    let mut args = base_arguments(folder);
    args.push("--ctrl".into());
    args.push(format!("type=unixio,path={},mode=0600", control.display()));
    args.push("--terminate".into());
    args
}

/// Arguments of `swtpm` for programs that send commands to the data socket themselves; started and ready at once.
pub fn data_arguments(folder: &Path, socket: &Path) -> Vec<String> {
    let mut args = base_arguments(folder);
    for (name, path) in [("--server", socket.display().to_string()), ("--ctrl", format!("{}.ctrl", socket.display()))] {
        args.push(name.into());
        args.push(format!("type=unixio,path={path},mode=0600"));
    }
    args.push("--flags".into());
    args.push("not-need-init,startup-clear".into());
    args
}

fn base_arguments(folder: &Path) -> Vec<String> {
    ["socket", "--tpm2", "--tpmstate"]
        .map(String::from)
        .into_iter()
        .chain([format!("dir={}", folder.display())])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn fresh_state_has_keys_of_its_own_that_last() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) = (root.path().join("one"), root.path().join("other"));
        manufacture(&one).await.unwrap();
        manufacture(&other).await.unwrap();
        let first = endorsement_digests(&one).await.unwrap();
        assert_eq!(first.len(), 3);
        assert_eq!(first, endorsement_digests(&one).await.unwrap(), "the keys come from the seed, not from chance");
        assert!(first.iter().all(|digest| !digest.eq(&[0; 32])));
        let second = endorsement_digests(&other).await.unwrap();
        assert!(first.iter().all(|digest| !second.contains(digest)));
        assert!(!one.join("host.sock").exists());
        assert!(matches!(manufacture(&one).await, Err(Error::Folder { .. })), "state is never made twice");
    }

    #[tokio::test]
    async fn a_guest_that_makes_the_default_key_shows_the_reported_one() {
        use banlieue_tpm::template::EndorsementKind;
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("tpm");
        manufacture(&folder).await.unwrap();
        let reported = endorsement_digests(&folder).await.unwrap();
        let socket = root.path().join("data.sock");
        let mut child = Command::new("swtpm")
            .args(data_arguments(&folder, &socket))
            .arg("--terminate")
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut tpm = listening(&socket).await.unwrap();
        assert!(tpm.clock_is_safe().await.unwrap(), "reading the keys left no disorderly end");
        for kind in [EndorsementKind::Rsa2048, EndorsementKind::P384, EndorsementKind::P256] {
            let made = tpm.primary(&kind.template()).await.unwrap();
            assert!(reported.contains(&made.key_digest().unwrap()), "{kind:?}");
        }
        tpm.extend(0, &[7; 32]).await.unwrap();
        let mut expected = [0; 32];
        expected.copy_from_slice(&banlieue_tpm::hash::sha256(&[&[0; 32], &[7; 32]]));
        assert_eq!(tpm.pcr(0).await.unwrap(), expected);
        drop(tpm);
        child.wait().await.unwrap();
    }
}
