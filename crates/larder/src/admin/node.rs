//! The admin interface of a node.

use std::sync::Arc;

use larder_node::Node;

use super::{AdminReply, AdminRequest, AdminService, purge};
use crate::cmd::node::reload::{ReloadError, Reloader};
use crate::cmd::reloads::ReloadTrigger;

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

/// A running node.
pub(crate) struct NodeAdmin {
    node: Arc<Node>,
    reloader: Arc<Reloader>,
}

impl NodeAdmin {
    pub(crate) fn new(node: Arc<Node>, reloader: Arc<Reloader>) -> Self {
        Self { node, reloader }
    }

    /// Returns the status of the last reload, or reloads.
    fn reload(&self, post: bool) -> AdminReply {
        if !post {
            return AdminReply::json(&self.reloader.status());
        }
        match self.reloader.reload(ReloadTrigger::Admin) {
            Ok(status) => match status.last_error() {
                None => AdminReply::json(&status),
                Some(why) => {
                    AdminReply::problem(409, why, "the previous config stays in force; see GET /reload")
                }
            },
            Err(unread @ ReloadError::NoFile) => {
                AdminReply::problem(409, &unread.to_string(), "start it with --config FILE")
            }
            Err(unread @ ReloadError::Starting) => {
                AdminReply::problem(503, &unread.to_string(), "try again in a moment")
            }
        }
    }

    fn metrics(&self) -> String {
        let mut text = self.node.metrics_text();
        if let Some(switches) = self.reloader.switches() {
            // A Prometheus parser ignores bytes after the end mark.
            text.truncate(text.trim_end_matches("# EOF\n").len());
            text += &super::agent::metrics(&switches.outcomes);
            text += "# EOF\n";
        }
        text
    }

    fn purge(&self, request: &AdminRequest<'_>) -> AdminReply {
        if !request.post {
            return AdminReply::wrong_method("POST");
        }
        match purge::parse_purge(request, "node", self.node.may_purge(request.authorization)) {
            Ok(purge) => AdminReply::json(&self.node.purge(&purge)),
            Err(reply) => reply,
        }
    }

    /// Starts or stops draining. A draining node answers its health path with 503, so that switches send no
    /// more requests.
    fn drain(&self, draining: bool) -> AdminReply {
        self.node.set_draining(draining);
        let cause = "admin interface";
        if draining {
            tracing::info!(cause, "node: draining");
        } else {
            tracing::info!(cause, "node: drain ended");
        }
        AdminReply::json(&self.node.stats())
    }
}

impl AdminService for NodeAdmin {
    fn reply(&self, request: &AdminRequest<'_>) -> AdminReply {
        let reply = match (request.path, request.post) {
            ("/drain", true) => return self.drain(true),
            ("/undrain", true) => return self.drain(false),
            ("/reload", post) => return self.reload(post),
            ("/purge", _) => return self.purge(request),
            ("/drain" | "/undrain", false) => return AdminReply::wrong_method("POST"),
            ("/stats", _) => AdminReply::json(&self.node.stats()),
            ("/metrics", _) => AdminReply::text(METRICS, self.metrics()),
            ("/certificates", _) => AdminReply::json(&self.node.tls().unwrap_or_default()),
            ("/peers", _) => AdminReply::json(&self.node.peers()),
            ("/healthz", _) => AdminReply::text("text/plain", "ok\n".to_owned()),
            _ => return AdminReply::no_such_path(&ROUTES),
        };
        if request.post { AdminReply::wrong_method("GET, HEAD") } else { reply }
    }
}
