//! What a node goes by that may change while it runs, in one place.
//!
//! A connection takes the terms that are in force when it begins and keeps them: its limits, its deadlines, its TLS. A request looks
//! at those of its moment. What is not here, or behind a [`crate::bound::Bound`], stays as it was at the start.

use crate::config::{Limits, NodeConfig};
use crate::edge::Edge;
use crate::node::Node;
use crate::report::ReportConfig;
use arc_swap::Guard;
use hyper::server::conn::http1;
use std::sync::Arc;

/// What is in force.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) limits: Limits,
    /// The HTTP side of connections, within the limits.
    pub(crate) http: http1::Builder,
    pub(crate) edge: Edge,
    pub(crate) report: ReportConfig,
    pub(crate) object_max: u64,
    pub(crate) revalidate_ms: u64,
    pub(crate) health_path: Option<String>,
    pub(crate) stats_path: Option<String>,
}

impl Terms {
    /// Those of a configuration that has been checked, with this edge.
    pub(crate) fn new(config: &NodeConfig, edge: Edge) -> Self {
        Self {
            limits: config.limits,
            http: http(&config.limits),
            edge,
            report: config.report.clone(),
            object_max: config.cache.object_max.0,
            revalidate_ms: u64::try_from(config.revalidate.as_millis()).unwrap_or(u64::MAX),
            health_path: config.health_path.clone(),
            stats_path: config.stats_path.clone(),
        }
    }

    /// Whether the node keeps a path for itself.
    pub(crate) fn is_own(&self, path: &str) -> bool {
        let own = [&self.health_path, &self.stats_path];
        own.iter().any(|own| own.as_deref() == Some(path)) || self.report.has(path)
    }
}

impl Node {
    /// What is in force at this moment. Not to be held while something is waited for.
    pub(crate) fn terms(&self) -> Guard<Arc<Terms>> {
        self.terms.load()
    }
}

/// Deadlines are the socket's, not hyper's: hyper has one for heads and silence alike.
fn http(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None)
        .max_headers(limits.headers_max)
        .max_header_size(limits.head_bytes_max)
        .max_buf_size(limits.head_bytes_max.max(64 << 10));
    builder
}
