//! What a node's admin interface answers.

use std::sync::Arc;

use larder_node::Node;

use super::{Answer, Ask, Surface};

/// Content type of Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

const ROUTES: [&str; 7] =
    ["/stats", "/metrics", "/peers", "/certificates", "/healthz", "POST /drain", "POST /undrain"];

/// A running node, as its admin interface sees it.
pub(crate) struct NodeSurface {
    node: Arc<Node>,
}

impl NodeSurface {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self { node }
    }

    /// Draining turns the health path to 503 and leaves the rest as it is: front-ends send no more.
    fn drain(&self, draining: bool) -> Answer {
        self.node.set_draining(draining);
        tracing::info!(%draining, "by the admin interface");
        Answer::json(&self.node.stats())
    }
}

impl Surface for NodeSurface {
    fn answer(&self, ask: &Ask<'_>) -> Answer {
        let answer = match (ask.path, ask.post) {
            ("/drain", true) => return self.drain(true),
            ("/undrain", true) => return self.drain(false),
            ("/drain" | "/undrain", false) => return Answer::wrong_method("POST"),
            ("/stats", _) => Answer::json(&self.node.stats()),
            ("/metrics", _) => Answer::text(METRICS, self.node.metrics_text()),
            ("/certificates", _) => Answer::json(&self.node.tls().unwrap_or_default()),
            ("/peers", _) => Answer::json(&self.node.peers()),
            ("/healthz", _) => Answer::text("text/plain", "ok\n".to_owned()),
            _ => return Answer::no_such_path(&ROUTES),
        };
        if ask.post { Answer::wrong_method("GET, HEAD") } else { answer }
    }
}
