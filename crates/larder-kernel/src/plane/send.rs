//! Packets that user space sends itself: those of held connections, and resets.

use super::frame::{self, Frame};
use super::link::wrap;
use super::{FlowTo, Plane, syscalls};
use crate::FlowKey;
use crate::abi::{NodeLink, flow_state, link_kind};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Plane {
    /// Sends a held connection's packet, an Ethernet frame as punted, on to a node, as the programs do. A packet that is
    /// too long for the path is cut in two.
    ///
    /// # Errors
    ///
    /// `NotConnected`: the node has no link. `InvalidData`: the packet is not whole, was damaged, or has no hop left;
    /// dropping it is right. `WouldBlock`: the interface's queue is full; trying again helps, and so does dropping: the
    /// client sends it again.
    pub fn forward(&self, node: u16, packet: &[u8]) -> io::Result<()> {
        let link = self.link(node).ok_or(io::ErrorKind::NotConnected)?;
        let frame = Frame::parse(packet).ok_or_else(|| invalid("not a whole TCP packet"))?;
        let whole = frame.completed().ok_or_else(|| invalid("the checksum is wrong"))?;
        self.send(&link, &whole)
    }

    fn send(&self, link: &NodeLink, packet: &[u8]) -> io::Result<()> {
        let frame = Frame::parse(packet).ok_or_else(|| invalid("not a whole TCP packet"))?;
        if link.kind == link_kind::L2 && frame.hops() <= 1 {
            return Err(invalid("no hop left"));
        }
        match syscalls::send_frame(self.sender.as_fd(), link.ifindex, &wrap(link, &frame)) {
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                for half in frame.halves().ok_or(error)? {
                    self.send(link, &half)?;
                }
                Ok(())
            }
            sent => sent,
        }
    }

    /// Ends a connection whose node is dead: the client gets a RST now if it has ever acknowledged anything, and another
    /// for every packet it sends.
    ///
    /// # Errors
    ///
    /// `NotFound`: the connection or its listen address is not known. Else from the kernel; the connection is marked all
    /// the same.
    pub fn reset_client(&self, key: FlowKey) -> io::Result<()> {
        self.reset_client_at(key, None)
    }

    /// As [`Plane::reset_client`], for a connection that began in this host's stack, or that the plane has no room for: where it
    /// has seen no acknowledgement, `ack` is the number of the first byte that the client has not acknowledged.
    ///
    /// # Errors
    ///
    /// As [`Plane::reset_client`]. With a number the client gets its RST also if the connection is not known.
    pub fn reset_client_at(&self, key: FlowKey, ack: Option<u32>) -> io::Result<()> {
        let flow = self.flow(key);
        let marked = match flow {
            Some(flow) if flow.state == flow_state::RESET => Ok(()),
            Some(flow) => self.put_flow_from(key, flow.state, FlowTo::Reset).map_err(io::Error::other),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let seen = flow.map(|flow| flow.last_ack).filter(|ack| *ack != 0);
        let Some(ack) = seen.or(ack) else { return marked };
        let service = self.services().into_iter().find(|&(_, id)| id == key.service);
        let (server, _) = service.ok_or(io::ErrorKind::NotFound)?;
        let packet = frame::reset(server, key.client, ack)?;
        // By the kernel's routes: the way back to the client is not ours to know. The port of a raw address is 0.
        let socket = if key.client.is_ipv4() { Some(&self.raw_v4) } else { self.raw_v6.as_ref() };
        let to = SocketAddr::new(key.client.ip(), 0);
        socket.ok_or(io::ErrorKind::Unsupported)?.send_to_with_flags(
            &packet,
            &to.into(),
            libc::MSG_DONTWAIT,
        )?;
        marked
    }
}

/// A socket for whole IP packets (raw(7), ipv6(7): `IPPROTO_RAW` takes the header from us).
pub(super) fn raw_socket(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))
}
