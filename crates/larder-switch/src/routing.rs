//! Routing: finds the route, class and target of a request from its head.

use crate::config::SwitchConfig;
use crate::config_error::{ConfigError, route_error};
use crate::edits::{Edits, FieldRules, Sticky, StickyBy};
use crate::handoff::mechanism::MechanismSetting;
use crate::hedge::RouteHedging;
use crate::mirror::Mirror;
use crate::node_entry::NodeEntry;
use crate::routes::{self, DEFAULT_ROUTE, Route};
use crate::split::{Split, SplitBy};
use crate::tokens::NodeTokens;
use larder_core::census::Census;
use larder_core::chain::SharedChains;
use larder_core::nodes::{GroupId, Groups};
use larder_core::rules::{ClassRules, Head, KeyTemplate, Matcher, RouteRules};
use larder_core::{NodeId, NodeSpec, PolicyKind, Request, RouteId};
use larder_prompts::PromptRoute;
use std::net::IpAddr;
use std::sync::Arc;

/// A route with its state at run time.
#[derive(Debug)]
pub(crate) struct ActiveRoute {
    pub(crate) name: Arc<str>,
    /// Matchers; empty for the default route.
    pub(crate) matchers: Vec<Matcher>,
    pub(crate) group: Option<String>,
    pub(crate) key: KeyTemplate,
    pub(crate) classes: ClassRules,
    /// Delivery mechanism of its connections; `None` for the switch's setting.
    pub(crate) mechanism: Option<MechanismSetting>,
    pub(crate) edits: Edits,
    /// Routes that take shares of its requests.
    pub(crate) split: Option<Split>,
    /// Routes that copy its requests.
    pub(crate) mirrors: Box<[Arc<Mirror>]>,
    /// Route from which it takes a share of the requests.
    pub(crate) share_of: Option<RouteId>,
    /// State of hedging, if its requests are hedged.
    pub(crate) hedging: Option<RouteHedging>,
    /// Tokens of its sticky cookie.
    pub(crate) tokens: Option<NodeTokens>,
    /// State of its prompts, if its requests have some.
    pub(crate) prompts: Option<Arc<PromptRoute>>,
    /// Whether the route or the config edits requests or replies.
    pub(crate) has_edits: bool,
    /// Counts of its targets, if its policy uses a routing table.
    pub(crate) census: Option<Census>,
}

/// Returns the id of the route with this name, or of the default route if there is none.
fn id_of(config: &SwitchConfig, name: &str) -> RouteId {
    let at = config.routes.iter().position(|route| route.name == name);
    at.map_or(RouteId::DEFAULT, |at| RouteId(u16::try_from(at + 1).unwrap_or(0)))
}

fn split(config: &SwitchConfig, name: &str, by: &SplitBy) -> Option<Split> {
    let arm = |route: &Route| {
        let of = route.share_of.as_ref().filter(|of| of.route == name)?;
        Some((id_of(config, &route.name), of.share))
    };
    Split::new(name, by.clone(), config.routes.iter().filter_map(arm).collect())
}

/// Returns the routes that copy the requests of this route.
fn mirrors(config: &SwitchConfig, name: &str) -> Box<[Arc<Mirror>]> {
    let mirror = |route: &Route| {
        let of = route.mirror_of.as_ref().filter(|of| of.route == name)?;
        Some(Arc::new(Mirror::new(of.clone(), id_of(config, &route.name))))
    };
    config.routes.iter().filter_map(mirror).collect()
}

/// Creates the state of routes that place prompts.
fn start_prompts(
    config: &SwitchConfig,
    groups: &[String],
    routes: &mut [ActiveRoute],
) -> Result<(), ConfigError> {
    // The default route is first, and places none.
    for (route, spec) in routes.iter_mut().skip(1).zip(&config.routes) {
        let Some(prompts) = &spec.prompts else { continue };
        let group = spec.group.as_ref().and_then(|name| routes::group(groups, name)).unwrap_or_default();
        let state = PromptRoute::new(prompts, group)
            .map_err(|error| route_error(&spec.name, "prompts", error.to_string()))?;
        route.prompts = Some(Arc::new(state));
    }
    Ok(())
}

