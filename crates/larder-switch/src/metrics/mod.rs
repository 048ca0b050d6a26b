//! Counters of the switch.
//!
//! A request updates a few counters. Each worker thread has its own copy of all counters, so an update is an add to a
//! cache line that no other thread writes. The copies are summed on read. Values that the dispatcher has anyway
//! (loads, states, queue) are read from it.

pub(crate) mod cells;
pub(crate) mod table;

pub use table::METRICS;

use crate::failure::Failure;
use cells::{Cells, HISTOGRAM_CELLS, bounds_s};
use larder_core::{CacheResult, Decision, NodeId, NodeState, Reason, Request, RouteId, ServiceClass};
use std::time::Duration;

/// Kind of a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryKind {
    /// On a new connection to the same node, because a pooled one was closed.
    SameNode = 0,
    /// On another node.
    OtherNode = 1,
    /// On another node, for the rest of a reply that broke off.
    Resume = 2,
}

impl RetryKind {
    pub(crate) const ALL: [Self; 3] = [Self::SameNode, Self::OtherNode, Self::Resume];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SameNode => "same_node",
            Self::OtherNode => "other_node",
            Self::Resume => "resume",
        }
    }
}

/// Status classes, and the replies that were broken off.
pub(crate) const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "aborted"];
pub(crate) const ABORTED: usize = 5;
pub(crate) const STATES: [NodeState; 4] =
    [NodeState::Up, NodeState::Draining, NodeState::Down, NodeState::Removed];

// Offsets in a node's block of cells.
pub(crate) const CLASS: usize = 0;
pub(crate) const CACHE: usize = CLASS + CLASSES.len();
pub(crate) const BYTES: usize = CACHE + 2;
pub(crate) const CONNECTIONS: usize = BYTES + 1;
pub(crate) const TRANSITIONS: usize = CONNECTIONS + 1;
pub(crate) const FIRST_BYTE: usize = TRANSITIONS + STATES.len();
pub(crate) const EJECTIONS: usize = FIRST_BYTE + HISTOGRAM_CELLS;
pub(crate) const HANDED_OFF: usize = EJECTIONS + 1;
pub(crate) const HANDED_OFF_BYTES: usize = HANDED_OFF + 1;
pub(crate) const NODE_CELLS: usize = HANDED_OFF_BYTES + 1;

// Offsets in the block of cells that belong to no node.
pub(crate) const REASON: usize = 0;
pub(crate) const FAILURE: usize = REASON + Reason::ALL.len();
pub(crate) const RETRY: usize = FAILURE + Failure::ALL.len();
pub(crate) const CLIENTS: usize = RETRY + RetryKind::ALL.len();
pub(crate) const PANICS: usize = CLIENTS + 1;
pub(crate) const HTTP2: usize = PANICS + 1;
pub(crate) const FIELDS_DROPPED: usize = HTTP2 + 1;
pub(crate) const TOTAL: usize = FIELDS_DROPPED + 1;
pub(crate) const QUEUE_WAIT: usize = TOTAL + HISTOGRAM_CELLS;
pub(crate) const HANDED_OFF_TOTAL: usize = QUEUE_WAIT + HISTOGRAM_CELLS;
pub(crate) const SWITCH_CELLS: usize = HANDED_OFF_TOTAL + HISTOGRAM_CELLS;

// Offsets in a route's block of cells.
pub(crate) const SERVICE_CLASS: usize = 0;
pub(crate) const ROUTE_REASON: usize = SERVICE_CLASS + ServiceClass::COUNT;
pub(crate) const ROUTE_CELLS: usize = ROUTE_REASON + Reason::ALL.len();

/// Counters of the switch.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) cells: Cells,
    nodes: usize,
    routes: usize,
}

/// Facts about a finished request, for the counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestEnd {
    pub(crate) node: Option<NodeId>,
    pub(crate) reason: Option<Reason>,
    pub(crate) route: RouteId,
    pub(crate) class: ServiceClass,
    /// Status of the reply; `None` if none was sent.
    pub(crate) status: Option<u16>,
    /// Whether the reply is complete.
    pub(crate) complete: bool,
    pub(crate) failure: Option<Failure>,
    pub(crate) cache: Option<CacheResult>,
    pub(crate) body_bytes: u64,
    pub(crate) queued: Option<Duration>,
    pub(crate) first_byte: Option<Duration>,
    pub(crate) total: Duration,
}

