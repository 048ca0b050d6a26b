//! Limits and timeouts that a proxy sets for each client.

use std::time::Duration;

/// Limits and timeouts. A timeout starts again with every byte that is sent or received, unless stated
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest size of the head of a request, in bytes.
    pub head_bytes: usize,
    /// Longest time from the first byte of a head to its last byte.
    pub head: Duration,
    /// Longest idle time between two requests.
    pub keepalive: Duration,
    /// Longest time for a client that must send bytes.
    pub client_read: Duration,
    /// Longest time for a client that must accept bytes.
    pub client_write: Duration,
    /// Longest time for opening a connection to a server.
    pub connect: Duration,
    /// Longest time for a server that must send bytes.
    pub server_read: Duration,
    /// Longest time for a server that must accept bytes.
    pub server_write: Duration,
    /// A client that ends its side after a request without a body still gets its reply. Otherwise it counts
    /// as disconnected.
    pub half_close: bool,
}

impl Default for Limits {
    /// Sets 64 KiB for heads and one minute for all timeouts.
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self {
            head_bytes: 64 << 10,
            head: minute,
            keepalive: minute,
            client_read: minute,
            client_write: minute,
            connect: minute,
            server_read: minute,
            server_write: minute,
            half_close: false,
        }
    }
}