fn tokens(sticky: &Sticky) -> Option<NodeTokens> {
    match &sticky.by {
        StickyBy::Cookie(cookie) => Some(NodeTokens::new(cookie)),
        StickyBy::Key(_) => None,
    }
}

impl ActiveRoute {
    /// Calls `read` with the head that target keys are made of: the client's head, or the rewritten head if the route
    /// says so.
    pub(crate) fn with_key_head<T>(&self, head: &Head<'_>, read: impl FnOnce(&Head<'_>) -> T) -> T {
        match self.edits.rewrite.as_ref().filter(|rewrite| rewrite.decides) {
            None => read(head),
            Some(rewrite) => read(&Head { path: &rewrite.apply(head.path), ..*head }),
        }
    }
}

/// All routes.
#[derive(Debug)]
pub(crate) struct Routing {
    rules: RouteRules,
    /// Routes by id; the default route is first.
    routes: Box<[ActiveRoute]>,
    /// Names of the groups; group 1 is first.
    pub(crate) groups: Vec<String>,
    /// Rules for all routes.
    pub(crate) request_fields: FieldRules,
    pub(crate) reply_fields: FieldRules,
    /// Whether any route has edits.
    pub(crate) any_edits: bool,
    /// Whether any route has a guard.
    pub(crate) any_guards: bool,
    /// Whether any route places prompts.
    pub(crate) any_prompts: bool,
}

impl Routing {
    pub(crate) fn new(config: &SwitchConfig) -> Result<Self, ConfigError> {
        let census = |policy: PolicyKind| {
            let counts = matches!(policy, PolicyKind::Ward | PolicyKind::Part);
            counts.then(|| Census::new(config.census_targets_max))
        };
        let all = config.request_id.is_some()
            || !config.request_fields.is_empty()
            || !config.reply_fields.is_empty();
        let default = ActiveRoute {
            name: DEFAULT_ROUTE.into(),
            matchers: Vec::new(),
            group: None,
            key: config.key.clone(),
            classes: config.classes.clone(),
            mechanism: None,
            split: split(config, DEFAULT_ROUTE, &config.split_by),
            mirrors: mirrors(config, DEFAULT_ROUTE),
            share_of: None,
            hedging: config.hedge.as_ref().map(RouteHedging::new),
            tokens: config.sticky.as_ref().and_then(tokens),
            has_edits: all
                || config.guard.is_some()
                || config.sticky.is_some()
                || config.compress.is_some()
                || config.hedge.is_some(),
            edits: Edits {
                guard: config.guard.clone(),
                sticky: config.sticky.clone(),
                compress: config.compress.clone(),
                hedge: config.hedge.clone(),
                ..Edits::default()
            },
            census: census(config.settings.policy),
            prompts: None,
        };
        let others = config.routes.iter().map(|route| ActiveRoute {
            name: route.name.as_str().into(),
            matchers: route.matchers.clone(),
            group: route.group.clone(),
            key: route.key.as_ref().unwrap_or(&config.key).clone(),
            classes: route.classes.as_ref().unwrap_or(&config.classes).clone(),
            mechanism: route.mechanism,
            split: split(config, &route.name, &route.split_by),
            mirrors: mirrors(config, &route.name),
            share_of: route.share_of.as_ref().map(|of| id_of(config, &of.route)),
            hedging: route.edits.hedge.as_ref().map(RouteHedging::new),
            tokens: route.edits.sticky.as_ref().and_then(tokens),
            edits: route.edits.clone(),
            has_edits: all || !route.edits.is_none(),
            census: census(route.settings.policy),
            prompts: None,
        });
        let mut routes: Box<[ActiveRoute]> = std::iter::once(default).chain(others).collect();
        let groups = routes::group_names(config);
        start_prompts(config, &groups, &mut routes)?;
        // Copies and prompts need the parsed request.
        routes
            .iter_mut()
            .for_each(|route| route.has_edits |= !route.mirrors.is_empty() || route.prompts.is_some());
        let any_edits = routes.iter().any(|route| route.has_edits);
        let any_guards = routes.iter().any(|route| route.edits.guard.is_some());
        let any_prompts = routes.iter().any(|route| route.prompts.is_some());
        Ok(Self {
            rules: routes::rules(config)?,
            routes,
            groups,
            request_fields: config.request_fields.clone(),
            reply_fields: config.reply_fields.clone(),
            any_edits,
            any_guards,
            any_prompts,
        })
    }

