//! What evidence is made of besides the TPM: the seed, the event log, the boot id. All read with bounds.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use banlieue_protocol::{
    log_codec::MAX_LOG,
    names::{NameError, Uid},
    seed::{MAX_BYTES, Seed, SeedError, SeedMap, seed_digest},
};
use thiserror::Error;

/// Why an input cannot be used.
#[derive(Debug, Error)]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// A file has more bytes than any honest one.
    #[error("{0} has more than {1} bytes")]
    TooLarge(PathBuf, usize),
    /// The folder holds no seed.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// The boot id is no UUID.
    #[error("the boot id in {0} is wrong: {1}")]
    BootId(PathBuf, NameError),
}

fn read_bounded(path: &Path, most: usize) -> Result<Vec<u8>, Error> {
    let fail = |e| Error::Read(path.to_owned(), e);
    let mut bytes = Vec::new();
    // Files of securityfs and procfs show size 0, so only reading tells.
    File::open(path).and_then(|f| f.take(most as u64 + 1).read_to_end(&mut bytes)).map_err(fail)?;
    if bytes.len() > most {
        return Err(Error::TooLarge(path.to_owned(), most));
    }
    Ok(bytes)
}

/// The seed in `folder`, and the digest of exactly the bytes it was read from.
pub fn seed(folder: &Path) -> Result<(Seed, [u8; 32]), Error> {
    let fail = |e| Error::Read(folder.to_owned(), e);
    let mut map = SeedMap::new();
    let mut left = MAX_BYTES;
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let content = read_bounded(&entry.path(), left)?;
        left -= content.len();
        map.insert(entry.file_name().to_string_lossy().into_owned(), content);
    }
    Ok((Seed::parse(&map)?, seed_digest(&map)))
}

/// The event log as the kernel shows it.
pub fn event_log(path: &Path) -> Result<Vec<u8>, Error> {
    read_bounded(path, MAX_LOG)
}

/// The id of this boot.
pub fn boot_id(path: &Path) -> Result<Uid, Error> {
    let bytes = read_bounded(path, 64)?;
    Uid::parse(String::from_utf8_lossy(&bytes).trim()).map_err(|e| Error::BootId(path.to_owned(), e))
}
