//! Raw frames on a link, for packets that no socket sends.

#![expect(unsafe_code, reason = "a link-layer address is a struct that only the C library names")]

use super::{Namespace, NetnsError};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;

/// A raw socket that sends through any interface of one network namespace. It receives nothing.
#[derive(Debug)]
pub struct Wire(Socket);

impl Wire {
    /// Opens a socket in a namespace.
    ///
    /// # Errors
    ///
    /// Without `CAP_NET_RAW`.
    pub fn open(namespace: &Namespace) -> Result<Self, NetnsError> {
        let opened = namespace.run(Self::open_here)?;
        opened.map_err(|e| NetnsError::io(format!("opening a raw socket in {}", namespace.name()), e))
    }

    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    ///
    /// Without `CAP_NET_RAW`.
    pub fn open_here() -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Sets a mark on its packets, by which tc programs recognise them. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    ///
    /// If the kernel rejects it.
    pub fn mark(&self, mark: u32) -> io::Result<()> {
        self.0.set_mark(mark)
    }

    /// Sends a frame unchanged, starting with its Ethernet header.
    ///
    /// # Errors
    ///
    /// If the interface is down, gone or full, or the frame exceeds its MTU.
    pub fn send(&self, ifindex: u32, frame: &[u8]) -> io::Result<()> {
        self.0.send_to(frame, &link_address(ifindex)?).map(|_| ())
    }
}

fn link_address(ifindex: u32) -> io::Result<SockAddr> {
    let index = i32::try_from(ifindex).map_err(io::Error::other)?;
    let fill = |storage: *mut socket2::SockAddrStorage, length: *mut libc::socklen_t| {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0,
            sll_ifindex: index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the storage is as large and aligned as any address, this one included.
        unsafe { storage.cast::<libc::sockaddr_ll>().write(address) };
        // SAFETY: the length is ours to write for as long as this closure runs.
        unsafe { length.write(size_of::<libc::sockaddr_ll>() as libc::socklen_t) };
        Ok(())
    };
    // SAFETY: the closure has written a whole address and its length.
    let (_, address) = unsafe { SockAddr::try_init(fill) }?;
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{TcpFrame, tcp_flag};
    use crate::netns::{INTERFACE, Topology, TopologySpec};
    use larder_testkit::or_skip;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    /// Addresses of the topology's network that no host has.
    const UNUSED_ADDRESSES: (Ipv4Addr, Ipv6Addr) =
        (Ipv4Addr::new(10, 9, 0, 250), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 250));

    /// A kernel accepts the frames: each SYN leaves a half-open connection.
    #[test]
    fn kernel_accepts_the_packets() {
        let Some(topology) = or_skip(Topology::new(&TopologySpec { nodes: 1, ..TopologySpec::default() }))
        else {
            return;
        };
        let (client, node) = (topology.client(), &topology.nodes[0]);
        let wire = Wire::open(&client.namespace).expect("opened");
        let ifindex = client.namespace.ifindex(INTERFACE).expect("there");
        let pairs: [(IpAddr, IpAddr, &str); 2] = [
            (UNUSED_ADDRESSES.0.into(), node.v4.into(), "tcp"),
            (UNUSED_ADDRESSES.1.into(), node.v6.into(), "tcp6"),
        ];
        for (silent, node_at, table) in pairs {
            let bind = || std::net::TcpListener::bind((node_at, 0));
            let listener = node.namespace.run(bind).expect("entered").expect("bound");
            // No host has this address, so nothing resets the connections.
            for port in 1_000..1_020 {
                let (from, to) = (SocketAddr::new(silent, port), listener.local_addr().expect("an address"));
                let frame = TcpFrame {
                    macs: [client.mac, node.mac],
                    seq: 7,
                    window: 1_000,
                    options: &[2, 4, 5, 0xb4, 1],
                    ..TcpFrame::new(from, to, tcp_flag::SYN)
                };
                wire.send(ifindex, &frame.bytes().expect("made")).expect("sent");
            }
            assert_eq!(half_open(&node.namespace, table), 20, "{table}");
        }
    }

    /// Returns the connections in SYN_RECV (3), once there are 20 or a second has passed.
    fn half_open(namespace: &Namespace, table: &str) -> usize {
        let path = format!("/proc/thread-self/net/{table}");
        let count = || {
            let text = std::fs::read_to_string(&path).expect("read");
            text.lines().filter(|line| line.split_whitespace().nth(3) == Some("03")).count()
        };
        let mut found = 0;
        larder_testkit::within(std::time::Duration::from_secs(5), || {
            found = namespace.run(count).expect("entered");
            found >= 20
        });
        found
    }
}
