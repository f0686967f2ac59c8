//! DHCP for IPv4 (RFC 2131): discover, offer, request, acknowledgement. The wire format is smoltcp's.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::{Duration, Instant},
};

use smoltcp::wire::{DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress};
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use super::Card;

const CLIENT_PORT: u16 = 68;
const SERVER_PORT: u16 = 67;
const MAX_PACKET: usize = 1500;
/// Options asked for: subnet mask, router, DNS servers, MTU, lease time (RFC 2132).
const ASKED: &[u8] = &[1, 3, 6, MTU, 51];
const MTU: u8 = 26;

/// Why the exchange could not be held.
#[derive(Debug, Error)]
pub enum Error {
    /// The socket failed.
    #[error("cannot speak DHCP: {0}")]
    Socket(#[from] std::io::Error),
    /// A message could not be written.
    #[error("cannot write a DHCP message: {0}")]
    Write(String),
}

/// What a server gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Our address.
    pub address: Ipv4Addr,
    /// Length of the subnet's prefix.
    pub prefix: u8,
    /// Default router.
    pub router: Option<Ipv4Addr>,
    /// Name servers.
    pub dns: Vec<Ipv4Addr>,
    /// Largest packet of the link.
    pub mtu: Option<u16>,
    /// How long the address is ours.
    pub duration: Duration,
}

/// Where an exchange stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Discover,
    Request { address: Ipv4Addr, server: Option<Ipv4Addr> },
}

/// Runs exchanges until one ends in a lease or `patience` is over. With `wanted`, asks for that address at once.
pub fn acquire(card: &Card, wanted: Option<Ipv4Addr>, patience: Duration) -> Result<Option<Lease>, Error> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_broadcast(true)?;
    // Without an address there is no route either: the card is named to the kernel instead.
    socket.bind_device(Some(card.name.as_bytes()))?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, CLIENT_PORT)).into())?;
    let socket = std::net::UdpSocket::from(socket);
    let everyone = SocketAddrV4::new(Ipv4Addr::BROADCAST, SERVER_PORT);

    let transaction: u32 = rand::random();
    let start = Instant::now();
    let mut step = wanted.map_or(Step::Discover, |address| Step::Request { address, server: None });
    let mut wait = Duration::from_millis(200);
    while start.elapsed() < patience {
        // A card just set up may not carry packets yet; sending again is the remedy for that too.
        let sent = socket.send_to(&message(card, transaction, &step)?, everyone);
        if let Err(e) = sent
            && !matches!(e.kind(), std::io::ErrorKind::NetworkUnreachable | std::io::ErrorKind::NetworkDown)
        {
            return Err(e.into());
        }
        let until = Instant::now() + wait;
        wait = (wait * 2).min(Duration::from_secs(4));
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()) {
            socket.set_read_timeout(Some(left))?;
            let mut packet = [0; MAX_PACKET];
            let length = match socket.recv(&mut packet) {
                Ok(length) => length,
                Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => break,
                Err(e) => return Err(e.into()),
            };
            match answer(card, transaction, &step, packet.get(..length).unwrap_or_default()) {
                Answer::Offer(next) => {
                    step = next;
                    break;
                }
                Answer::Lease(lease) => return Ok(Some(lease)),
                Answer::Refused => {
                    step = Step::Discover;
                    break;
                }
                Answer::Nothing => {}
            }
        }
    }
    Ok(None)
}

fn message(card: &Card, transaction: u32, step: &Step) -> Result<Vec<u8>, Error> {
    let (message_type, requested_ip, server_identifier) = match step {
        Step::Discover => (DhcpMessageType::Discover, None, None),
        Step::Request { address, server } => (DhcpMessageType::Request, Some(*address), *server),
    };
    let hardware = EthernetAddress(card.address);
    let message = DhcpRepr {
        message_type,
        transaction_id: transaction,
        secs: 0,
        client_hardware_address: hardware,
        client_ip: Ipv4Addr::UNSPECIFIED,
        your_ip: Ipv4Addr::UNSPECIFIED,
        server_ip: Ipv4Addr::UNSPECIFIED,
        router: None,
        subnet_mask: None,
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        // We have no address to be answered at yet.
        broadcast: true,
        requested_ip,
        client_identifier: Some(hardware),
        server_identifier,
        parameter_request_list: Some(ASKED),
        dns_servers: None,
        max_size: Some(MAX_PACKET as u16),
        lease_duration: None,
        renew_duration: None,
        rebind_duration: None,
        additional_options: &[],
    };
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut DhcpPacket::new_unchecked(&mut bytes)).map_err(|e| Error::Write(e.to_string()))?;
    Ok(bytes)
}

/// What a received packet means at some step.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Offer(Step),
    Lease(Lease),
    Refused,
    Nothing,
}

