//! The moment between fork and a process's own program: mounts, identity, then exec.
//!
//! A separate step of the same binary, because it needs system calls between fork and exec that safe Rust offers only
//! in an ordinary process.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind_recursive, mount_change, mount_remount};
use rustix::process::{Gid, Uid};
use rustix::thread::{UnshareFlags, set_thread_gid, set_thread_groups, set_thread_uid, unshare_unsafe};

use crate::Spec;

/// Becomes the program of `spec`. Returns only when that failed.
///
/// The caller must be single-threaded: identity is set for the calling thread.
#[must_use]
pub fn exec(spec: &Spec) -> io::Error {
    match prepare(spec) {
        Ok(()) => {}
        Err(error) => return error,
    }
    let Some((program, arguments)) = spec.argv.split_first() else {
        return io::Error::new(io::ErrorKind::InvalidInput, "argv is empty");
    };
    let error = Command::new(program).args(arguments).exec();
    io::Error::new(error.kind(), format!("cannot run {program}: {error}"))
}

fn prepare(spec: &Spec) -> io::Result<()> {
    if spec.unshare_mount || !spec.binds.is_empty() {
        own_mounts()?;
        for bind in &spec.binds {
            show(&bind.source, &bind.target, bind.read_only)?;
        }
    }
    if let Some(uid) = spec.uid {
        let gid = Gid::from_raw(spec.gid.unwrap_or(uid));
        // Groups before user: afterwards the right to change them is gone.
        set_thread_groups(&[gid])?;
        set_thread_gid(gid)?;
        set_thread_uid(Uid::from_raw(uid))?;
    } else if let Some(gid) = spec.gid {
        set_thread_gid(Gid::from_raw(gid))?;
    }
    Ok(())
}

/// Leaves the mount namespace of the parent for a copy of it, whose later mounts nobody else sees.
///
/// # Errors
/// What the kernel says.
pub fn own_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    Ok(())
}

/// `unshare(2)` for namespaces only.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: the one hazard is a file table that other threads no longer share, and FILES is not among the flags.
    #[allow(unsafe_code)]
    unsafe {
        unshare_unsafe(flags)?;
    }
    Ok(())
}

fn show(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    let explain = |error: rustix::io::Errno| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("cannot mount {} on {}: {error}", source.display(), target.display()))
    };
    mount_bind_recursive(source, target).map_err(explain)?;
    if read_only {
        // The kernel ignores read-only on the bind itself; it takes a second call. Inherited restrictions must be
        // repeated in it, or a user namespace refuses to "loosen" them.
        let inherited = rustix::fs::statvfs(target).map_err(explain)?.f_flag;
        let mut flags = MountFlags::BIND | MountFlags::RDONLY;
        for (seen, flag) in [
            (rustix::fs::StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
            (rustix::fs::StatVfsMountFlags::NODEV, MountFlags::NODEV),
            (rustix::fs::StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        ] {
            if inherited.contains(seen) {
                flags |= flag;
            }
        }
        mount_remount(target, flags, "").map_err(explain)?;
    }
    Ok(())
}
