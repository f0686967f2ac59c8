//! The seed volume: found by its disk's serial, read once, checked strictly, unmounted.

use std::{
    fs::{DirBuilder, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use banlieue_protocol::seed::{DISK_SERIAL, MAX_BYTES, RECORD_MEASUREMENTS, Seed, SeedError, SeedMap};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use thiserror::Error;

/// Where the seed's files lie for the attestation plugin: a folder of root's alone, in memory.
pub const SEED: &str = "/run/banlieue/seed";
const MOUNT_POINT: &str = "/run/banlieue/volume";
/// A disk may show up a moment after its driver.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no seed.
#[derive(Debug, Error)]
pub enum Error {
    /// No disk carries the serial.
    #[error("no disk has the serial {DISK_SERIAL}: the instance has no seed volume")]
    NoVolume,
    /// The volume could not be mounted or unmounted.
    #[error("cannot {0} the seed volume: {1}")]
    Mount(&'static str, rustix::io::Errno),
    /// A file of it could not be read or copied.
    #[error("cannot read or copy the seed's {0}: {1}")]
    File(String, std::io::Error),
    /// It holds something other than the seed's files.
    #[error("the seed volume holds {0}, which is no file of a seed")]
    Foreign(String),
    /// Its content is not a seed.
    #[error(transparent)]
    Seed(#[from] SeedError),
}

/// What a volume asks for.
#[derive(Debug)]
pub enum Volume {
    /// Print what was measured, then power off.
    Record,
    /// Enrol as this member.
    Enrol(Box<Seed>),
}

/// Finds, reads and checks the volume; leaves a seed's files in [`SEED`].
pub fn read() -> Result<Volume, Error> {
    let device = find()?;
    let folder = |path: &str| {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|e| Error::File(path.to_owned(), e))
    };
    folder(MOUNT_POINT)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(&device, MOUNT_POINT, "iso9660", flags, c"").map_err(|e| Error::Mount("mount", e))?;
    let files = collect(Path::new(MOUNT_POINT));
    unmount(MOUNT_POINT, UnmountFlags::empty()).map_err(|e| Error::Mount("unmount", e))?;
    let files = files?;
    if files.keys().eq([RECORD_MEASUREMENTS]) {
        return Ok(Volume::Record);
    }
    let seed = Seed::parse(&files)?;
    folder(SEED)?;
    for (name, content) in &files {
        let fail = |e| Error::File(name.clone(), e);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(Path::new(SEED).join(name))
            .map_err(fail)?;
        file.write_all(content).map_err(fail)?;
    }
    Ok(Volume::Enrol(Box::new(seed)))
}

/// The seed that [`read`] left, for the guest agent.
///
/// # Errors
/// It is not there any more, or was changed.
pub fn kept() -> Result<Seed, Error> {
    Ok(Seed::parse(&collect(Path::new(SEED))?)?)
}

fn find() -> Result<PathBuf, Error> {
    let start = Instant::now();
    loop {
        if let Some(found) = with_serial(Path::new("/sys/block"), DISK_SERIAL) {
            return Ok(Path::new("/dev").join(found));
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::NoVolume);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The name of the block device below `sys` that has this serial (virtio_blk shows it as an attribute).
fn with_serial(sys: &Path, serial: &str) -> Option<std::ffi::OsString> {
    let listing = std::fs::read_dir(sys).ok()?;
    let mut names: Vec<_> = listing.filter_map(|e| e.ok().map(|e| e.file_name())).collect();
    names.sort();
    names
        .into_iter()
        .find(|n| std::fs::read_to_string(sys.join(n).join("serial")).is_ok_and(|found| found.trim() == serial))
}

/// Every file of `folder`: regular files only, at most a seed's worth of bytes. The sizes are the volume's word, so
/// reading is bounded, not trusted.
fn collect(folder: &Path) -> Result<SeedMap, Error> {
    let all = |e| Error::File(folder.display().to_string(), e);
    let mut files = SeedMap::new();
    let mut left = MAX_BYTES as u64 + 1;
    for entry in std::fs::read_dir(folder).map_err(all)? {
        let entry = entry.map_err(all)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let fail = |e| Error::File(name.clone(), e);
        if !entry.file_type().map_err(fail)?.is_file() {
            return Err(Error::Foreign(name));
        }
        let mut content = Vec::new();
        let file = std::fs::File::open(entry.path()).map_err(fail)?;
        let read = file.take(left).read_to_end(&mut content).map_err(fail)?;
        left = left.saturating_sub(read as u64);
        if left == 0 {
            return Err(SeedError::TooLarge.into());
        }
        files.insert(name, content);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_disk_by_its_serial_alone() {
        let sys = tempfile::tempdir().unwrap();
        for (disk, serial) in [("vda", Some("OTHER")), ("vdb", None), ("vdc", Some("BANLIEUE-ENROL\n"))] {
            std::fs::create_dir(sys.path().join(disk)).unwrap();
            if let Some(serial) = serial {
                std::fs::write(sys.path().join(disk).join("serial"), serial).unwrap();
            }
        }
        assert_eq!(with_serial(sys.path(), DISK_SERIAL).unwrap(), "vdc");
        assert_eq!(with_serial(sys.path(), "NOBODY"), None);
    }

    #[test]
    fn refuses_folders_links_and_floods() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("member"), "m").unwrap();
        assert_eq!(collect(dir.path()).unwrap().len(), 1);
        std::fs::write(dir.path().join("bundle.pem"), vec![b'a'; MAX_BYTES]).unwrap();
        assert!(matches!(collect(dir.path()), Err(Error::Seed(SeedError::TooLarge))));
        std::fs::remove_file(dir.path().join("bundle.pem")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("broker")).unwrap();
        assert!(matches!(collect(dir.path()), Err(Error::Foreign(_))));
    }
}
