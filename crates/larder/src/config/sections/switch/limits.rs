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

    /// Failures in a row, seen by traffic, after which a node counts as down. 0: off.
    passive_fall: u32 = health.passive_fall, range "0 to 1000";
    /// The switch's own check: "tcp" (a connection can be opened), "off", or a path (a GET of it is answered with a
    /// status from 200 to 399). larder's own nodes answer "/.larder/health", with 503 while they drain.
    check: String = match health.active { None => "off".to_owned(), Some(HealthCheck::Tcp) => "tcp".to_owned(), Some(HealthCheck::Http { path }) => path, };
    /// Time from one check of a node to the next.
    interval: Span = Span(health.interval), range "10ms to 1h";
    /// How long a check may take.
    timeout: Span = Span(health.timeout), range "1ms to 1m";
    /// Failed checks in a row after which a node counts as down.
    fall: u32 = health.fall, range "1 to 1000";
    /// Good checks in a row after which a node that was down is used again.
    rise: u32 = health.rise, range "1 to 1000";
    /// With `check = "off"`: how long a node stays down before it is tried again.
    retry_after: Span = Span(health.retry_after), range "10ms to 1h";
    /// When nodes that answer, but worse than the others, are taken out for a while. Off by default.
    outliers: OutliersSection;
}

keys! {
    /// `[switch.timeouts]`.
    table TimeoutsSection, timeouts = Timeouts::default();

    /// For a client's request header to arrive; then 408.
    header: Span = Span(timeouts.header), range "10ms to 1h";
    /// Between two requests on a client's connection; then it is closed.
    keepalive: Span = Span(timeouts.keepalive), range "10ms to 24h";
    /// Between two reads of a request body; then 408.
    client_read: Span = Span(timeouts.client_read), range "10ms to 1h";
    /// Without progress in writing a reply; then it is aborted.
    client_write: Span = Span(timeouts.client_write), range "10ms to 24h";
    /// To connect to a node; then another node, or 504.
    connect: Span = Span(timeouts.connect), range "1ms to 1m";
    /// Between two reads from a node; then another node where that is safe, or 504.
    node_read: Span = Span(timeouts.node_read), range "10ms to 1h";
    /// Between two writes to a node; then as for node_read.
    node_write: Span = Span(timeouts.node_write), range "10ms to 1h";
    /// An idle connection to a node is kept this long.
    node_idle: Span = Span(timeouts.node_idle), range "10ms to 1h";
    /// Requests in flight may go on this long once the switch is told to stop.
    drain: Span = Span(timeouts.drain), range "0s to 1h";
}

keys! {
    /// `[switch.limits]`.
    table LimitsSection, limits = Limits::default();

    /// Nodes the cluster may grow to.
    nodes_max: u16 = Settings::default().nodes_max, range "1 to 65534";
    /// Client connections; 503 and close beyond.
    connections_max: usize = limits.connections_max, range "1 to 1000000";
    /// A request's header; 431 beyond.
    header_max: Size = Size(Bytes(limits.header_bytes_max as u64)), range "512B to 1MB";
    /// The request target; 414 beyond.
    uri_max: Size = Size(Bytes(limits.uri_bytes_max as u64)), range "64B to 1MB";
    /// Bytes a second that a request body comes with at least, after timeouts.client_read; 408 below. "0B": any.
    body_rate_min: Size = Size(Bytes(limits.body_rate_min)), range "0B to 1GiB";
    /// Memory that replies to all HTTP/2 clients may hold, 128KiB for each request beside another one of its connection; then
    /// requests wait, and are refused if their client takes nothing.
    http2_bytes_max: Size = Size(Bytes(limits.http2_bytes_max as u64)), range "0B to 1TiB";
    /// Idle connections kept per node and thread.
    node_idle_max: usize = limits.node_idle_max, range "0 to 100000";
}

keys! {
    /// `[switch.health.outliers]`.
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
