//! What a switch tells of itself, and what it has told.

use super::ends::Ends;
use super::message::{Gate, Message, PACK_BYTES};
use super::settings::SwitchesSettings;
use crate::dispatch::Dispatcher;
use crate::id::{NodeId, RouteId};
use crate::nodes::{Demand, GroupId};
use crate::time::Time;
use std::collections::BTreeMap;

/// Nodes that one message of loads names.
const LOADS_MAX: usize = 4_000;

/// What the others were told of the loads here.
#[derive(Debug, Default)]
pub(super) struct Told {
    loads: BTreeMap<NodeId, u32>,
    gates: Vec<Gate>,
    /// When all of it was last told.
    all: Option<Time>,
}

impl Told {
    /// Everything is to be told anew.
    pub(super) fn forget(&mut self) {
        self.all = None;
    }

    /// All loads, for one that knows none.
    pub(super) fn all(told: Time, dispatcher: &Dispatcher, routes: &[(RouteId, String)]) -> Vec<Message> {
        let busy = loads(dispatcher).into_iter().filter(|(_, load)| *load > 0);
        in_parts((true, told), &busy.collect::<Vec<_>>(), gates_told(dispatcher, routes))
    }

    /// What is to be told now: all of it once in a while, else what differs. Sets are `told` up to then.
    pub(super) fn tell(
        &mut self,
        (now, told): (Time, Time),
        settings: &SwitchesSettings,
        dispatcher: &Dispatcher,
        routes: &[(RouteId, String)],
    ) -> Vec<Message> {
        let (loads, gates) = (loads(dispatcher), gates_told(dispatcher, routes));
        if self.all.is_none_or(|all| now.since(all) >= settings.all_every) {
            self.all = Some(now);
            self.loads = loads.iter().copied().collect();
            self.gates.clone_from(&gates);
            let busy: Vec<_> = loads.into_iter().filter(|(_, load)| *load > 0).collect();
            return in_parts((true, told), &busy, gates);
        }
        let known = |node: &NodeId| self.loads.get(node).copied().unwrap_or(0);
        let differs = |(node, load): &(NodeId, u32)| known(node).abs_diff(*load) >= settings.step;
        let news: Vec<(NodeId, u32)> = loads.into_iter().filter(differs).collect();
        let gates = if gates.len() == self.gates.len() && !self.gates_differ(&gates, settings.step) {
            Vec::new()
        } else {
            gates
        };
        if news.is_empty() && gates.is_empty() {
            return Vec::new();
        }
        self.loads.extend(news.iter().copied());
        if !gates.is_empty() {
            self.gates.clone_from(&gates);
        }
        in_parts((false, told), &news, gates)
    }

    /// Whether a gate's demand has changed by as much as is worth a word: by the step, or from nobody waiting to somebody.
    fn gates_differ(&self, gates: &[Gate], step: u32) -> bool {
        let differs = |((route, now), (its, told)): (&Gate, &Gate)| {
            route != its
                || now.outstanding.abs_diff(told.outstanding) >= step
                || (now.waiting == 0) != (told.waiting == 0)
        };
        gates.iter().zip(&self.gates).any(differs)
    }
}

/// The own requests at each node that are not long-lived: what the others' decisions go by.
fn loads(dispatcher: &Dispatcher) -> Vec<(NodeId, u32)> {
    let slots = 0..u16::try_from(dispatcher.nodes().slots()).unwrap_or(u16::MAX);
    slots.map(NodeId).map(|node| (node, dispatcher.nodes().short_lived(node))).collect()
}

/// The groups of nodes, each with the first route that uses it.
pub(super) fn gates(dispatcher: &Dispatcher, routes: &[(RouteId, String)]) -> BTreeMap<GroupId, u16> {
    let mut gates = BTreeMap::new();
    for (route, _) in routes {
        gates.entry(dispatcher.group_of(*route)).or_insert(route.0);
    }
    gates
}

fn gates_told(dispatcher: &Dispatcher, routes: &[(RouteId, String)]) -> Vec<Gate> {
    let demand = |group| -> Demand { dispatcher.demand(group) };
    gates(dispatcher, routes).into_iter().map(|(group, route)| (route, demand(group))).collect()
}

/// In messages that are not too long.
fn in_parts((all, told): (bool, Time), loads: &[(NodeId, u32)], gates: Vec<Gate>) -> Vec<Message> {
    let mut parts: Vec<Vec<(NodeId, u32)>> = loads.chunks(LOADS_MAX).map(<[_]>::to_vec).collect();
    let first = if parts.is_empty() { Vec::new() } else { parts.remove(0) };
    let rest = parts.into_iter().map(|loads| Message::Loads { all: false, told, loads, gates: Vec::new() });
    core::iter::once(Message::Loads { all, told, loads: first, gates }).chain(rest).collect()
}

/// What this switch's numbers mean, in messages that are not too long.
pub(super) fn hello(
    whole: bool,
    ends: &Ends,
    dispatcher: &Dispatcher,
    routes: &[(RouteId, String)],
) -> Vec<Message> {
    let mut nodes: Vec<Vec<(NodeId, String)>> = vec![Vec::new()];
    let mut bytes = 0;
    for row in dispatcher.nodes().rows() {
        bytes += row.name.len() + 5;
        if bytes > PACK_BYTES {
            nodes.push(Vec::new());
            bytes = 0;
        }
        let last = nodes.len() - 1;
        nodes[last].push((row.id, row.name.to_string()));
    }
    let mut some: Vec<Vec<(u16, String)>> = vec![Vec::new()];
    let mut bytes = 0;
    for (route, name) in routes {
        bytes += name.len() + 5;
        if bytes > PACK_BYTES {
            some.push(Vec::new());
            bytes = 0;
        }
        let last = some.len() - 1;
        some[last].push((route.0, name.clone()));
    }
    let parts = u16::try_from(nodes.len() + some.len()).unwrap_or(u16::MAX);
    let nodes = nodes.into_iter().map(|nodes| (nodes, Vec::new()));
    let all = nodes.chain(some.into_iter().map(|routes| (Vec::new(), routes)));
    let hello = |(part, (nodes, routes))| {
        // The last part has room.
        let last = if part + 1 == parts { ends.last() } else { Vec::new() };
        Message::Hello { whole, part, parts, nodes, routes, ends: ends.count(), last }
    };
    (0..).zip(all).map(hello).collect()
}
