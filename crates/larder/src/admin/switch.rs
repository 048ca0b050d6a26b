//! The admin interface of a switch.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_core::{PolicyKind, Weight};
use larder_switch::{
    AcmeStatus, CertificateStatus, DEFAULT_ROUTE, NodeEntry, RouteStatus, ShareError, SwitchHandle,
    UnknownNode,
};
use serde::Serialize;
use serde_json::Value;
use tokio::runtime::Handle;

use super::message::percent_decode;
use super::page::page;
use super::{AdminReply, AdminRequest, AdminService, purge, split_target};
use crate::acme;
use crate::cmd::switch::reload_client::ReloadClient;
use crate::cmd::switch::status::ReloadStatus;
use crate::cmd::switch::tables::{TableManager, TableStatus};
use crate::config::{self, NodeKey, Size, Texts};
use crate::roster::{RosterError, RosterManager};

/// Content type of the OpenMetrics text format.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const ROUTES: [&str; 28] = [
    "/",
    "/live",
    "/status",
    "/nodes",
    "/discovery",
    "/routes",
    "/switches",
    "/explain?target=HOST/PATH&method=GET&header=NAME:VALUE",
    "/shadow",
    "/hottest?most=20",
    "/policies",
    "/certificates",
    "/metrics",
    "/config",
    "/reload",
    "/healthz",
    "POST /reload",
    purge::ROUTE,
    "POST /certificates/HOST/renew",
    "POST /policy?value=lard-r&route=NAME",
    "POST /nodes/NAME/drain",
    "POST /nodes/NAME/undrain",
    "POST /nodes/NAME/weight?value=1.5",
    "POST /nodes/NAME/join?address=HOST:PORT&weight=1&cache=8GiB&group=NAME&backup=true",
    "POST /nodes/NAME/leave",
    "POST /routes/NAME/share?percent=5",
    "POST /routes/NAME/table/reload",
    "POST /routes/NAME/table/refresh",
];

/// A running switch.
pub(crate) struct SwitchAdmin {
    switch: SwitchHandle,
    /// The effective config.
    config: Value,
    /// Managers of the routes with a routing table.
    table_managers: Vec<Arc<TableManager>>,
    roster: Arc<RosterManager>,
    reloads: ReloadMode,
    /// The manager of ACME certificates, if ACME is configured.
    acme: Option<Arc<acme::CertificateManager>>,
}

/// The certificates, and the state of ACME orders.
#[derive(Serialize)]
struct CertificatesView {
    certificates: Vec<CertificateStatus>,
    /// Error of the last attempt to load the certificate files, if it failed.
    trouble: Option<String>,
    acme: Vec<AcmeStatus>,
}

/// The way in which the switch reloads.
enum ReloadMode {
    /// A master process reloads.
    Master(Arc<ReloadClient>),
    /// The switch is one process and cannot reload.
    Unsupported(Box<ReloadStatus>),
}

/// A route with its routing table.
#[derive(Serialize)]
struct RouteView {
    #[serde(flatten)]
    route: RouteStatus,
    /// The routing table; `None` if the policy has none.
    table: Option<TableStatus>,
}

/// A policy.
#[derive(Serialize)]
struct PolicyView {
    name: &'static str,
    summary: &'static str,
}

impl PolicyView {
    fn new(policy: PolicyKind) -> Self {
        Self { name: policy.name(), summary: policy.summary() }
    }
}

impl SwitchAdmin {
    pub(crate) fn new(
        switch: SwitchHandle,
        config: Value,
        table_managers: Vec<Arc<TableManager>>,
        roster: Arc<RosterManager>,
        status: ReloadStatus,
    ) -> Self {
        Self {
            switch,
            config,
            table_managers,
            roster,
            reloads: ReloadMode::Unsupported(Box::new(status)),
            acme: None,
        }
    }

    /// Creates the interface of a worker, whose master can reload.
    pub(crate) fn with_reload_client(
        switch: SwitchHandle,
        config: Value,
        table_managers: Vec<Arc<TableManager>>,
        roster: Arc<RosterManager>,
        reload_client: Arc<ReloadClient>,
    ) -> Self {
        Self {
            switch,
            config,
            table_managers,
            roster,
            reloads: ReloadMode::Master(reload_client),
            acme: None,
        }
    }

    /// Sets the manager of ACME certificates.
    pub(crate) fn with_acme(mut self, acme: Option<Arc<acme::CertificateManager>>) -> Self {
        self.acme = acme;
        self
    }

