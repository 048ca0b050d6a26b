//! Changes of the cluster during a run: nodes that join, leave, fail and return, and refreshes of WARD's
//! table.

use std::sync::Arc;

use larder_core::census::Census;
use larder_core::dispatch::{
    CacheEvent, CacheResult as CacheFound, DequeuedRequest, Dispatcher, ReplyFeedback, Request,
};
use larder_core::nodes::{GroupId, NodeState};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, NodeId, RouteId, Time};
use larder_trace::ward::CoreChoice;

use super::{Engine, Job};
use crate::cost::{CostModel, LookupOutcome};
use crate::scenario::{NodeChange, Scenario};
use crate::source::ClientRequest;
use crate::tables::{compute_table, count_request, needs_table};

/// The outcome of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOutcome {
    /// The requested item: an index into [`Workload::items`](crate::Workload::items).
    pub item: u32,
    /// The node that served the request.
    pub node: u16,
    /// Whether the item was found in a memory.
    pub hit: bool,
}

/// The requests of a run, one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunHistory {
    /// The served requests, in the order in which they were sent to their nodes; at most 2^32.
    pub requests: Vec<RequestOutcome>,
    /// The number of requests sent to nodes before each of [`Scenario::changes`](crate::Scenario::changes).
    pub changed_at: Vec<usize>,
}

