//! What a node's admin interface answers.

use std::sync::Arc;

use larder_node::Node;

use super::{Answer, Ask, Surface, purge};
use crate::cmd::node::reload::{Reloader, Unread};
use crate::cmd::reloads::By;

/// Content type of Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

const ROUTES: [&str; 10] = [
    "/stats",
    "/metrics",
    "/peers",
    "/certificates",
    "/reload",
    "/healthz",
    "POST /reload",
    "POST /drain",
    "POST /undrain",
    purge::ROUTE,
];

/// A running node, as its admin interface sees it.
pub(crate) struct NodeSurface {
    node: Arc<Node>,
    reloader: Arc<Reloader>,
}

impl NodeSurface {
    pub(crate) fn new(node: Arc<Node>, reloader: Arc<Reloader>) -> Self {
        Self { node, reloader }
    }

    /// Tells how the last reload went, or reloads.
    fn reload(&self, post: bool) -> Answer {
        if !post {
            return Answer::json(&self.reloader.status());
        }
        match self.reloader.reload(By::Admin) {
            Ok(status) => match status.trouble() {
                None => Answer::json(&status),
                Some(why) => {
                    Answer::problem(409, why, "the config before stays in force; GET /reload tells more")
                }
            },
            Err(unread @ Unread::NoFile) => {
                Answer::problem(409, &unread.to_string(), "start it with --config FILE")
            }
            Err(unread @ Unread::Starting) => {
                Answer::problem(503, &unread.to_string(), "ask again in a moment")
            }
        }
    }

    fn metrics(&self) -> String {
        let mut text = self.node.metrics_text();
        if let Some(switches) = self.reloader.switches() {
            // Bytes after the end mark would not be read.
            text.truncate(text.trim_end_matches("# EOF\n").len());
            text += &super::agent::metrics(&switches.outcomes);
            text += "# EOF\n";
        }
        text
    }

    fn purge(&self, ask: &Ask<'_>) -> Answer {
        if !ask.post {
            return Answer::wrong_method("POST");
        }
        match purge::asked(ask, "node", self.node.may_purge(ask.authorization)) {
            Ok(purge) => Answer::json(&self.node.purge(&purge)),
            Err(answer) => answer,
        }
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
            ("/reload", post) => return self.reload(post),
            ("/purge", _) => return self.purge(ask),
            ("/drain" | "/undrain", false) => return Answer::wrong_method("POST"),
            ("/stats", _) => Answer::json(&self.node.stats()),
            ("/metrics", _) => Answer::text(METRICS, self.metrics()),
            ("/certificates", _) => Answer::json(&self.node.tls().unwrap_or_default()),
            ("/peers", _) => Answer::json(&self.node.peers()),
            ("/healthz", _) => Answer::text("text/plain", "ok\n".to_owned()),
            _ => return Answer::no_such_path(&ROUTES),
        };
        if ask.post { Answer::wrong_method("GET, HEAD") } else { answer }
    }
}