    fn certificates(&self) -> AdminReply {
        let status = self.switch.status();
        AdminReply::json(&CertificatesView {
            certificates: status.certificates,
            trouble: status.certificates_trouble,
            acme: status.acme,
        })
    }

    /// Handles `/certificates/HOST/renew`. Returns `None` for any other path.
    fn renew_certificate(&self, request: &AdminRequest<'_>) -> Option<AdminReply> {
        let host = request.path.strip_prefix("/certificates/")?.strip_suffix("/renew")?;
        if !request.post {
            return Some(AdminReply::wrong_method("POST"));
        }
        let host = percent_decode(host).to_ascii_lowercase();
        Some(match self.acme.as_ref().map_or(Err(None), |manager| manager.request_renewal(&host)) {
            Ok(()) => self.certificates(),
            Err(Some(error)) => {
                AdminReply::problem(503, &format!("the store: {error}"), "nothing has changed")
            }
            Err(None) => {
                let what = format!("this switch orders no certificate for '{host}'");
                AdminReply::problem(
                    404,
                    &what,
                    "GET /certificates lists certificates; set switch.tls.acme.domains",
                )
            }
        })
    }

    /// Returns the status of the last reload, or reloads.
    fn reload(&self, post: bool) -> AdminReply {
        let reload_client = match &self.reloads {
            ReloadMode::Master(reload_client) => reload_client,
            ReloadMode::Unsupported(status) if !post => return AdminReply::json(status),
            ReloadMode::Unsupported(_) => {
                let what = "this switch runs as one process, which cannot reload";
                return AdminReply::problem(
                    409,
                    what,
                    "start the switch without --one-process and --exit-with-stdin",
                );
            }
        };
        if !post {
            return AdminReply::json(&reload_client.status());
        }
        match reload_client.reload(BTreeMap::new()) {
            Ok(status) if !status.counts.last_failed => AdminReply::json(&status),
            Ok(status) => {
                let why = status.last.and_then(|last| last.error).unwrap_or_default();
                AdminReply::problem(409, &why, "the previous config stays in force; see GET /reload")
            }
            Err(error) => AdminReply::problem(503, error, "see GET /reload for the last reload"),
        }
    }

    /// Changes the policy of a route: a reload of the current config with this policy in place of the
    /// configured one.
    fn change_policy(&self, request: &AdminRequest<'_>) -> AdminReply {
        let reload_client = match &self.reloads {
            ReloadMode::Master(reload_client) => reload_client,
            ReloadMode::Unsupported(_) => {
                let what = "this switch runs as one process, which cannot reload";
                return AdminReply::problem(
                    409,
                    what,
                    "start the switch without --one-process and --exit-with-stdin",
                );
            }
        };
        let route = request.param("route").unwrap_or_else(|| DEFAULT_ROUTE.to_owned());
        let Some(policy) = request.param("value") else {
            let hint =
                "write value=lard-r, optionally route=NAME; `larder check --policies` lists the policies";
            return AdminReply::problem(400, "no policy is given", hint);
        };
        let mut policies = reload_client.status().policies;
        policies.insert(route, policy);
        match reload_client.reload(policies.clone()) {
            Ok(status) if !status.counts.last_failed && status.policies == policies => {
                AdminReply::json(&status)
            }
            Ok(status) if !status.counts.last_failed => AdminReply::problem(
                409,
                "another reload was first",
                "see GET /reload for the current state, and try again",
            ),
            Ok(status) => {
                let why = status.last.and_then(|last| last.error).unwrap_or_default();
                AdminReply::problem(409, &why, "the previous policies stay in force")
            }
            Err(error) => AdminReply::problem(503, error, "see GET /reload for the last reload"),
        }
    }

    fn explain(&self, request: &AdminRequest<'_>) -> AdminReply {
        let hint = "write /explain?target=HOST/PATH, percent-encoded, such as /explain?target=www.example.org/a%3Fb=c";
        let Some(target) = request.param("target") else {
            return AdminReply::problem(400, "no target is given", hint);
        };
        let Some((host, path)) = split_target(&target) else {
            return AdminReply::problem(400, "invalid target", hint);
        };
        let method = request.param("method").unwrap_or_else(|| "GET".to_owned());
        let headers = match request.headers() {
            Ok(headers) => headers,
            Err(reply) => return reply,
        };
        let client = match request.param("client").map(|text| text.parse()).transpose() {
            Ok(client) => client,
            Err(_) => {
                return AdminReply::problem(
                    400,
                    "invalid client address",
                    "write client=ADDRESS, such as client=192.0.2.7",
                );
            }
        };
        AdminReply::json(&self.switch.explain_request(&method, host, &path, &headers, client))
    }

