//! Validation of the routing tables of `ward` and `part`.

use std::path::PathBuf;
use std::time::Duration;

use larder_core::rules::KeyTemplate;
use larder_core::{Bytes, PolicyKind};
use larder_switch::{DEFAULT_ROUTE, NodeEntry, Route, SwitchConfig};
use larder_trace::ward::WardCosts;

use crate::config::error::Fault;
use crate::config::range::checked_number;
use crate::config::sections::policy::{CARRY_RANGE, COST_RANGE, WardSection, permille};
use crate::config::sections::switch::section::SwitchSection;
use crate::config::text::Span;

/// A route with a routing table, and the source of the table.
#[derive(Clone, Debug)]
pub(crate) struct WardRole {
    /// The route's name.
    pub(crate) route: String,
    /// The table's file.
    pub(crate) table: Option<TableFile>,
    /// Refresh of the table from the switch's own traffic.
    pub(crate) refresh: Option<Refresh>,
    /// The nodes of the route's group, in the order of the config.
    pub(crate) nodes: Vec<WardNode>,
}

/// A node that a table may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WardNode {
    pub(crate) name: String,
    /// Position in the config, which is the dispatcher's number of the node.
    pub(crate) number: u16,
}

/// A table file. Its rows are paths, as in a log.
#[derive(Clone, Debug)]
pub(crate) struct TableFile {
    pub(crate) path: PathBuf,
    /// Host of rows that name no host; empty if the key has no host.
    pub(crate) host: String,
    /// Key template that makes targets of rows.
    pub(crate) key: KeyTemplate,
}

/// Settings of a refresh.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refresh {
    pub(crate) every: Duration,
    pub(crate) memory: Bytes,
    pub(crate) costs: WardCosts,
    pub(crate) carry_permille: u16,
    /// Whether the table has a core; PART has none.
    pub(crate) core: bool,
}

/// Returns all routes with a routing table, the default route first.
pub(crate) fn wards(raw: &SwitchSection, config: &SwitchConfig) -> Result<Vec<WardRole>, Fault> {
    let mut wards = Vec::new();
    let none = WardSection::default();
    let of_all = raw.policies.ward.as_ref().unwrap_or(&none);
    let standard = Section { at: "switch.policies.ward".to_owned(), own: of_all, above: None };
    standard.targets_max()?;
    let place = Place { name: DEFAULT_ROUTE, policy: config.settings.policy, key: &config.key, hosts: &[] };
    wards.extend(standard.ward(&place, numbered(&config.nodes).collect())?);
    for (i, (route, written)) in config.routes.iter().zip(&raw.routes).enumerate() {
        let own = written.policies.as_ref().and_then(|own| own.ward.as_ref()).unwrap_or(&none);
        let at = format!("switch.routes[{i}].policies.ward");
        let section = Section { at, own, above: Some(of_all) };
        section.targets_max()?;
        let key = route.key.as_ref().unwrap_or(&config.key);
        let place = Place { name: &route.name, policy: route.settings.policy, key, hosts: &written.host.0 };
        wards.extend(section.ward(&place, members(route, &config.nodes))?);
    }
    Ok(wards)
}

/// Returns the nodes that a route may use.
fn members<'a>(route: &Route, nodes: &'a [NodeEntry]) -> Vec<(u16, &'a NodeEntry)> {
    let inside = |node: &NodeEntry| route.group.as_ref().is_none_or(|group| node.groups.contains(group));
    numbered(nodes).filter(|(_, node)| inside(node)).collect()
}

/// Returns nodes with their positions.
fn numbered(nodes: &[NodeEntry]) -> impl Iterator<Item = (u16, &NodeEntry)> {
    (0..).zip(nodes)
}

/// The properties of a route that its table depends on.
struct Place<'a> {
    name: &'a str,
    policy: PolicyKind,
    key: &'a KeyTemplate,
    hosts: &'a [String],
}

/// A `ward` section, and the section that it inherits from.
struct Section<'a> {
    at: String,
    own: &'a WardSection,
    above: Option<&'a WardSection>,
}

