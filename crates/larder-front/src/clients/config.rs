//! What one client may take.

use crate::config_error::{ConfigError, range};
use http::HeaderName;

/// Limits for each client, so that one cannot take what is for all. Off by default.
///
/// A client is an address, or a network of addresses, since whoever has one address of IPv6 has a whole network of them; or
/// what a field of the request holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Requests a second that a client may make in the long run. 1 to 1,000,000; 0: any number. Default 0. Outcome: 429
    /// `rate_limited`, with `Retry-After`.
    pub rate_per_s: u32,
    /// Requests that a client may make at once after a pause. 1 to 1,000,000; default 100. Outcome as for `rate_per_s`.
    pub burst: u32,
    /// Connections that a client may have open. 1 to 1,000,000; 0: any number. Default 0. Outcome: 429
    /// `client_connections_full` and close; with TLS only the close.
    pub connections_max: u32,
    /// Leading bits of an address of IPv4 that are one client's. 8 to 32; default 32.
    pub prefix_v4: u8,
    /// Leading bits of an address of IPv6 that are one client's. 16 to 128; default 64.
    pub prefix_v6: u8,
    /// The field that says who makes a request; where it is missing, the address does. It is believed, so it must be one that
    /// somebody before the switch sets or checks. `None` by default. Connections are always the address's.
    pub header: Option<HeaderName>,
    /// Clients that are remembered. 64 to 100,000,000; default 131,072, of about 40 bytes each. Outcome: those for whom there is
    /// no room share one client's allowance, and are counted.
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
