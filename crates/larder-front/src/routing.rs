//! From a request's head to what the dispatcher is asked: route, class, target.

use crate::config::SwitchConfig;
use crate::config_error::ConfigError;
use crate::edits::{Edits, FieldRules, Sticky, StickyBy};
use crate::handoff::mechanism::Setting;
use crate::hedge::Hedging;
use crate::mirror::Mirror;
use crate::node_entry::NodeEntry;
use crate::routes::{self, DEFAULT_ROUTE, Route};
use crate::split::{Split, SplitBy};
use crate::tokens::Tokens;
use larder_core::census::Census;
use larder_core::nodes::{GroupId, Groups};
use larder_core::rules::{ClassRules, Head, KeyTemplate, Matcher, RouteRules};
use larder_core::{NodeSpec, PolicyKind, Request, RouteId};
use std::net::IpAddr;
use std::sync::Arc;

/// One route at work.
#[derive(Debug)]
pub(crate) struct Routed {
    pub(crate) name: Arc<str>,
    /// Empty for the default route.
    pub(crate) matchers: Vec<Matcher>,
    pub(crate) group: Option<String>,
    pub(crate) key: KeyTemplate,
    pub(crate) classes: ClassRules,
    /// How its connections are delivered; `None` for the switch's word.
    pub(crate) mechanism: Option<Setting>,
    pub(crate) edits: Edits,
    /// Others take shares of its requests.
    pub(crate) split: Option<Split>,
    /// Others are asked for copies of its requests.
    pub(crate) mirrors: Box<[Arc<Mirror>]>,
    /// It takes a share of this one's requests.
    pub(crate) share_of: Option<RouteId>,
    /// Requests to slow nodes are asked of others too.
    pub(crate) hedging: Option<Hedging>,
    /// Of its sticky cookie.
    pub(crate) tokens: Option<Tokens>,
    /// It edits something, or all routes do.
    pub(crate) edited: bool,
    /// What its requests ask for, where its policy goes by a table that can be made of it.
    pub(crate) census: Option<Census>,
}

/// The id of a route by its name; that of the default one if there is none.
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

/// Who copies the requests of this route.
fn mirrors(config: &SwitchConfig, name: &str) -> Box<[Arc<Mirror>]> {
    let mirror = |route: &Route| {
        let of = route.mirror_of.as_ref().filter(|of| of.route == name)?;
        Some(Arc::new(Mirror::new(of.clone(), id_of(config, &route.name))))
    };
    config.routes.iter().filter_map(mirror).collect()
}

fn tokens(sticky: &Sticky) -> Option<Tokens> {
    match &sticky.by {
        StickyBy::Cookie(cookie) => Some(Tokens::new(cookie)),
        StickyBy::Key(_) => None,
    }
}

impl Routed {
    /// Reads a target's key from the head that it is made of: the client's, or where the route says so the node's.
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
    /// By their ids, the default one first.
    routes: Box<[Routed]>,
    /// The groups' names, that of group 1 first.
    pub(crate) groups: Vec<String>,
    /// Rules for all routes.
    pub(crate) request_fields: FieldRules,
    pub(crate) reply_fields: FieldRules,
    /// Some route edits.
    pub(crate) edits: bool,
    /// Some route has a guard.
    pub(crate) guarded: bool,
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
        let default = Routed {
            name: DEFAULT_ROUTE.into(),
            matchers: Vec::new(),
            group: None,
            key: config.key.clone(),
            classes: config.classes.clone(),
            mechanism: None,
            split: split(config, DEFAULT_ROUTE, &config.split_by),
            mirrors: mirrors(config, DEFAULT_ROUTE),
            share_of: None,
            hedging: config.hedge.as_ref().map(Hedging::new),
            tokens: config.sticky.as_ref().and_then(tokens),
            edited: all
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
        };
        let others = config.routes.iter().map(|route| Routed {
            name: route.name.as_str().into(),
            matchers: route.matchers.clone(),
            group: route.group.clone(),
            key: route.key.as_ref().unwrap_or(&config.key).clone(),
            classes: route.classes.as_ref().unwrap_or(&config.classes).clone(),
            mechanism: route.mechanism,
            split: split(config, &route.name, &route.split_by),
            mirrors: mirrors(config, &route.name),
            share_of: route.share_of.as_ref().map(|of| id_of(config, &of.route)),
            hedging: route.edits.hedge.as_ref().map(Hedging::new),
            tokens: route.edits.sticky.as_ref().and_then(tokens),
            edits: route.edits.clone(),
            edited: all || !route.edits.is_none(),
            census: census(route.settings.policy),
        });
        let mut routes: Box<[Routed]> = std::iter::once(default).chain(others).collect();
        // What is copied must be read.
        routes.iter_mut().for_each(|route| route.edited |= !route.mirrors.is_empty());
        let edits = routes.iter().any(|route| route.edited);
        let guarded = routes.iter().any(|route| route.edits.guard.is_some());
        Ok(Self {
            rules: routes::rules(config)?,
            routes,
            groups: routes::group_names(config),
            request_fields: config.request_fields.clone(),
            reply_fields: config.reply_fields.clone(),
            edits,
            guarded,
        })
    }

    /// A node as the dispatcher takes it, in the groups that it names.
    pub(crate) fn node_spec(&self, node: &NodeEntry) -> Result<NodeSpec, ConfigError> {
        let groups = routes::groups(&self.groups, &node.groups).map_err(|group| ConfigError::NodeGroup {
            node: node.spec.name.clone(),
            group,
            known: routes::known(&self.groups),
        })?;
        Ok(NodeSpec { groups, ..node.spec.clone() })
    }

    /// The names of these groups.
    pub(crate) fn names_of(&self, groups: Groups) -> Vec<String> {
        let named = self
            .groups
            .iter()
            .filter(|name| routes::group(&self.groups, name).is_some_and(|group| groups.contains(group)));
        named.cloned().collect()
    }

    /// What the dispatcher is asked for a request of this client.
    pub(crate) fn request(&self, head: &Head<'_>, client: Option<IpAddr>) -> Request {
        let mut id = self.rules.find(head);
        let mut route = self.of(id);
        if let Some(split) = &route.split {
            id = split.side(head, client, || route.key.id(head)).unwrap_or(id);
            route = self.of(id);
        }
        let target = route.with_key_head(head, |head| route.key.id(head));
        Request::new(target).with_class(route.classes.classify(head)).with_route(id)
    }

    /// Whether requests that look alike may take different routes.
    pub(crate) fn is_split(&self, route: RouteId) -> bool {
        let route = self.of(route);
        route.split.is_some() || route.share_of.is_some()
    }

    /// A route; the default one if there is none of that id.
    pub(crate) fn of(&self, route: RouteId) -> &Routed {
        self.routes.get(route.index()).unwrap_or(&self.routes[0])
    }

    /// All routes with their ids.
    pub(crate) fn all(&self) -> impl Iterator<Item = (RouteId, &Routed)> {
        (0_u16..).map(RouteId).zip(&self.routes)
    }

    /// The route of that name.
    pub(crate) fn named(&self, name: &str) -> Option<(RouteId, &Routed)> {
        self.all().find(|(_, route)| *route.name == *name)
    }

    /// All groups with their names; that of all nodes has none.
    pub(crate) fn all_groups(&self) -> impl Iterator<Item = (GroupId, &str)> {
        let names = std::iter::once("").chain(self.groups.iter().map(String::as_str));
        (0..=GroupId::MAX).filter_map(GroupId::new).zip(names)
    }

    pub(crate) fn len(&self) -> usize {
        self.routes.len()
    }
}