    fn routes(&self) -> AdminReply {
        let view = |route: RouteStatus| RouteView {
            table: self.table_manager(&route.name).map(|k| k.status()),
            route,
        };
        AdminReply::json(&self.switch.routes().into_iter().map(view).collect::<Vec<_>>())
    }

    fn shadow(&self) -> AdminReply {
        match self.switch.shadow() {
            Some(status) => AdminReply::json(&status),
            None => AdminReply::problem(
                404,
                "shadow mode is off",
                "name policies in the config: [switch.shadow] policies = \"all\"",
            ),
        }
    }

    /// Purges at all nodes. Returns 502 if a node failed, because it may still have the objects.
    fn purge(&self, request: &AdminRequest<'_>) -> AdminReply {
        if !request.post {
            return AdminReply::wrong_method("POST");
        }
        let purge = match purge::parse_purge(request, "switch", self.switch.may_purge(request.authorization))
        {
            Ok(purge) => purge,
            Err(answer) => return answer,
        };
        let report = Handle::current().block_on(self.switch.purge(&purge));
        let status = if report.failed == 0 { 200 } else { 502 };
        AdminReply { status, ..AdminReply::json(&report) }
    }

    fn table_manager(&self, route: &str) -> Option<&Arc<TableManager>> {
        self.table_managers.iter().find(|table_manager| table_manager.route() == route)
    }

    /// Handles `/routes/NAME/table/reload` and `/routes/NAME/table/refresh`. Returns `None` for any other
    /// path.
    fn change_table(&self, path: &str, post: bool) -> Option<AdminReply> {
        let (name, verb) = path.strip_prefix("/routes/")?.split_once("/table/")?;
        if !matches!(verb, "reload" | "refresh") {
            return None;
        }
        if !post {
            return Some(AdminReply::wrong_method("POST"));
        }
        let name = percent_decode(name);
        let Some(table_manager) = self.table_manager(&name) else {
            let what = format!("no route '{name}' uses a routing table");
            return Some(AdminReply::problem(
                404,
                &what,
                "GET /routes lists routes; the policies ward and part use tables",
            ));
        };
        let done = if verb == "reload" {
            table_manager.reload(&self.switch)
        } else {
            table_manager.refresh(&self.switch)
        };
        Some(match done {
            Ok(()) => AdminReply::json(&table_manager.status()),
            Err(error) => AdminReply::problem(409, &error.to_string(), "the previous table stays in force"),
        })
    }

    /// Handles `/routes/NAME/share`. Returns `None` for any other path.
    fn change_share(&self, request: &AdminRequest<'_>) -> Option<AdminReply> {
        let name = request.path.strip_prefix("/routes/")?.strip_suffix("/share")?;
        if !request.post {
            return Some(AdminReply::wrong_method("POST"));
        }
        let text = request.param("percent").unwrap_or_default();
        let Ok(percent) = text.parse::<f64>() else {
            let what = format!("percent '{text}' is not a number");
            return Some(AdminReply::problem(400, &what, "write percent=5: 0 to 100"));
        };
        Some(match self.switch.set_share(&percent_decode(name), percent) {
            Ok(()) => self.routes(),
            Err(error) => {
                let status = match error {
                    ShareError::Unknown(_) => 404,
                    ShareError::OutOfRange(_) => 400,
                    ShareError::NoShare(_) | ShareError::NoRoom(_) => 409,
                };
                AdminReply::problem(status, &error.to_string(), "GET /routes lists routes with their shares")
            }
        })
    }

    /// Handles `/nodes/NAME/VERB`. Returns `None` for any other path.
    fn change_node(&self, request: &AdminRequest<'_>) -> Option<AdminReply> {
        let (name, verb) = request.path.strip_prefix("/nodes/")?.rsplit_once('/')?;
        if !matches!(verb, "drain" | "undrain" | "weight" | "join" | "leave") {
            return None;
        }
        if !request.post {
            return Some(AdminReply::wrong_method("POST"));
        }
        let name = percent_decode(name);
        let unknown =
            |error: UnknownNode| AdminReply::problem(404, &error.to_string(), "GET /nodes lists nodes");
        let changed = match verb {
            "drain" => self.switch.drain(&name).map(drop).map_err(unknown),
            "undrain" => self.switch.undrain(&name).map(drop).map_err(unknown),
            "weight" => {
                parse_weight(request).and_then(|weight| self.switch.reweigh(&name, weight).map_err(unknown))
            }
            "join" => node_entry(&name, request)
                .and_then(|node_entry| self.roster.join(node_entry).map_err(|error| refusal_reply(&error))),
            _ => self.roster.leave(&name).map_err(|error| refusal_reply(&error)),
        };
        Some(changed.map_or_else(|problem| problem, |()| AdminReply::json(&self.switch.nodes())))
    }
}

