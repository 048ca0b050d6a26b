//! Configuration of routes: matchers, policy, nodes, classes and target keys.

use crate::config::SwitchConfig;
use crate::config_error::{ConfigError, SHARE_WHOLE, route_error};
use crate::edits::Edits;
use crate::handoff::mechanism::MechanismSetting;
use crate::mirror::MirrorConfig;
use crate::split::{ARMS_MAX, RouteShare, SplitBy};
use larder_core::Settings;
use larder_core::nodes::{GroupId, Groups};
use larder_core::rules::{ClassRules, KeyTemplate, Matcher, RouteRules, RuleError};
use larder_core::{RouteId, RouteSpec};
use larder_prompts::PromptConfig;
use std::collections::BTreeSet;
use std::time::Duration;

/// Maximum number of routes besides the default route. Each route costs counters per thread, and metric labels.
pub const ROUTES_MAX: usize = 255;

/// Name of the route for requests that no other route matches.
pub const DEFAULT_ROUTE: &str = "default";

/// A route: requests that share a policy, nodes, and rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Name in logs, metrics and the admin interface: 1 to 64 letters, digits, `-`, `_` and `.`. Unique, and not
    /// `default`.
    pub name: String,
    /// Matchers. The route takes a request that at least one of them matches, unless an earlier route takes it. At
    /// least one, unless the route takes a [share](Route::share_of) or [copies](Route::mirror_of).
    pub matchers: Vec<Matcher>,
    /// Share of another route's requests that this route takes. Such a route has no matchers.
    pub share_of: Option<RouteShare>,
    /// Mirror configuration, if this route gets copies of another route's requests. Such a route has no matchers.
    pub mirror_of: Option<MirrorConfig>,
    /// Key that assigns clients to shares, if other routes take shares of this one.
    pub split_by: SplitBy,
    /// Policy and its parameters. The settings of the whole dispatcher (`nodes_max`, `admission`, the queue, the join
    /// pace, and the `t_low` and `t_high` of the admission limit) are taken from the default route.
    pub settings: Settings,
    /// Group of nodes that it may use, as at least one node names it in [`crate::NodeEntry::groups`]; `None` for all
    /// nodes. Routes of one group share its admission limit and its queue.
    pub group: Option<String>,
    /// Template of target keys; `None` for the default route's template.
    pub key: Option<KeyTemplate>,
    /// Rules for service classes; `None` for the default route's rules.
    pub classes: Option<ClassRules>,
    /// Delivery mechanism of its connections; `None` for the switch's setting. Has no effect if handoff is off.
    pub mechanism: Option<MechanismSetting>,
    /// Edits of its requests and replies; none by default. Connections of a route with edits are relayed.
    pub edits: Edits,
    /// Placement of prompts, if its requests have some. Connections of such a route are relayed.
    pub prompts: Option<PromptConfig>,
}

impl Route {
    /// Returns a route for one matcher, with default settings, over all nodes.
    pub fn new(name: impl Into<String>, matcher: Matcher) -> Self {
        Self {
            name: name.into(),
            matchers: vec![matcher],
            share_of: None,
            mirror_of: None,
            split_by: SplitBy::default(),
            settings: Settings::default(),
            group: None,
            key: None,
            classes: None,
            mechanism: None,
            edits: Edits::default(),
            prompts: None,
        }
    }
}

/// Returns the names of a config's groups in order. The name at index i belongs to group i + 1.
pub(crate) fn group_names(config: &SwitchConfig) -> Vec<String> {
    let named: BTreeSet<&String> = config.routes.iter().filter_map(|route| route.group.as_ref()).collect();
    named.into_iter().cloned().collect()
}

/// Returns the group of this name.
pub(crate) fn group(names: &[String], name: &str) -> Option<GroupId> {
    let at = names.iter().position(|known| known == name)?;
    GroupId::new(u8::try_from(at + 1).ok()?)
}

/// Returns the groups of these names. The error is the first unknown name.
pub(crate) fn groups(names: &[String], wanted: &[String]) -> Result<Groups, String> {
    wanted.iter().try_fold(Groups::NONE, |groups, name| {
        group(names, name).map(|group| groups.with(group)).ok_or_else(|| name.clone())
    })
}

/// Returns the dispatcher's specifications of the routes.
pub(crate) fn specs(config: &SwitchConfig, names: &[String]) -> Vec<RouteSpec> {
    let group = |route: &Route| route.group.as_ref().and_then(|name| group(names, name)).unwrap_or_default();
    config
        .routes
        .iter()
        .map(|route| RouteSpec { group: group(route), settings: route.settings.clone() })
        .collect()
}

