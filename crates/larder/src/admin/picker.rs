//! The admin interface of an endpoint picker.

use std::sync::Arc;

use larder_core::rules::Head;
use larder_picker::Picker;

use super::{AdminReply, AdminRequest, AdminService, split_target};
use crate::roster::RosterManager;

/// Content type of Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

const ROUTES: [&str; 6] = [
    "/status",
    "/discovery",
    "/peers",
    "/metrics",
    "/healthz",
    "/explain?target=HOST/PATH&method=GET&header=NAME:VALUE",
];

/// A running picker.
pub(crate) struct PickerAdmin {
    picker: Arc<Picker>,
    roster: Arc<RosterManager<Arc<Picker>>>,
}

impl PickerAdmin {
    pub(crate) fn new(picker: Arc<Picker>, roster: Arc<RosterManager<Arc<Picker>>>) -> Self {
        Self { picker, roster }
    }

    /// Returns whether the picker is ready, for probes of Kubernetes.
    fn health(&self) -> AdminReply {
        if self.picker.is_ready() {
            return AdminReply::text("text/plain", "ok\n".to_owned());
        }
        AdminReply::problem(503, "no endpoints are known", "see /discovery for the sources and their errors")
    }

    fn explain(&self, request: &AdminRequest<'_>) -> AdminReply {
        let hint = "write /explain?target=HOST/PATH, percent-encoded";
        let Some(target) = request.param("target") else {
            return AdminReply::problem(400, "no target is given", hint);
        };
        let Some((host, path)) = split_target(&target) else {
            return AdminReply::problem(400, "invalid target", hint);
        };
        let fields = match request.headers() {
            Ok(fields) => fields,
            Err(reply) => return reply,
        };
        let method = request.param("method").unwrap_or_else(|| "GET".to_owned());
        let head = Head::new(method.as_bytes(), host.as_bytes(), path.as_bytes(), &fields);
        match self.picker.explain(&head) {
            Ok(explained) => AdminReply::json(&explained),
            Err(error) => AdminReply::problem(500, &error.to_string(), "this is a bug of larder"),
        }
    }
}

impl AdminService for PickerAdmin {
    fn reply(&self, request: &AdminRequest<'_>) -> AdminReply {
        let reply = match request.path {
            "/status" => AdminReply::json(&self.picker.status()),
            "/discovery" => AdminReply::json(&self.roster.view()),
            "/peers" => AdminReply::json(&self.picker.peers_status()),
            "/metrics" => AdminReply::text(METRICS, self.picker.metrics()),
            "/healthz" => self.health(),
            "/explain" => self.explain(request),
            _ => return AdminReply::no_such_path(&ROUTES),
        };
        if request.post { AdminReply::wrong_method("GET, HEAD") } else { reply }
    }
}
