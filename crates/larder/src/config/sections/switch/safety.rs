//! `[switch.long_lived]`, `[switch.clients]`, `[switch.retries]` and `[switch.outliers]`.

use larder_core::Settings;
use larder_switch::{
    ClientLimits, HandoffConfig, LongLivedConfig, MechanismSetting, OutlierConfig, RetryConfig,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::text::Span;

keys! {
    /// `[switch.long_lived]`.
    table LongLivedSection, long_lived = LongLivedConfig::default(), max = Settings::default().long_lived_max;

    /// Which requests leave the admission limit once the header of their reply has come: "upgrade" (WebSocket and other
    /// upgrades, CONNECT), "event-stream" (text/event-stream), "grpc" (application/grpc). Leave out a kind whose requests are
    /// work for the node as long as they last, such as the event streams of a language model.
    kinds: Vec<LongLivedKind> = vec![LongLivedKind::Upgrade, LongLivedKind::EventStream, LongLivedKind::Grpc];
    /// Any other request leaves the admission limit after this time at its node, while its reply is being sent. 0s: never.
    /// Policies that place by content do not see such requests: leave it off where downloads are what loads nodes.
    after: Span = Span(long_lived.after.unwrap_or_default()), range "1s to 1h, or 0s";
    /// Long-lived requests that a node may have. Further ones stay within the admission limit.
    max_per_node: u32 = max, range "0 to 1000000";
}

/// The words of `switch.long_lived.kinds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LongLivedKind {
    /// Upgraded connections and tunnels.
    Upgrade,
    /// Event streams.
    EventStream,
    /// Calls of gRPC.
    Grpc,
}

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

    /// How many requests may be tried again at another node, as a share of all, over about 10 s. Beyond it the failure is the
    /// answer, so that retries cannot multiply an outage.
    share: f64 = retries.share, range "0 to 1";
    /// Retries a second that are allowed whatever the share.
    min_per_s: u32 = retries.min_per_s, range "0 to 1000000";
}

keys! {
    /// `[switch.outliers]`.
    table OutliersSection, outliers = OutlierConfig::default();

    /// Replies of 500 to 599 in a row after which a node is taken out. 0: never for this.
    consecutive: u32 = outliers.consecutive, range "0 to 10000";
    /// How much larger a node's share of failed requests must be than that of all others together for it to be taken out. 0:
    /// never for this. Where what fails is the content, the nodes that it belongs to look bad one after the other.
    failures_above: f64 = outliers.failures_above, range "0 to 1";
    /// Requests that a node must have had within the interval for its share to count.
    requests_min: u32 = outliers.requests_min, range "1 to 1000000";
    /// Between two looks at the shares.
    interval: Span = Span(outliers.interval), range "100ms to 1h";
    /// How long a node is out the first time; twice that the next time, and so on.
    time: Span = Span(outliers.time), range "100ms to 1h";
    /// How long at most.
    time_max: Span = Span(outliers.time_max), range "time to 24h";
    /// The share of the nodes that may be out for this at one time; one always may, where there are others.
    ejected_max: f64 = outliers.ejected_max, range "0 to 1";
}

/// Which requests are long-lived.
pub(crate) fn long_lived(raw: &LongLivedSection) -> LongLivedConfig {
    let has = |kind| raw.kinds.contains(&kind);
    LongLivedConfig {
        upgrades: has(LongLivedKind::Upgrade),
        event_streams: has(LongLivedKind::EventStream),
        grpc: has(LongLivedKind::Grpc),
        after: Some(raw.after.0).filter(|after| !after.is_zero()),
    }
}

/// What one client may take.
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

pub(crate) fn outliers(raw: &OutliersSection) -> OutlierConfig {
    OutlierConfig {
        consecutive: raw.consecutive,
        failures_above: raw.failures_above,
        requests_min: raw.requests_min,
        interval: raw.interval.0,
        time: raw.time.0,
        time_max: raw.time_max.0,
        ejected_max: raw.ejected_max,
    }
}
