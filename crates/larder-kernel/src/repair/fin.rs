//! The packet that repeats the client's FIN on a restored connection.
//!
//! A socket can only be restored as established. A client that has closed its side does not send its FIN again once it
//! is acknowledged, so the checkpoint leaves the FIN out, and the new host's stack gets it as a packet.

use super::state::Checkpoint;
use crate::flow::mapped;
use crate::frame::TcpFrame;
use crate::frame::tcp_flag::{ACK, FIN};
use std::net::SocketAddr;

impl Checkpoint {
    /// Returns the client's FIN as an IP packet, to be injected into this host's stack after the restore. `None` if the
    /// client has not closed its side. It acknowledges nothing new and has no timestamp, which Linux accepts
    /// (`tcp_validate_incoming` checks only timestamps that are present).
    pub fn fin_packet(&self) -> Option<Vec<u8>> {
        if !self.fin_received {
            return None;
        }
        let window = u16::try_from(self.window.send >> self.scales.send).unwrap_or(u16::MAX);
        let (seq, ack) = (self.rcv_nxt, self.unacknowledged_seq());
        let (remote, local) = same_family(self.remote, self.local);
        TcpFrame { seq, ack, window, ..TcpFrame::new(remote, local, FIN | ACK) }.packet()
    }
}

/// Returns the addresses unchanged if both have one family, else both as IPv6.
fn same_family(one: SocketAddr, other: SocketAddr) -> (SocketAddr, SocketAddr) {
    if one.is_ipv4() == other.is_ipv4() {
        return (one, other);
    }
    let as_ipv6 = |address: SocketAddr| SocketAddr::new(mapped(address.ip()).into(), address.port());
    (as_ipv6(one), as_ipv6(other))
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::checkpoints;
    use super::*;
    use crate::frame::is_undamaged;
    use proptest::prelude::*;

    #[test]
    fn addresses_of_two_families_become_ipv6() {
        let (v4, v6): (SocketAddr, SocketAddr) = (
            "192.0.2.1:80".parse().expect("an address"),
            "[::ffff:192.0.2.2]:90".parse().expect("an address"),
        );
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:80".parse().expect("an address");
        assert_eq!(same_family(v4, v6), (mapped, v6));
        assert_eq!(same_family(v6, v4), (v6, mapped));
        assert_eq!(same_family(v4, v4), (v4, v4));
    }

    proptest! {
        #[test]
        fn fin_is_a_complete_packet(mut checkpoint in checkpoints()) {
            checkpoint.fin_received = false;
            prop_assert_eq!(checkpoint.fin_packet(), None);
            checkpoint.fin_received = true;
            let packet = checkpoint.fin_packet().expect("a FIN");
            let ethertype = if checkpoint.local.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
            let frame = [&[0; 12], &ethertype[..], &packet].concat();
            prop_assert!(is_undamaged(&frame));
            let fin = TcpFrame::parse(&frame).expect("a packet");
            prop_assert_eq!((fin.from, fin.to), (checkpoint.remote, checkpoint.local));
            prop_assert_eq!((fin.seq, fin.ack), (checkpoint.rcv_nxt, checkpoint.unacknowledged_seq()));
            prop_assert_eq!((fin.flags, fin.options, fin.payload), (FIN | ACK, &[][..], &[][..]));
        }
    }
}
