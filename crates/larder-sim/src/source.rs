//! Who asks, and when: the arrivals of a run.

use larder_core::{NodeId, Time};

use crate::SimError;
use crate::outcome::Delays;
use crate::workload::Workload;

/// A request that starts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What for: an index into [`Workload::items`].
    pub item: u32,
    /// The node that the client has reached, where nodes accept clients themselves.
    pub origin: Option<NodeId>,
    /// The source's own number for it, given back when it ends. Several requests may share one.
    pub tag: u32,
    /// The connection it comes on.
    pub link: Link,
}

/// The connection that a request comes on, as far as it changes what the request costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The node that the connection ends at, where a switch binds connections (layer 4). The dispatcher, which has
    /// seen the connection's first request, is not asked again, and does not count this one.
    pub bound: Option<NodeId>,
    /// The request is the first on its connection.
    pub opens: bool,
    /// The request begins with a full key exchange (SSL).
    pub keys: bool,
}

impl Default for Link {
    /// A connection for one request, not encrypted.
    fn default() -> Self {
        Self { bound: None, opens: true, keys: false }
    }
}

impl Ask {
    /// A request that comes through the switch on a connection of its own.
    pub fn new(item: u32, tag: u32) -> Self {
        Self { item, origin: None, tag, link: Link::default() }
    }
}

/// The clients.
pub trait Source {
    /// When [`Source::take`] is to be called next; `None` if nothing comes by itself any more.
    fn next_at(&self) -> Option<Time>;

    /// The next request that comes by itself. `None` if only the source's own state moved on.
    fn take(&mut self, now: Time) -> Option<Ask>;

    /// A request has ended, served by a node or refused. Requests that it brings about now are appended to `asks`.
    fn ended(&mut self, now: Time, tag: u32, served: Option<NodeId>, asks: &mut Vec<Ask>);

    /// Delays of whole pages, for clients that fetch pages.
    fn pages(&self) -> Option<Delays> {
        None
    }
}

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// So many clients, each asking for the trace's next request as soon as its last one has ended.
    Closed {
        /// How many; 0 stands for S, the admission limit, which keeps the front-end's queue empty and the nodes as
        /// full as they may be (LARD section 3.1).
        clients: u32,
    },
    /// At the trace's times.
    Open {
        /// How many times faster than the trace; above 0.
        speed: f64,
    },
    /// The trace is dealt out to the nodes in turn, as round-robin DNS does; each node goes through its part.
    Subtraces {
        /// Requests of its own part that a node has in hand at a time, at least 1.
        window: u32,
    },
}

impl Arrivals {
    pub(crate) fn source<'w>(
        &self,
        workload: &'w Workload,
        nodes: usize,
        limit: u32,
    ) -> Result<Box<dyn Source + 'w>, SimError> {
        let requests = &workload.requests[..];
        Ok(match *self {
            Self::Closed { clients } => {
                let clients = if clients == 0 { limit } else { clients };
                let started = (clients as usize).min(requests.len());
                Box::new(Closed { requests, next: 0, started })
            }
            Self::Open { speed } => {
                if workload.times.is_empty() {
                    return Err(SimError::Workload("open arrivals need a trace with times"));
                }
                if !(speed > 0.0 && speed.is_finite()) {
                    return Err(SimError::OutOfRange { key: "arrivals.speed", range: "above 0" });
                }
                Box::new(Open { requests, times: &workload.times, speed, next: 0 })
            }
            Self::Subtraces { window } => {
                if window == 0 {
                    return Err(SimError::OutOfRange { key: "arrivals.window", range: "at least 1" });
                }
                Box::new(Subtraces::new(requests, nodes, window))
            }
        })
    }
}

#[derive(Debug)]
struct Closed<'w> {
    requests: &'w [u32],
    next: usize,
    started: usize,
}

impl Source for Closed<'_> {
    fn next_at(&self) -> Option<Time> {
        (self.next < self.started).then_some(Time::ZERO)
    }

    fn take(&mut self, _now: Time) -> Option<Ask> {
        let item = *self.requests.get(self.next)?;
        self.next += 1;
        Some(Ask::new(item, 0))
    }

    fn ended(&mut self, now: Time, _tag: u32, _served: Option<NodeId>, asks: &mut Vec<Ask>) {
        asks.extend(self.take(now));
    }
}

#[derive(Debug)]
struct Open<'w> {
    requests: &'w [u32],
    times: &'w [Time],
    speed: f64,
    next: usize,
}

impl Source for Open<'_> {
    fn next_at(&self) -> Option<Time> {
        let time = self.times.get(self.next)?;
        if self.speed == 1.0 {
            return Some(*time);
        }
        Some(Time::from_nanos((time.as_nanos() as f64 / self.speed) as u64))
    }

    fn take(&mut self, _now: Time) -> Option<Ask> {
        let item = *self.requests.get(self.next)?;
        self.next += 1;
        Some(Ask::new(item, 0))
    }

    fn ended(&mut self, _now: Time, _tag: u32, _served: Option<NodeId>, _asks: &mut Vec<Ask>) {}
}

#[derive(Debug)]
struct Subtraces<'w> {
    requests: &'w [u32],
    nodes: usize,
    /// The next request of each node's part.
    next: Vec<usize>,
    /// First requests started so far.
    starting: usize,
    /// Requests of all parts that have been asked.
    dealt: usize,
    window: u32,
}

impl<'w> Subtraces<'w> {
    fn new(requests: &'w [u32], nodes: usize, window: u32) -> Self {
        Self { requests, nodes, next: (0..nodes).collect(), starting: 0, dealt: 0, window }
    }

    fn of(&mut self, node: usize) -> Option<Ask> {
        let item = *self.requests.get(self.next[node])?;
        self.next[node] += self.nodes;
        self.dealt += 1;
        Some(Ask { origin: Some(NodeId(node as u16)), ..Ask::new(item, node as u32) })
    }
}

impl Source for Subtraces<'_> {
    fn next_at(&self) -> Option<Time> {
        let more = self.starting < self.nodes * self.window as usize && self.dealt < self.requests.len();
        more.then_some(Time::ZERO)
    }

    fn take(&mut self, _now: Time) -> Option<Ask> {
        let node = self.starting % self.nodes;
        self.starting += 1;
        self.of(node)
    }

    fn ended(&mut self, _now: Time, tag: u32, _served: Option<NodeId>, asks: &mut Vec<Ask>) {
        asks.extend(self.of(tag as usize));
    }
}
