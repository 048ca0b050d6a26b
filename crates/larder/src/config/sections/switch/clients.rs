//! `[switch.clients]` and `[switch.retries]`.

use larder_switch::{ClientLimits, HandoffConfig, Limits, MechanismSetting, RetryConfig};

use crate::config::error::Fault;
use crate::config::keys::keys;

keys! {
    /// `[switch.clients]`.
    table ClientsSection, limits = ClientLimits::default();

    /// Requests per second of a client, in the long run. Beyond it: 429 with Retry-After. 0: no limit.
    rate_per_s: u32 = limits.rate_per_s, range "0 to 1000000";
    /// Number of requests that a client may send at once after a pause.
    burst: u32 = limits.burst, range "1 to 1000000";
    /// Number of open connections of a client. Beyond it: 429, and the connection is closed. 0: no limit.
    connections_max: u32 = limits.connections_max, range "0 to 1000000";
    /// Length of the IPv4 prefix that counts as one client, in bits.
    prefix_v4: u8 = limits.prefix_v4, range "8 to 32";
    /// Length of the IPv6 prefix that counts as one client, in bits.
    prefix_v6: u8 = limits.prefix_v6, range "16 to 128";
    /// Header field that identifies the client of a request. Without the field, the address does. Connections are
    /// always counted by address. The field is trusted, so a proxy before the switch must set it. Unset: the address.
    header: Option<String>, example "x-api-key";
    /// Number of clients that are stored, about 40 bytes each. Clients beyond it share the allowance of one client.
    clients_max: usize = limits.clients_max, range "64 to 100000000";
}

keys! {
    /// `[switch.retries]`.
    table RetriesSection, retries = RetryConfig::default();

    /// Number of retries of a request after a node has failed it.
    max: u8 = Limits::default().retries_max, range "0 to 8";
    /// Share of all requests, averaged over about 10 s, that may be retried at another node. Beyond it, the client
    /// gets the failure. So retries cannot multiply an outage.
    share: f64 = retries.share, range "0 to 1";
    /// Retries per second that are allowed regardless of `share`.
    min_per_s: u32 = retries.min_per_s, range "0 to 1000000";
}

/// Returns the limits per client.
pub(crate) fn clients(raw: &ClientsSection, handoff: &HandoffConfig) -> Result<ClientLimits, Fault> {
    let key = "switch.clients.header";
    let header = raw.header.as_ref().map(|name| {
        name.to_ascii_lowercase().parse().map_err(|_| {
            Fault::new(key, format!("'{}' is no name of a header field", name.escape_debug()))
                .hint("letters, digits and '-', such as \"x-api-key\"")
        })
    });
    let limits = ClientLimits {
        rate_per_s: raw.rate_per_s,
        burst: raw.burst,
        connections_max: raw.connections_max,
        prefix_v4: raw.prefix_v4,
        prefix_v6: raw.prefix_v6,
        header: header.transpose()?,
        clients_max: raw.clients_max,
    };
    if limits.header.is_some() && limits.rate_per_s == 0 {
        return Err(
            Fault::new(key, "is not used: rate_per_s is 0").hint("write rate_per_s in [switch.clients]")
        );
    }
    if limits.is_on() && handoff.setting != MechanismSetting::Relay {
        let what = "contradicts switch.handoff: the switch does not see requests on handed-off connections";
        return Err(Fault::new("switch.clients", what)
            .hint("leave it out, or write mechanism = \"relay\" in [switch.handoff]"));
    }
    Ok(limits)
}

pub(crate) fn retries(raw: &RetriesSection) -> RetryConfig {
    RetryConfig { share: raw.share, min_per_s: raw.min_per_s }
}
