//! What an admin interface asks of routes.

use super::status::SwitchHandle;
use larder_core::census::{Census, Taken};
use larder_core::policy::table::RouteTable;
use larder_core::rules::Matcher;
use larder_core::{PolicyKind, RouteId, ServiceClass};
use serde::Serialize;
use std::sync::Arc;

/// A route, as it is now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouteStatus {
    /// Its name; `default` for that of what no other takes.
    pub name: String,
    /// What its matchers take, one text for each; empty for the default route.
    pub matchers: Vec<String>,
    /// Its policy.
    pub policy: String,
    /// The route of whose requests it takes a share, by name; `None` if it takes those that it matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of: Option<String>,
    /// How much of it. Percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// The template of its targets' keys.
    pub key: String,
    /// Its class rules, the first that holds first; a request that none takes is of class `n`.
    pub classes: Vec<ClassStatus>,
    /// The group of nodes it may use, by name; `None` for all.
    pub group: Option<String>,
    /// Nodes of that group that take requests.
    pub nodes_up: usize,
    /// Whether these are its backups, because no ordinary node of the group is up.
    pub on_backups: bool,
    /// Targets whose servers its policy remembers.
    pub targets: usize,
    /// Requests of the group admitted and not ended, by whichever of its routes they came.
    pub group_outstanding: u32,
    /// How many may be; `None` if there is no limit.
    pub group_admission_limit: Option<u32>,
    /// Requests of the group that wait for admission.
    pub group_queued: usize,
    /// Requests of the route that have ended, by class: n, db, cb, dcb.
    pub requests: [u64; ServiceClass::COUNT],
    /// Targets counted for its routing table since the last refresh; `None` if its policy goes by none.
    pub census_targets: Option<usize>,
}

/// A class rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassStatus {
    /// The class it gives.
    pub class: String,
    /// What it takes.
    pub matcher: String,
}

/// Why something cannot be done to a route. Fault of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteFault {
    /// There is no such route.
    #[error("there is no route named '{0}'")]
    Unknown(String),
    /// Its policy goes by no routing table.
    #[error("route '{route}' goes by '{policy}', which uses no routing table: ward and part do")]
    NoTable {
        /// The route.
        route: String,
        /// Its policy.
        policy: PolicyKind,
    },
}

/// Why a route's share cannot be changed. Fault of the caller.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ShareRefused {
    /// There is no such route.
    #[error("there is no route named '{0}'")]
    Unknown(String),
    /// It takes no share of another.
    #[error("route '{0}' takes no share of another: it takes what it matches")]
    NoShare(String),
    /// No share.
    #[error("{0} is no share: 0 to 100 percent")]
    OutOfRange(f64),
    /// Others take too much.
    #[error("others take {0} percent already")]
    NoRoom(f64),
}

impl SwitchHandle {
    /// Gives a route another share of the requests of the route that it is split from, in percent, until the config
    /// gives it another or the switch is restarted.
    ///
    /// # Errors
    /// There is no such route, it takes no share, or there is no room for so much.
    pub fn set_share(&self, route: &str, percent: f64) -> Result<(), ShareRefused> {
        let routing = &self.shared.decider.routing;
        let (id, routed) = routing.named(route).ok_or_else(|| ShareRefused::Unknown(route.to_owned()))?;
        let split = routed.share_of.and_then(|of| routing.route(of).split.as_ref());
        let split = split.ok_or_else(|| ShareRefused::NoShare(route.to_owned()))?;
        if !(0.0..=100.0).contains(&percent) {
            return Err(ShareRefused::OutOfRange(percent));
        }
        // Two at once could exceed the whole together: one after the other.
        let _one = self.shared.reloads.lock();
        split
            .set_share(id, (percent * 1000.0).round() as u32)
            .map_err(|others| ShareRefused::NoRoom(f64::from(others) / 1000.0))?;
        tracing::warn!(route, percent, "route has another share");
        Ok(())
    }

    /// The routes, the default one first, then in the order of the config.
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

    /// Gives a route another routing table. Requests from here on go by it.
    ///
    /// # Errors
    /// There is no such route, or its policy uses no table.
    pub fn set_table(&self, route: &str, table: &Arc<RouteTable>) -> Result<(), RouteFault> {
        let id = self.route(route)?;
        let dispatcher = &self.shared.decider.dispatcher;
        if !dispatcher.set_table(self.shared.decider.clock.now(), id, table) {
            return Err(self.no_table(route, id));
        }
        tracing::info!(route, "route has another routing table");
        Ok(())
    }

    /// What the requests of a route have asked for since the last call: what its routing table is made of. Each count
    /// begins the next period with `carry_permille` thousandths of what it is. Counted are complete replies with a
    /// status of 200 to 299 or 304, with the bytes of their bodies.
    ///
    /// # Errors
    /// There is no such route, or its policy uses no table.
    pub fn take_census(&self, route: &str, carry_permille: u16) -> Result<Taken, RouteFault> {
        let id = self.route(route)?;
        match &self.shared.decider.routing.route(id).census {
            Some(census) => Ok(census.take(carry_permille)),
            None => Err(self.no_table(route, id)),
        }
    }

    fn route(&self, name: &str) -> Result<RouteId, RouteFault> {
        let found = self.shared.decider.routing.named(name).map(|(id, _)| id);
        found.ok_or_else(|| RouteFault::Unknown(name.chars().take(80).collect()))
    }

    fn no_table(&self, route: &str, id: RouteId) -> RouteFault {
        RouteFault::NoTable {
            route: route.to_owned(),
            policy: self.shared.decider.dispatcher.settings_of(id).policy,
        }
    }
}
