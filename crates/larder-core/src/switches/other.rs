//! What is known of another switch.

use super::common::Common;
use crate::dispatch::Dispatcher;
use crate::id::{NodeId, RouteId};
use crate::nodes::{Demand, GroupId};
use crate::time::Time;
use core::time::Duration;
use std::collections::BTreeMap;

/// Another switch.
#[derive(Debug)]
pub(super) struct Other {
    /// Messages to it go.
    pub(super) up: bool,
    /// It has said hello since its messages began afresh.
    pub(super) greeted: bool,
    pub(super) whole: bool,
    pub(super) joined: Time,
    /// When it last said how loaded it is.
    pub(super) heard: Option<Time>,
    /// Up to when, in the common clock, its changes have been heard. Nothing of what it knew before that is missing here,
    /// unless this switch was not whole then.
    pub(super) until: Option<Time>,
    /// It may have changed something that was not heard.
    pub(super) behind: bool,
    pub(super) asking: Option<Asking>,
    nodes: BTreeMap<u16, String>,
    routes: BTreeMap<u16, String>,
    /// Its slots in this dispatcher, and its routes.
    slots: BTreeMap<u16, NodeId>,
    places: BTreeMap<u16, RouteId>,
    loads: BTreeMap<u16, u32>,
    gates: BTreeMap<u16, Demand>,
}

/// Sets that are being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asking {
    /// The place in the own list of routes.
    pub(super) route: usize,
    pub(super) at: u64,
    /// Everything is asked for.
    pub(super) full: bool,
    /// In the common clock.
    pub(super) since: Time,
    /// When it was asked; not yet, or for the next part, if `None`.
    pub(super) asked: Option<Time>,
}

impl Other {
    pub(super) fn new(now: Time, until: Option<Time>) -> Self {
        Self {
            up: false,
            greeted: false,
            whole: false,
            joined: now,
            heard: None,
            until,
            behind: true,
            asking: None,
            nodes: BTreeMap::new(),
            routes: BTreeMap::new(),
            slots: BTreeMap::new(),
            places: BTreeMap::new(),
            loads: BTreeMap::new(),
            gates: BTreeMap::new(),
        }
    }

    /// What it says begins anew: its numbers may mean something else.
    pub(super) fn begin(&mut self) {
        self.greeted = false;
        self.behind = true;
        self.asking = None;
    }

    /// It has said what its numbers mean.
    pub(super) fn greet(&mut self, first: bool, nodes: Vec<(NodeId, String)>, routes: Vec<(u16, String)>) {
        if first {
            self.nodes.clear();
            self.routes.clear();
            self.loads.clear();
            self.gates.clear();
        }
        self.greeted = true;
        self.nodes.extend(nodes.into_iter().map(|(node, name)| (node.0, name)));
        self.routes.extend(routes);
    }

    /// Finds its nodes and routes among the own ones.
    pub(super) fn place(&mut self, dispatcher: &Dispatcher, routes: &[(RouteId, String)]) {
        let node = |name: &str| dispatcher.nodes().id_of(name);
        self.slots = self.nodes.iter().filter_map(|(slot, name)| Some((*slot, node(name)?))).collect();
        let own = |name: &String| routes.iter().find(|(_, own)| own == name).map(|(route, _)| *route);
        self.places = self.routes.iter().filter_map(|(route, name)| Some((*route, own(name)?))).collect();
    }

    pub(super) fn take_loads(
        &mut self,
        now: Time,
        all: bool,
        loads: Vec<(NodeId, u32)>,
        gates: Vec<(u16, Demand)>,
    ) {
        if all {
            self.loads.clear();
            self.gates.clear();
        }
        self.loads.extend(loads.into_iter().map(|(node, requests)| (node.0, requests)));
        self.gates.extend(gates);
        self.heard = Some(now);
    }

    /// Its node, in this dispatcher.
    pub(super) fn node(&self, theirs: NodeId) -> Option<NodeId> {
        self.slots.get(&theirs.0).copied()
    }

    /// Its route, in this dispatcher.
    pub(super) fn route(&self, theirs: u16) -> Option<RouteId> {
        self.places.get(&theirs).copied()
    }

    /// Whether what it has is not known: it has said nothing for so long.
    pub(super) fn is_unknown(&self, now: Time, age_max: Duration) -> bool {
        now.since(self.heard.unwrap_or(self.joined)) > age_max
    }

    /// Its requests at this dispatcher's nodes.
    pub(super) fn requests(&self) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        self.loads.iter().filter_map(|(slot, requests)| Some((self.node(NodeId(*slot))?, *requests)))
    }

    /// Its demand of a group; none if it has no such gate.
    pub(super) fn demand(&self, group: GroupId, dispatcher: &Dispatcher) -> Demand {
        let is_its = |route: &u16| self.route(*route).is_some_and(|own| dispatcher.group_of(own) == group);
        let found = self.gates.iter().find(|(route, _)| is_its(route));
        found.map(|(_, demand)| *demand).unwrap_or_default()
    }

    /// From when on sets that it has may be missing in a switch that once had all, in the common clock.
    pub(super) fn missing_since(&self, clock: Common) -> Time {
        self.until.unwrap_or_else(|| clock.of(self.joined))
    }
}
