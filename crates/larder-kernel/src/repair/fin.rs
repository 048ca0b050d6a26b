//! The packet that repeats the client's FIN on a restored connection.
//!
//! A socket can only be restored as established. A client that has closed its side does not send its FIN again once it
//! is acknowledged, so the checkpoint leaves the FIN out, and the new host's stack gets it as a packet.

use super::state::Checkpoint;
use crate::frame::TcpFrame;
use crate::frame::tcp_flag::{ACK, FIN};

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
        TcpFrame { seq, ack, window, ..TcpFrame::new(self.remote, self.local, FIN | ACK) }.packet()
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::checkpoints;
    use super::*;
    use crate::frame::is_undamaged;
    use proptest::prelude::*;

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
