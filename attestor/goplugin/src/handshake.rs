//! The go-plugin handshake: cookie in the environment, one line on stdout, a unix socket.
//!
//! Source: `github.com/hashicorp/go-plugin` `docs/internals.md` and `server.go`, protocol version 1.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use rustix::fs::Mode;
use thiserror::Error;

/// SPIRE uses the plugin type as name and as value of the cookie.
const COOKIE: &str = "NodeAttestor";

/// The core protocol version of go-plugin and the version of SPIRE's plugin protocol.
const VERSIONS: &str = "1|1";

const SOCKET_PREFIX: &str = "banlieue-plugin-";
const SOCKET_SUFFIX: &str = ".sock";

/// Why the handshake could not be made.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The program was started by a person, not by SPIRE.
    #[error(
        "this is a SPIRE plugin and is started by SPIRE itself: name it under `plugin_cmd` in SPIRE's configuration \
         instead of running it by hand"
    )]
    NoCookie,
    /// The socket could not be made.
    #[error("cannot listen on the plugin socket {path}: {source}")]
    Listen {
        /// Where it should have been.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The line could not be written.
    #[error("cannot write the handshake line to stdout: {0}")]
    Line(io::Error),
}

/// Refuses to go on unless SPIRE started this process.
///
/// # Errors
/// [`HandshakeError::NoCookie`].
pub fn check_cookie() -> Result<(), HandshakeError> {
    match std::env::var(COOKIE) {
        Ok(value) if value == COOKIE => Ok(()),
        _ => Err(HandshakeError::NoCookie),
    }
}

/// The socket SPIRE talks to; its file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Listens on a new socket, mode 0600, in the folder go-plugin names or else in the temporary folder.
    ///
    /// # Errors
    /// [`HandshakeError::Listen`].
    pub fn bind() -> Result<(Self, std::os::unix::net::UnixListener), HandshakeError> {
        let dir = std::env::var_os("PLUGIN_UNIX_SOCKET_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        remove_orphans(&dir);
        let path = dir.join(format!("{SOCKET_PREFIX}{}{SOCKET_SUFFIX}", std::process::id()));
        let listen = |source| HandshakeError::Listen { path: path.clone(), source };
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(listen(error)),
            _ => {}
        }
        // The mode must be right from the first instant: a chmod after bind leaves a gap. No other thread runs yet,
        // so the changed umask is seen by nobody else.
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = std::os::unix::net::UnixListener::bind(&path);
        rustix::process::umask(before);
        let listener = bound.map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        Ok((Self { path: path.clone() }, listener))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells SPIRE where to connect. Must be the first thing on stdout.
    ///
    /// # Errors
    /// [`HandshakeError::Line`].
    pub fn announce(&self) -> Result<(), HandshakeError> {
        let mut out = io::stdout().lock();
        writeln!(out, "{VERSIONS}|unix|{}|grpc|", self.path.display())
            .and_then(|()| out.flush())
            .map_err(HandshakeError::Line)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the sockets of parents that were killed before they could: SPIRE kills its plugins when it dies itself.
fn remove_orphans(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(SOCKET_PREFIX)?.strip_suffix(SOCKET_SUFFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn sockets_of_dead_parents_are_removed_and_others_kept() {
        let dir = tempfile::tempdir().unwrap();
        // Process ids end at 2^22 on Linux, so this one never lives.
        let dead = dir.path().join("banlieue-plugin-4194999.sock");
        let own = dir.path().join(format!("banlieue-plugin-{}.sock", std::process::id()));
        let other = dir.path().join("unrelated.sock");
        for path in [&dead, &own, &other] {
            fs::write(path, b"").unwrap();
        }
        remove_orphans(dir.path());
        assert!(!dead.exists());
        assert!(own.exists());
        assert!(other.exists());
    }

    #[test]
    fn the_socket_is_private_and_goes_with_its_owner() {
        let (socket, _listener) = Socket::bind().unwrap();
        let path = socket.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(socket);
        assert!(!path.exists());
    }
}
