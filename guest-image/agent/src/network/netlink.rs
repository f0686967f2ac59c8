//! Link, address and route through rtnetlink(7).

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkMessage},
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType},
};
use rustix::net::{RecvFlags, SendFlags, SocketType, netlink};
use thiserror::Error;

/// Why the kernel did not do it.
#[derive(Debug, Error)]
pub enum Error {
    /// The socket failed.
    #[error("cannot {0}: {1}")]
    Socket(&'static str, rustix::io::Errno),
    /// The kernel refused.
    #[error("cannot {0}: {1}")]
    Refused(&'static str, std::io::Error),
    /// The kernel's answer could not be read.
    #[error("cannot {0}: the kernel's answer is unreadable: {1}")]
    Answer(&'static str, String),
}

/// Sets interface `index` up.
pub fn up(index: u32) -> Result<(), Error> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    ask("bring the network card up", RouteNetlinkMessage::SetLink(link), 0)
}

/// Sets the largest packet of interface `index`.
pub fn set_mtu(index: u32, mtu: u16) -> Result<(), Error> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.attributes.push(LinkAttribute::Mtu(mtu.into()));
    ask("set the network card's MTU", RouteNetlinkMessage::SetLink(link), 0)
}

/// Gives interface `index` an address.
pub fn add_address(index: u32, address: Ipv4Addr, prefix: u8) -> Result<(), Error> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = prefix;
    message.header.index = index;
    message.attributes.push(AddressAttribute::Local(IpAddr::V4(address)));
    message.attributes.push(AddressAttribute::Address(IpAddr::V4(address)));
    ask("set the network card's address", RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Routes everything else through `router`.
pub fn add_default_route(index: u32, router: Ipv4Addr) -> Result<(), Error> {
    let mut route = RouteMessage::default();
    route.header.address_family = AddressFamily::Inet;
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Dhcp;
    route.header.scope = RouteScope::Universe;
    route.header.kind = RouteType::Unicast;
    route.attributes.push(RouteAttribute::Gateway(RouteAddress::Inet(router)));
    route.attributes.push(RouteAttribute::Oif(index));
    ask("set the default route", RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_REPLACE)
}

fn ask(act: &'static str, what: RouteNetlinkMessage, flags: u16) -> Result<(), Error> {
    let failed = |e| Error::Socket(act, e);
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(what));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);

    // No protocol is protocol 0, which is NETLINK_ROUTE.
    let socket = rustix::net::socket(rustix::net::AddressFamily::NETLINK, SocketType::RAW, None);
    let socket = socket.map_err(failed)?;
    rustix::net::sendto(&socket, &bytes, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0)).map_err(failed)?;
    let mut answer = [0; 4096];
    let (length, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty()).map_err(failed)?;
    let answer = answer.get(..length).unwrap_or_default();
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer);
    match answer.map_err(|e| Error::Answer(act, e.to_string()))?.payload {
        NetlinkPayload::Error(e) if e.code.is_none() => Ok(()),
        NetlinkPayload::Error(e) => Err(Error::Refused(act, e.to_io())),
        other => Err(Error::Answer(act, format!("{other:?}"))),
    }
}
