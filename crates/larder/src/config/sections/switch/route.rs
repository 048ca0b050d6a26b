//! `[[switch.routes]]`, and the groups of nodes that they use.

use std::collections::{BTreeMap, BTreeSet};

use larder_core::nodes::GroupId;
use larder_core::rules::RouteRules;
use larder_core::{RouteId, Settings};
use larder_switch::{DEFAULT_ROUTE, MechanismSetting, NodeEntry, ROUTES_MAX, Route, SplitBy};

use crate::config::error::Fault;
use crate::config::explain::suggest;
use crate::config::keys::keys;
use crate::config::sections::policy::hacc::level_key;
use crate::config::sections::policy::threshold::{CostSection, HighKey, LowKey, TrainingSection};
use crate::config::sections::policy::{
    BoundedSection, CapSection, EwmaSection, HaccSection, MaglevSection, Parameters, RendezvousSection,
    StaticSection, UtilSection, WardSection, WrrSection, apply,
};
use crate::config::sections::switch::SwitchSection;
use crate::config::sections::switch::discover::{Discover, Place};
use crate::config::sections::switch::edits::{
    CompressSection, HeadersSection, HedgeSection, MirrorSection, RedirectSection, RespondSection,
    RewriteSection, StickySection, edits,
};
use crate::config::sections::switch::guard::GuardSection;
use crate::config::sections::switch::rule::{
    ClassSection, Conditions, classes, key, list_fault, matcher, unreachable,
};
use crate::config::sections::switch::split::{mirror_of, share_of, shares, split_by};
use crate::config::text::{Span, Texts};
use crate::config::words::Word;

