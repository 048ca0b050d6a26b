//! What a switch's admin interface answers.

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

use super::answer::percent_decode;
use super::page::page;
use super::{Answer, Ask, Surface, purge};
use crate::acme;
use crate::cmd::switch::desk::Desk;
use crate::cmd::switch::status::ReloadStatus;
use crate::cmd::switch::tables::{Keeper, TableStatus};
use crate::config::{self, NodeKey, Size, Texts};
use crate::roster::{Refused, RosterKeeper};

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

/// A running switch, as its admin interface sees it.
pub(crate) struct SwitchSurface {
    switch: SwitchHandle,
    /// The effective config.
    config: Value,
    /// Of the routes that go by a routing table.
    keepers: Vec<Arc<Keeper>>,
    roster: Arc<RosterKeeper>,
    reloads: Reloads,
    /// Who orders certificates, where that is wanted.
    acme: Option<Arc<acme::Keeper>>,
}

/// Certificates and how it stands with those that are to come.
#[derive(Serialize)]
struct CertificatesView {
    certificates: Vec<CertificateStatus>,
    /// Why the certificates in force are not those of the files, if they are not.
    trouble: Option<String>,
    acme: Vec<AcmeStatus>,
}

/// Who reloads.
enum Reloads {
    /// A master.
    Desk(Arc<Desk>),
    /// Nobody: the switch is one process.
    Nobody(Box<ReloadStatus>),
}

/// A route and its routing table.
#[derive(Serialize)]
struct RouteView {
    #[serde(flatten)]
    route: RouteStatus,
    /// None for a policy that goes by none.
    table: Option<TableStatus>,
}

/// A policy that there is.
#[derive(Serialize)]
struct PolicyView {
    name: &'static str,
    summary: &'static str,
}

impl PolicyView {
    fn of(policy: PolicyKind) -> Self {
        Self { name: policy.name(), summary: policy.summary() }
    }
}

impl SwitchSurface {
    pub(crate) fn new(
        switch: SwitchHandle,
        config: Value,
        keepers: Vec<Arc<Keeper>>,
        roster: Arc<RosterKeeper>,
        status: ReloadStatus,
    ) -> Self {
        Self { switch, config, keepers, roster, reloads: Reloads::Nobody(Box::new(status)), acme: None }
    }

    /// That of a worker, whose master can be asked for another.
    pub(crate) fn with_desk(
        switch: SwitchHandle,
        config: Value,
        keepers: Vec<Arc<Keeper>>,
        roster: Arc<RosterKeeper>,
        desk: Arc<Desk>,
    ) -> Self {
        Self { switch, config, keepers, roster, reloads: Reloads::Desk(desk), acme: None }
    }

    /// With who orders certificates.
    pub(crate) fn with_acme(mut self, acme: Option<Arc<acme::Keeper>>) -> Self {
        self.acme = acme;
        self
    }

    fn certificates(&self) -> Answer {
        let status = self.switch.status();
        Answer::json(&CertificatesView {
            certificates: status.certificates,
            trouble: status.certificates_trouble,
            acme: status.acme,
        })
    }

    /// `/certificates/HOST/renew`; none for any other path.
    fn renew(&self, ask: &Ask<'_>) -> Option<Answer> {
        let host = ask.path.strip_prefix("/certificates/")?.strip_suffix("/renew")?;
        if !ask.post {
            return Some(Answer::wrong_method("POST"));
        }
        let host = percent_decode(host).to_ascii_lowercase();
        Some(match self.acme.as_ref().map_or(Err(None), |keeper| keeper.want(&host)) {
            Ok(()) => self.certificates(),
            Err(Some(error)) => Answer::problem(503, &format!("the store: {error}"), "nothing has changed"),
            Err(None) => {
                let what = format!("no certificate for '{host}' is ordered here");
                Answer::problem(
                    404,
                    &what,
                    "GET /certificates lists them; switch.tls.acme.domains says which",
                )
            }
        })
    }

