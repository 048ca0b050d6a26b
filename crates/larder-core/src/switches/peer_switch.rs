//! The state of another switch, as this switch knows it.

use super::ends::{IncarnationEnd, SyncState};
use super::message::MessageHeader;
use crate::chain::NodeWork;
use crate::dispatch::Dispatcher;
use crate::id::{NodeId, RouteId};
use crate::nodes::{Demand, GroupId};
use crate::time::Time;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

/// Another switch.
#[derive(Debug)]
pub(super) struct PeerSwitch {
    /// Whether messages can be sent to the switch.
    pub(super) up: bool,
    /// The current incarnation of the switch.
    incarnation: Option<u64>,
    /// Whether nothing was received since its messages were interrupted.
    is_fresh: bool,
    /// The number of ends that the switch has reported.
    ends: Option<u64>,
    /// The number of its last message to all; `None` since its messages were interrupted.
    number: Option<u64>,
    /// The roster of its slots and route numbers; `None` before all parts of its hello have arrived.
    roster: Option<u64>,
    partial_hello: Option<PartialHello>,
    /// The time at which it was last asked for a hello.
    pub(super) hello_requested: Option<Time>,
    pub(super) is_complete: bool,
    pub(super) joined: Time,
    /// The time of its join by the shared clock.
    pub(super) since: Time,
    /// The time at which it last sent its load.
    pub(super) loads_at: Option<Time>,
    /// The time of the shared clock up to which all of its changes have been received; `None` before it was asked
    /// for its full state.
    pub(super) until: Option<Time>,
    /// The time since which some of its changes may be missing.
    missing_since: Option<Time>,
    pub(super) request: Option<SetRequest>,
    nodes: BTreeMap<u16, String>,
    routes: BTreeMap<u16, String>,
    /// The slots and routes of this dispatcher, by those of the switch.
    slots: BTreeMap<u16, NodeId>,
    places: BTreeMap<u16, RouteId>,
    loads: BTreeMap<u16, u32>,
    demands: BTreeMap<u16, Demand>,
    /// Its outstanding work of chains, by its routes and slots.
    chain_work: BTreeMap<(u16, u16), NodeWork>,
    has_credits: bool,
}

/// The status of the incarnation that sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IncarnationStatus {
    /// The current incarnation.
    Current,
    /// A new incarnation, with the sync state of the previous one.
    New(Option<SyncState>),
    /// An incarnation that has ended.
    Past,
}

/// A hello that is received in parts.
#[derive(Debug, Default)]
struct PartialHello {
    roster: u64,
    parts: BTreeSet<u16>,
    nodes: BTreeMap<u16, String>,
    routes: BTreeMap<u16, String>,
    last: Vec<IncarnationEnd>,
}

/// A request for sets that is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetRequest {
    /// The index of the route in this switch's list.
    pub(super) route: usize,
    pub(super) at: u64,
    /// The number of the last question.
    pub(super) question: u64,
    /// The time of the shared clock since which changes are requested; zero requests everything.
    pub(super) since: Time,
    /// The time at which the request began.
    pub(super) begun: Time,
    /// The time at which the current part was last requested; `None` if it was not requested yet.
    pub(super) asked: Option<Time>,
}

impl SetRequest {
    /// Returns whether everything is requested.
    pub(super) fn is_full(&self) -> bool {
        self.since == Time::ZERO
    }
}

impl PeerSwitch {
    /// Creates the state of a switch that has joined, with the sync state of its last ended incarnation.
    pub(super) fn new((now, since): (Time, Time), sync: Option<SyncState>) -> Self {
        let until = sync.and_then(|sync| sync.until);
        Self {
            up: false,
            incarnation: sync.map(|sync| sync.incarnation),
            is_fresh: true,
            ends: sync.and_then(|sync| sync.ends),
            number: None,
            roster: None,
            partial_hello: None,
            hello_requested: None,
            is_complete: false,
            joined: now,
            since,
            loads_at: None,
            until,
            missing_since: Some(until.unwrap_or(Time::ZERO)),
            request: None,
            nodes: BTreeMap::new(),
            routes: BTreeMap::new(),
            slots: BTreeMap::new(),
            places: BTreeMap::new(),
            loads: BTreeMap::new(),
            demands: BTreeMap::new(),
            chain_work: BTreeMap::new(),
            has_credits: false,
        }
    }

    /// Processes an interruption of its messages: its slots and route numbers may have other meanings.
    pub(super) fn interrupt(&mut self) {
        (self.number, self.roster, self.partial_hello) = (None, None, None);
        self.is_fresh = true;
        self.mark_interrupted();
    }

    /// Sets whether messages can be sent to it; pending questions may be lost.
    pub(super) fn set_link(&mut self, up: bool) {
        self.up = up;
        self.mark_interrupted();
    }