impl<M: CostModel> Engine<'_, M> {
    /// Returns the dispatcher's view of a request.
    pub(super) fn dispatcher_request(&self, request: &ClientRequest) -> Request {
        let item = &self.workload.items[request.item as usize];
        let for_item = Request::new(item.id).with_class(item.class).with_route(item.route);
        match request.origin {
            Some(origin) => for_item.with_origin(origin),
            None => for_item,
        }
    }

    /// Reports the delay and the lookup result of a request to the dispatcher, before the request ends.
    pub(super) fn report_served(&self, job: &Job) {
        let found = match job.found {
            LookupOutcome::Memory | LookupOutcome::Peer => Some(CacheFound::Hit),
            LookupOutcome::Read | LookupOutcome::Shared | LookupOutcome::Never => Some(CacheFound::Miss),
            LookupOutcome::Unknown => None,
        };
        let feedback = ReplyFeedback {
            elapsed: self.now.since(job.sent),
            first_byte: (job.ready > Time::ZERO).then(|| job.ready.since(job.sent)),
            found,
        };
        let dispatcher = &self.front.dispatchers[usize::from(job.switch)];
        dispatcher.observe_reply(
            self.now,
            &self.dispatcher_request(&job.request),
            NodeId(job.node),
            &feedback,
        );
    }

    /// Records the node of a request, and returns the record's number.
    pub(super) fn record_start(&mut self, item: u32, node: u16) -> u32 {
        let Some(history) = &mut self.history else { return 0 };
        history.requests.push(RequestOutcome { item, node, hit: false });
        (history.requests.len() - 1) as u32
    }

    /// Records whether the item of a request was found in a memory.
    pub(super) fn record_end(&mut self, job: &Job) {
        if let Some(history) = &mut self.history {
            history.requests[job.record as usize].hit =
                matches!(job.found, LookupOutcome::Memory | LookupOutcome::Peer);
        }
    }

    /// Applies the changes that are due after the requests arrived so far.
    #[cold]
    pub(super) fn apply_changes(&mut self) {
        while let Some(planned) = self.scenario.changes.get(self.changed).copied() {
            if planned.after > self.arrived {
                break;
            }
            self.changed += 1;
            if let Some(history) = &mut self.history {
                history.changed_at.push(history.requests.len());
            }
            if planned.change == NodeChange::Restart {
                self.memories.clear_node(usize::from(planned.node), self.scenario);
            }
            for switch in 0..self.front.dispatchers.len() {
                let mut started = Vec::new();
                self.apply_change(switch, NodeId(planned.node), planned.change, &mut started);
                self.collect_started(switch as u16, &mut started);
            }
        }
        self.next_change = self.scenario.changes.get(self.changed).map_or(u64::MAX, |planned| planned.after);
    }

    fn apply_change(
        &self,
        switch: usize,
        node: NodeId,
        change: NodeChange,
        started: &mut Vec<DequeuedRequest>,
    ) {
        let dispatcher = &self.front.dispatchers[switch];
        match change {
            NodeChange::Join => {
                let spec = super::spec(node.index(), &self.scenario.nodes[node.index()]);
                let joined = dispatcher.join(self.now, spec, started);
                debug_assert_eq!(joined, Ok(node), "nodes join in order of their numbers");
            }
            NodeChange::Leave => _ = dispatcher.leave(self.now, node, started),
            NodeChange::Drain => _ = dispatcher.drain(self.now, node, started),
            NodeChange::Down => _ = dispatcher.fail(self.now, node, started),
            NodeChange::Up => {
                // If the node was up all along, the dispatcher knows its cache.
                if dispatcher.recover(self.now, node, started) {
                    self.report_cache_contents(dispatcher, node);
                }
            }
            NodeChange::Restart => {
                dispatcher.recover(self.now, node, started);
            }
            NodeChange::Reweigh(weight) => {
                dispatcher.reweigh(self.now, node, weight, started);
            }
        }
    }

    /// Reports the contents of a node's memory to a dispatcher, as a live node does to each subscriber of its
    /// events.
    fn report_cache_contents(&self, dispatcher: &Dispatcher, node: NodeId) {
        if !self.cache_events {
            return;
        }
        for (index, item) in (0_u32..).zip(&self.workload.items) {
            if self.memories.holds(node.index(), index) {
                dispatcher.cache_event(self.now, node, item.id, CacheEvent::Stored);
            }
        }
    }

    /// Counts a request for the next table of its route.
    pub(super) fn count_request(&self, item: u32) {
        let item = &self.workload.items[item as usize];
        if let Some(census) = &self.censuses[usize::from(item.route.0)] {
            count_request(census, item);
        }
    }

    /// Creates a census for each route that uses a table, if tables are refreshed, as in the live switch.
    pub(super) fn create_censuses(scenario: &Scenario) -> Vec<Option<Census>> {
        let routes = scenario.routes.iter().map(|route| &route.settings);
        let policies = core::iter::once(&scenario.settings).chain(routes).map(|settings| settings.policy);
        let refresh = scenario.refresh.as_ref();
        let census =
            |policy| refresh.filter(|_| needs_table(policy)).map(|refresh| Census::new(refresh.targets_max));
        policies.map(census).collect()
    }

    /// Returns the initial table of each route; the default route is first.
    pub(super) fn initial_tables(scenario: &Scenario) -> Vec<Option<Arc<RouteTable>>> {
        let routes = scenario.routes.iter().map(|route| &route.settings);
        core::iter::once(&scenario.settings).chain(routes).map(|settings| settings.table.clone()).collect()
    }

    /// Gives each route with a table a new one. The table is computed from the requests of the route since
    /// the last refresh, for the open nodes of its group. If a table cannot be computed, the route keeps its
    /// table, as in the live switch.
    pub(super) fn refresh_tables(&mut self) {
        let Some(refresh) = &self.scenario.refresh else { return };
        let rows = self.front.first().nodes().rows();
        for (route, census) in (0..).zip(&self.censuses) {
            let Some(census) = census else { continue };
            let group = match usize::from(route).checked_sub(1) {
                Some(at) => self.scenario.routes[at].group,
                None => GroupId::ALL,
            };
            let open = rows.iter().filter(|row| row.state == NodeState::Up && row.groups.contains(group));
            let members: Vec<(NodeId, Bytes)> = open.map(|row| (row.id, row.cache)).collect();
            let counted = census.take(refresh.carry_permille).rows;
            let before = self.tables[usize::from(route)].clone();
            let slots: Vec<u16> = members.iter().map(|(node, _)| node.0).collect();
            let now = before.as_ref().map(|before| before.among(&slots));
            let now = |target| now.as_ref()?(target);
            if let Ok(table) = compute_table(&counted, &members, &refresh.costs, CoreChoice::Best, now) {
                let table = Arc::new(table);
                self.tables[usize::from(route)] = Some(Arc::clone(&table));
                for dispatcher in &self.front.dispatchers {
                    dispatcher.set_table(self.now, RouteId(route), &table);
                }
            }
        }
    }
}
