//! The first process of the namespace: spawns, reaps, answers on the control socket.

mod serve;
mod table;

use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::{SOCKET, TMP};
use table::Table;

/// Runs until it is told to end, its keeper ends or it is killed; then the kernel ends everything else.
///
/// # Errors
/// When `/proc` cannot be mounted or the control socket cannot be opened.
pub fn run(dir: &Path) -> io::Result<()> {
    // Both while there is one thread. The signal comes when the keeper's only thread ends, which is the keeper's end.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    std::thread::spawn(|| {
        // Ends only when the keeper does; it never writes.
        let _ = io::stdin().read(&mut [0_u8; 1]);
        std::process::exit(0);
    });
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(supervise(dir))
}

async fn supervise(dir: &Path) -> io::Result<()> {
    let tmp = dir.join(TMP);
    std::fs::create_dir_all(&tmp)?;
    // Open to everybody and sticky, like /tmp: processes may run as other users.
    std::fs::set_permissions(&tmp, std::fs::Permissions::from_mode(0o1777))?;
    let table = Arc::new(Table::new(dir));
    let mut children = signal(SignalKind::child())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = UnixListener::bind(dir.join(SOCKET))?;
    tracing::info!(dir = %dir.display(), "ready");
    loop {
        tokio::select! {
            _ = children.recv() => table.reap(),
            _ = terminate.recv() => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let table = Arc::clone(&table);
                    tokio::spawn(async move { serve::connection(stream, &table).await });
                }
                Err(error) => tracing::warn!(%error, "cannot accept a connection"),
            },
        }
    }
}
