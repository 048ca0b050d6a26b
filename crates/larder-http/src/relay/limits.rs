//! Limits and deadlines, as a proxy sets them for each client.

use std::time::Duration;

/// Limits and deadlines. A deadline runs from the last byte that came or went, unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the largest head of a request.
    pub head_bytes: usize,
    /// From the first byte of a head to its last.
    pub head: Duration,
    /// Between two requests.
    pub keepalive: Duration,
    /// For a client that is to send bytes.
    pub client_read: Duration,
    /// For a client that is to take bytes.
    pub client_write: Duration,
    /// For a connection to a server.
    pub connect: Duration,
    /// For a server that is to send bytes.
    pub server_read: Duration,
    /// For a server that is to take bytes.
    pub server_write: Duration,
    /// A client that ends its side after a request without a body still gets its reply. Otherwise it counts as gone.
    pub half_close: bool,
}

impl Default for Limits {
    /// 64 KiB, and a minute for all that takes time.
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
