//! How many connections may be open at once: in all, and for each of those who hold them, so that nobody takes the place
//! of everybody.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
};

/// Seats for connections.
pub struct Seats<K: Eq + Hash> {
    most: usize,
    most_each: usize,
    taken: Mutex<Taken<K>>,
}

struct Taken<K> {
    all: usize,
    each: HashMap<K, usize>,
}

/// A seat; given back when dropped.
pub struct Seat<K: Eq + Hash> {
    seats: Arc<Seats<K>>,
    key: K,
}

/// Why there is no seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// All are taken.
    All,
    /// This one has as many as one may have.
    Own,
}

impl<K: Eq + Hash + Clone> Seats<K> {
    /// `most` in all, `most_each` for one.
    #[must_use]
    pub fn new(most: usize, most_each: usize) -> Arc<Self> {
        Arc::new(Self { most, most_each, taken: Mutex::new(Taken { all: 0, each: HashMap::new() }) })
    }

    /// Takes one.
    ///
    /// # Errors
    /// Why there is none.
    pub fn take(self: &Arc<Self>, key: K) -> Result<Seat<K>, Full> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.each.get(&key).is_some_and(|own| *own >= self.most_each) {
            return Err(Full::Own);
        }
        if taken.all >= self.most {
            return Err(Full::All);
        }
        taken.all += 1;
        *taken.each.entry(key.clone()).or_insert(0) += 1;
        Ok(Seat { seats: self.clone(), key })
    }
}

impl<K: Eq + Hash> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        if let Some(own) = taken.each.get_mut(&self.key) {
            *own -= 1;
            if *own == 0 {
                taken.each.remove(&self.key);
            }
        }
    }
}

/// Who counts as one by an address: one IPv4 address, or the network of an IPv6 address (/64), of which one host has as
/// many addresses as it likes.
#[must_use]
pub fn neighbour(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_the_place_of_everybody() {
        let seats = Seats::new(3, 2);
        let (a1, _a2) = (seats.take("a").unwrap(), seats.take("a").unwrap());
        assert_eq!(seats.take("a").err(), Some(Full::Own));
        let _b = seats.take("b").unwrap();
        assert_eq!(seats.take("c").err(), Some(Full::All));
        drop(a1);
        let c = seats.take("c").unwrap();
        assert_eq!(seats.take("a").err(), Some(Full::All));
        drop(c);
        assert!(seats.take("a").is_ok());
        assert_eq!(seats.taken.lock().unwrap().each.len(), 2, "who holds none is forgotten");
    }

    #[test]
    fn one_host_is_one_neighbour() {
        let of = |text: &str| neighbour(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
