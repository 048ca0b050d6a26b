//! The kernel's description of a connection (`TCP_INFO`, `struct tcp_info` of `include/uapi/linux/tcp.h`).

use super::sys;
use std::io;
use std::os::fd::BorrowedFd;

const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALE: u8 = 4;

const HEAD_BYTES: usize = 8;
const SND_MSS_AT: usize = 16;
const ALL_BYTES: usize = 104;

/// Negotiated TCP options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NegotiatedOptions {
    /// Selective acknowledgements.
    pub sack: bool,
    /// Timestamps.
    pub timestamps: bool,
    /// Window scales of the peer and of this host, 0 to 14.
    pub scales: Option<(u8, u8)>,
}

/// A connection as described by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// The kernel's `TCP_*` state: 1 is established, 7 closed, 8 half closed by the client.
    pub state: u8,
    /// Negotiated TCP options.
    pub negotiated: NegotiatedOptions,
    /// Data bytes in a full segment that this host sends, as last calculated from the path. Leaves room for timestamps
    /// if this host offers them, even if the connection has none; the segments use that room (`tcp_current_mss`).
    pub segment_bytes: u32,
    /// Data bytes in a full segment of the peer, as far as seen. Too low until the first full one.
    pub received_segment_bytes: u32,
    /// Number of retransmitted segments.
    pub retransmitted: u32,
}

impl TcpInfo {
    /// Reads the description of a socket.
    ///
    /// # Errors
    ///
    /// If it is not a TCP socket.
    pub fn read(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let mut bytes = [0; ALL_BYTES];
        if sys::info(fd, &mut bytes)? < ALL_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let Head { state, negotiated } = Head::of(&bytes);
        Ok(Self {
            state,
            negotiated,
            segment_bytes: word(SND_MSS_AT),
            received_segment_bytes: word(SND_MSS_AT + 4),
            retransmitted: word(ALL_BYTES - 4),
        })
    }
}

/// The first bytes, which are all that a checkpoint needs.
pub(super) struct Head {
    pub(super) state: u8,
    pub(super) negotiated: NegotiatedOptions,
}

impl Head {
    pub(super) fn read(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let mut bytes = [0; HEAD_BYTES];
        if sys::info(fd, &mut bytes)? < HEAD_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self::of(&bytes))
    }

    /// Parses at least [`HEAD_BYTES`] bytes. The window scales are bit fields of one byte, the first in the lower bits
    /// on a little-endian machine.
    fn of(bytes: &[u8]) -> Self {
        let (options, byte) = (bytes[5], bytes[6]);
        let (low, high) = (byte & 15, byte >> 4);
        let scales = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
        let negotiated = NegotiatedOptions {
            sack: options & SACK != 0,
            timestamps: options & TIMESTAMPS != 0,
            scales: (options & WINDOW_SCALE != 0).then_some(scales),
        };
        Self { state: bytes[0], negotiated }
    }
}