fn refusal_reply(error: &RosterError) -> AdminReply {
    let (status, hint) = match error {
        RosterError::UnknownNode(_) => (404, "GET /nodes lists nodes"),
        RosterError::NameTaken(..) => (409, "choose another name"),
        RosterError::NamedBySource(..) => (409, "remove it there, or drain it: POST /nodes/NAME/drain"),
        RosterError::Failed(_) => (409, "nothing has changed"),
    };
    AdminReply::problem(status, &error.to_string(), hint)
}

/// Parses the parameter `most`; the default is 20.
fn hottest_limit(request: &AdminRequest<'_>) -> usize {
    request.param("most").and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// Parses the parameter `value` as a weight.
fn parse_weight(request: &AdminRequest<'_>) -> Result<Weight, AdminReply> {
    let text = request.param("value").unwrap_or_default();
    let weight = text.parse().ok().and_then(Weight::from_f64);
    weight.ok_or_else(|| {
        let what = format!("value '{text}' is not a weight");
        AdminReply::problem(400, &what, "write value=1.5: 0.001 to 100; 1 is the default")
    })
}

/// Parses a node to join, with the checks of the config.
fn node_entry(name: &str, request: &AdminRequest<'_>) -> Result<NodeEntry, AdminReply> {
    let wrong = |error: &dyn std::fmt::Display| {
        let hint = "write ?address=HOST:PORT, optionally weight=1.5, cache=8GiB, group=NAME, backup=true";
        AdminReply::problem(400, &error.to_string(), hint)
    };
    let number = |name: &str| match request.param(name) {
        None => Ok(None),
        Some(text) => {
            text.parse::<f64>().map(Some).map_err(|_| wrong(&format!("{name} '{text}' is not a number")))
        }
    };
    let cache = match request.param("cache") {
        None => None,
        Some(text) => Some(text.parse::<Size>().map_err(|error| wrong(&format!("cache '{text}': {error}")))?),
    };
    let backup = match request.param("backup").as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(text) => return Err(wrong(&format!("backup '{text}' is neither true nor false"))),
    };
    let raw = NodeKey {
        backup,
        name: Some(name.to_owned()),
        weight: number("weight")?.unwrap_or(1.0),
        cache,
        groups: Texts(request.params("group").collect()),
        ..NodeKey::from(request.param("address").unwrap_or_default().as_str())
    };
    config::node(&raw).map_err(|error| wrong(&error))
}

impl AdminService for SwitchAdmin {
    fn reply(&self, request: &AdminRequest<'_>) -> AdminReply {
        let changed = self.change_node(request).or_else(|| self.change_table(request.path, request.post));
        let changed =
            changed.or_else(|| self.change_share(request)).or_else(|| self.renew_certificate(request));
        if let Some(reply) = changed {
            return reply;
        }
        let reply = match request.path {
            "/status" => AdminReply::json(&self.switch.status()),
            "/nodes" => AdminReply::json(&self.switch.nodes()),
            "/discovery" => AdminReply::json(&self.roster.view()),
            "/routes" => self.routes(),
            "/switches" => match self.switch.switches() {
                Some(switches) => AdminReply::json(&switches),
                None => {
                    let hint = "add [switch.switches] to the config; see docs/operate/switches.md";
                    return AdminReply::problem(404, "this switch has no peer switches", hint);
                }
            },
            "/explain" => self.explain(request),
            "/live" => AdminReply::json(&self.switch.live()),
            "/shadow" => self.shadow(),
            "/hottest" => AdminReply::json(&self.switch.hottest(hottest_limit(request))),
            "/certificates" => self.certificates(),
            "/metrics" => AdminReply::text(METRICS, self.switch.metrics_text()),
            "/config" => AdminReply::json(&self.config),
            "/reload" => return self.reload(request.post),
            "/purge" => return self.purge(request),
            "/policy" if request.post => return self.change_policy(request),
            "/policy" => return AdminReply::wrong_method("POST"),
            "/policies" => AdminReply::json(&PolicyKind::ALL.map(PolicyView::new)),
            "/healthz" => AdminReply::text("text/plain", "ok\n".to_owned()),
            path => match page(path) {
                Some(page) => page,
                None => return AdminReply::no_such_path(&ROUTES),
            },
        };
        if request.post { AdminReply::wrong_method("GET, HEAD") } else { reply }
    }
}
