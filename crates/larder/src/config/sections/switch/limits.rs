//! `[switch.health]`, `[switch.timeouts]` and `[switch.limits]`.

use larder_core::{Bytes, Settings};
use larder_switch::{HealthCheck, HealthConfig, Limits, OutlierConfig, Timeouts};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::switch::clients::RetriesSection;
use crate::config::text::{Size, Span};

keys! {
    /// `[switch.health]`.
    table HealthSection, health = HealthConfig::default();

    /// Number of consecutive failed requests after which a node counts as down. 0: off.
    passive_fall: u32 = health.passive_fall, range "0 to 1000";
    /// Active check: "tcp" opens a connection, a path sends a GET and expects a status from 200 to 399, "off" turns
    /// it off. larder nodes answer "/.larder/health", with 503 while they drain.
    check: String = match health.active { None => "off".to_owned(), Some(HealthCheck::Tcp) => "tcp".to_owned(), Some(HealthCheck::Http { path }) => path, };
    /// Interval of active checks of a node.
    interval: Span = Span(health.interval), range "10ms to 1h";
    /// Timeout of an active check.
    timeout: Span = Span(health.timeout), range "1ms to 1m";
    /// Number of consecutive failed active checks after which a node counts as down.
    fall: u32 = health.fall, range "1 to 1000";
    /// Number of consecutive successful active checks after which a node that was down is used again.
    rise: u32 = health.rise, range "1 to 1000";
    /// Time after which a node that is down is tried again, if check = "off".
    retry_after: Span = Span(health.retry_after), range "10ms to 1h";
    /// Ejection of nodes that reply, but worse than the others. Off by default.
    outliers: OutliersSection;
}

keys! {
    /// `[switch.timeouts]`.
    table TimeoutsSection, timeouts = Timeouts::default();

    /// Time for a request's header to arrive. After it: 408.
    header: Span = Span(timeouts.header), range "10ms to 1h";
    /// Time that a client connection may be idle between requests. After it, the connection is closed.
    keepalive: Span = Span(timeouts.keepalive), range "10ms to 24h";
    /// Time between two reads of a request's body. After it: 408.
    client_read: Span = Span(timeouts.client_read), range "10ms to 1h";
    /// Time without progress in writing a reply. After it, the reply is aborted.
    client_write: Span = Span(timeouts.client_write), range "10ms to 24h";
    /// Time to connect to a node. After it, another node is tried, or the client gets 504.
    connect: Span = Span(timeouts.connect), range "1ms to 1m";
    /// Time between two reads from a node. After it, another node is tried if that is safe, or the client gets 504.
    node_read: Span = Span(timeouts.node_read), range "10ms to 1h";
    /// Time between two writes to a node. After it, another node is tried if that is safe, or the client gets 504.
    node_write: Span = Span(timeouts.node_write), range "10ms to 1h";
    /// Time for which an idle connection to a node is kept.
    node_idle: Span = Span(timeouts.node_idle), range "10ms to 1h";
    /// Time for requests in flight to end when the switch stops. After it, they are aborted.
    drain: Span = Span(timeouts.drain), range "0s to 1h";
}

keys! {
    /// `[switch.limits]`.
    table LimitsSection, limits = Limits::default();

    /// Number of nodes.
    nodes_max: u16 = Settings::default().nodes_max, range "1 to 65534";
    /// Number of client connections. Beyond it: 503, and the connection is closed.
    connections_max: usize = limits.connections_max, range "1 to 1000000";
    /// Size of a request's header, which has at most 256 fields. Beyond it: 431.
    header_max: Size = Size(Bytes(limits.header_bytes_max as u64)), range "512B to 1MB";
    /// Size of the request target (path and query). Beyond it: 414.
    uri_max: Size = Size(Bytes(limits.uri_bytes_max as u64)), range "64B to 1MB";
    /// Lowest rate of a request's body in bytes per second. A body of n bytes may take timeouts.client_read plus n /
    /// rate. A slower body gets 408. "0B": any rate.
    body_rate_min: Size = Size(Bytes(limits.body_rate_min)), range "0B to 1GiB";
    /// Memory for replies to all HTTP/2 clients: 128KiB for each request beyond the first of its connection. Beyond
    /// it, requests wait while their client reads; otherwise they are refused.
    http2_bytes_max: Size = Size(Bytes(limits.http2_bytes_max as u64)), range "0B to 1TiB";
    /// Number of idle connections that are kept per node and thread.
    node_idle_max: usize = limits.node_idle_max, range "0 to 100000";
}

keys! {
    /// `[switch.health.outliers]`.
    table OutliersSection, outliers = OutlierConfig::default();

    /// Number of consecutive replies with status 500 to 599 after which a node is ejected. 0: off.
    consecutive: u32 = outliers.consecutive, range "0 to 10000";
    /// Difference of a node's share of failed requests to that of all other nodes together, above which the node is
    /// ejected. 0: off. If the content itself fails, the nodes that it belongs to are ejected one after the other.
    failures_above: f64 = outliers.failures_above, range "0 to 1";
    /// Number of requests that a node must have had in the interval for its share to count.
    requests_min: u32 = outliers.requests_min, range "1 to 1000000";
    /// Interval at which the shares are compared.
    interval: Span = Span(outliers.interval), range "100ms to 1h";
    /// Duration of a node's first ejection. It doubles with each further one.
    time: Span = Span(outliers.time), range "100ms to 1h";
    /// Longest duration of an ejection.
    time_max: Span = Span(outliers.time_max), range "time to 24h";
    /// Largest share of the nodes that may be ejected at one time. If there are other nodes, one node may always be
    /// ejected.
    ejected_max: f64 = outliers.ejected_max, range "0 to 1";
}

pub(crate) fn health(raw: &HealthSection) -> Result<HealthConfig, Fault> {
    let active = match raw.check.as_str() {
        "off" => None,
        "tcp" => Some(HealthCheck::Tcp),
        path if path.starts_with('/') => Some(HealthCheck::Http { path: path.to_owned() }),
        other => {
            return Err(Fault::new("switch.health.check", format!("unknown value '{other}'"))
                .hint("\"tcp\", \"off\", or a path such as \"/health\""));
        }
    };
    Ok(HealthConfig {
        passive_fall: raw.passive_fall,
        active,
        interval: raw.interval.0,
        timeout: raw.timeout.0,
        fall: raw.fall,
        rise: raw.rise,
        retry_after: raw.retry_after.0,
    })
}

pub(crate) fn timeouts(raw: &TimeoutsSection) -> Timeouts {
    Timeouts {
        header: raw.header.0,
        keepalive: raw.keepalive.0,
        client_read: raw.client_read.0,
        client_write: raw.client_write.0,
        connect: raw.connect.0,
        node_read: raw.node_read.0,
        node_write: raw.node_write.0,
        node_idle: raw.node_idle.0,
        drain: raw.drain.0,
    }
}

pub(crate) fn limits(raw: &LimitsSection, retries: &RetriesSection) -> Limits {
    let bytes = |size: Size| usize::try_from(size.0.get()).unwrap_or(usize::MAX);
    Limits {
        connections_max: raw.connections_max,
        header_bytes_max: bytes(raw.header_max),
        uri_bytes_max: bytes(raw.uri_max),
        body_rate_min: raw.body_rate_min.0.get(),
        http2_bytes_max: bytes(raw.http2_bytes_max),
        retries_max: retries.max,
        node_idle_max: raw.node_idle_max,
    }
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
