//! The announcements of this switch: its loads and demands, and those it sent last.

use super::ends::EndedIncarnations;
use super::message::{GroupDemand, Message, PACK_BYTES};
use super::settings::SwitchesSettings;
use crate::dispatch::Dispatcher;
use crate::id::{NodeId, RouteId};
use crate::nodes::{Demand, GroupId};
use crate::time::Time;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

/// The largest number of nodes in one message of loads.
const LOADS_MAX: usize = 4_000;

/// The loads and demands that were last sent to the other switches.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    loads: BTreeMap<NodeId, u32>,
    demands: Vec<GroupDemand>,
    /// The time at which all of them were last sent.
    all: Option<Time>,
}

impl Announcements {
    /// Causes everything to be sent again.
    pub(super) fn invalidate(&mut self) {
        self.all = None;
    }

    /// Returns messages with all loads, for a switch that knows none.
    pub(super) fn all(
        sent_until: Time,
        dispatcher: &Dispatcher,
        routes: &[(RouteId, String)],
    ) -> Vec<Message> {
        let busy = loads(dispatcher).into_iter().filter(|(_, load)| *load > 0);
        split_messages((true, sent_until), &busy.collect::<Vec<_>>(), current_demands(dispatcher, routes))
    }

    /// Returns the messages that are due now: all loads periodically, else the loads that differ. Sets were sent up
    /// to `sent_until`.
    pub(super) fn due_messages(
        &mut self,
        (now, sent_until): (Time, Time),
        settings: &SwitchesSettings,
        dispatcher: &Dispatcher,
        routes: &[(RouteId, String)],
    ) -> Vec<Message> {
        let (loads, demands) = (loads(dispatcher), current_demands(dispatcher, routes));
        if self.all.is_none_or(|all| now.since(all) >= settings.all_every) {
            self.all = Some(now);
            self.loads = loads.iter().copied().collect();
            self.demands.clone_from(&demands);
            let busy: Vec<_> = loads.into_iter().filter(|(_, load)| *load > 0).collect();
            return split_messages((true, sent_until), &busy, demands);
        }
        let known = |node: &NodeId| self.loads.get(node).copied().unwrap_or(0);
        let differs = |(node, load): &(NodeId, u32)| known(node).abs_diff(*load) >= settings.step;
        let news: Vec<(NodeId, u32)> = loads.into_iter().filter(differs).collect();
        let demands = if demands.len() == self.demands.len() && !self.demands_differ(&demands, settings.step)
        {
            Vec::new()
        } else {
            demands
        };
        if news.is_empty() && demands.is_empty() {
            return Vec::new();
        }
        self.loads.extend(news.iter().copied());
        if !demands.is_empty() {
            self.demands.clone_from(&demands);
        }
        split_messages((false, sent_until), &news, demands)
    }

    /// Returns whether a demand has changed enough to be sent: by `step`, or between zero and some waiting requests.
    fn demands_differ(&self, demands: &[GroupDemand], step: u32) -> bool {
        let differs = |((route, now), (its, before)): (&GroupDemand, &GroupDemand)| {
            route != its
                || now.outstanding.abs_diff(before.outstanding) >= step
                || (now.waiting == 0) != (before.waiting == 0)
        };
        demands.iter().zip(&self.demands).any(differs)
    }
}

/// Returns this switch's own requests at each node that are not long-lived. The decisions of the other switches use
/// them.
fn loads(dispatcher: &Dispatcher) -> Vec<(NodeId, u32)> {
    let slots = 0..u16::try_from(dispatcher.nodes().slots()).unwrap_or(u16::MAX);
    slots.map(NodeId).map(|node| (node, dispatcher.nodes().short_lived(node))).collect()
}

/// Returns the groups of nodes, each with the first route that uses it.
pub(super) fn group_routes(dispatcher: &Dispatcher, routes: &[(RouteId, String)]) -> BTreeMap<GroupId, u16> {
    let mut groups = BTreeMap::new();
    for (route, _) in routes {
        groups.entry(dispatcher.group_of(*route)).or_insert(route.0);
    }
    groups
}

fn current_demands(dispatcher: &Dispatcher, routes: &[(RouteId, String)]) -> Vec<GroupDemand> {
    let demand = |group| -> Demand { dispatcher.demand(group) };
    group_routes(dispatcher, routes).into_iter().map(|(group, route)| (route, demand(group))).collect()
}

/// Splits loads into messages within the size limit.
fn split_messages(
    (all, sent_until): (bool, Time),
    loads: &[(NodeId, u32)],
    demands: Vec<GroupDemand>,
) -> Vec<Message> {
    let mut parts: Vec<Vec<(NodeId, u32)>> = loads.chunks(LOADS_MAX).map(<[_]>::to_vec).collect();
    let first = if parts.is_empty() { Vec::new() } else { parts.remove(0) };
    let rest =
        parts.into_iter().map(|loads| Message::Loads { all: false, sent_until, loads, demands: Vec::new() });
    core::iter::once(Message::Loads { all, sent_until, loads: first, demands }).chain(rest).collect()
}

/// Returns a hello in messages within the size limit.
pub(super) fn hello(
    is_complete: bool,
    ends: &EndedIncarnations,
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
        Message::Hello { is_complete, part, parts, nodes, routes, ends: ends.count(), last }
    };
    (0..).zip(all).map(hello).collect()
}