impl<'a> Section<'a> {
    /// Returns the value of a key, and its place: the section itself or the one above.
    fn get<T>(&self, name: &str, of: impl Fn(&'a WardSection) -> Option<T>) -> Option<(String, T)> {
        let own = of(self.own).map(|value| (format!("{}.{name}", self.at), value));
        own.or_else(|| Some((format!("switch.policies.ward.{name}"), of(self.above?)?)))
    }

    fn targets_max(&self) -> Result<(), Fault> {
        match (self.own.targets_max, self.above) {
            (Some(_), Some(_)) => {
                Err(Fault::new(format!("{}.targets_max", self.at), "cannot be set for a route")
                    .hint("set it under [switch.policies.ward]"))
            }
            _ => Ok(()),
        }
    }

    /// Validates the section; `None` for a policy without a table.
    fn ward(&self, place: &Place<'_>, nodes: Vec<(u16, &NodeEntry)>) -> Result<Option<WardRole>, Fault> {
        let refresh = self.every()?;
        if !matches!(place.policy, PolicyKind::Ward | PolicyKind::Part) {
            return Ok(None);
        }
        let table = self.table(place)?;
        if table.is_none() && refresh.is_none() {
            let what = format!("{} has no routing table, so that every target is unknown", place.policy);
            return Err(Fault::new(self.at.as_str(), what).hint(
                "set policies.ward.table = \"FILE\" (larder trace ward makes one), policies.ward.refresh = \"15m\", or both",
            ));
        }
        let refresh = refresh.map(|every| self.refresh(every, place.policy, &nodes)).transpose()?;
        let named = |(number, node): (u16, &NodeEntry)| WardNode { name: node.spec.name.clone(), number };
        let nodes = nodes.into_iter().map(named).collect();
        Ok(Some(WardRole { route: place.name.to_owned(), table, refresh, nodes }))
    }

    fn table(&self, place: &Place<'_>) -> Result<Option<TableFile>, Fault> {
        let Some((key, path)) = self.get("table", |raw| raw.table.as_deref()) else { return Ok(None) };
        if path.is_empty() || path == "-" {
            return Err(Fault::new(key, "names no file").hint("write a path, or leave it out"));
        }
        let template = place.key.as_str();
        if let Some(part) = ["{header:", "{cookie:"].into_iter().find(|part| template.contains(part)) {
            let what = format!("table rows are paths, and the key has {part}..}}, which no path contains");
            return Err(
                Fault::new(key, what).hint("leave that part out of key, or use refresh without a table")
            );
        }
        // The only host of a route takes precedence over the host in the section above.
        let single = match place.hosts {
            [host] if self.own.host.is_none() && !host.contains('*') => Some(host),
            _ => None,
        };
        let host = match (single, self.get("host", |raw| raw.host.as_deref())) {
            (Some(host), _) => host.clone(),
            (None, Some((key, ""))) => {
                return Err(Fault::new(key, "is empty").hint("write host = \"www.example.com\""));
            }
            (None, Some((_, host))) => host.to_owned(),
            (None, None) if !template.contains("{host}") => String::new(),
            (None, None) => {
                let what = "table rows are paths, and the key has {host}: the host of the rows is missing";
                return Err(Fault::new(key, what).hint("write host = \"www.example.com\" beside table"));
            }
        };
        Ok(Some(TableFile { path: path.into(), host, key: place.key.clone() }))
    }

    /// Returns the interval of the refresh.
    fn every(&self) -> Result<Option<Duration>, Fault> {
        let Some((key, text)) = self.get("refresh", |raw| raw.refresh.as_deref()) else { return Ok(None) };
        every(&key, text)
    }

    fn refresh(
        &self,
        every: Duration,
        policy: PolicyKind,
        nodes: &[(u16, &NodeEntry)],
    ) -> Result<Refresh, Fault> {
        let least = nodes.iter().map(|(_, node)| node.spec.cache).min().unwrap_or(Bytes::ZERO);
        let (key, memory) = self
            .get("memory", |raw| raw.memory.map(|size| size.0))
            .unwrap_or_else(|| (format!("{}.memory", self.at), least));
        if memory == Bytes::ZERO {
            let what = "missing: the size of a node's cache, which a refresh needs";
            let hint = "write memory = \"8GiB\" beside refresh, or cache = \"8GiB\" at each of the nodes";
            return Err(Fault::new(key, what).hint(hint));
        }
        let standard = WardCosts::ward01();
        let costs = WardCosts {
            forward_us: self.price("forward_us", |raw| raw.forward_us, standard.forward_us)?,
            disk_us_per_byte: self.price(
                "disk_us_per_byte",
                |raw| raw.disk_us_per_byte,
                standard.disk_us_per_byte,
            )?,
            origin: "config".to_owned(),
        };
        let carry_permille = match self.get("carry", |raw| raw.carry) {
            Some((key, carry)) => permille(checked_number(&key, carry, CARRY_RANGE)?),
            None => 500,
        };
        Ok(Refresh { every, memory, costs, carry_permille, core: policy == PolicyKind::Ward })
    }

    fn price(
        &self,
        name: &str,
        of: impl Fn(&WardSection) -> Option<f64>,
        standard: f64,
    ) -> Result<f64, Fault> {
        self.get(name, of).map_or(Ok(standard), |(key, value)| checked_number(&key, value, COST_RANGE))
    }
}

/// Parses an interval; `None` for "off".
pub(crate) fn every(key: &str, text: &str) -> Result<Option<Duration>, Fault> {
    if text == "off" {
        return Ok(None);
    }
    let every: Span = text.parse().map_err(|_| {
        Fault::new(key, format!("'{text}' is neither \"off\" nor a span of time"))
            .hint("write \"15m\", \"24h\" or \"off\"")
    })?;
    Ok(Some(every.0))
}