keys! {
    /// An entry of `switch.routes`.
    table RouteSection;

    /// Its name in /explain, logs and metrics: 1 to 64 letters, digits and -_. Required.
    name: String, example "dynamic";
    /// Hosts: a name, or "*.example.com" for all under it; with a port, that port must have been sent. All conditions
    /// that are given must hold.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    host: Texts, example ["app.example.com", "*.api.example.com"];
    /// Patterns of the path, as sent and without the query; "*" is any run of bytes. "~" begins a regular expression.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    path: Texts, example "/cgi-bin/*";
    /// Extensions of the path, without the dot; case does not count.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    extension: Texts, example ["php", "asp"];
    /// Methods, with their case.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    method: Texts, example ["GET", "HEAD"];
    /// Fields of the request and patterns of their values; every field named must be there and fit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    header: BTreeMap<String, Texts>, example serde_json::json!({ "accept": "*json*" });
    /// Instead of conditions: the route of whose requests it takes a share; "default" for what no route takes.
    of: Option<String>, example "shop";
    /// How much of them, in percent, in steps of 0.001. `POST /routes/NAME/share` changes it until the next reload.
    share: Option<f64>, range "0 to 100 percent", example 5.0;
    /// Instead of conditions: another route's requests are asked for once more by this one, and nobody sees the replies.
    mirror: Option<MirrorSection>;
    /// Where others take shares of its requests, by what: the same "client" (address), "target", or parts of the request such
    /// as "{cookie:user}" are always on the same side. Unset: "client".
    split_by: Option<String>, example "{cookie:user}";
    /// The nodes it may use: a group that nodes name in their `groups`. Unset: all nodes.
    group: Option<String>, example "dynamic";
    /// What counts as the same target. Unset: as under [switch].
    key: Option<String>, example "{host}{path:3}?{query:#1}";
    /// Its service classes, as [[switch.classes]]; [] for none. Unset: those of [switch].
    classes: Option<Vec<ClassSection>>, example serde_json::json!([{ "class": "db", "path": "/cgi-bin/*" }]);
    /// How its connections reach the nodes, as switch.handoff.mechanism. Unset: as said there; without effect where that is
    /// "relay".
    mechanism: Option<Word<MechanismSetting>>, example "relay";
    /// As [switch.guard], as a whole; {} for none. Unset: that of [switch].
    guard: Option<GuardSection>, elsewhere true;
    /// The switch answers with a redirect, and asks no node.
    redirect: Option<RedirectSection>;
    /// The switch answers by itself, and asks no node.
    respond: Option<RespondSection>;
    /// Nodes are asked for another path.
    rewrite: Option<RewriteSection>;
    /// As [switch.compress], as a whole; { codings = [] } for none. Unset: that of [switch].
    compress: Option<CompressSection>, elsewhere true;
    /// As [switch.hedge], as a whole; { after = "0s" } for none. Unset: that of [switch], but on sticky routes.
    hedge: Option<HedgeSection>, elsewhere true;
    /// As [switch.sticky], as a whole; { by = "off" } for none. Unset: that of [switch].
    sticky: Option<StickySection>, elsewhere true;
    /// Rules for the header of requests to nodes, after those of [switch].
    #[serde(skip_serializing_if = "HeadersSection::is_empty")]
    request_headers: HeadersSection;
    /// Rules for the header of replies to clients, after those of [switch].
    #[serde(skip_serializing_if = "HeadersSection::is_empty")]
    reply_headers: HeadersSection;
    /// Which of its nodes serves a target. Unset: as under [switch]. So with all that a policy goes by: seed, t_low,
    /// t_high, replication_decay, targets_max, and the tables hacc, ward and so on, key by key.
    policy: Option<String>, example "cap";
    /// As under [switch].
    seed: Option<u64>, elsewhere true;
    /// As under [switch].
    t_low: Option<LowKey>, elsewhere true;
    /// As under [switch].
    t_high: Option<HighKey>, elsewhere true;
    /// As under [switch].
    replication_decay: Option<Span>, elsewhere true;
    /// As under [switch].
    targets_max: Option<usize>, elsewhere true;
    /// As [switch.training].
    training: Option<TrainingSection>, elsewhere true;
    /// As [switch.hacc].
    hacc: Option<HaccSection>, elsewhere true;
    /// As [switch.bounded].
    bounded: Option<BoundedSection>, elsewhere true;
    /// As [switch.maglev].
    maglev: Option<MaglevSection>, elsewhere true;
    /// As [switch.rendezvous].
    rendezvous: Option<RendezvousSection>, elsewhere true;
    /// As [switch.ewma].
    ewma: Option<EwmaSection>, elsewhere true;
    /// As [switch.wrr].
    wrr: Option<WrrSection>, elsewhere true;
    /// As [switch.static].
    #[serde(rename = "static")]
    fixed: Option<StaticSection>, elsewhere true;
    /// As [switch.util].
    util: Option<UtilSection>, elsewhere true;
    /// As [switch.cap].
    cap: Option<CapSection>, elsewhere true;
    /// As [switch.cost].
    cost: Option<CostSection>, elsewhere true;
    /// As [switch.ward].
    ward: Option<WardSection>, elsewhere true;
}

impl RouteSection {
    pub(crate) fn conditions(&self) -> Conditions<'_> {
        Conditions {
            method: &self.method.0,
            host: &self.host.0,
            path: &self.path.0,
            extension: &self.extension.0,
            header: &self.header,
        }
    }

    /// What it gives for its policy; `training` is [switch.training].
    pub(crate) fn parameters<'a>(&'a self, training: &'a TrainingSection) -> Parameters<'a> {
        Parameters {
            policy: self.policy.as_deref(),
            seed: self.seed,
            t_low: self.t_low,
            t_high: self.t_high,
            training: self.training.as_ref(),
            training_above: Some(training),
            replication_decay: self.replication_decay,
            targets_max: self.targets_max,
            hacc: self.hacc.as_ref(),
            bounded: self.bounded.as_ref(),
            maglev: self.maglev.as_ref(),
            rendezvous: self.rendezvous.as_ref(),
            ewma: self.ewma.as_ref(),
            wrr: self.wrr.as_ref(),
            fixed: self.fixed.as_ref(),
            util: self.util.as_ref(),
            cap: self.cap.as_ref(),
            cost: self.cost.as_ref(),
        }
    }
}

/// The routes beside the default one, whose `standard` settings they inherit, and what is odd about them.
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
    raw: &RouteSection,
    (switch, standard): (&SwitchSection, &Settings),
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
        mechanism: raw.mechanism.map(|word| word.0),
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
