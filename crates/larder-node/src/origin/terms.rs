//! How an origin is asked, which may change while the node runs: a request goes by the terms of its beginning.

use super::client::Outgoing;
use super::config::OriginConfig;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// What is in force.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) config: OriginConfig,
    /// With the connections that are kept.
    pub(super) client: Client<HttpConnector, Outgoing>,
}

impl Terms {
    /// The configuration has been checked.
    pub(super) fn new(config: OriginConfig) -> Self {
        Self { client: client(&config), config }
    }

    /// Those that follow. Kept connections are used on where they do not depend on what has changed; others end with their request.
    pub(super) fn successor(&self, config: OriginConfig) -> Self {
        let of_connections = |config: &OriginConfig| {
            let OriginConfig { connect_timeout, idle_timeout, idle_max, head_bytes_max, headers_max, .. } =
                *config;
            (connect_timeout, idle_timeout, idle_max, head_bytes_max, headers_max)
        };
        if of_connections(&self.config) == of_connections(&config) {
            return Self { client: self.client.clone(), config };
        }
        Self::new(config)
    }
}

fn client(config: &OriginConfig) -> Client<HttpConnector, Outgoing> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(config.connect_timeout));
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(config.idle_timeout)
        .pool_max_idle_per_host(config.idle_max)
        .http1_max_buf_size(config.head_bytes_max)
        .http1_max_headers(config.headers_max)
        .set_host(false)
        .build(connector)
}
