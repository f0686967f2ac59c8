//! From programs and a kernel to a disk with its predictions.

use std::{io::Read, path::PathBuf};

use banlieue_policy::{
    Digest,
    document::{API_VERSION, Image, Program, Programs as Roles},
    record::{Predicted, Predictions},
};
use thiserror::Error;

use crate::{
    cpio::{self, Entry, Node},
    disk,
    kernel::Kernel,
    pe,
    predict::{self, Prediction},
    tree::{self, Programs},
};

/// The kernel's command line. It is measured, and a changed one is another image.
///
/// `panic=1`: when the first process dies, the kernel resets the machine. A reset counts in the vTPM, and a guest whose
/// count changed is refused for ever.
pub const COMMAND_LINE: &str = "console=ttyS0 quiet panic=1 rdinit=/usr/bin/banlieue-guest";
/// Enough to be small; higher levels cost minutes in a debug build for a few percent.
const ZSTD_LEVEL: i32 = 12;

/// What to build.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// Name of the image.
    pub name: String,
    /// Version of the image.
    pub version: String,
    /// systemd's EFI stub.
    pub stub: PathBuf,
    /// Programs that go in.
    pub programs: Programs,
    /// The kernel.
    pub kernel: Kernel,
}

/// An image in memory.
#[derive(Debug, Clone)]
pub struct Built {
    /// The bootable disk.
    pub disk: Vec<u8>,
    /// The unified kernel image on it.
    pub unified: Vec<u8>,
    /// What follows from it.
    pub predictions: Predictions,
}

/// Why an image could not be built.
#[derive(Debug, Error)]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// See [`tree::Error`].
    #[error(transparent)]
    Tree(#[from] tree::Error),
    /// See [`cpio::Error`].
    #[error(transparent)]
    Archive(#[from] cpio::Error),
    /// The compressor refused.
    #[error("cannot compress or expand the initrd: {0}")]
    Compress(std::io::Error),
    /// See [`pe::Error`].
    #[error(transparent)]
    Executable(#[from] pe::Error),
    /// See [`disk::Error`].
    #[error(transparent)]
    Disk(#[from] disk::Error),
}

/// Builds the image of `recipe`.
pub fn build(recipe: &Recipe) -> Result<Built, Error> {
    let read = |p: &PathBuf| std::fs::read(p).map_err(|e| Error::Read(p.clone(), e));
    let os_release = tree::os_release(&recipe.name, &recipe.version);
    let entries = tree::entries(&recipe.programs, &recipe.kernel, &os_release)?;
    let initrd = pack(&entries)?;
    let unified = unify(&read(&recipe.stub)?, &read(&recipe.kernel.image)?, &initrd, &os_release)?;
    let disk = disk::write(&[(disk::BOOT_FILE, &unified)])?;

    let Prediction { boot, handed, sections } = predict::predict(&unified)?;
    let pcrs = [(4, boot), (9, handed), (11, sections)];
    let predictions = Predictions {
        api_version: API_VERSION.to_owned(),
        image: Image {
            name: recipe.name.clone(),
            version: recipe.version.clone(),
            digest: format!("sha256:{}", crate::sha256_hex(&disk)),
        },
        pcrs: pcrs.into_iter().map(|(pcr, value)| (pcr, Predicted { digest: Digest(value) })).collect(),
        programs: Roles { node: program(&entries, tree::GUEST), egress: None },
    };
    Ok(Built { disk, unified, predictions })
}

/// The unified kernel image of these parts.
pub fn unify(stub: &[u8], kernel: &[u8], initrd: &[u8], os_release: &str) -> Result<Vec<u8>, Error> {
    let sections: [(&str, &[u8]); 4] = [
        (".osrel", os_release.as_bytes()),
        (".cmdline", COMMAND_LINE.as_bytes()),
        (".linux", kernel),
        (".initrd", initrd),
    ];
    Ok(pe::append(stub, &sections)?)
}

/// The initrd of `entries`: an archive, compressed, padded to 4 bytes as the stub would pad it.
pub fn pack(entries: &[Entry]) -> Result<Vec<u8>, Error> {
    let mut packed = zstd::bulk::compress(&cpio::write(entries)?, ZSTD_LEVEL).map_err(Error::Compress)?;
    packed.resize(packed.len().next_multiple_of(4), 0);
    Ok(packed)
}

/// What [`pack`] packed.
pub fn unpack(initrd: &[u8]) -> Result<Vec<Entry>, Error> {
    let mut archive = Vec::new();
    // One frame: what follows it is padding.
    let decoder = zstd::stream::read::Decoder::new(initrd).map_err(Error::Compress)?.single_frame();
    { decoder }.read_to_end(&mut archive).map_err(Error::Compress)?;
    Ok(cpio::read(&archive)?)
}

fn program(entries: &[Entry], path: &str) -> Program {
    let content = entries.iter().find_map(|e| match &e.node {
        Node::File(_, content) if e.path == path => Some(content.as_slice()),
        _ => None,
    });
    Program { path: format!("/{path}"), sha256: Digest::of(content.unwrap_or_default()), uid: 0 }
}
