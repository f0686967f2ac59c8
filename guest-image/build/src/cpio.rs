//! The initrd's archive: the kernel's `newc` cpio format (Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! What is written depends on the entries alone: owner root, time 0, inodes counted from 1, entries in the order given.

use thiserror::Error;

/// One thing in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path without a leading slash.
    pub path: String,
    /// What it is.
    pub node: Node,
}

/// The kinds of thing the image needs; devices come from devtmpfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A directory, with its permission bits.
    Dir(u32),
    /// A file: permission bits and content.
    File(u32, Vec<u8>),
    /// A symbolic link and where it points.
    Link(String),
}

/// Why an archive could not be read or written.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The bytes end inside an entry, or a field is not hexadecimal.
    #[error("cannot read the initrd archive: entry at byte {0} is malformed")]
    Malformed(usize),
    /// The format has 32-bit sizes.
    #[error("cannot put {0} in the initrd: it is larger than 4 GiB")]
    TooLarge(String),
}

const MAGIC: &[u8] = b"070701";
const HEADER: usize = 110;
const TRAILER: &str = "TRAILER!!!";
const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const TYPE: u32 = 0o170_000;

/// The archive of `entries`, in their order, padded to 512 bytes as cpio itself does.
pub fn write(entries: &[Entry]) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    for (i, e) in entries.iter().enumerate() {
        let (mode, data) = match &e.node {
            Node::Dir(mode) => (DIR | mode, &[][..]),
            Node::File(mode, data) => (FILE | mode, data.as_slice()),
            Node::Link(to) => (LINK | 0o777, to.as_bytes()),
        };
        put(&mut out, i + 1, mode, &e.path, data)?;
    }
    put(&mut out, 0, 0, TRAILER, &[])?;
    pad(&mut out, 512);
    Ok(out)
}

fn put(out: &mut Vec<u8>, inode: usize, mode: u32, name: &str, data: &[u8]) -> Result<(), Error> {
    let large = || Error::TooLarge(name.to_owned());
    let size = u32::try_from(data.len()).map_err(|_| large())?;
    let inode = u32::try_from(inode).map_err(|_| large())?;
    let name_size = u32::try_from(name.len() + 1).map_err(|_| large())?;
    let links = if mode & TYPE == DIR { 2 } else { 1 };
    // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
    let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
    out.extend_from_slice(MAGIC);
    for f in fields {
        out.extend_from_slice(format!("{f:08X}").as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    pad(out, 4);
    out.extend_from_slice(data);
    pad(out, 4);
    Ok(())
}

fn pad(out: &mut Vec<u8>, to: usize) {
    out.resize(out.len().next_multiple_of(to), 0);
}

/// Reads an archive that [`write`] made; other node types are malformed.
pub fn read(bytes: &[u8]) -> Result<Vec<Entry>, Error> {
    let mut at = 0;
    let mut entries = Vec::new();
    loop {
        let bad = Error::Malformed(at);
        let header = bytes.get(at..at + HEADER).ok_or(bad)?;
        let field = |n: usize| -> Result<usize, Error> {
            let from = MAGIC.len() + n * 8;
            let hex = header.get(from..from + 8).and_then(|h| std::str::from_utf8(h).ok());
            let value = hex.and_then(|h| u32::from_str_radix(h, 16).ok()).ok_or(Error::Malformed(at))?;
            Ok(value as usize)
        };
        if !header.starts_with(MAGIC) {
            return Err(Error::Malformed(at));
        }
        let (mode, size, name_size) = (field(1)? as u32, field(6)?, field(11)?);
        let name_at = at + HEADER;
        let name = bytes.get(name_at..name_at + name_size).and_then(|n| n.strip_suffix(&[0]));
        let name = name.and_then(|n| std::str::from_utf8(n).ok()).ok_or(Error::Malformed(at))?;
        let data_at = (name_at + name_size).next_multiple_of(4);
        let data = bytes.get(data_at..data_at + size).ok_or(Error::Malformed(at))?;
        if name == TRAILER {
            return Ok(entries);
        }
        let node = match mode & TYPE {
            DIR => Node::Dir(mode & !TYPE),
            FILE => Node::File(mode & !TYPE, data.to_vec()),
            LINK => Node::Link(String::from_utf8(data.to_vec()).map_err(|_| Error::Malformed(at))?),
            _ => return Err(Error::Malformed(at)),
        };
        entries.push(Entry { path: name.to_owned(), node });
        at = (data_at + size).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Entry> {
        vec![
            Entry { path: "etc".into(), node: Node::Dir(0o755) },
            Entry { path: "etc/os-release".into(), node: Node::File(0o644, b"ID=banlieue\n".to_vec()) },
            Entry { path: "lib".into(), node: Node::Link("usr/lib".into()) },
        ]
    }

    #[test]
    fn reads_what_it_wrote() {
        assert_eq!(read(&write(&sample()).unwrap()).unwrap(), sample());
    }

    #[test]
    fn cpio_agrees() {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("a.cpio");
        std::fs::write(&archive, write(&sample()).unwrap()).unwrap();
        let out = std::process::Command::new("cpio")
            .args(["-itv", "--quiet", "-F"])
            .arg(&archive)
            .output()
            .expect("cpio is missing: apt-get install cpio");
        let list = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(list.contains("drwxr-xr-x"), "{list}");
        assert!(list.contains("lib -> usr/lib"), "{list}");
        assert_eq!(list.lines().count(), 3);
    }

    #[test]
    fn cut_anywhere_is_an_error() {
        let whole = write(&sample()).unwrap();
        let end = whole.len() - 512;
        for cut in 0..end {
            assert!(read(&whole[..cut]).is_err(), "cut at {cut}");
        }
    }
}
