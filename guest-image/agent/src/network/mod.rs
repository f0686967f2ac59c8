//! The network: one Ethernet card, its IPv4 address from DHCP.
//!
//! - [`dhcp`]: the exchange, as a value-in value-out machine, and the socket that carries it.
//! - [`netlink`]: link, address and route, told to the kernel.

pub mod dhcp;
pub mod netlink;

use std::{
    net::Ipv4Addr,
    path::Path,
    time::{Duration, Instant},
};

use thiserror::Error;

use crate::console;
use dhcp::Lease;

/// Why there is no network.
#[derive(Debug, Error)]
pub enum Error {
    /// No Ethernet card showed up.
    #[error("no network card was found")]
    NoCard,
    /// Nobody answered in time.
    #[error("no DHCP server gave an address within {0:?}")]
    NoLease(Duration),
    /// See [`dhcp::Error`].
    #[error(transparent)]
    Dhcp(#[from] dhcp::Error),
    /// See [`netlink::Error`].
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// The resolver's configuration could not be written.
    #[error("cannot write /etc/resolv.conf: {0}")]
    Resolver(std::io::Error),
}

/// How long to wait for a card and a first lease.
const PATIENCE: Duration = Duration::from_secs(60);

/// An Ethernet card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// Hardware address.
    pub address: [u8; 6],
}

/// Brings the first card up and gives it an address. The lease is kept alive on a thread of its own.
pub fn bring_up() -> Result<Lease, Error> {
    let start = Instant::now();
    let card = loop {
        match first_card(Path::new("/sys/class/net")) {
            Some(card) => break card,
            None if start.elapsed() > PATIENCE => return Err(Error::NoCard),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    netlink::up(1)?;
    netlink::up(card.index)?;
    let lease = dhcp::acquire(&card, None, PATIENCE)?.ok_or(Error::NoLease(PATIENCE))?;
    apply(&card, &lease)?;
    let kept = lease.clone();
    std::thread::spawn(move || keep(&card, kept));
    Ok(lease)
}

fn apply(card: &Card, lease: &Lease) -> Result<(), Error> {
    if let Some(mtu) = lease.mtu {
        netlink::set_mtu(card.index, mtu)?;
    }
    netlink::add_address(card.index, lease.address, lease.prefix)?;
    if let Some(router) = lease.router {
        netlink::add_default_route(card.index, router)?;
    }
    let servers: String = lease.dns.iter().map(|s: &Ipv4Addr| format!("nameserver {s}\n")).collect();
    std::fs::write("/etc/resolv.conf", servers).map_err(Error::Resolver)
}

/// Asks for the same address again at half of the lease. A member keeps its address for life: when the server gives
/// another one, or none, that is said, and what follows (no identity) ends the guest.
fn keep(card: &Card, mut lease: Lease) {
    loop {
        std::thread::sleep((lease.duration / 2).max(Duration::from_secs(30)));
        match dhcp::acquire(card, Some(lease.address), PATIENCE) {
            Ok(Some(again)) if again.address == lease.address => lease = again,
            Ok(Some(other)) => console::say(format_args!("DHCP now gives {}, which is not used", other.address)),
            Ok(None) => console::say("DHCP did not renew the lease"),
            Err(e) => console::say(e),
        }
    }
}

fn first_card(class: &Path) -> Option<Card> {
    let mut names: Vec<String> = std::fs::read_dir(class)
        .ok()?
        .filter_map(|e| e.ok().map(|e| e.file_name().to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names.into_iter().find_map(|name| {
        let attribute = |a: &str| std::fs::read_to_string(class.join(&name).join(a)).ok().map(|v| v.trim().to_owned());
        // ARPHRD_ETHER; loopback is 772.
        if attribute("type")? != "1" {
            return None;
        }
        let index = attribute("ifindex")?.parse().ok()?;
        let mut address = [0; 6];
        hex::decode_to_slice(attribute("address")?.replace(':', ""), &mut address).ok()?;
        Some(Card { name, index, address })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_is_the_first_ethernet_one() {
        let class = tempfile::tempdir().unwrap();
        for (name, kind, address) in [("lo", "772", "00:00:00:00:00:00"), ("eth0", "1", "52:54:00:12:34:56")] {
            let dir = class.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("type"), format!("{kind}\n")).unwrap();
            std::fs::write(dir.join("ifindex"), "2\n").unwrap();
            std::fs::write(dir.join("address"), format!("{address}\n")).unwrap();
        }
        let card = first_card(class.path()).unwrap();
        assert_eq!(card, Card { name: "eth0".into(), index: 2, address: [0x52, 0x54, 0, 0x12, 0x34, 0x56] });
    }
}