/// Facts about an ended handed-off connection, for the counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandoffEnd {
    pub(crate) node: NodeId,
    /// Bytes that the client has acknowledged.
    pub(crate) bytes: u64,
    pub(crate) total: Duration,
}

impl Metrics {
    /// Creates counters for this number of nodes, routes (at least the default one) and threads.
    pub(crate) fn new(nodes: usize, routes: usize, threads: usize) -> Self {
        let cells = SWITCH_CELLS + (nodes + 1) * NODE_CELLS + routes * ROUTE_CELLS;
        Self { cells: Cells::new(cells, threads), nodes, routes }
    }

    /// Returns the first cell of a route.
    pub(crate) fn route_block(&self, route: RouteId) -> usize {
        let index = if route.index() < self.routes { route.index() } else { 0 };
        SWITCH_CELLS + (self.nodes + 1) * NODE_CELLS + index * ROUTE_CELLS
    }

    /// Returns the finished requests of a route by class.
    pub(crate) fn route_requests(&self, route: RouteId) -> [u64; ServiceClass::COUNT] {
        let block = self.route_block(route);
        std::array::from_fn(|class| self.cells.sum(block + SERVICE_CLASS + class))
    }

    /// Resets the counters of a slot for a new node.
    pub(crate) fn forget(&self, node: NodeId) {
        let block = self.block(Some(node));
        (block..block + NODE_CELLS).for_each(|cell| self.cells.clear(cell));
    }

    /// Returns the first cell of a node, or of "no node".
    pub(crate) fn block(&self, node: Option<NodeId>) -> usize {
        let index = node.map_or(self.nodes, |node| node.index().min(self.nodes));
        SWITCH_CELLS + index * NODE_CELLS
    }

    /// Counts a finished request.
    pub(crate) fn ended(&self, ended: &RequestEnd) {
        let cells = self.cells.local();
        let block = self.block(ended.node);
        let class = match ended.status {
            Some(status) if ended.complete => usize::from(status / 100).clamp(1, 5) - 1,
            _ => ABORTED,
        };
        cells.add(block + CLASS + class, 1);
        cells.add(block + BYTES, ended.body_bytes);
        if let Some(cache) = ended.cache {
            cells.add(block + CACHE + usize::from(cache == CacheResult::Miss), 1);
        }
        if let Some(first_byte) = ended.first_byte {
            cells.observe(block + FIRST_BYTE, first_byte);
        }
        let route = self.route_block(ended.route);
        cells.add(route + SERVICE_CLASS + ended.class.index(), 1);
        if let Some(reason) = ended.reason {
            let reason = position(&Reason::ALL, &reason);
            cells.add(REASON + reason, 1);
            cells.add(route + ROUTE_REASON + reason, 1);
        }
        if let Some(failure) = ended.failure {
            cells.add(FAILURE + position(&Failure::ALL, &failure), 1);
        }
        if let Some(queued) = ended.queued {
            cells.observe(QUEUE_WAIT, queued);
        }
        cells.observe(TOTAL, ended.total);
    }

    /// Counts a connection that was handed off.
    pub(crate) fn handed_off(&self, decision: Decision, request: Request) {
        let cells = self.cells.local();
        cells.add(self.block(Some(decision.node)) + HANDED_OFF, 1);
        let (route, reason) = (self.route_block(request.route), position(&Reason::ALL, &decision.reason));
        cells.add(REASON + reason, 1);
        cells.add(route + ROUTE_REASON + reason, 1);
        cells.add(route + SERVICE_CLASS + request.class.index(), 1);
    }

    /// Counts an ended handed-off connection.
    pub(crate) fn handoff_ended(&self, end: &HandoffEnd) {
        let cells = self.cells.local();
        cells.add(self.block(Some(end.node)) + HANDED_OFF_BYTES, end.bytes);
        cells.observe(HANDED_OFF_TOTAL, end.total);
    }

    /// Counts a failure without a request.
    pub(crate) fn failed(&self, failure: Failure) {
        self.cells.local().add(FAILURE + position(&Failure::ALL, &failure), 1);
    }

    pub(crate) fn retried(&self, retry: RetryKind) {
        self.cells.local().add(RETRY + retry as usize, 1);
    }

    pub(crate) fn client_connected(&self) {
        self.cells.local().add(CLIENTS, 1);
    }

