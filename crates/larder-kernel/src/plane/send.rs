//! Packets that user space sends itself: those of held connections, and resets.

use super::link::encapsulate;
use super::{FlowDestination, Plane, syscalls};
use crate::FlowKey;
use crate::abi::{NodeLink, flow_state, link_kind};
use crate::frame::{Frame, TcpFrame, tcp_flag};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Plane {
    /// Forwards a held connection's packet, an Ethernet frame as punted, to a node, as the programs do. A packet that
    /// is too long for the path is split.
    ///
    /// # Errors
    ///
    /// `NotConnected`: the node has no route. `InvalidData`: the packet is incomplete or damaged, or its hop limit is
    /// used up; drop it. `WouldBlock`: the interface's queue is full; try again, or drop it, because the client
    /// retransmits it.
    pub fn forward(&self, node: u16, packet: &[u8]) -> io::Result<()> {
        let link = self.link(node).ok_or(io::ErrorKind::NotConnected)?;
        let frame = Frame::parse(packet).ok_or_else(|| invalid("not a whole TCP packet"))?;
        let whole = frame.with_checksum().ok_or_else(|| invalid("the checksum is wrong"))?;
        self.send(&link, &whole)
    }

    fn send(&self, link: &NodeLink, packet: &[u8]) -> io::Result<()> {
        let frame = Frame::parse(packet).ok_or_else(|| invalid("not a whole TCP packet"))?;
        if link.kind == link_kind::L2 && frame.hop_limit() <= 1 {
            return Err(invalid("no hop left"));
        }
        match syscalls::send_frame(self.sender.as_fd(), link.ifindex, &encapsulate(link, &frame)) {
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                for half in frame.split_segment().ok_or(error)? {
                    self.send(link, &half)?;
                }
                Ok(())
            }
            sent => sent,
        }
    }

    /// Resets a connection whose node is dead. The client gets a RST now if it has ever acknowledged anything, and
    /// another one for every packet that it sends.
    ///
    /// # Errors
    ///
    /// `NotFound`: the connection or its listen address is unknown. Else an error of the kernel; the connection is
    /// marked nevertheless.
    pub fn reset_client(&self, key: FlowKey) -> io::Result<()> {
        self.reset_client_at(key, None)
    }

    /// Does the same as [`Plane::reset_client`] for a connection that began in this host's stack, or that has no entry
    /// in the plane. `ack` is the number of the first byte that the client has not acknowledged, used if the plane has
    /// seen no acknowledgement.
    ///
    /// # Errors
    ///
    /// See [`Plane::reset_client`]. With `ack`, the client gets its RST even if the connection is unknown.
    pub fn reset_client_at(&self, key: FlowKey, ack: Option<u32>) -> io::Result<()> {
        let flow = self.flow(key);
        let marked = match flow {
            Some(flow) if flow.state == flow_state::RESET => Ok(()),
            Some(flow) => {
                self.put_flow_from(key, flow.state, FlowDestination::Reset).map_err(io::Error::other)
            }
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let seen = flow.map(|flow| flow.last_ack).filter(|ack| *ack != 0);
        let Some(ack) = seen.or(ack) else { return marked };
        let service = self.services().into_iter().find(|&(_, id)| id == key.service);
        let (server, _) = service.ok_or(io::ErrorKind::NotFound)?;
        // A RST without an acknowledgement (RFC 9293 section 3.10.7.1).
        let reset = TcpFrame { seq: ack, ..TcpFrame::new(server, key.client, tcp_flag::RST) };
        let packet = reset.packet().ok_or(io::ErrorKind::InvalidInput)?;
        // Sent by the kernel's routes, because the way to the client is unknown here. The port of a raw address is 0.
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

/// Opens a socket for complete IP packets (raw(7), ipv6(7): with `IPPROTO_RAW` the caller writes the header).
pub(super) fn raw_socket(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))
}
