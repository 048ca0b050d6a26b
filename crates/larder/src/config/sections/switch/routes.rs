//! The routes of a switch: the settings that they inherit from `[switch]`, and their groups of nodes.

use std::collections::{BTreeMap, BTreeSet};

use larder_core::nodes::GroupId;
use larder_core::rules::RouteRules;
use larder_core::{RouteId, Settings};
use larder_switch::{
    DEFAULT_ROUTE, DirectReply, Edits, MessageKind, NodeEntry, ROUTES_MAX, Route, RouteGuard, SplitBy,
    SwitchConfig,
};

use crate::config::error::Fault;
use crate::config::sections::policy::hacc::level_key;
use crate::config::sections::policy::{PoliciesSection, apply};
use crate::config::sections::switch::discover::{Discover, Place};
use crate::config::sections::switch::edits::{
    compress, fault, headers, hedge, hedge_or_stick, redirect, request_id, rewrite, sticky,
};
use crate::config::sections::switch::guard::{GuardSection, guard};
use crate::config::sections::switch::prompts::prompts_of;
use crate::config::sections::switch::route::RouteSection;
use crate::config::sections::switch::rule::{classes, key, list_fault, matcher, unreachable};
use crate::config::sections::switch::section::SwitchSection;
use crate::config::sections::switch::split::{mirror_of, share_of, shares, split_by};
use crate::config::suggest::suggest;

/// Validates the routes other than the default one, whose `standard` settings they inherit.
pub(crate) fn routes(
    switch: &SwitchSection,
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
        return Err(Fault::new(key, "missing: the name of the route").hint("write name = \"dynamic\""));
    }
    if name == DEFAULT_ROUTE {
        let what = format!("'{DEFAULT_ROUTE}' is the name of the default route");
        return Err(
            Fault::new(key, what).hint("choose another name; the default route is configured under [switch]")
        );
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
    raw: &RouteSection,
    (switch, standard): (&SwitchSection, &Settings),
    warnings: &mut Vec<Fault>,
) -> Result<Route, Fault> {
    let matcher = matcher(at, raw.conditions())?;
    let share_of = share_of(at, raw, &matcher)?;
    let mirror_of = raw.mirror.as_ref().map(|mirror| mirror_of(at, raw, mirror, &matcher)).transpose()?;
    let own = share_of.is_none() && mirror_of.is_none();
    if matcher.takes_all() && own {
        let what = "takes every request, so that no request reaches [switch] and later routes";
        let hint = "give it a host, path, extension, method or header; or set the policy under [switch]";
        warnings.push(Fault::new(at, what).hint(hint));
    }
    let mut settings = standard.clone();
    let none = PoliciesSection::default();
    apply(at, &raw.parameters(&none, &switch.policies), &mut settings)?;
    let key_of = match (&raw.key, level_key(&settings)) {
        (Some(_), Some(_))
            if raw
                .policies
                .as_ref()
                .and_then(|own| own.hacc.as_ref())
                .is_some_and(|hacc| hacc.level.is_some()) =>
        {
            let what = "contradicts key: both define the target";
            return Err(Fault::new(format!("{at}.policies.hacc.level"), what).hint("leave one of them out"));
        }
        (Some(text), _) => Some(key(&format!("{at}.key"), text)?),
        (None, Some(text)) => Some(key(&format!("{at}.policies.hacc.level"), &text)?),
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
        mechanism: raw.mechanism.map(|word| word.0),
        edits: match &raw.prompts {
            None => edits(at, raw, switch)?,
            // The cookie and a second node would compete with the placement.
            Some(_) => Edits { sticky: None, hedge: None, ..edits(at, raw, switch)? },
        },
        prompts: raw.prompts.as_ref().map(|prompts| prompts_of(at, raw, prompts)).transpose()?,
    })
}

