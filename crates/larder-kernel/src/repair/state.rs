//! The state of a connection that moves from one host to another.

use std::net::SocketAddr;

/// Maximum number of unread received bytes in a checkpoint.
pub const RECEIVED_BYTES_MAX: usize = 4 << 20;
/// Maximum number of unacknowledged written bytes in a checkpoint; the default limit of a send buffer is 4 MiB.
pub const SEND_BYTES_MAX: usize = 8 << 20;
/// Maximum number of words of `TCP_REPAIR_WINDOW` after the first five.
pub const WINDOW_EXTENSION_MAX: usize = 8;

const WSCALE_MAX: u8 = 14;
/// The largest possible window (RFC 7323 section 2.3). Bytes.
const WINDOW_BYTES_MAX: u32 = 1 << 30;

/// Window scales, 0 to 14 (RFC 7323 section 2.3). Both are 0 if scaling was not negotiated, which is equivalent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowScales {
    /// Scale of the peer's windows.
    pub send: u8,
    /// Scale of this side's windows.
    pub receive: u8,
}

/// Windows of both sides (`struct tcp_repair_window`). Bytes and sequence numbers, unscaled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Sequence number of the segment that last set `send`.
    pub send_set_at: u32,
    /// The peer's window after the last byte that it acknowledged.
    pub send: u32,
    /// The largest `send` so far; not below `send`.
    pub send_max: u32,
    /// The window that this side has promised after `receive_from`.
    pub receive: u32,
    /// The next expected byte at that promise; not after [`Checkpoint::rcv_nxt`].
    pub receive_from: u32,
    /// Further words of the kernel, uninterpreted. A kernel from 6.17 on drops data beyond the window that it promised
    /// last, even within one that it promised before and took back; a proposed extension of `TCP_REPAIR_WINDOW` by
    /// three words carries that older edge. Restored if the kernel has as many words.
    pub extension: Vec<u32>,
}

/// The state that keeps a peer from noticing that its connection has moved.
///
/// Not kept: congestion window, round-trip time, segments received out of order (the peer sends them again), the peer's
/// last timestamp (echoed as 0 until its next segment, which Linux ignores), and explicit congestion notification. The
/// application must set its socket options again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The local address, which moves with the connection.
    pub local: SocketAddr,
    /// The client's address.
    pub remote: SocketAddr,
    /// Sequence number of the next byte that the application writes.
    pub write_seq: u32,
    /// Sequence number of the next expected byte. Does not count a received FIN; see `fin_received`.
    pub rcv_nxt: u32,
    /// Negotiated maximum segment size, without deduction for options. Bytes.
    pub mss: u16,
    /// Whether selective acknowledgements were negotiated.
    pub sack: bool,
    /// Window scales.
    pub scales: WindowScales,
    /// This side's timestamp clock, if timestamps were negotiated. Its lowest bit marks a clock of microseconds.
    pub timestamp: Option<u32>,
    /// Windows of both sides.
    pub window: Window,
    /// Unread bytes received before `rcv_nxt`. At most [`RECEIVED_BYTES_MAX`].
    pub received: Vec<u8>,
    /// Unacknowledged bytes before `write_seq`. At most [`SEND_BYTES_MAX`].
    pub send_queue: Vec<u8>,
    /// Number of bytes at the end of `send_queue` that were not sent yet.
    pub unsent: u32,
    /// Whether the client has closed its side. The restoring host must then inject the packet of
    /// [`Checkpoint::fin_packet`], because a socket cannot be restored half closed.
    pub fin_received: bool,
}

impl Checkpoint {
    /// Returns the sequence number of the first byte that the client has not acknowledged.
    pub fn unacknowledged_seq(&self) -> u32 {
        self.write_seq.wrapping_sub(u32::try_from(self.send_queue.len()).unwrap_or(0))
    }

    /// Returns the sequence number of the client's first unread byte.
    pub fn unread_seq(&self) -> u32 {
        self.rcv_nxt.wrapping_sub(u32::try_from(self.received.len()).unwrap_or(0))
    }

    /// Returns the sent and the unsent part of the send queue.
    pub fn send_parts(&self) -> (&[u8], &[u8]) {
        let sent = self.send_queue.len().saturating_sub(self.unsent as usize);
        self.send_queue.split_at(sent)
    }