    /// Tells how the last reload went, or reloads.
    fn reload(&self, post: bool) -> Answer {
        let desk = match &self.reloads {
            Reloads::Desk(desk) => desk,
            Reloads::Nobody(status) if !post => return Answer::json(status),
            Reloads::Nobody(_) => {
                let what = "this switch is one process, which is not replaced";
                return Answer::problem(409, what, "start it without --one-process and --exit-with-stdin");
            }
        };
        if !post {
            return Answer::json(&desk.status());
        }
        match desk.reload(BTreeMap::new()) {
            Ok(status) if !status.counts.last_failed => Answer::json(&status),
            Ok(status) => {
                let why = status.last.and_then(|last| last.error).unwrap_or_default();
                Answer::problem(409, &why, "the config before stays in force; GET /reload tells more")
            }
            Err(error) => Answer::problem(503, error, "GET /reload tells how the last one went"),
        }
    }

    /// Another policy for a route: a reload by the config as it is now, in which the policy takes the place of its own.
    fn policy(&self, ask: &Ask<'_>) -> Answer {
        let desk = match &self.reloads {
            Reloads::Desk(desk) => desk,
            Reloads::Nobody(_) => {
                let what = "this switch is one process, which is not replaced";
                return Answer::problem(409, what, "start it without --one-process and --exit-with-stdin");
            }
        };
        let route = ask.param("route").unwrap_or_else(|| DEFAULT_ROUTE.to_owned());
        let Some(policy) = ask.param("value") else {
            let hint = "write value=lard-r, and if wanted route=NAME; `larder check --policies` lists them";
            return Answer::problem(400, "which policy?", hint);
        };
        let mut policies = desk.status().policies;
        policies.insert(route, policy);
        match desk.reload(policies.clone()) {
            Ok(status) if !status.counts.last_failed && status.policies == policies => Answer::json(&status),
            Ok(status) if !status.counts.last_failed => Answer::problem(
                409,
                "another reload came before",
                "GET /reload tells what is in force; ask again",
            ),
            Ok(status) => {
                let why = status.last.and_then(|last| last.error).unwrap_or_default();
                Answer::problem(409, &why, "the policies before stay in force")
            }
            Err(error) => Answer::problem(503, error, "GET /reload tells how the last one went"),
        }
    }

    fn explain(&self, ask: &Ask<'_>) -> Answer {
        let hint =
            "ask /explain?target=HOST/PATH, percent-encoded, such as /explain?target=www.example.org/a%3Fb=c";
        let Some(target) = ask.param("target") else {
            return Answer::problem(400, "which target?", hint);
        };
        let Some((host, path)) = split_target(&target) else {
            return Answer::problem(400, "this is no target", hint);
        };
        let method = ask.param("method").unwrap_or_else(|| "GET".to_owned());
        let mut headers = Vec::new();
        for header in ask.params("header") {
            let Some((name, value)) = header.split_once(':') else {
                return Answer::problem(400, "this is no header", "write header=NAME:VALUE, percent-encoded");
            };
            headers.push((name.trim().to_owned(), value.trim().to_owned()));
        }
        let client = match ask.param("client").map(|text| text.parse()).transpose() {
            Ok(client) => client,
            Err(_) => {
                return Answer::problem(
                    400,
                    "this is no client",
                    "write client=ADDRESS, such as client=192.0.2.7",
                );
            }
        };
        Answer::json(&self.switch.explain_request(&method, host, &path, &headers, client))
    }

    fn routes(&self) -> Answer {
        let view =
            |route: RouteStatus| RouteView { table: self.keeper(&route.name).map(|k| k.status()), route };
        Answer::json(&self.switch.routes().into_iter().map(view).collect::<Vec<_>>())
    }

    fn shadow(&self) -> Answer {
        match self.switch.shadow() {
            Some(status) => Answer::json(&status),
            None => Answer::problem(
                404,
                "shadow mode is off",
                "name policies in the config: [switch.shadow] policies = \"all\"",
            ),
        }
    }

    /// Has all nodes purge. 502 if one or more have not done it: these may still have what was to be purged.
    fn purge(&self, ask: &Ask<'_>) -> Answer {
        if !ask.post {
            return Answer::wrong_method("POST");
        }
        let purge = match purge::asked(ask, "switch", self.switch.may_purge(ask.authorization)) {
            Ok(purge) => purge,
            Err(answer) => return answer,
        };
        let report = Handle::current().block_on(self.switch.purge(&purge));
        let status = if report.failed == 0 { 200 } else { 502 };
        Answer { status, ..Answer::json(&report) }
    }

