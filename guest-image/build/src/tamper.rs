//! Dishonest variants of an image, for the demo and the tests: what attestation must refuse.

use thiserror::Error;

use crate::{
    build,
    cpio::{Entry, Node},
    disk, pe, tree,
};

/// Where the stub looks for credentials that lie beside the image (systemd-stub(7)).
pub const CREDENTIAL: &str = "EFI/BOOT/BOOTX64.EFI.extra.d/banlieue.cred";

/// Why no variant could be made.
#[derive(Debug, Error)]
pub enum Error {
    /// See [`disk::Error`].
    #[error(transparent)]
    Disk(#[from] disk::Error),
    /// See [`build::Error`].
    #[error(transparent)]
    Build(#[from] build::Error),
    /// See [`pe::Error`].
    #[error(transparent)]
    Executable(#[from] pe::Error),
    /// The initrd has no such file, or it is empty.
    #[error("the initrd has no file {0} to change")]
    NoFile(String),
}

/// `disk` with one bit of one byte changed in `file` of its initrd, packed again.
pub fn change_byte(disk: &[u8], file: &str) -> Result<Vec<u8>, Error> {
    let unified = disk::read(disk, disk::BOOT_FILE)?;
    let mut entries = build::unpack(pe::section(&unified, ".initrd")?)?;
    let changed = entries.iter_mut().find_map(|entry| match entry {
        Entry { path, node: Node::File(_, content) } if path == file => content.last_mut(),
        _ => None,
    });
    *changed.ok_or_else(|| Error::NoFile(file.to_owned()))? ^= 1;
    let initrd = build::pack(&entries)?;
    let unified = pe::replace_last(&unified, ".initrd", &initrd)?;
    Ok(disk::write(&[(disk::BOOT_FILE, &unified)])?)
}

/// The file that [`change_byte`] changes unless told otherwise: nothing runs it, so the guest boots as if honest.
pub const QUIET_FILE: &str = tree::OS_RELEASE;

/// `disk` with an honest image and a credential file beside it.
pub fn lay_credential(disk: &[u8]) -> Result<Vec<u8>, Error> {
    let unified = disk::read(disk, disk::BOOT_FILE)?;
    Ok(disk::write(&[(disk::BOOT_FILE, &unified), (CREDENTIAL, b"something nobody measured")])?)
}