    /// Returns the dispatcher's specification of a node, with its groups.
    pub(crate) fn node_spec(&self, node: &NodeEntry) -> Result<NodeSpec, ConfigError> {
        let groups = routes::groups(&self.groups, &node.groups).map_err(|group| ConfigError::NodeGroup {
            node: node.spec.name.clone(),
            group,
            known: routes::describe_groups(&self.groups),
        })?;
        Ok(NodeSpec { groups, ..node.spec.clone() })
    }

    /// Returns the names of these groups.
    pub(crate) fn group_names(&self, groups: Groups) -> Vec<String> {
        let named = self
            .groups
            .iter()
            .filter(|name| routes::group(&self.groups, name).is_some_and(|group| groups.contains(group)));
        named.cloned().collect()
    }

    /// Returns the dispatcher's request for this head and client.
    pub(crate) fn request(&self, head: &Head<'_>, client: Option<IpAddr>) -> Request {
        let mut id = self.rules.find(head);
        let mut route = self.route(id);
        if let Some(split) = &route.split {
            id = split.choose(head, client, || route.key.id(head)).unwrap_or(id);
            route = self.route(id);
        }
        let target = route.with_key_head(head, |head| route.key.id(head));
        Request::new(target).with_class(route.classes.classify(head)).with_route(id)
    }

    /// Whether equal requests may take different routes.
    pub(crate) fn is_split(&self, route: RouteId) -> bool {
        let route = self.route(route);
        route.split.is_some() || route.share_of.is_some()
    }

    /// Returns a route, or the default route if the id is unknown.
    pub(crate) fn route(&self, route: RouteId) -> &ActiveRoute {
        self.routes.get(route.index()).unwrap_or(&self.routes[0])
    }

    /// Returns all routes with their ids.
    pub(crate) fn all(&self) -> impl Iterator<Item = (RouteId, &ActiveRoute)> {
        (0_u16..).map(RouteId).zip(&self.routes)
    }

    /// Returns the route of this name.
    pub(crate) fn named(&self, name: &str) -> Option<(RouteId, &ActiveRoute)> {
        self.all().find(|(_, route)| *route.name == *name)
    }

    /// Returns all groups with their names. The group of all nodes has an empty name.
    pub(crate) fn all_groups(&self) -> impl Iterator<Item = (GroupId, &str)> {
        let names = std::iter::once("").chain(self.groups.iter().map(String::as_str));
        (0..=GroupId::MAX).filter_map(GroupId::new).zip(names)
    }

    /// Returns the states of the routes that place prompts.
    pub(crate) fn prompt_routes(&self) -> impl Iterator<Item = &Arc<PromptRoute>> {
        self.routes.iter().filter_map(|route| route.prompts.as_ref())
    }

    /// Returns the chain dispatchers of the routes that place prompts.
    pub(crate) fn chains(&self) -> impl Iterator<Item = (RouteId, &ActiveRoute, &Arc<SharedChains>)> {
        self.all().filter_map(|(id, route)| Some((id, route, &route.prompts.as_ref()?.chains)))
    }

    /// Ends the credits of a node that has lost its cache, on all routes.
    pub(crate) fn forget_prompts(&self, node: NodeId) {
        self.chains().for_each(|(_, _, chains)| chains.forget_node(node));
    }

    pub(crate) fn len(&self) -> usize {
        self.routes.len()
    }
}