/// Returns the rules that find the route of a request.
pub(crate) fn rules(config: &SwitchConfig) -> Result<RouteRules, ConfigError> {
    let mut rules = Vec::new();
    for (index, route) in config.routes.iter().enumerate() {
        let id = RouteId(u16::try_from(index + 1).unwrap_or(u16::MAX));
        rules.extend(route.matchers.iter().map(|matcher| (matcher.clone(), id)));
    }
    let names: Vec<RouteId> = rules.iter().map(|(_, route)| *route).collect();
    let name = |rule: usize| &config.routes[names[rule - 1].index() - 1].name;
    RouteRules::new(rules).map_err(|error| match error {
        RuleError::Unreachable { rule, by, coverage: everything } => {
            let what = if everything.0 { "every request" } else { "the same requests" };
            let right =
                if everything.0 { "put that route last" } else { "leave one of the two matchers out" };
            route_error(
                name(rule),
                "matchers",
                format!("never reached: route '{}' takes {what}: {right}", name(by)),
            )
        }
        error => ConfigError::Routes(error.to_string()),
    })
}

/// Checks the routes and the groups of the nodes.
pub(crate) fn validate(config: &SwitchConfig) -> Result<(), ConfigError> {
    let count = config.routes.len();
    if count > ROUTES_MAX {
        let what =
            format!("{count} are too many: use at most {ROUTES_MAX}; a route may have several matchers");
        return Err(ConfigError::Routes(what));
    }
    for (at, route) in config.routes.iter().enumerate() {
        validate_name(&config.routes[..at], &route.name)?;
        validate_shares(config, route)?;
        validate_mirror(config, route)?;
        if let Some(hedge) = &route.edits.hedge {
            hedge.validate(&route.name)?;
        }
        if let Some(guard) = &route.edits.guard {
            guard.validate(&route.name)?;
        }
        if let Some(prompts) = &route.prompts {
            prompts.validate().map_err(|fault| route_error(&route.name, "prompts", fault))?;
        }
        if route.matchers.is_empty() && route.share_of.is_none() && route.mirror_of.is_none() {
            let what = "none, so the route takes no request: add at least one".to_owned();
            return Err(route_error(&route.name, "matchers", what));
        }
        route.settings.validate().map_err(|error| route_error(&route.name, "settings", error.to_string()))?;
        if let Some(group) = &route.group {
            let members = config.nodes.iter().filter(|node| node.groups.contains(group)).count();
            if members == 0 && !config.grows {
                let group: String = group.chars().take(64).collect();
                let what = format!("no node is in group '{group}': name it in a node's groups");
                return Err(route_error(&route.name, "group", what));
            }
        }
    }
    let names = group_names(config);
    let max = usize::from(GroupId::MAX);
    if names.len() > max {
        let what =
            format!("{} groups are too many: use at most {max}; routes may share a group", names.len());
        return Err(ConfigError::Routes(what));
    }
    for node in &config.nodes {
        groups(&names, &node.groups).map_err(|group| ConfigError::NodeGroup {
            node: node.spec.name.clone(),
            group: group.chars().take(64).collect(),
            known: describe_groups(&names),
        })?;
    }
    rules(config).map(drop)
}

/// Describes the known groups for an error message.
pub(crate) fn describe_groups(names: &[String]) -> String {
    if names.is_empty() { "no route uses one".to_owned() } else { format!("routes use {}", names.join(", ")) }
}

/// Checks the share that a route takes and the sum of all shares.
fn validate_shares(config: &SwitchConfig, route: &Route) -> Result<(), ConfigError> {
    let name = route.share_of.as_ref().map_or(&route.name, |of| &of.route);
    let all = config.routes.iter().filter_map(|route| route.share_of.as_ref());
    let shares: Vec<u64> = all.filter(|of| of.route == *name).map(|of| u64::from(of.share)).collect();
    let (count, sum) = (shares.len(), shares.iter().sum::<u64>());
    if count > ARMS_MAX || sum > u64::from(SHARE_WHOLE) {
        let what = format!(
            "{count} routes take shares of {} % in total: use at most {ARMS_MAX} routes and 100 %",
            sum as f64 / 1000.0
        );
        return Err(route_error(&route.name, "share_of", what));
    }
    let Some(share) = &route.share_of else { return Ok(()) };
    let split = config.routes.iter().find(|other| other.name == share.route);
    let known = share.route == DEFAULT_ROUTE || split.is_some_and(|split| split.share_of.is_none());
    if !known || !route.matchers.is_empty() {
        let what = "a route with a share must name the default route or a route with matchers, and must have no matchers itself".to_owned();
        return Err(route_error(&route.name, "share_of", what));
    }
    Ok(())
}