    pub(crate) fn http2_connected(&self) {
        self.cells.local().add(HTTP2, 1);
    }

    /// Counts header fields that were dropped for their names.
    pub(crate) fn fields_dropped(&self, fields: u64) {
        self.cells.local().add(FIELDS_DROPPED, fields);
    }

    pub(crate) fn panicked(&self) {
        self.cells.local().add(PANICS, 1);
    }

    /// Returns the number of panicked tasks.
    #[cfg(test)]
    pub(crate) fn panics(&self) -> u64 {
        self.cells.sum(PANICS)
    }

    pub(crate) fn node_connected(&self, node: NodeId) {
        self.cells.local().add(self.block(Some(node)) + CONNECTIONS, 1);
    }

    pub(crate) fn transition(&self, node: NodeId, to: NodeState) {
        self.cells.local().add(self.block(Some(node)) + TRANSITIONS + position(&STATES, &to), 1);
    }

    /// Returns the finished requests by reason of the decision.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        (REASON..).zip(&Reason::ALL).map(|(cell, reason)| (reason.name(), self.cells.sum(cell)))
    }

    /// Returns the failures by name.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        (FAILURE..).zip(&Failure::ALL).map(|(cell, failure)| (failure.name(), self.cells.sum(cell)))
    }

    /// Returns the histogram of request times: upper bounds in seconds, and counts, which have one more element.
    pub(crate) fn request_times(&self) -> (Vec<f64>, Vec<u64>) {
        let counts = (TOTAL..TOTAL + HISTOGRAM_CELLS - 1).map(|cell| self.cells.sum(cell));
        (bounds_s().collect(), counts.collect())
    }

    /// Counts an ejection.
    pub(crate) fn ejected(&self, node: NodeId) {
        self.cells.local().add(self.block(Some(node)) + EJECTIONS, 1);
    }

    /// Returns the number of finished requests.
    pub(crate) fn ended_requests(&self) -> u64 {
        let routes =
            (0..self.routes).map(|at| SWITCH_CELLS + (self.nodes + 1) * NODE_CELLS + at * ROUTE_CELLS);
        let cells =
            routes.flat_map(|route| (0..ServiceClass::COUNT).map(move |class| route + SERVICE_CLASS + class));
        cells.map(|cell| self.cells.sum(cell)).sum()
    }

    /// Returns the requests of a node by status class, 1xx to 5xx, then aborted ones.
    pub(crate) fn requests(&self, node: NodeId) -> [u64; 6] {
        let block = self.block(Some(node));
        std::array::from_fn(|class| self.cells.sum(block + CLASS + class))
    }

    /// Returns the cache hits and misses of a node.
    pub(crate) fn cache(&self, node: NodeId) -> [u64; 2] {
        let block = self.block(Some(node));
        std::array::from_fn(|outcome| self.cells.sum(block + CACHE + outcome))
    }
}

fn position<T: PartialEq>(all: &[T], one: &T) -> usize {
    // The list holds every value of its type; a test checks this for our types.
    all.iter().position(|other| other == one).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_requests_are_counted_by_node_and_route() {
        let metrics = Metrics::new(2, 2, 1);
        let ended = RequestEnd {
            node: Some(NodeId(1)),
            reason: Some(Reason::First),
            route: RouteId(1),
            class: ServiceClass::Db,
            status: Some(204),
            complete: true,
            failure: None,
            cache: Some(CacheResult::Miss),
            body_bytes: 7,
            queued: None,
            first_byte: Some(Duration::from_micros(70)),
            total: Duration::from_micros(90),
        };
        metrics.ended(&ended);
        metrics.ended(&RequestEnd { complete: false, ..ended });
        assert_eq!(metrics.requests(NodeId(1)), [0, 1, 0, 0, 0, 1]);
        assert_eq!(metrics.requests(NodeId(0)), [0; 6]);
        assert_eq!(metrics.cache(NodeId(1)), [0, 2]);
        assert_eq!(metrics.route_requests(RouteId(1)), [0, 2, 0, 0]);
        assert_eq!(metrics.route_requests(RouteId(0)), [0; 4]);
    }

    #[test]
    fn every_failure_has_a_cell_of_its_own() {
        for (index, failure) in Failure::ALL.iter().enumerate() {
            assert_eq!(position(&Failure::ALL, failure), index);
        }
    }
}