    /// Marks its messages and answers as possibly lost.
    fn mark_interrupted(&mut self) {
        self.missing_since = Some(self.synced_until().unwrap_or(Time::ZERO));
        self.request = None;
    }

    /// Marks its changes since `since`, or since it was last in sync, as missing.
    pub(super) fn mark_missing(&mut self, since: Time) {
        self.missing_since = self.missing_since.into_iter().chain(self.synced_until()).chain([since]).min();
    }

    /// Marks its latest changes as missing.
    pub(super) fn mark_latest_missing(&mut self) {
        self.mark_missing(Time::MAX);
    }

    /// Returns the time up to which no change is missing, including those being requested.
    fn synced_until(&self) -> Option<Time> {
        let asked = self.request.map(|request| request.since);
        let missing = self.missing_since.into_iter().chain(asked).min();
        self.until.map(|until| missing.map_or(until, |missing| missing.min(until)))
    }

    /// Returns its sync state; `None` if it has sent nothing.
    pub(super) fn sync_state(&self) -> Option<SyncState> {
        self.incarnation.map(|incarnation| SyncState {
            incarnation,
            until: self.synced_until(),
            ends: self.ends,
        })
    }

    /// Determines the incarnation of a message. A newer incarnation replaces the current one. So does any other
    /// incarnation whose message is the first one after an interruption, since its host's clock may have gone back.
    pub(super) fn check_incarnation(&mut self, now: (Time, Time), head: &MessageHeader) -> IncarnationStatus {
        let is_fresh = core::mem::take(&mut self.is_fresh);
        match self.incarnation {
            Some(incarnation) if head.incarnation < incarnation && !is_fresh => {
                return IncarnationStatus::Past;
            }
            Some(incarnation) if head.incarnation != incarnation => {
                let ended = self.sync_state();
                *self = Self {
                    up: self.up,
                    is_fresh: false,
                    incarnation: Some(head.incarnation),
                    ..Self::new(now, None)
                };
                return IncarnationStatus::New(ended);
            }
            _ => self.incarnation = Some(head.incarnation),
        }
        IncarnationStatus::Current
    }

    /// Records the number of a message. Returns whether the message is no older than those received. A gap means
    /// that messages were missed.
    pub(super) fn record_number(&mut self, head: &MessageHeader) -> bool {
        let Some(last) = self.number else {
            self.number = Some(head.number);
            return true;
        };
        let expected = last + u64::from(head.to_all);
        if head.number > expected {
            self.mark_latest_missing();
        }
        self.number = Some(last.max(head.number));
        head.number >= expected
    }

    /// Returns whether its slots and route numbers are known for this message.
    pub(super) fn understands(&self, head: &MessageHeader) -> bool {
        self.roster == Some(head.roster)
    }

    /// Returns whether its hello has been received.
    pub(super) fn has_hello(&self) -> bool {
        self.roster.is_some()
    }

    /// Processes a part of its hello. Once all parts are there, returns the ended incarnations that it had not
    /// reported before.
    pub(super) fn receive_hello(
        &mut self,
        head: &MessageHeader,
        (part, parts): (u16, u16),
        nodes: Vec<(NodeId, String)>,
        routes: Vec<(u16, String)>,
        (ends, last): (u64, Vec<IncarnationEnd>),
    ) -> Option<Vec<IncarnationEnd>> {
        let newest = self.roster.max(self.partial_hello.as_ref().map(|partial_hello| partial_hello.roster));
        if newest.is_some_and(|newest| head.roster < newest) {
            return None;
        }
        let fresh = || PartialHello { roster: head.roster, ..PartialHello::default() };
        let partial_hello = match &mut self.partial_hello {
            Some(partial_hello) if partial_hello.roster == head.roster => partial_hello,
            partial_hello => partial_hello.insert(fresh()),
        };
        partial_hello.parts.insert(part);
        partial_hello.nodes.extend(nodes.into_iter().map(|(node, name)| (node.0, name)));
        partial_hello.routes.extend(routes);
        partial_hello.last.extend(last);
        if partial_hello.parts.len() < usize::from(parts) {
            return None;
        }
        let PartialHello { roster, nodes, routes, mut last, .. } = self.partial_hello.take()?;
        if self.roster != Some(roster) {
            // The loads of the old slots are useless.
            self.loads.clear();
            self.demands.clear();
            self.chain_work.clear();
        }
        (self.roster, self.nodes, self.routes) = (Some(roster), nodes, routes);
        // If it has reported nothing before, its full state is requested after this.
        let fresh = self.ends.replace(ends).map_or(0, |before| ends.saturating_sub(before));
        let fresh = usize::try_from(fresh).unwrap_or(usize::MAX);
        if fresh > last.len() {
            self.mark_missing(Time::ZERO);
        }
        Some(last.split_off(last.len().saturating_sub(fresh)))
    }

