//! The settings of an origin that may change while the node runs. A request uses the settings in force when it
//! begins.

use super::connector::Connector;
use super::error::OriginRequestBody;
use super::failover::OriginPool;
use super::transfer_limits::TransferLimits;
use crate::config::OriginConfig;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::sync::Arc;
use std::time::Duration;

/// The settings in force, with the HTTP clients made from them.
#[derive(Debug)]
pub(crate) struct OriginSettings {
    pub(crate) config: OriginConfig,
    /// The origins, and their states.
    pub(super) origins: Arc<OriginPool>,
    /// Uses pooled connections. An origin may close one just when a request is sent on it, so the request must
    /// be repeatable.
    pub(super) client: Client<Connector, OriginRequestBody>,
    /// Opens a connection for each request. The request has to ask the origin to close it.
    pub(super) fresh_client: Client<Connector, OriginRequestBody>,
}

impl OriginSettings {
    /// Creates the settings from a validated configuration.
    pub(super) fn new(config: OriginConfig) -> Self {
        let origins = Arc::new(OriginPool::new(&config.url, config.failover.as_ref()));
        Self { origins, client: client(&config, config.idle_max), fresh_client: client(&config, 0), config }
    }

    /// Returns the settings after a reload. Pooled connections are reused if no setting of connections has
    /// changed; otherwise they end with their requests.
    pub(super) fn successor(&self, config: OriginConfig) -> Self {
        let of_connections = |config: &OriginConfig| {
            let OriginConfig { connect_timeout, idle_timeout, idle_max, head_bytes_max, headers_max, .. } =
                *config;
            let OriginConfig { body_timeout, body_rate_min, .. } = *config;
            (
                connect_timeout,
                idle_timeout,
                idle_max,
                head_bytes_max,
                headers_max,
                body_timeout,
                body_rate_min,
                config.tls.clone(),
            )
        };
        let mut next = Self::new(config);
        if self.config.failover == next.config.failover {
            next.origins = Arc::clone(&self.origins);
        }
        if of_connections(&self.config) == of_connections(&next.config) {
            (next.client, next.fresh_client) = (self.client.clone(), self.fresh_client.clone());
        }
        next
    }
}

/// Bytes of an HTTP/2 reply that the origin may send before they are read.
const STREAM_WINDOW: u32 = 1 << 18;
/// The largest possible window, so that replies that nobody reads block no other reply of their connection.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Interval of HTTP/2 pings on connections with requests in progress, and the time limit for their answers.
/// Without pings, a connection that has failed silently would get all further requests.
const PING: Duration = Duration::from_secs(10);

/// Creates a client with up to `idle_max` pooled connections. If `idle_max` is 0, each connection carries one
/// request. Such connections are for requests that must not be repeated, and use HTTP/1.1: their bodies have
/// deadlines of their own.
fn client(config: &OriginConfig, idle_max: usize) -> Client<Connector, OriginRequestBody> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(config.connect_timeout));
    let limits = TransferLimits::new(config.body_timeout, config.body_timeout, config.body_rate_min);
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(config.idle_timeout)
        .pool_max_idle_per_host(idle_max)
        .http1_max_buf_size(config.head_bytes_max)
        .http1_max_headers(config.headers_max)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http2_max_header_list_size(u32::try_from(config.head_bytes_max).unwrap_or(u32::MAX))
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PING)
        .timer(TokioTimer::new())
        .set_host(false)
        .build(Connector::new(connector, config.tls.as_ref(), idle_max > 0, limits))
}
