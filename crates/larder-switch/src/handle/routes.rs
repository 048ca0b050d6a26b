//! Status and commands of routes.

use super::status::SwitchHandle;
use larder_core::census::{Census, CensusPeriod};
use larder_core::policy::table::RouteTable;
use larder_core::rules::Matcher;
use larder_core::{PolicyKind, RouteId, ServiceClass};
use serde::Serialize;
use std::sync::Arc;

/// Status of a route.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouteStatus {
    /// Name; `default` for the default route.
    pub name: String,
    /// Matchers as text; empty for the default route.
    pub matchers: Vec<String>,
    /// Its policy.
    pub policy: String,
    /// Name of the route whose requests it takes a share of; `None` if it has matchers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of: Option<String>,
    /// Share in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Template of target keys.
    pub key: String,
    /// Class rules, the first match wins; other requests have class `n`.
    pub classes: Vec<ClassStatus>,
    /// Group of nodes that it may use; `None` for all nodes.
    pub group: Option<String>,
    /// Nodes of that group that take requests.
    pub nodes_up: usize,
    /// Whether these are backups, because no ordinary node of the group is up.
    pub on_backups: bool,
    /// Targets that its policy knows.
    pub targets: usize,
    /// Admitted and unfinished requests of the group, over all its routes.
    pub group_outstanding: u32,
    /// Admission limit of the group; `None` for no limit.
    pub group_admission_limit: Option<u32>,
    /// Requests of the group that wait for admission.
    pub group_queued: usize,
    /// Finished requests of the route by class: n, db, cb, dcb.
    pub requests: [u64; ServiceClass::COUNT],
    /// Targets counted for its routing table since the last refresh; `None` if its policy uses no table.
    pub census_targets: Option<usize>,
}

/// A class rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassStatus {
    /// Class of matching requests.
    pub class: String,
    /// Matcher as text.
    pub matcher: String,
}

/// Error of a command on a route. Fault of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// There is no such route.
    #[error("unknown route '{0}'")]
    Unknown(String),
    /// Its policy uses no routing table.
    #[error("route '{route}' has policy '{policy}', which uses no routing table: use ward or part")]
    NoTable {
        /// The route.
        route: String,
        /// Its policy.
        policy: PolicyKind,
    },
}

/// Error of changing a route's share. Fault of the caller.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ShareError {
    /// There is no such route.
    #[error("unknown route '{0}'")]
    Unknown(String),
    /// It takes no share of another route.
    #[error("route '{0}' cannot take a share of another route, because it has matchers")]
    NoShare(String),
    /// The value is not a share.
    #[error("{0} is not a valid share: use 0 to 100 percent")]
    OutOfRange(f64),
    /// The shares of other routes leave too little room.
    #[error("other routes already take {0} percent: reduce them first")]
    NoRoom(f64),
}

impl SwitchHandle {
    /// Sets the share of a route in percent, until the next change of the config or restart.
    ///
    /// # Errors
    /// The route is unknown, it takes no share, or there is no room.
    pub fn set_share(&self, route: &str, percent: f64) -> Result<(), ShareError> {
        let routing = &self.shared.decider.routing;
        let (id, routed) = routing.named(route).ok_or_else(|| ShareError::Unknown(route.to_owned()))?;
        let split = routed.share_of.and_then(|of| routing.route(of).split.as_ref());
        let split = split.ok_or_else(|| ShareError::NoShare(route.to_owned()))?;
        if !(0.0..=100.0).contains(&percent) {
            return Err(ShareError::OutOfRange(percent));
        }
        // Concurrent changes could exceed 100 %, so they take turns.
        let _one = self.shared.reloads.lock();
        split
            .set_share(id, (percent * 1000.0).round() as u32)
            .map_err(|others| ShareError::NoRoom(f64::from(others) / 1000.0))?;
        tracing::info!(route, percent, "route: share changed");
        Ok(())
    }

    /// Returns the routes, the default route first, then in the order of the config.
    pub fn routes(&self) -> Vec<RouteStatus> {
        let shared = &*self.shared;
        let dispatcher = &shared.decider.dispatcher;
        let status = shared.decider.routing.all().map(|(id, route)| {
            let group = dispatcher.group_of(id);
            let limit = dispatcher.admission_limit_in(group);
            let class = |(matcher, class): &(Matcher, ServiceClass)| ClassStatus {
                class: class.to_string(),
                matcher: matcher.to_string(),
            };
            RouteStatus {
                name: route.name.to_string(),
                matchers: route.matchers.iter().map(ToString::to_string).collect(),
                policy: dispatcher.settings_of(id).policy.to_string(),
                share_of: route.share_of.map(|of| shared.decider.routing.route(of).name.to_string()),
                share: route.share_of.and_then(|of| {
                    let share = shared.decider.routing.route(of).split.as_ref()?.share(id)?;
                    Some(f64::from(share) / 1000.0)
                }),
                key: route.key.to_string(),
                classes: route.classes.rules().iter().map(class).collect(),
                group: route.group.clone(),
                nodes_up: dispatcher.nodes().open_in(group),
                on_backups: dispatcher.nodes().on_backups(group),
                targets: dispatcher.targets_of(id),
                group_outstanding: dispatcher.outstanding_in(group),
                group_admission_limit: (limit != u32::MAX).then_some(limit),
                group_queued: dispatcher.queued_in(group),
                requests: shared.decider.metrics.route_requests(id),
                census_targets: route.census.as_ref().map(Census::len),
            }
        });
        status.collect()
    }

    /// Sets the routing table of a route. Later requests use it.
    ///
    /// # Errors
    /// There is no such route, or its policy uses no table.
    pub fn set_table(&self, route: &str, table: &Arc<RouteTable>) -> Result<(), RouteError> {
        let id = self.route(route)?;
        let dispatcher = &self.shared.decider.dispatcher;
        if !dispatcher.set_table(self.shared.decider.clock.now(), id, table) {
            return Err(self.no_table(route, id));
        }
        tracing::debug!(route, "routing table: set");
        Ok(())
    }

    /// Takes the census of a route since the last call, from which its routing table is made. Each count starts the
    /// next period with `carry_permille` thousandths of its value. Counted are complete replies with status 200 to
    /// 299 or 304, with the bytes of their bodies.
    ///
    /// # Errors
    /// There is no such route, or its policy uses no table.
    pub fn take_census(&self, route: &str, carry_permille: u16) -> Result<CensusPeriod, RouteError> {
        let id = self.route(route)?;
        match &self.shared.decider.routing.route(id).census {
            Some(census) => Ok(census.take(carry_permille)),
            None => Err(self.no_table(route, id)),
        }
    }

    fn route(&self, name: &str) -> Result<RouteId, RouteError> {
        let found = self.shared.decider.routing.named(name).map(|(id, _)| id);
        found.ok_or_else(|| RouteError::Unknown(name.chars().take(80).collect()))
    }

    fn no_table(&self, route: &str, id: RouteId) -> RouteError {
        RouteError::NoTable {
            route: route.to_owned(),
            policy: self.shared.decider.dispatcher.settings_of(id).policy,
        }
    }
}