    /// Checks the state against the limits and against what a kernel accepts.
    ///
    /// # Errors
    ///
    /// The name of the first invalid field.
    pub fn check(&self) -> Result<(), &'static str> {
        let Self { window, scales, .. } = self;
        let after = |a: u32, b: u32| a != b && a.wrapping_sub(b) < 1 << 31;
        let scale = |s: u8| s <= WSCALE_MAX;
        let faults = [
            (self.local.is_ipv4() != self.remote.is_ipv4(), "addresses of two families"),
            (self.local.port() == 0 || self.remote.port() == 0, "port"),
            (self.mss == 0, "mss"),
            (!scale(scales.send) || !scale(scales.receive), "window scale"),
            (self.received.len() > RECEIVED_BYTES_MAX, "received bytes"),
            (self.send_queue.len() > SEND_BYTES_MAX, "send queue"),
            (self.unsent as usize > self.send_queue.len(), "unsent bytes"),
            (window.send_max < window.send, "largest send window"),
            (window.receive > WINDOW_BYTES_MAX, "receive window"),
            (after(window.receive_from, self.rcv_nxt), "start of the receive window"),
            (after(window.send_set_at, self.rcv_nxt.wrapping_add(window.receive)), "age of the send window"),
            (window.extension.len() > WINDOW_EXTENSION_MAX, "window extension"),
        ];
        faults.into_iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |(_, field)| Err(field))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn addresses() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
        (any::<bool>(), any::<[[u8; 16]; 2]>(), 1..=u16::MAX, 1..=u16::MAX).prop_map(|(v6, ip, a, b)| {
            let make = |ip: [u8; 16]| {
                if v6 { IpAddr::from(ip) } else { IpAddr::from([ip[0], ip[1], ip[2], ip[3]]) }
            };
            (SocketAddr::new(make(ip[0]), a), SocketAddr::new(make(ip[1]), b))
        })
    }

    fn windows() -> impl Strategy<Value = (u32, Window)> {
        let sizes = (any::<u32>(), any::<u32>(), any::<u32>(), 0..=WINDOW_BYTES_MAX, 0..1_u32 << 20);
        (sizes, prop::collection::vec(any::<u32>(), 0..=WINDOW_EXTENSION_MAX)).prop_map(
            |((rcv_nxt, one, other, receive, behind), extension)| {
                let window = Window {
                    send_set_at: rcv_nxt.wrapping_sub(behind),
                    send: one.min(other),
                    send_max: one.max(other),
                    receive,
                    receive_from: rcv_nxt.wrapping_sub(behind),
                    extension,
                };
                (rcv_nxt, window)
            },
        )
    }

    /// Generates checkpoints that pass [`Checkpoint::check`].
    pub(in crate::repair) fn checkpoints() -> impl Strategy<Value = Checkpoint> {
        let scales = (0..=14_u8, 0..=14_u8).prop_map(|(send, receive)| WindowScales { send, receive });
        let options = (1..=u16::MAX, any::<bool>(), scales, prop::option::of(any::<u32>()));
        let queues = (
            prop::collection::vec(any::<u8>(), 0..300),
            prop::collection::vec(any::<u8>(), 0..300),
            any::<prop::sample::Index>(),
        );
        (addresses(), windows(), options, queues, any::<(u32, bool)>()).prop_map(
            |(
                (local, remote),
                (rcv_nxt, window),
                (mss, sack, scales, timestamp),
                (received, send_queue, cut),
                rest,
            )| {
                let unsent = u32::try_from(cut.index(send_queue.len() + 1)).expect("small");
                let (write_seq, fin_received) = rest;
                Checkpoint {
                    local,
                    remote,
                    write_seq,
                    rcv_nxt,
                    mss,
                    sack,
                    scales,
                    timestamp,
                    window,
                    received,
                    send_queue,
                    unsent,
                    fin_received,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn send_parts_add_up(checkpoint in checkpoints()) {
            prop_assert_eq!(checkpoint.check(), Ok(()));
            let (sent, unsent) = checkpoint.send_parts();
            prop_assert_eq!([sent, unsent].concat(), checkpoint.send_queue.clone());
            prop_assert_eq!(unsent.len(), checkpoint.unsent as usize);
        }
    }
}
