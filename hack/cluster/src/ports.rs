//! Ports on 127.0.0.1 that stay free until the program they are meant for has taken them.
//!
//! Two races are closed. Between clusters: each number is reserved machine-wide by an abstract socket of that name,
//! which vanishes with its holder. Against outgoing connections: the numbers lie below the range that the kernel gives
//! to those. What is left, a foreign server that takes a port in between, shows as "address already in use" and is
//! answered with another port.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};

const FIRST: u16 = 20_000;
const LAST: u16 = 32_000;

/// The ports that one cluster holds.
#[derive(Debug)]
pub(crate) struct Ports {
    next: AtomicU16,
    reservations: Mutex<Vec<UnixListener>>,
}

impl Ports {
    /// Starts looking at a place of its own, so that clusters that start together seldom meet.
    pub fn new() -> Self {
        let start = FIRST + rand::random::<u16>() % (LAST - FIRST);
        Self { next: AtomicU16::new(start), reservations: Mutex::default() }
    }

    /// A port that nobody listens on and no other cluster was given.
    pub fn take(&self) -> Result<u16> {
        for _ in FIRST..LAST {
            let port = self.next.fetch_add(1, Ordering::Relaxed);
            if port >= LAST {
                self.next.store(FIRST, Ordering::Relaxed);
            }
            let Some(reservation) = reserve(port) else { continue };
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                self.reservations.lock().unwrap_or_else(PoisonError::into_inner).push(reservation);
                return Ok(port);
            }
        }
        Err(Error::Ports { first: FIRST, last: LAST })
    }
}

fn reserve(port: u16) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("banlieue/port/{port}")).ok()?;
    UnixListener::bind_addr(&name).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let (one, two) = (Ports::new(), Ports::new());
        two.next.store(one.next.load(Ordering::Relaxed), Ordering::Relaxed);
        let taken: HashSet<u16> = (0..50).flat_map(|_| [one.take().unwrap(), two.take().unwrap()]).collect();
        assert_eq!(taken.len(), 100);
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let ports = Ports::new();
        let next = ports.next.load(Ordering::Relaxed);
        let Ok(_held) = TcpListener::bind(("127.0.0.1", next)) else { return };
        assert_ne!(ports.take().unwrap(), next);
    }
}
