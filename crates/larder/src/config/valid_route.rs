//! Routes, and the groups of nodes they use, checked and turned into what the front is told.

use std::collections::{BTreeMap, BTreeSet};

use larder_core::RouteId;
use larder_core::Settings;
use larder_core::nodes::GroupId;
use larder_core::rules::RouteRules;
use larder_front::{DEFAULT_ROUTE, NodeEntry, ROUTES_MAX, Route, SplitBy};

use super::error::Fault;
use super::explain::suggest;
use super::raw_route::RawRoute;
use super::raw_switch::RawSwitch;
use super::valid_discover::{Discover, Place};
use super::valid_edits::edits;
use super::valid_hacc::level_key;
use super::valid_handoff::mechanism;
use super::valid_policy::apply;
use super::valid_rule::{classes, key, list_fault, matcher, unreachable};
use super::valid_split::{mirror_of, share_of, shares, split_by};

/// The routes beside the default one, whose `standard` settings they inherit, and what is odd about them.
pub(super) fn routes(
    switch: &RawSwitch,
    standard: &Settings,
    nodes: &[NodeEntry],
    discover: &[Discover],
    warnings: &mut Vec<Fault>,
) -> Result<Vec<Route>, Fault> {
    let raw = &switch.routes;
    if raw.len() > ROUTES_MAX {
        let what = format!("{} routes are too many", raw.len());
        return Err(Fault::new("switch.routes", what).hint(format!("at most {ROUTES_MAX}")));
    }
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut routes = Vec::with_capacity(raw.len());
    for (i, route) in raw.iter().enumerate() {
        let at = format!("switch.routes[{i}]");
        name(&at, &route.name)?;
        if let Some(first) = names.insert(&route.name, i) {
            let what = format!("the name '{}' is that of switch.routes[{first}] already", route.name);
            return Err(Fault::new(format!("{at}.name"), what).hint("give each route a name of its own"));
        }
        routes.push(one(&at, route, (switch, standard), warnings)?);
    }
    groups(&routes, nodes, discover)?;
    shares(raw, &routes, warnings)?;
    let own =
        raw.iter().map(|route| (route.of.is_none() && route.mirror.is_none()).then(|| route.conditions()));
    unreachable("switch.routes", &own.collect::<Vec<_>>(), warnings);
    let rules = routes
        .iter()
        .zip(1..)
        .flat_map(|(route, id)| route.matchers.iter().map(move |matcher| (matcher.clone(), RouteId(id))));
    RouteRules::new(rules.collect()).map_err(|error| list_fault("switch.routes", &error))?;
    Ok(routes)
}

fn name(at: &str, name: &str) -> Result<(), Fault> {
    let key = format!("{at}.name");
    if name.is_empty() {
        return Err(Fault::new(key, "missing: what the route is called").hint("write name = \"dynamic\""));
    }
    if name == DEFAULT_ROUTE {
        let what = format!("'{DEFAULT_ROUTE}' is the route of what no other takes");
        return Err(Fault::new(key, what).hint("give another name; its policy is that of [switch]"));
    }
    let fits = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !fits || name.len() > 64 {
        let what = format!("'{}' cannot be a route's name", name.escape_debug());
        return Err(Fault::new(key, what).hint("1 to 64 letters, digits, '-', '_' and '.'"));
    }
    Ok(())
}

