//! The process outside the PID namespace: holds the lifeline's end, starts init, cleans up after it.
//!
//! It has one thread and no runtime: leaving for a new user namespace needs a process with a single thread, and a
//! thread that has left for a new PID namespace can start no threads.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{PidfdFlags, Signal, getgid, getuid, kill_process, pidfd_open, setsid};
use rustix::thread::UnshareFlags;

use crate::{DETACHED, KEEP_LOGS, LOG, SOCKET, shim};

/// How a supervisor is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster's directory: absolute, absent or empty. Everything in it is removed at the end.
    pub dir: PathBuf,
    /// End with standard input.
    pub lifeline: bool,
    /// Leave `*.log` when everything else is removed.
    pub keep_logs: bool,
}

/// Runs a supervisor from its first to its last moment and returns init's exit code.
///
/// # Errors
/// When the directory is not usable or the machine refuses namespaces; the text says what to do.
pub fn run(options: &Options) -> io::Result<i32> {
    claim(&options.dir)?;
    if options.keep_logs {
        fs::write(options.dir.join(KEEP_LOGS), "")?;
    }
    // A session of its own: neither ^C nor a closed terminal reaches the cluster, only the lifeline does. Fails
    // harmlessly when the starter made us a group leader already.
    let _ = setsid();
    enter_namespaces()?;
    let ended = watch(options);
    clean(&options.dir);
    ended
}

/// Takes an empty directory for our own, so that its removal at the end can hit nobody else's files.
fn claim(dir: &Path) -> io::Result<()> {
    let wrong = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {text}", dir.display()));
    if !dir.is_absolute() {
        return Err(wrong("the cluster's directory must be an absolute path"));
    }
    // 107 bytes is all that a socket's address holds; sockets of ours lie two levels deep.
    if dir.as_os_str().len() > 60 {
        return Err(wrong("the path is too long for the sockets in it: choose one of at most 60 bytes"));
    }
    fs::create_dir_all(dir)?;
    for entry in fs::read_dir(dir)? {
        if entry?.file_name() != LOG {
            return Err(wrong("the directory must be empty, for everything in it is removed at the end"));
        }
    }
    Ok(())
}

/// Makes the next child the first process of a new PID namespace. Someone who is not root gets a user namespace
/// around it, in which they are.
fn enter_namespaces() -> io::Result<()> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let ours = UnshareFlags::NEWPID | UnshareFlags::NEWNS;
    if uid == 0 {
        shim::unshare(ours)
    } else {
        shim::unshare(ours | UnshareFlags::NEWUSER).and_then(|()| {
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
            fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
        })
    }
    .map_err(|error| {
        let text = format!(
            "this machine does not let {} make PID namespaces ({error}): run as root, or allow unprivileged user \
             namespaces with `sysctl kernel.unprivileged_userns_clone=1`",
            if uid == 0 { "root" } else { "this user" }
        );
        io::Error::new(error.kind(), text)
    })
}

/// Starts init and stays until it or the lifeline ends.
fn watch(options: &Options) -> io::Result<i32> {
    let mut init = Command::new("/proc/self/exe")
        .arg("init")
        .arg("--dir")
        .arg(&options.dir)
        // Init ends with this pipe: the last resort should we die before it asked for our death signal.
        .stdin(Stdio::piped())
        .spawn()?;
    let pid = rustix::process::Pid::from_child(&init);
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    let lifeline = io::stdin();
    let mut scratch = [0_u8; 256];
    let mut lives_with_starter = options.lifeline;
    loop {
        let mut watched = vec![PollFd::new(&ended, PollFlags::IN)];
        if lives_with_starter {
            watched.push(PollFd::from_borrowed_fd(lifeline.as_fd(), PollFlags::IN));
        }
        match poll(&mut watched, None) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        if watched.first().is_some_and(|it| !it.revents().is_empty()) {
            break;
        }
        if watched.get(1).is_some_and(|it| !it.revents().is_empty())
            && !matches!(rustix::io::read(lifeline.as_fd(), &mut scratch), Ok(1..))
        {
            if options.dir.join(DETACHED).exists() {
                lives_with_starter = false;
                continue;
            }
            // The starter is gone or has let go. Killing the first process of the namespace kills all of them.
            kill_process(pid, Signal::KILL)?;
            break;
        }
    }
    // The kernel lets init be reaped only when its namespace is empty.
    let status = init.wait()?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// Removes the directory, or everything but log files in it. The socket goes last: whoever waits for the end watches it.
fn clean(dir: &Path) {
    let keep = dir.join(KEEP_LOGS).exists();
    let keeps = |path: &Path| path == dir.join(SOCKET) || keep && path.extension().is_some_and(|it| it == "log");
    let result = remove(dir, &keeps).and_then(|_| {
        match fs::remove_file(dir.join(SOCKET)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if keep { Ok(()) } else { fs::remove_dir(dir) }
    });
    if let Err(error) = result {
        eprintln!("cannot clean {}: {error}", dir.display());
    }
}

/// Removes what is in `dir` apart from files that are kept, and returns whether there were any.
fn remove(dir: &Path, keeps: &impl Fn(&Path) -> bool) -> io::Result<bool> {
    let mut kept = false;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        // What a process of the cluster has mounted here is let go, never emptied: it may be somebody else's.
        while is_mounted(&path)? {
            unmount(&path, UnmountFlags::DETACH)?;
        }
        if path.symlink_metadata()?.is_dir() {
            if remove(&path, keeps)? {
                kept = true;
            } else {
                fs::remove_dir(&path)?;
            }
        } else if keeps(&path) {
            kept = true;
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(kept)
}

/// Whether something is mounted on this very file or folder, seen from the cluster's mount namespace.
fn is_mounted(path: &Path) -> io::Result<bool> {
    let seen = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty())?;
    Ok(seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}