    /// Begins to request missing changes; `None` if nothing is missing. `may_full` allows a request for everything.
    pub(super) fn next_request(&mut self, begun: Time, may_full: bool) -> Option<&mut SetRequest> {
        if self.request.is_none() {
            let since = self.missing_since.filter(|since| may_full || *since > Time::ZERO)?;
            self.missing_since = None;
            self.request = Some(SetRequest { route: 0, at: 0, question: 0, since, begun, asked: None });
        }
        self.request.as_mut()
    }

    /// Processes its statement that it has sent all of its changes up to `sent_until`.
    pub(super) fn set_sent_until(&mut self, sent_until: Time) {
        if self.missing_since.is_none() && self.request.is_none() {
            self.until = self.until.max(Some(sent_until));
        }
    }

    /// Processes a part of the requested sets. Returns whether it was the last part of the full state. An answer to
    /// an earlier question is ignored.
    pub(super) fn receive_answer(&mut self, question: u64, next: Option<u64>, routes: usize) -> bool {
        let Some(request) = self.request.filter(|request| request.question == question) else { return false };
        self.request = match next {
            Some(at) => Some(SetRequest { at, asked: None, ..request }),
            None if request.route + 1 < routes => {
                Some(SetRequest { route: request.route + 1, at: 0, asked: None, ..request })
            }
            None => None,
        };
        if self.request.is_some() {
            return false;
        }
        // It has returned everything that it received from then on until the request.
        self.until = self.until.max(Some(request.begun));
        self.missing_since =
            self.missing_since.map(|missing| if missing < request.since { missing } else { request.begun });
        request.is_full()
    }

    /// Maps its nodes and routes to those of this dispatcher, by name.
    pub(super) fn map_names(&mut self, dispatcher: &Dispatcher, routes: &[(RouteId, String)]) {
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
        demands: Vec<(u16, Demand)>,
    ) {
        if all {
            self.loads.clear();
            self.demands.clear();
        }
        self.loads.extend(loads.into_iter().map(|(node, requests)| (node.0, requests)));
        self.demands.extend(demands);
        self.loads_at = Some(now);
    }

    /// Processes its outstanding work of the chains of a route. Routes and nodes that do not exist here are omitted.
    pub(super) fn take_chain_work(
        &mut self,
        route: u16,
        (has_credits, all): (bool, bool),
        work: Vec<(NodeId, NodeWork)>,
    ) {
        self.has_credits = has_credits;
        if all {
            self.chain_work.retain(|(of, _), _| *of != route);
        }
        if self.route(route).is_none() {
            return;
        }
        for (node, work) in work {
            if work == NodeWork::NONE {
                self.chain_work.remove(&(route, node.0));
            } else if self.node(node).is_some() {
                self.chain_work.insert((route, node.0), work);
            }
        }
    }

    /// Returns whether it has read the credits of another switch, or there was none.
    pub(super) const fn has_credits(&self) -> bool {
        self.has_credits
    }

    /// Returns its current incarnation; `None` if it has sent nothing.
    pub(super) const fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    /// Returns its outstanding work of the chains of a route of this dispatcher, by this dispatcher's nodes.
    pub(super) fn chain_work(&self, own: RouteId) -> impl Iterator<Item = (NodeId, NodeWork)> + '_ {
        let rows = self.chain_work.iter();
        let of_route = rows.filter(move |((route, _), _)| self.route(*route) == Some(own));
        of_route.filter_map(|((_, slot), work)| Some((self.node(NodeId(*slot))?, *work)))
    }

    /// Returns its node in this dispatcher.
    pub(super) fn node(&self, theirs: NodeId) -> Option<NodeId> {
        self.slots.get(&theirs.0).copied()
    }

    /// Returns its route in this dispatcher.
    pub(super) fn route(&self, theirs: u16) -> Option<RouteId> {
        self.places.get(&theirs).copied()
    }

    /// Returns whether its load is unknown, because it has sent none for `age_max`.
    pub(super) fn is_unknown(&self, now: Time, age_max: Duration) -> bool {
        now.since(self.loads_at.unwrap_or(self.joined)) > age_max
    }

    /// Returns its requests at this dispatcher's nodes.
    pub(super) fn requests(&self) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        self.loads.iter().filter_map(|(slot, requests)| Some((self.node(NodeId(*slot))?, *requests)))
    }

    /// Returns its demand on a group; zero if it has not reported one.
    pub(super) fn demand(&self, group: GroupId, dispatcher: &Dispatcher) -> Demand {
        let is_its = |route: &u16| self.route(*route).is_some_and(|own| dispatcher.group_of(own) == group);
        let found = self.demands.iter().find(|(route, _)| is_its(route));
        found.map(|(_, demand)| *demand).unwrap_or_default()
    }
}
