//! `[switch.clients]` and `[switch.retries]`.

use larder_switch::{ClientLimits, HandoffConfig, Limits, MechanismSetting, RetryConfig};

use crate::config::error::Fault;
use crate::config::keys::keys;

keys! {
    /// `[switch.clients]`.
    table ClientsSection, limits = ClientLimits::default();

    /// Requests a second that a client may make in the long run; more get 429 with Retry-After. 0: any number.
    rate_per_s: u32 = limits.rate_per_s, range "0 to 1000000";
    /// Requests that a client may make at once after a pause.
    burst: u32 = limits.burst, range "1 to 1000000";
    /// Connections that a client may have open; another one gets 429 and is closed. 0: any number.
    connections_max: u32 = limits.connections_max, range "0 to 1000000";
    /// Leading bits of an address of IPv4 that are one client's.
    prefix_v4: u8 = limits.prefix_v4, range "8 to 32";
    /// Leading bits of an address of IPv6 that are one client's.
    prefix_v6: u8 = limits.prefix_v6, range "16 to 128";
    /// The field of requests that says who a client is, in place of its address; where it is missing the address does. It is
    /// believed: let somebody before the switch set it. Connections are always the address's.
    header: Option<String>, example "x-api-key";
    /// Clients that are remembered, about 40 bytes each; those for whom there is no room share one client's allowance.
    clients_max: usize = limits.clients_max, range "64 to 100000000";
}

keys! {
    /// `[switch.retries]`.
    table RetriesSection, retries = RetryConfig::default();

    /// How often a request is tried again after a node failed it.
    max: u8 = Limits::default().retries_max, range "0 to 8";
    /// How many requests may be tried again at another node, as a share of all, over about 10 s. Beyond it the failure is the
    /// answer, so that retries cannot multiply an outage.
    share: f64 = retries.share, range "0 to 1";
    /// Retries a second that are allowed whatever the share.
    min_per_s: u32 = retries.min_per_s, range "0 to 1000000";
}

/// Limits of one client.
pub(crate) fn clients(raw: &ClientsSection, handoff: &HandoffConfig) -> Result<ClientLimits, Fault> {
    let key = "switch.clients.header";
    let header = raw.header.as_ref().map(|name| {
        name.to_ascii_lowercase().parse().map_err(|_| {
            Fault::new(key, format!("'{}' is no name of a field", name.escape_debug()))
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
            Fault::new(key, "is not used: no rate is limited").hint("write rate_per_s in [switch.clients]")
        );
    }
    if limits.is_on() && handoff.setting != MechanismSetting::Relay {
        let what = "contradicts switch.handoff: requests on connections that are handed over are not seen";
        return Err(Fault::new("switch.clients", what)
            .hint("leave it out, or write mechanism = \"relay\" in [switch.handoff]"));
    }
    Ok(limits)
}

pub(crate) fn retries(raw: &RetriesSection) -> RetryConfig {
    RetryConfig { share: raw.share, min_per_s: raw.min_per_s }
}
