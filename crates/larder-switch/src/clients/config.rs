//! Configuration of limits per client.

use crate::config_error::{ConfigError, range};
use http::HeaderName;

/// Limits for each client, so that one client cannot use up what all share. Off by default.
///
/// A client is an address, a network of addresses (because an IPv6 user has a whole network), or the value of a
/// request field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Long-term rate of requests per second. 1 to 1,000,000; 0 for no limit. Default 0. Outcome: 429 `rate_limited`,
    /// with `Retry-After`.
    pub rate_per_s: u32,
    /// Requests that a client may send at once after a pause. 1 to 1,000,000; default 100. Outcome as for
    /// `rate_per_s`.
    pub burst: u32,
    /// Open connections of a client. 1 to 1,000,000; 0 for no limit. Default 0. Outcome: 429
    /// `client_connections_full` and close; with TLS only the close.
    pub connections_max: u32,
    /// Prefix length of an IPv4 client. 8 to 32; default 32.
    pub prefix_v4: u8,
    /// Prefix length of an IPv6 client. 16 to 128; default 64.
    pub prefix_v6: u8,
    /// Header field that identifies the client of a request; without the field, its address does. The value is
    /// trusted, so a proxy before the switch must set or check it. `None` by default. Connections are always counted
    /// by address.
    pub header: Option<HeaderName>,
    /// Size of the table of clients. 64 to 100,000,000; default 131,072, of about 40 bytes each. Outcome: clients
    /// without room share one allowance, and are counted.
    pub clients_max: usize,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            rate_per_s: 0,
            burst: 100,
            connections_max: 0,
            prefix_v4: 32,
            prefix_v6: 64,
            header: None,
            clients_max: 1 << 17,
        }
    }
}

impl ClientLimits {
    /// Whether anything is limited.
    pub fn is_on(&self) -> bool {
        self.rate_per_s > 0 || self.connections_max > 0
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        range("clients.rate_per_s", self.rate_per_s as usize, 0, 1_000_000)?;
        range("clients.burst", self.burst as usize, 1, 1_000_000)?;
        range("clients.connections_max", self.connections_max as usize, 0, 1_000_000)?;
        range("clients.prefix_v4", usize::from(self.prefix_v4), 8, 32)?;
        range("clients.prefix_v6", usize::from(self.prefix_v6), 16, 128)?;
        range("clients.clients_max", self.clients_max, 64, 100_000_000)
    }
}
