//! What is known of another switch.

use super::common::Common;
use super::message::Head;
use crate::dispatch::Dispatcher;
use crate::id::{NodeId, RouteId};
use crate::nodes::{Demand, GroupId};
use crate::time::Time;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Another switch.
#[derive(Debug)]
pub(super) struct Other {
    /// Messages to it go.
    pub(super) up: bool,
    /// Which life of it speaks.
    life: Option<u64>,
    /// The number of its last message to all; none since its messages began afresh.
    number: Option<u64>,
    /// What its numbers mean, once all parts of its hello have come.
    roster: Option<u64>,
    coming: Option<Coming>,
    /// When it was last asked for a hello.
    pub(super) puzzled: Option<Time>,
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

/// A hello, in parts.
#[derive(Debug, Default)]
struct Coming {
    roster: u64,
    parts: BTreeSet<u16>,
    nodes: BTreeMap<u16, String>,
    routes: BTreeMap<u16, String>,
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
    /// When it was last asked; not yet for this part if `None`.
    pub(super) asked: Option<Time>,
}

impl Other {
    pub(super) fn new(now: Time, until: Option<Time>) -> Self {
        Self {
            up: false,
            life: None,
            number: None,
            roster: None,
            coming: None,
            puzzled: None,
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
        (self.number, self.roster, self.coming) = (None, None, None);
        self.behind = true;
        self.asking = None;
    }

    /// Whether this is said by the life of it that speaks; a newer one takes the older one's place.
    pub(super) fn speaks(&mut self, head: &Head) -> bool {
        match self.life {
            Some(life) if head.life < life => return false,
            Some(life) if head.life > life => {
                self.begin();
                (self.until, self.heard) = (None, None);
            }
            _ => {}
        }
        self.life = Some(head.life);
        true
    }

    /// Notes the number of what it says. Whether it is no older than what has been heard. A gap says that something was missed.
    pub(super) fn note(&mut self, head: &Head) -> bool {
        let Some(last) = self.number else {
            self.number = Some(head.number);
            return true;
        };
        let expected = last + u64::from(head.to_all);
        if head.number > expected {
            self.behind = true;
        }
        self.number = Some(last.max(head.number));
        head.number >= expected
    }

    /// Whether its slots and routes mean what it has said.
    pub(super) fn understands(&self, head: &Head) -> bool {
        self.roster == Some(head.roster)
    }

    /// Whether it has said what its numbers mean.
    pub(super) fn greeted(&self) -> bool {
        self.roster.is_some()
    }

    /// It says a part of what its numbers mean. True once all of it is there.
    pub(super) fn greet(
        &mut self,
        head: &Head,
        (part, parts): (u16, u16),
        nodes: Vec<(NodeId, String)>,
        routes: Vec<(u16, String)>,
    ) -> bool {
        let newest = self.roster.max(self.coming.as_ref().map(|coming| coming.roster));
        if newest.is_some_and(|newest| head.roster < newest) {
            return false;
        }
        let fresh = || Coming { roster: head.roster, ..Coming::default() };
        let coming = match &mut self.coming {
            Some(coming) if coming.roster == head.roster => coming,
            coming => coming.insert(fresh()),
        };
        coming.parts.insert(part);
        coming.nodes.extend(nodes.into_iter().map(|(node, name)| (node.0, name)));
        coming.routes.extend(routes);
        if coming.parts.len() < usize::from(parts) {
            return false;
        }
        let Some(Coming { roster, nodes, routes, .. }) = self.coming.take() else { return false };
        if self.roster != Some(roster) {
            // What its slots were is of no use.
            self.loads.clear();
            self.gates.clear();
        }
        (self.roster, self.nodes, self.routes) = (Some(roster), nodes, routes);
        true
    }

    /// It has given a part of the sets asked for. Whether that was the last part of all its sets.
    pub(super) fn answered(&mut self, next: Option<u64>, routes: usize) -> bool {
        let Some(asking) = self.asking else { return false };
        self.asking = match next {
            Some(at) => Some(Asking { at, asked: None, ..asking }),
            None if asking.route + 1 < routes => {
                Some(Asking { route: asking.route + 1, at: 0, asked: None, ..asking })
            }
            None => None,
        };
        asking.full && self.asking.is_none()
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
