//! What is in the initrd: the whole system, as a sorted list of entries.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use thiserror::Error;

use crate::{
    cpio::{Entry, Node},
    kernel::Kernel,
    libraries, modules,
};

/// The first process and guest agent.
pub const GUEST: &str = "usr/bin/banlieue-guest";
/// The guest half of attestation, started by the SPIRE agent.
pub const ATTESTOR_GUEST: &str = "usr/bin/banlieue-attestor-guest";
/// The SPIRE agent.
pub const SPIRE_AGENT: &str = "usr/bin/spire-agent";
/// Names of the module files below `usr/lib/modules`, one a line, in the order to load them.
pub const MODULES_LOAD: &str = "usr/lib/modules/load";
/// Describes the image to people and tools; its text is also the `.osrel` section.
pub const OS_RELEASE: &str = "etc/os-release";

/// Programs that go into the image.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `spire-agent`, statically linked.
    pub spire_agent: PathBuf,
    /// `banlieue-guest`.
    pub guest: PathBuf,
    /// `banlieue-attestor-guest`.
    pub attestor_guest: PathBuf,
}

/// Why the tree could not be put together.
#[derive(Debug, Error)]
pub enum Error {
    /// A file to copy could not be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// binutils' strip failed.
    #[error("cannot strip {0}: {1} (package binutils)")]
    Strip(PathBuf, String),
    /// See [`modules::Error`].
    #[error(transparent)]
    Modules(#[from] modules::Error),
    /// See [`libraries::Error`].
    #[error(transparent)]
    Libraries(#[from] libraries::Error),
}

/// Loaded by libtss2-tctildr with dlopen, so no ELF header names it.
pub const OPENED: &[&str] = &["libtss2-tcti-device.so.0"];

const FOLDERS: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("usr/bin", 0o755),
    ("usr/lib", 0o755),
    ("usr/lib/modules", 0o755),
    ("usr/lib/x86_64-linux-gnu", 0o755),
    ("usr/lib64", 0o755),
];

const LINKS: &[(&str, &str)] = &[("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"), ("sbin", "usr/bin")];

/// Fixed text files. No shell, no login: the accounts exist for programs that look a uid up.
const TEXTS: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/root:/nonexistent\nnobody:x:65534:65534:nobody:/nonexistent:/nonexistent\n"),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
];

/// The text of `/etc/os-release` (os-release(5)).
pub fn os_release(name: &str, version: &str) -> String {
    format!(
        "ID=banlieue\nNAME=banlieue\nVARIANT_ID={name}\nVERSION_ID={version}\nPRETTY_NAME=\"banlieue {name} {version}\"\n"
    )
}

/// The initrd's entries, sorted by path so that folders come before what is in them.
pub fn entries(programs: &Programs, kernel: &Kernel, os_release: &str) -> Result<Vec<Entry>, Error> {
    let mut tree: BTreeMap<String, Node> = BTreeMap::new();
    tree.extend(FOLDERS.iter().map(|(p, mode)| ((*p).to_owned(), Node::Dir(*mode))));
    tree.extend(LINKS.iter().map(|(p, to)| ((*p).to_owned(), Node::Link((*to).to_owned()))));
    tree.extend(TEXTS.iter().map(|(p, text)| ((*p).to_owned(), Node::File(0o644, text.as_bytes().to_vec()))));
    tree.insert(OS_RELEASE.to_owned(), Node::File(0o644, os_release.as_bytes().to_vec()));

    tree.insert(SPIRE_AGENT.to_owned(), Node::File(0o755, read(&programs.spire_agent)?));
    tree.insert(GUEST.to_owned(), Node::File(0o755, stripped(&programs.guest)?));
    tree.insert(ATTESTOR_GUEST.to_owned(), Node::File(0o755, stripped(&programs.attestor_guest)?));

    let linked = [programs.guest.as_path(), programs.attestor_guest.as_path(), programs.spire_agent.as_path()];
    for (path, file) in libraries::closure(&linked, OPENED)? {
        tree.insert(path, Node::File(0o755, read(&file)?));
    }

    let mut load = String::new();
    for (name, file) in modules::resolve(&kernel.modules, modules::WANTED)? {
        load.push_str(&format!("{name}.ko\n"));
        tree.insert(format!("usr/lib/modules/{name}.ko"), Node::File(0o644, read(&file)?));
    }
    tree.insert(MODULES_LOAD.to_owned(), Node::File(0o644, load.into_bytes()));
    Ok(tree.into_iter().map(|(path, node)| Entry { path, node }).collect())
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|e| Error::Read(path.to_owned(), e))
}

/// The program without symbols and debugging information, which nothing in the guest reads.
fn stripped(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |e: String| Error::Strip(path.to_owned(), e);
    let out = tempfile::NamedTempFile::new().map_err(|e| failed(e.to_string()))?;
    let run = Command::new("strip").arg("--strip-all").arg("-o").arg(out.path()).arg(path).output();
    let run = run.map_err(|e| failed(e.to_string()))?;
    if !run.status.success() {
        return Err(failed(String::from_utf8_lossy(&run.stderr).trim().to_owned()));
    }
    read(out.path())
}