fn one(
    at: &str,
    raw: &RawRoute,
    (switch, standard): (&RawSwitch, &Settings),
    warnings: &mut Vec<Fault>,
) -> Result<Route, Fault> {
    let matcher = matcher(at, raw.conditions())?;
    let share_of = share_of(at, raw, &matcher)?;
    let mirror_of = raw.mirror.as_ref().map(|mirror| mirror_of(at, raw, mirror, &matcher)).transpose()?;
    let own = share_of.is_none() && mirror_of.is_none();
    if matcher.takes_all() && own {
        let what = "takes every request, so that nothing is left for [switch] and the routes behind it";
        let hint = "give it a host, path, extension, method or header; or set the policy under [switch]";
        warnings.push(Fault::new(at, what).hint(hint));
    }
    let mut settings = standard.clone();
    apply(at, &raw.parameters(&switch.training), &mut settings)?;
    let key_of = match (&raw.key, level_key(&settings)) {
        (Some(_), Some(_)) if raw.hacc.as_ref().is_some_and(|hacc| hacc.level.is_some()) => {
            let what = "contradicts key: both say what an assignment covers";
            return Err(Fault::new(format!("{at}.hacc.level"), what).hint("leave one of them out"));
        }
        (Some(text), _) => Some(key(&format!("{at}.key"), text)?),
        (None, Some(text)) => Some(key(&format!("{at}.hacc.level"), &text)?),
        // The switch's key came of its level, which is that of its own policy and not of this one.
        (None, None) if level_key(standard).is_some() => Some(key("switch.key", &switch.key)?),
        (None, None) => None,
    };
    Ok(Route {
        name: raw.name.clone(),
        matchers: if own { vec![matcher] } else { Vec::new() },
        mirror_of,
        share_of,
        split_by: raw
            .split_by
            .as_ref()
            .map_or(Ok(SplitBy::default()), |by| split_by(&format!("{at}.split_by"), by))?,
        settings,
        group: raw.group.clone(),
        key: key_of,
        classes: raw.classes.as_ref().map(|raw| classes(at, raw, warnings)).transpose()?,
        mechanism: raw
            .mechanism
            .as_ref()
            .map(|word| mechanism(&format!("{at}.mechanism"), word))
            .transpose()?,
        edits: edits(at, raw, switch)?,
    })
}

/// Holds the groups that routes use against those that nodes are in.
fn groups(routes: &[Route], nodes: &[NodeEntry], discover: &[Discover]) -> Result<(), Fault> {
    let in_config = nodes.iter().flat_map(|node| &node.groups);
    let in_dns = discover.iter().flat_map(|source| &source.groups);
    let of_nodes: BTreeSet<&str> = in_config.chain(in_dns).map(String::as_str).collect();
    // What a file names is not known here.
    let any = discover.iter().any(|source| matches!(source.place, Place::File(_)));
    let of_routes: BTreeSet<&str> = routes.iter().filter_map(|route| route.group.as_deref()).collect();
    for (i, group) in routes.iter().map(|route| route.group.as_deref()).enumerate() {
        if let Some(group) = group.filter(|group| !any && !of_nodes.contains(group)) {
            let known: Vec<&str> = of_nodes.iter().copied().collect();
            let hint = match known.is_empty() {
                true => format!("write {{ address = \"10.0.0.1:80\", groups = [\"{group}\"] }} in nodes"),
                false => suggest(group, &known),
            };
            return Err(Fault::new(
                format!("switch.routes[{i}].group"),
                format!("no node is in group '{group}'"),
            )
            .hint(hint));
        }
    }
    let in_config = nodes.iter().enumerate().map(|(i, node)| (format!("nodes[{i}]"), &node.groups));
    let in_dns = discover.iter().enumerate().map(|(i, source)| (format!("discover[{i}]"), &source.groups));
    for (at, groups) in in_config.chain(in_dns) {
        if let Some(group) = groups.iter().find(|group| !of_routes.contains(group.as_str())) {
            let known: Vec<&str> = of_routes.iter().copied().collect();
            let hint = match known.is_empty() {
                true => format!("write group = \"{group}\" in a route, or leave groups out"),
                false => suggest(group, &known),
            };
            return Err(Fault::new(format!("switch.{at}.groups"), format!("no route uses group '{group}'"))
                .hint(hint));
        }
    }
    if of_routes.len() > usize::from(GroupId::MAX) {
        let what = format!("{} groups are too many", of_routes.len());
        return Err(Fault::new("switch.routes", what).hint(format!("at most {}", GroupId::MAX)));
    }
    Ok(())
}