    fn keeper(&self, route: &str) -> Option<&Arc<Keeper>> {
        self.keepers.iter().find(|keeper| keeper.route() == route)
    }

    /// `/routes/NAME/table/reload` and `/routes/NAME/table/refresh`; none for any other path.
    fn table(&self, path: &str, post: bool) -> Option<Answer> {
        let (name, verb) = path.strip_prefix("/routes/")?.split_once("/table/")?;
        if !matches!(verb, "reload" | "refresh") {
            return None;
        }
        if !post {
            return Some(Answer::wrong_method("POST"));
        }
        let name = percent_decode(name);
        let Some(keeper) = self.keeper(&name) else {
            let what = format!("no route '{name}' goes by a routing table");
            return Some(Answer::problem(404, &what, "GET /routes lists them; ward and part go by tables"));
        };
        let done = if verb == "reload" { keeper.reload(&self.switch) } else { keeper.refresh(&self.switch) };
        Some(match done {
            Ok(()) => Answer::json(&keeper.status()),
            Err(error) => Answer::problem(409, &error.to_string(), "the table before stays in force"),
        })
    }

    /// `/routes/NAME/share`; none for any other path.
    fn share(&self, ask: &Ask<'_>) -> Option<Answer> {
        let name = ask.path.strip_prefix("/routes/")?.strip_suffix("/share")?;
        if !ask.post {
            return Some(Answer::wrong_method("POST"));
        }
        let text = ask.param("percent").unwrap_or_default();
        let Ok(percent) = text.parse::<f64>() else {
            let what = format!("percent '{text}' is no number");
            return Some(Answer::problem(400, &what, "write percent=5: 0 to 100"));
        };
        Some(match self.switch.set_share(&percent_decode(name), percent) {
            Ok(()) => self.routes(),
            Err(error) => {
                let status = match error {
                    ShareError::Unknown(_) => 404,
                    ShareError::OutOfRange(_) => 400,
                    ShareError::NoShare(_) | ShareError::NoRoom(_) => 409,
                };
                Answer::problem(status, &error.to_string(), "GET /routes lists routes with their shares")
            }
        })
    }

    /// `/nodes/NAME/` and a word; none for any other path.
    fn change(&self, ask: &Ask<'_>) -> Option<Answer> {
        let (name, verb) = ask.path.strip_prefix("/nodes/")?.rsplit_once('/')?;
        if !matches!(verb, "drain" | "undrain" | "weight" | "join" | "leave") {
            return None;
        }
        if !ask.post {
            return Some(Answer::wrong_method("POST"));
        }
        let name = percent_decode(name);
        let unknown = |error: UnknownNode| Answer::problem(404, &error.to_string(), "GET /nodes lists them");
        let changed = match verb {
            "drain" => self.switch.drain(&name).map(drop).map_err(unknown),
            "undrain" => self.switch.undrain(&name).map(drop).map_err(unknown),
            "weight" => weight(ask).and_then(|weight| self.switch.reweigh(&name, weight).map_err(unknown)),
            "join" => {
                entry(&name, ask).and_then(|entry| self.roster.join(entry).map_err(|error| refused(&error)))
            }
            _ => self.roster.leave(&name).map_err(|error| refused(&error)),
        };
        Some(changed.map_or_else(|problem| problem, |()| Answer::json(&self.switch.nodes())))
    }
}

fn refused(error: &Refused) -> Answer {
    let (status, hint) = match error {
        Refused::Unknown(_) => (404, "GET /nodes lists them"),
        Refused::Taken(..) => (409, "take another name"),
        Refused::Named(..) => (409, "take it out there, or drain it: POST /nodes/NAME/drain"),
        Refused::Undone(_) => (409, "nothing has changed"),
    };
    Answer::problem(status, &error.to_string(), hint)
}