fn answer(card: &Card, transaction: u32, step: &Step, bytes: &[u8]) -> Answer {
    let Ok(packet) = DhcpPacket::new_checked(bytes) else { return Answer::Nothing };
    let Ok(told) = DhcpRepr::parse(&packet) else { return Answer::Nothing };
    if told.transaction_id != transaction || told.client_hardware_address != EthernetAddress(card.address) {
        return Answer::Nothing;
    }
    match (told.message_type, step) {
        (DhcpMessageType::Offer, Step::Discover) => {
            Answer::Offer(Step::Request { address: told.your_ip, server: told.server_identifier })
        }
        (DhcpMessageType::Ack, Step::Request { .. }) => {
            let mtu = packet.options().find(|o| o.kind == MTU).and_then(|o| o.data.try_into().ok());
            Answer::Lease(Lease {
                address: told.your_ip,
                prefix: told.subnet_mask.map_or(24, |m| u32::from(m).leading_ones() as u8),
                router: told.router,
                dns: told.dns_servers.map(|s| s.iter().copied().collect()).unwrap_or_default(),
                // Below 576 IPv4 itself does not work (RFC 791): such a value is a mistake, not a wish.
                mtu: mtu.map(u16::from_be_bytes).filter(|m| *m >= 576),
                duration: Duration::from_secs(told.lease_duration.unwrap_or(3600).into()),
            })
        }
        (DhcpMessageType::Nak, Step::Request { .. }) => Answer::Refused,
        _ => Answer::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::DhcpOption;

    fn card() -> Card {
        Card { name: "eth0".into(), index: 2, address: [0x52, 0x54, 0, 0, 0, 1] }
    }

    fn from_server(message_type: DhcpMessageType, transaction: u32) -> Vec<u8> {
        let options = [DhcpOption { kind: MTU, data: &[0x05, 0x7a] }];
        let asked = message(&card(), transaction, &Step::Discover).unwrap();
        let packet = DhcpPacket::new_checked(&*asked).unwrap();
        let mut reply = DhcpRepr::parse(&packet).unwrap();
        reply.message_type = message_type;
        reply.your_ip = Ipv4Addr::new(10, 0, 2, 15);
        reply.server_identifier = Some(Ipv4Addr::new(10, 0, 2, 2));
        reply.router = Some(Ipv4Addr::new(10, 0, 2, 2));
        reply.subnet_mask = Some(Ipv4Addr::new(255, 255, 255, 0));
        reply.lease_duration = Some(86400);
        reply.additional_options = &options;
        let mut bytes = vec![0; reply.buffer_len()];
        reply.emit(&mut DhcpPacket::new_unchecked(&mut bytes)).unwrap();
        bytes
    }

    #[test]
    fn offer_then_acknowledgement_is_a_lease() {
        let offer = answer(&card(), 7, &Step::Discover, &from_server(DhcpMessageType::Offer, 7));
        let Answer::Offer(step) = offer else { panic!("{offer:?}") };
        let Answer::Lease(lease) = answer(&card(), 7, &step, &from_server(DhcpMessageType::Ack, 7)) else { panic!() };
        assert_eq!((lease.address, lease.prefix), (Ipv4Addr::new(10, 0, 2, 15), 24));
        assert_eq!(lease.router, Some(Ipv4Addr::new(10, 0, 2, 2)));
        assert_eq!(lease.mtu, Some(1402));
    }

    #[test]
    fn others_answers_and_answers_out_of_turn_are_nothing() {
        let offer = from_server(DhcpMessageType::Offer, 7);
        assert_eq!(answer(&card(), 8, &Step::Discover, &offer), Answer::Nothing);
        let ack = from_server(DhcpMessageType::Ack, 7);
        assert_eq!(answer(&card(), 7, &Step::Discover, &ack), Answer::Nothing);
        let mut other = card();
        other.address[5] = 9;
        assert_eq!(answer(&other, 7, &Step::Discover, &offer), Answer::Nothing);
    }

    #[test]
    fn a_refusal_starts_over() {
        let step = Step::Request { address: Ipv4Addr::new(10, 0, 2, 15), server: None };
        assert_eq!(answer(&card(), 7, &step, &from_server(DhcpMessageType::Nak, 7)), Answer::Refused);
    }

    proptest::proptest! {
        #[test]
        fn no_packet_breaks_it(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..600)) {
            let _ = answer(&card(), 7, &Step::Discover, &bytes);
        }

        #[test]
        fn no_changed_byte_breaks_it(at in 0usize..260, to in proptest::num::u8::ANY) {
            let mut ack = from_server(DhcpMessageType::Ack, 7);
            let at = at.min(ack.len() - 1);
            ack[at] = to;
            let step = Step::Request { address: Ipv4Addr::new(10, 0, 2, 15), server: None };
            let _ = answer(&card(), 7, &step, &ack);
        }
    }
}