/// Checks the mirror configuration of a route.
fn validate_mirror(config: &SwitchConfig, route: &Route) -> Result<(), ConfigError> {
    let Some(of) = &route.mirror_of else { return Ok(()) };
    let fault = |what: &str| Err(route_error(&route.name, "mirror_of", what.to_owned()));
    let copied = config.routes.iter().find(|other| other.name == of.route);
    if of.route != DEFAULT_ROUTE && copied.is_none_or(|copied| copied.mirror_of.is_some()) {
        return fault("a mirror must name the default route or a route that is no mirror itself");
    }
    if !route.matchers.is_empty() || route.share_of.is_some() {
        return fault("a mirror must have neither matchers nor a share");
    }
    let timeout = Duration::from_millis(10)..=Duration::from_secs(60);
    if of.share > SHARE_WHOLE
        || !(1..=65_536).contains(&of.copies_max)
        || of.body_bytes_max > 16 << 20
        || !timeout.contains(&of.timeout)
    {
        return fault(
            "out of range: share 0 to 100 %, copies_max 1 to 65536, body_bytes_max to 16 MiB, timeout 10 ms to 1 min",
        );
    }
    Ok(())
}

fn validate_name(before: &[Route], name: &str) -> Result<(), ConfigError> {
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !fits {
        let what = "a route's name is 1 to 64 letters, digits, '-', '_' and '.'".to_owned();
        return Err(route_error(name, "name", what));
    }
    if name == DEFAULT_ROUTE {
        let what = format!(
            "'{DEFAULT_ROUTE}' is the route for requests that no other route matches: choose another name"
        );
        return Err(route_error(name, "name", what));
    }
    if before.iter().any(|route| route.name == name) {
        return Err(route_error(name, "name", "two routes have this name: rename one".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_entry::NodeEntry;
    use larder_core::NodeSpec;

    fn config(routes: Vec<Route>) -> SwitchConfig {
        let entry = |name: &str, groups: &[&str]| NodeEntry {
            groups: groups.iter().map(ToString::to_string).collect(),
            ..NodeEntry::new(NodeSpec::named(name), "127.0.0.1:1")
        };
        let nodes = vec![entry("a", &["left"]), entry("b", &["left", "right"])];
        let mut config = SwitchConfig::new(vec![([127, 0, 0, 1], 0).into()], nodes);
        config.routes = routes;
        config
    }

    fn route(name: &str, path: &str, group: &str) -> Route {
        let matcher = Matcher::new().path(path).expect("a path");
        Route { group: Some(group.to_owned()), ..Route::new(name, matcher) }
    }

    fn two() -> Vec<Route> {
        vec![route("one", "/1*", "left"), route("two", "/2*", "right")]
    }

    #[test]
    fn groups_are_numbered_by_name_and_may_overlap() {
        let config = config(two());
        assert_eq!(config.validate(), Ok(()));
        let names = group_names(&config);
        assert_eq!(names, ["left", "right"]);
        let id = |number| GroupId::new(number).expect("at most 63");
        assert_eq!(groups(&names, &config.nodes[0].groups), Ok(Groups::NONE.with(id(1))));
        assert_eq!(groups(&names, &config.nodes[1].groups), Ok(Groups::NONE.with(id(1)).with(id(2))));
        let used: Vec<_> = specs(&config, &names).iter().map(|spec| spec.group).collect();
        assert_eq!(used, [id(1), id(2)]);
    }

    #[test]
    fn each_fault_names_its_route_and_field() {
        type Mutation = fn(&mut SwitchConfig);
        let cases: &[(&str, Mutation)] = &[
            ("routes.two.group: no node is in group 'rigth': name it in a node's groups", |c| {
                c.routes[1].group = Some("rigth".to_owned());
            }),
            ("nodes.b.groups: no route uses group 'right': routes use left", |c| drop(c.routes.pop())),
            ("nodes.a.groups: no route uses group 'left': no route uses one", |c| c.routes.clear()),
            ("routes.one.name: two routes have this name", |c| c.routes[1].name = "one".to_owned()),
            ("routes.default.name: 'default' is the route for requests that no other route matches", |c| {
                c.routes[0].name = "default".to_owned();
            }),
            ("routes.a b.name: a route's name is 1 to 64", |c| c.routes[0].name = "a b".to_owned()),
            ("routes.one.matchers: none", |c| c.routes[0].matchers.clear()),
            (
                "routes.two.matchers: never reached: route 'one' takes every request: put that route last",
                |c| {
                    c.routes[0].matchers.push(Matcher::new());
                },
            ),
            ("routes.two.matchers: never reached: route 'one' takes the same requests: leave one", |c| {
                c.routes[1].matchers = vec![c.routes[0].matchers[0].clone()];
            }),
            ("routes.one.settings: t_low", |c| c.routes[0].settings.t_low = 0),
            ("routes: 256 are too many: use at most 255", |c| {
                c.routes = (0..256).map(|n| route(&format!("r{n}"), &format!("/{n}"), "left")).collect();
            }),
            ("routes: 64 groups are too many: use at most 63", |c| {
                let name = |n: usize| format!("g{n}");
                c.nodes[0].groups = (0..64).map(name).collect();
                c.routes = (0..64).map(|n| route(&name(n), &format!("/{n}"), &name(n))).collect();
            }),
        ];
        for (expected, mutate) in cases {
            let mut config = config(two());
            mutate(&mut config);
            let error = config.validate().expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error}\n{expected}");
        }
    }
}
