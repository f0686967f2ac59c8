//! Pod addresses: distinct, made up, 10.244.0.0/16. Nothing answers there; guests have networks of their own.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

/// Addresses of the range that are given out.
const ROOM: u32 = 65_000;
const BASE: u32 = u32::from_be_bytes([10, 244, 0, 0]);

/// Who has which address.
#[derive(Debug, Default)]
pub struct Addresses(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_pod: HashMap<String, Ipv4Addr>,
    last: u32,
}

impl Addresses {
    /// Notes an address that a pod already has.
    pub fn keep(&self, pod_uid: &str, address: Ipv4Addr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).by_pod.insert(pod_uid.to_owned(), address);
    }

    /// The pod's address; a free one at first. None when all are given out.
    pub fn of(&self, pod_uid: &str) -> Option<Ipv4Addr> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = table.by_pod.get(pod_uid) {
            return Some(*address);
        }
        for _ in 0..ROOM {
            // Onward from the last one, so that an address rests before it is used again.
            table.last = table.last % ROOM + 1;
            let address = Ipv4Addr::from(BASE + table.last);
            if !table.by_pod.values().any(|taken| *taken == address) {
                table.by_pod.insert(pod_uid.to_owned(), address);
                return Some(address);
            }
        }
        None
    }

    /// Gives a gone pod's address back.
    pub fn release(&self, pod_uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).by_pod.remove(pod_uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_stable_and_never_one_that_is_in_use() {
        let addresses = Addresses::default();
        addresses.keep("old", Ipv4Addr::new(10, 244, 0, 1));
        let first = addresses.of("a").unwrap();
        assert_eq!(first, Ipv4Addr::new(10, 244, 0, 2));
        assert_eq!(addresses.of("a"), Some(first));
        let second = addresses.of("b").unwrap();
        assert_ne!(second, first);
        addresses.release("a");
        assert_ne!(addresses.of("c"), Some(first), "an address rests before it is used again");
    }
}
