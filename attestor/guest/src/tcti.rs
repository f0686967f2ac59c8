//! How the TPM is reached: a TCTI string of TSS 2.0, with one form that `tss-esapi` 7 cannot say.
//!
//! The library takes `swtpm:path=SOCKET` (SOCKET for commands, SOCKET.ctrl for control), but `tss-esapi` only passes
//! host and port on. For this form two loopback ports are opened that lead to the two sockets, for as long as the
//! TPM is in use. It serves a vTPM beside the agent on one machine; in a VM the TPM is a device.

use std::{
    io,
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use thiserror::Error;
use tss_esapi::TctiNameConf;

/// Why a TPM cannot be reached.
#[derive(Debug, Error)]
pub enum Error {
    /// The string is no TCTI configuration.
    #[error("{0:?} names no TPM: give device:/dev/tpmrm0 or swtpm:path=/socket")]
    Config(String),
    /// The two ports could not be opened.
    #[error("cannot open two neighbouring loopback ports: {0}")]
    Ports(io::Error),
}

/// A TPM's address, ready for TSS. Keep it as long as the TPM is in use.
#[derive(Debug)]
pub struct Tcti {
    /// What to give to TSS.
    pub name: TctiNameConf,
    relay: Option<Relay>,
}

impl Tcti {
    /// Whether no resource manager stands between this program and the TPM. Nobody else makes keys in it then: there
    /// is room for three.
    pub fn is_ours_alone(&self) -> bool {
        self.relay.is_some()
    }
}

/// How often to look for two free neighbouring ports.
const TRIES: usize = 64;

/// Reads `config`; opens the relay when it is of the form `swtpm:path=`.
pub fn open(config: &str) -> Result<Tcti, Error> {
    let wrong = || Error::Config(config.to_owned());
    let Some(path) = config.strip_prefix("swtpm:path=") else {
        return TctiNameConf::from_str(config).map(|name| Tcti { name, relay: None }).map_err(|_| wrong());
    };
    let relay = Relay::open(Path::new(path)).map_err(Error::Ports)?;
    let name = TctiNameConf::from_str(&format!("swtpm:host=127.0.0.1,port={}", relay.ports[0])).map_err(|_| wrong())?;
    Ok(Tcti { name, relay: Some(relay) })
}

/// Two ports, P to a socket and P+1 to the control socket beside it, until dropped.
#[derive(Debug)]
struct Relay {
    ports: [u16; 2],
    stop: Arc<AtomicBool>,
}

impl Relay {
    fn open(socket: &Path) -> io::Result<Self> {
        let mut control = socket.as_os_str().to_owned();
        control.push(".ctrl");
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..TRIES {
            match neighbours() {
                Ok((port, first, second)) => {
                    let stop = Arc::new(AtomicBool::new(false));
                    serve(first, socket.to_owned(), stop.clone());
                    serve(second, PathBuf::from(control), stop.clone());
                    return Ok(Self { ports: [port, port.saturating_add(1)], stop });
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the two threads up, so that they see it.
        for port in self.ports {
            let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        }
    }
}

fn neighbours() -> io::Result<(u16, TcpListener, TcpListener)> {
    let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = first.local_addr()?.port();
    let next = port.checked_add(1).ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((port, first, TcpListener::bind((Ipv4Addr::LOCALHOST, next))?))
}

/// One connection after the other: the library opens one for each command, and swtpm serves one at a time.
fn serve(listener: TcpListener, to: PathBuf, stop: Arc<AtomicBool>) {
    thread::spawn(move || {
        for near in listener.incoming() {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            if let Err(error) = near.and_then(|near| carry(near, UnixStream::connect(&to)?)) {
                tracing::warn!(socket = %to.display(), %error, "cannot reach the vTPM");
            }
        }
    });
}

/// Copies both ways until one side closes.
fn carry(near: TcpStream, far: UnixStream) -> io::Result<()> {
    near.set_nodelay(true)?;
    let (mut near_in, mut far_out) = (near.try_clone()?, far.try_clone()?);
    let back = thread::spawn(move || {
        let (mut far_in, mut near_out) = (&far, &near);
        let copied = io::copy(&mut far_in, &mut near_out);
        let _ = near.shutdown(Shutdown::Both);
        copied
    });
    let there = io::copy(&mut near_in, &mut far_out);
    let _ = far_out.shutdown(Shutdown::Both);
    let _ = back.join();
    there.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_tpm() {
        for config in ["", "/dev/tpm0", "swtpm", "tpm:x"].into_iter().filter(|c| *c != "swtpm") {
            assert!(matches!(open(config), Err(Error::Config(_))), "{config}");
        }
        assert!(open("device:/dev/tpmrm0").is_ok());
    }
}