/// The parameter `most`; 20 where it is none.
fn hottest_wanted(ask: &Ask<'_>) -> usize {
    ask.param("most").and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// The parameter `value`.
fn weight(ask: &Ask<'_>) -> Result<Weight, Answer> {
    let text = ask.param("value").unwrap_or_default();
    let weight = text.parse().ok().and_then(Weight::from_f64);
    weight.ok_or_else(|| {
        let what = format!("value '{text}' is no weight");
        Answer::problem(400, &what, "write value=1.5: 0.001 to 100, of which 1 is an ordinary node")
    })
}

/// A node that is to join, as the config has it.
fn entry(name: &str, ask: &Ask<'_>) -> Result<NodeEntry, Answer> {
    let wrong = |error: &dyn std::fmt::Display| {
        let hint = "write ?address=HOST:PORT, and if wanted weight=1.5, cache=8GiB, group=NAME, backup=true";
        Answer::problem(400, &error.to_string(), hint)
    };
    let number = |name: &str| match ask.param(name) {
        None => Ok(None),
        Some(text) => {
            text.parse::<f64>().map(Some).map_err(|_| wrong(&format!("{name} '{text}' is no number")))
        }
    };
    let cache = match ask.param("cache") {
        None => None,
        Some(text) => Some(text.parse::<Size>().map_err(|error| wrong(&format!("cache '{text}': {error}")))?),
    };
    let backup = match ask.param("backup").as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(text) => return Err(wrong(&format!("backup '{text}' is neither true nor false"))),
    };
    let raw = NodeKey {
        backup,
        name: Some(name.to_owned()),
        weight: number("weight")?.unwrap_or(1.0),
        cache,
        groups: Texts(ask.params("group").collect()),
        ..NodeKey::from(ask.param("address").unwrap_or_default().as_str())
    };
    config::node(&raw).map_err(|error| wrong(&error))
}

impl Surface for SwitchSurface {
    fn answer(&self, ask: &Ask<'_>) -> Answer {
        let changed = self.change(ask).or_else(|| self.table(ask.path, ask.post));
        let changed = changed.or_else(|| self.share(ask)).or_else(|| self.renew(ask));
        if let Some(answer) = changed {
            return answer;
        }
        let answer = match ask.path {
            "/status" => Answer::json(&self.switch.status()),
            "/nodes" => Answer::json(&self.switch.nodes()),
            "/discovery" => Answer::json(&self.roster.view()),
            "/routes" => self.routes(),
            "/switches" => match self.switch.switches() {
                Some(switches) => Answer::json(&switches),
                None => {
                    let hint = "write [switch.switches], docs/operate/switches.md tells how";
                    return Answer::problem(404, "this switch is to have no others beside it", hint);
                }
            },
            "/explain" => self.explain(ask),
            "/live" => Answer::json(&self.switch.live()),
            "/shadow" => self.shadow(),
            "/hottest" => Answer::json(&self.switch.hottest(hottest_wanted(ask))),
            "/certificates" => self.certificates(),
            "/metrics" => Answer::text(METRICS, self.switch.metrics_text()),
            "/config" => Answer::json(&self.config),
            "/reload" => return self.reload(ask.post),
            "/purge" => return self.purge(ask),
            "/policy" if ask.post => return self.policy(ask),
            "/policy" => return Answer::wrong_method("POST"),
            "/policies" => Answer::json(&PolicyKind::ALL.map(PolicyView::of)),
            "/healthz" => Answer::text("text/plain", "ok\n".to_owned()),
            path => match page(path) {
                Some(page) => page,
                None => return Answer::no_such_path(&ROUTES),
            },
        };
        if ask.post { Answer::wrong_method("GET, HEAD") } else { answer }
    }
}

/// `host/path?query`, with or without `http://` before it.
fn split_target(target: &str) -> Option<(&str, String)> {
    let bare = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://")).unwrap_or(target);
    let split = bare.find(['/', '?']).unwrap_or(bare.len());
    let (host, path) = bare.split_at(split);
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    (!host.is_empty() && !host.contains(char::is_whitespace)).then_some((host, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_split_into_host_and_path() {
        let split = |text| split_target(text).map(|(host, path)| format!("{host} {path}"));
        assert_eq!(split("www:80/a?b=c").as_deref(), Some("www:80 /a?b=c"));
        assert_eq!(split("http://www").as_deref(), Some("www /"));
        assert_eq!(split("www?b").as_deref(), Some("www /?b"));
        assert_eq!((split("/a"), split(""), split("a b/c")), (None, None, None));
    }
}