/// Checks that the groups of routes and the groups of nodes agree.
fn groups(routes: &[Route], nodes: &[NodeEntry], discover: &[Discover]) -> Result<(), Fault> {
    let in_config = nodes.iter().flat_map(|node| &node.groups);
    let in_dns = discover.iter().flat_map(|source| &source.groups);
    let of_nodes: BTreeSet<&str> = in_config.chain(in_dns).map(String::as_str).collect();
    // Nodes in files are not known here.
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

/// Applies the edits of all routes, and those of the default route.
pub(crate) fn edits_of_all(raw: &SwitchSection, switch: &mut SwitchConfig) -> Result<(), Fault> {
    switch.request_fields = headers("switch.headers.request", &raw.headers.request, MessageKind::Request)?;
    switch.reply_fields = headers("switch.headers.reply", &raw.headers.reply, MessageKind::Reply)?;
    switch.sticky = raw.sticky.as_ref().map_or(Ok(None), |raw| sticky("switch.sticky", raw))?;
    switch.compress = raw.compress.as_ref().map_or(Ok(None), |raw| compress("switch.compress", raw))?;
    switch.guard = raw.guard.as_ref().map_or(Ok(None), |raw| guard("switch.guard", raw))?;
    switch.hedge = raw.hedge.as_ref().and_then(hedge);
    hedge_or_stick("switch", switch.hedge.is_some(), switch.sticky.is_some())?;
    switch.request_id = request_id(&raw.headers.request_id)?;
    Ok(())
}

/// Validates the edits of a route. `standard` has the inherited settings.
pub(crate) fn edits(at: &str, raw: &RouteSection, standard: &SwitchSection) -> Result<Edits, Fault> {
    let of = |key: &str| format!("{at}.{key}");
    let answer = match (&raw.redirect, &raw.respond) {
        (Some(_), Some(_)) => {
            return Err(Fault::new(of("respond"), "contradicts redirect: both define the reply")
                .hint("leave one of them out"));
        }
        (Some(raw), None) => Some(redirect(&of("redirect"), raw)?),
        (None, Some(raw)) => {
            let answer = DirectReply::respond(raw.status, &raw.body, &raw.r#type);
            Some(answer.map_err(|error| fault(&of("respond"), error))?)
        }
        (None, None) => None,
    };
    let mut edits = Edits {
        request_fields: headers(&of("headers.request"), &raw.headers.request, MessageKind::Request)?,
        reply_fields: headers(&of("headers.reply"), &raw.headers.reply, MessageKind::Reply)?,
        guard: guard_of_route(at, raw, standard)?,
        answer,
        rewrite: raw.rewrite.as_ref().map(|raw| rewrite(&of("rewrite"), raw)).transpose()?,
        compress: match (&raw.compress, &standard.compress) {
            (Some(own), _) => compress(&of("compress"), own)?,
            (None, Some(standard)) => compress("switch.compress", standard)?,
            (None, None) => None,
        },
        hedge: None,
        sticky: match (&raw.sticky, &standard.sticky) {
            (Some(own), _) => sticky(&of("sticky"), own)?,
            (None, Some(standard)) => sticky("switch.sticky", standard)?,
            (None, None) => None,
        },
    };
    edits.hedge = match (&raw.hedge, &standard.hedge) {
        (Some(own), _) => hedge(own),
        (None, Some(standard)) if edits.sticky.is_none() => hedge(standard),
        _ => None,
    };
    hedge_or_stick(at, edits.hedge.is_some(), edits.sticky.is_some())?;
    let all_answered = matches!(
        edits.answer,
        Some(DirectReply::Respond { .. } | DirectReply::Redirect { secure: None, .. })
    );
    if all_answered && (edits.rewrite.is_some() || !edits.request_fields.is_empty()) {
        let key = if edits.rewrite.is_some() { "rewrite" } else { "headers.request" };
        let what = "has no effect: the switch replies to all requests of this route itself";
        return Err(Fault::new(of(key), what).hint("leave it out, or leave out redirect and respond"));
    }
    Ok(edits)
}

/// Returns the guard of a route: its own, that of the route whose share it takes, or that of `[switch]`.
pub(crate) fn guard_of_route(
    at: &str,
    raw: &RouteSection,
    switch: &SwitchSection,
) -> Result<Option<RouteGuard>, Fault> {
    if let Some(own) = &raw.guard {
        return guard(&format!("{at}.guard"), own);
    }
    let split = raw.of.as_ref().and_then(|of| switch.routes.iter().position(|route| route.name == *of));
    match (split.and_then(|i| Some((i, switch.routes[i].guard.as_ref()?))), &switch.guard) {
        (Some((i, of_split)), _) => guard(&format!("switch.routes[{i}].guard"), of_split),
        (None, Some(standard)) => guard("switch.guard", standard),
        (None, None) => Ok(None),
    }
}

/// Warns of guards that a client can bypass with a request that the route does not take but a server may treat alike.
pub(crate) fn warn_of_bypasses(raw: &SwitchSection, warnings: &mut Vec<Fault>) {
    let keeps_out =
        |guard: &GuardSection| !guard.allow.is_empty() || !guard.deny.is_empty() || guard.users.is_some();
    if raw.guard.as_ref().is_some_and(keeps_out) {
        return;
    }
    for (i, route) in raw.routes.iter().enumerate() {
        if route.guard.as_ref().is_some_and(keeps_out) {
            let what = format!(
                "protects only what route '{}' takes: '/%61dmin' or the host 'admin.example.' is not '/admin' or \
                 'admin.example' to the switch, but may be to a server",
                route.name
            );
            let hint = "put the guard under [switch], and write guard = {} in routes that are open to all";
            warnings.push(Fault::new(format!("switch.routes[{i}].guard"), what).hint(hint));
        }
    }
}
