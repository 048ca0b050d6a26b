//! Configuration of health checks, deadlines and limits.

use crate::config_error::{ConfigError, range, span};
use std::time::Duration;

/// Kind of an active health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthCheck {
    /// Opens a TCP connection.
    Tcp,
    /// Sends a GET for this path and expects a status from 200 to 399.
    Http {
        /// Path and query, beginning with `/`.
        path: String,
    },
}

/// Health checks: when a node counts as down, and when it counts as up again.
///
/// *Passive* checks count consecutive failures of requests: connections that are refused or time out, connections
/// lost before the first byte of a reply, and first bytes that are late. A reply of any status resets the count,
/// because an error status concerns the content and not the node. A request counts against one node at most. Passive
/// checks never take out the last open node of a group, and no node while half of the group is down.
///
/// *Active* checks probe each node at an interval. A node that is down is used again after `rise` successful active
/// checks in a row. If active checks are off, it is tried again after `retry_after`. A TCP check only shows that a
/// process listens. If a node can hang while it listens, use an HTTP check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// Consecutive failures of requests after which a node counts as down. 1 to 1,000; 0 turns passive checks off.
    /// Default 3.
    pub passive_fall: u32,
    /// Active check; `None` turns it off. Default TCP.
    pub active: Option<HealthCheck>,
    /// Interval between active checks of a node, varied by a tenth so that nodes are not checked in step. 10 ms to 1
    /// h; default 1 s.
    pub interval: Duration,
    /// Timeout of an active check. 1 ms to 1 min; default 1 s.
    pub timeout: Duration,
    /// Consecutive failed active checks after which a node counts as down. 1 to 1,000; default 2.
    pub fall: u32,
    /// Consecutive successful active checks after which a down node is used again. 1 to 1,000; default 2.
    pub rise: u32,
    /// Time after which a down node is tried again if active checks are off. 10 ms to 1 h; default 5 s.
    pub retry_after: Duration,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            passive_fall: 3,
            active: Some(HealthCheck::Tcp),
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            fall: 2,
            rise: 2,
            retry_after: Duration::from_secs(5),
        }
    }
}

impl HealthConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        range("health.passive_fall", self.passive_fall as usize, 0, 1000)?;
        range("health.fall", self.fall as usize, 1, 1000)?;
        range("health.rise", self.rise as usize, 1, 1000)?;
        span("health.interval", self.interval, 10, 3_600_000)?;
        span("health.timeout", self.timeout, 1, 60_000)?;
        span("health.retry_after", self.retry_after, 10, 3_600_000)?;
        match &self.active {
            Some(HealthCheck::Http { path })
                if !path.starts_with('/') || path.bytes().any(|b| b <= b' ' || b == 127) =>
            {
                Err(ConfigError::HealthPath(path.chars().take(80).collect()))
            }
            _ => Ok(()),
        }
    }
}

/// Deadlines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time from the first byte of a request (on a new connection: from accepting it) to the end of its header. 10 ms
    /// to 1 h; default 10 s. Outcome: 408 `header_timeout`.
    pub header: Duration,
    /// Idle time of a client connection between requests. 10 ms to 24 h; default 60 s. Outcome: it is closed.
    pub keepalive: Duration,
    /// Time between two reads of a request body. 10 ms to 1 h; default 30 s. Outcome: 408 `body_timeout`.
    pub client_read: Duration,
    /// Time between two writes of a reply that make progress. 10 ms to 24 h; default 60 s. Outcome: the reply is
    /// aborted.
    pub client_write: Duration,
    /// Time to open a connection to a node. 1 ms to 1 min; default 2 s. Outcome: another node, or 504
    /// `connect_timeout`.
    pub connect: Duration,
    /// Time between two reads from a node, including the first byte. 10 ms to 1 h; default 60 s. Outcome: another
    /// node if nothing was sent to the client and the method allows it, or 504 `node_timeout`.
    pub node_read: Duration,
    /// Time between two writes to a node. 10 ms to 1 h; default 30 s. Outcome: as for `node_read`.
    pub node_write: Duration,
    /// Idle time of a pooled connection to a node. 10 ms to 1 h; default 55 s.
    pub node_idle: Duration,
    /// Time for requests in flight to end once the switch stops. 0 to 1 h; default 30 s.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(10),
            keepalive: Duration::from_secs(60),
            client_read: Duration::from_secs(30),
            client_write: Duration::from_secs(60),
            connect: Duration::from_secs(2),
            node_read: Duration::from_secs(60),
            node_write: Duration::from_secs(30),
            node_idle: Duration::from_secs(55),
            drain: Duration::from_secs(30),
        }
    }
}

impl Timeouts {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        span("timeouts.header", self.header, 10, 3_600_000)?;
        span("timeouts.keepalive", self.keepalive, 10, 86_400_000)?;
        span("timeouts.client_read", self.client_read, 10, 3_600_000)?;
        span("timeouts.client_write", self.client_write, 10, 86_400_000)?;
        span("timeouts.connect", self.connect, 1, 60_000)?;
        span("timeouts.node_read", self.node_read, 10, 3_600_000)?;
        span("timeouts.node_write", self.node_write, 10, 3_600_000)?;
        span("timeouts.node_idle", self.node_idle, 10, 3_600_000)?;
        span("timeouts.drain", self.drain, 0, 3_600_000)
    }
}

/// Limits on sizes and numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of client connections. 1 to 1,000,000; default 10,000. Outcome: 503 `connections_full` and close.
    pub connections_max: usize,
    /// Size of a request header, including the request line. Bytes; 512 to 1,000,000; default 32 KiB. Outcome: 431
    /// `header_too_large`. A header of more than 256 fields has the same outcome, whatever its size.
    pub header_bytes_max: usize,
    /// Size of the request target. Bytes; 64 to 1,000,000; default 8 KiB. Outcome: 414 `uri_too_long`.
    pub uri_bytes_max: usize,
    /// Minimum rate of a request body in bytes per second. A body of n bytes may take `Timeouts::client_read` plus n
    /// / rate. 0 to 1 GiB; default 0, no minimum. Bytes of a tunnel are not a body. Outcome: 408 `body_timeout`.
    pub body_rate_min: u64,
    /// Memory for replies to all HTTP/2 clients, 128 KiB for each further request of a connection. Bytes; 0 to 1 TiB;
    /// default 128 MiB. Outcome: requests wait while their client reads, then they are refused: `streams_full`.
    pub http2_bytes_max: usize,
    /// Attempts after the first one if a node fails. 0 to 8; default 3.
    pub retries_max: u8,
    /// Idle connections that a thread keeps per node. 0 to 100,000; default 128.
    pub node_idle_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            header_bytes_max: 32 << 10,
            uri_bytes_max: 8 << 10,
            body_rate_min: 0,
            http2_bytes_max: 128 << 20,
            retries_max: 3,
            node_idle_max: 128,
        }
    }
}

impl Limits {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        range("limits.connections_max", self.connections_max, 1, 1_000_000)?;
        range("limits.header_bytes_max", self.header_bytes_max, 512, 1_000_000)?;
        range("limits.uri_bytes_max", self.uri_bytes_max, 64, 1_000_000)?;
        range("limits.body_rate_min", usize::try_from(self.body_rate_min).unwrap_or(usize::MAX), 0, 1 << 30)?;
        range("limits.http2_bytes_max", self.http2_bytes_max, 0, 1 << 40)?;
        range("limits.retries_max", usize::from(self.retries_max), 0, 8)?;
        range("limits.node_idle_max", self.node_idle_max, 0, 100_000)
    }
}
