//! The state of a connection, as it travels from one host to the other.

use std::net::SocketAddr;

/// Bytes received and unread that a checkpoint carries at most.
pub const RECEIVED_BYTES_MAX: usize = 4 << 20;
/// Bytes written and not acknowledged that a checkpoint carries at most; the default limit of a send buffer is 4 MiB.
pub const SEND_BYTES_MAX: usize = 8 << 20;
/// Words of `TCP_REPAIR_WINDOW` after the first five that a checkpoint carries at most.
pub const WINDOW_EXTENSION_MAX: usize = 8;

const WSCALE_MAX: u8 = 14;
/// The largest window there can be (RFC 7323 section 2.3). Bytes.
const WINDOW_BYTES_MAX: u32 = 1 << 30;

/// Window scales, 0 to 14 (RFC 7323 section 2.3). Both are 0 when scaling was not agreed on, which is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scales {
    /// What the peer's windows are shifted by.
    pub send: u8,
    /// What our windows are shifted by.
    pub receive: u8,
}

/// Both sides' windows (`struct tcp_repair_window`). Bytes and sequence numbers, unscaled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Sequence number of the segment that last set `send`.
    pub send_set_at: u32,
    /// What the peer takes beyond the last byte that it acknowledged.
    pub send: u32,
    /// The largest `send` ever; not below it.
    pub send_max: u32,
    /// What we promised the peer to take beyond `receive_from`.
    pub receive: u32,
    /// The next byte expected when we promised; not after [`Checkpoint::rcv_nxt`].
    pub receive_from: u32,
    /// What the kernel tells beyond these five words, uninterpreted. A kernel from 6.17 on drops what lies beyond the window
    /// that it promised last, even within one that it promised before and took back; a proposed extension of
    /// `TCP_REPAIR_WINDOW` by three words carries that older edge. Restored where the kernel has as many words.
    pub extension: Vec<u32>,
}

/// What a peer needs not to notice that its connection moved.
///
/// Lost on the way: congestion window, round-trip time, segments received out of order (the peer sends them again), and
/// the peer's last timestamp (echoed as 0 until its next segment, which Linux ignores), explicit congestion notification.
/// Options that the application set on its socket are its own to set again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Our address, the one that moves.
    pub local: SocketAddr,
    /// The client.
    pub remote: SocketAddr,
    /// Sequence number of the next byte that the application writes.
    pub write_seq: u32,
    /// Sequence number of the next byte expected; a FIN received is not counted, see `fin_received`.
    pub rcv_nxt: u32,
    /// Negotiated maximum segment size, before options take their share. Bytes.
    pub mss: u16,
    /// Selective acknowledgements are agreed on.
    pub sack: bool,
    /// Window scaling.
    pub scales: Scales,
    /// Our timestamp clock, if timestamps are agreed on. Its lowest bit says that it counts microseconds.
    pub timestamp: Option<u32>,
    /// Both windows.
    pub window: Window,
    /// Bytes received before `rcv_nxt` and unread, at most [`RECEIVED_BYTES_MAX`].
    pub received: Vec<u8>,
    /// Bytes before `write_seq` that are not acknowledged, at most [`SEND_BYTES_MAX`].
    pub send_queue: Vec<u8>,
    /// How many of them, the last ones, were not sent yet.
    pub unsent: u32,
    /// The client has ended its side. The host that restores must hand its stack the packet of
    /// [`Checkpoint::fin_packet`], because a socket cannot be restored half closed.
    pub fin_received: bool,
}

impl Checkpoint {
    /// Sequence number of the first byte that the client has not acknowledged.
    pub fn unacknowledged_seq(&self) -> u32 {
        self.write_seq.wrapping_sub(u32::try_from(self.send_queue.len()).unwrap_or(0))
    }

    /// Sequence number of the first byte of the client that is unread.
    pub fn unread_seq(&self) -> u32 {
        self.rcv_nxt.wrapping_sub(u32::try_from(self.received.len()).unwrap_or(0))
    }

    /// The sent and the unsent part of the send queue.
    pub fn send_parts(&self) -> (&[u8], &[u8]) {
        let sent = self.send_queue.len().saturating_sub(self.unsent as usize);
        self.send_queue.split_at(sent)
    }

    /// Holds the state against the limits and what a kernel accepts.
    ///
    /// # Errors
    /// The name of the first field that is wrong.
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

    /// Checkpoints that pass [`Checkpoint::check`].
    pub(in crate::repair) fn checkpoints() -> impl Strategy<Value = Checkpoint> {
        let scales = (0..=14_u8, 0..=14_u8).prop_map(|(send, receive)| Scales { send, receive });
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
        fn parts_make_the_whole(checkpoint in checkpoints()) {
            prop_assert_eq!(checkpoint.check(), Ok(()));
            let (sent, unsent) = checkpoint.send_parts();
            prop_assert_eq!([sent, unsent].concat(), checkpoint.send_queue.clone());
            prop_assert_eq!(unsent.len(), checkpoint.unsent as usize);
        }
    }
}
