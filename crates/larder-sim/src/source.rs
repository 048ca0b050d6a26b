//! Request sources: the arrival process of a run.

use larder_core::{NodeId, Time};

use crate::SimError;
use crate::outcome::Delays;
use crate::workload::Workload;

/// A request that arrives now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRequest {
    /// The requested item: an index into [`Workload::items`].
    pub item: u32,
    /// The node that the client has reached, if nodes accept clients themselves.
    pub origin: Option<NodeId>,
    /// The source's own number of the request, passed back at its end. Several requests may share one number.
    pub tag: u32,
    /// The connection of the request.
    pub connection: ClientConnection,
}

/// The properties of a request's connection that change its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConnection {
    /// The node that the connection is bound to, if the switch binds connections (layer 4). The dispatcher
    /// has seen the connection's first request. It is not asked again and does not count this request.
    pub bound: Option<NodeId>,
    /// Whether the request is the first on its connection.
    pub opens: bool,
    /// Whether the request begins with a full key exchange (SSL).
    pub keys: bool,
}

impl Default for ClientConnection {
    /// Returns an unencrypted connection for one request.
    fn default() -> Self {
        Self { bound: None, opens: true, keys: false }
    }
}

impl ClientRequest {
    /// Creates a request through the switch on a connection of its own.
    pub fn new(item: u32, tag: u32) -> Self {
        Self { item, origin: None, tag, connection: ClientConnection::default() }
    }
}

/// A source of requests: the clients of a run.
pub trait RequestSource {
    /// Returns the time of the next call of [`RequestSource::next_request`]; `None` if no further request
    /// arrives by itself.
    fn next_time(&self) -> Option<Time>;

    /// Returns the next request that arrives by itself. `None` if only the source's own state changed.
    fn next_request(&mut self, now: Time) -> Option<ClientRequest>;

    /// Handles the end of a request, which a node has served or the dispatcher has refused (`served` is
    /// `None`). Requests that follow from it at once are appended to `requests`.
    fn handle_end(&mut self, now: Time, tag: u32, served: Option<NodeId>, requests: &mut Vec<ClientRequest>);

    /// Returns the delays of whole pages, if the clients fetch pages.
    fn page_delays(&self) -> Option<Delays> {
        None
    }
}

/// The arrival process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// A closed loop: each client sends the trace's next request as soon as its last request has ended.
    Closed {
        /// The number of clients; 0 stands for S, the admission limit. S keeps the front-end's queue empty
        /// and the nodes as full as they may be (LARD section 3.1).
        clients: u32,
    },
    /// An open loop: requests arrive at the trace's times.
    Open {
        /// The speed relative to the trace; above 0.
        speed: f64,
    },
    /// A closed loop per node. The trace is dealt to the nodes in turn, as round-robin DNS does.
    Subtraces {
        /// The number of requests that a node has in progress from its own part; at least 1.
        window: u32,
    },
}

impl Arrivals {
    pub(crate) fn source<'w>(
        &self,
        workload: &'w Workload,
        nodes: usize,
        limit: u32,
    ) -> Result<Box<dyn RequestSource + 'w>, SimError> {
        let requests = &workload.requests[..];
        Ok(match *self {
            Self::Closed { clients } => {
                let clients = if clients == 0 { limit } else { clients };
                let started = (clients as usize).min(requests.len());
                Box::new(ClosedLoop { requests, next: 0, started })
            }
            Self::Open { speed } => {
                if workload.times.is_empty() {
                    return Err(SimError::Workload("open arrivals need a trace with times"));
                }
                if !(speed > 0.0 && speed.is_finite()) {
                    return Err(SimError::OutOfRange { key: "arrivals.speed", range: "above 0" });
                }
                Box::new(OpenLoop { requests, times: &workload.times, speed, next: 0 })
            }
            Self::Subtraces { window } => {
                if window == 0 {
                    return Err(SimError::OutOfRange { key: "arrivals.window", range: "at least 1" });
                }
                Box::new(SubtraceLoop::new(requests, nodes, window))
            }
        })
    }
}

#[derive(Debug)]
struct ClosedLoop<'w> {
    requests: &'w [u32],
    next: usize,
    started: usize,
}

impl RequestSource for ClosedLoop<'_> {
    fn next_time(&self) -> Option<Time> {
        (self.next < self.started).then_some(Time::ZERO)
    }

    fn next_request(&mut self, _now: Time) -> Option<ClientRequest> {
        let item = *self.requests.get(self.next)?;
        self.next += 1;
        Some(ClientRequest::new(item, 0))
    }

    fn handle_end(
        &mut self,
        now: Time,
        _tag: u32,
        _served: Option<NodeId>,
        requests: &mut Vec<ClientRequest>,
    ) {
        requests.extend(self.next_request(now));
    }
}

#[derive(Debug)]
struct OpenLoop<'w> {
    requests: &'w [u32],
    times: &'w [Time],
    speed: f64,
    next: usize,
}

impl RequestSource for OpenLoop<'_> {
    fn next_time(&self) -> Option<Time> {
        let time = self.times.get(self.next)?;
        if self.speed == 1.0 {
            return Some(*time);
        }
        Some(Time::from_nanos((time.as_nanos() as f64 / self.speed) as u64))
    }

    fn next_request(&mut self, _now: Time) -> Option<ClientRequest> {
        let item = *self.requests.get(self.next)?;
        self.next += 1;
        Some(ClientRequest::new(item, 0))
    }

    fn handle_end(
        &mut self,
        _now: Time,
        _tag: u32,
        _served: Option<NodeId>,
        _requests: &mut Vec<ClientRequest>,
    ) {
    }
}

#[derive(Debug)]
struct SubtraceLoop<'w> {
    requests: &'w [u32],
    nodes: usize,
    /// The next request of each node's part.
    next: Vec<usize>,
    /// The number of initial requests started so far.
    starting: usize,
    /// The number of requests of all parts that have been sent.
    dealt: usize,
    window: u32,
}

impl<'w> SubtraceLoop<'w> {
    fn new(requests: &'w [u32], nodes: usize, window: u32) -> Self {
        Self { requests, nodes, next: (0..nodes).collect(), starting: 0, dealt: 0, window }
    }

    fn next_of_node(&mut self, node: usize) -> Option<ClientRequest> {
        let item = *self.requests.get(self.next[node])?;
        self.next[node] += self.nodes;
        self.dealt += 1;
        Some(ClientRequest { origin: Some(NodeId(node as u16)), ..ClientRequest::new(item, node as u32) })
    }
}

impl RequestSource for SubtraceLoop<'_> {
    fn next_time(&self) -> Option<Time> {
        let more = self.starting < self.nodes * self.window as usize && self.dealt < self.requests.len();
        more.then_some(Time::ZERO)
    }

    fn next_request(&mut self, _now: Time) -> Option<ClientRequest> {
        let node = self.starting % self.nodes;
        self.starting += 1;
        self.next_of_node(node)
    }

    fn handle_end(
        &mut self,
        _now: Time,
        tag: u32,
        _served: Option<NodeId>,
        requests: &mut Vec<ClientRequest>,
    ) {
        requests.extend(self.next_of_node(tag as usize));
    }
}
