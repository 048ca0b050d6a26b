//! A cluster without a front-end: nodes that take any request and pass it to the one that is to serve it. PRESS, CARD, WARD.
//!
//! After Carrera and Bianchini, "Efficiency vs. Portability in Cluster-Based Network Servers", PPoPP 2001; Aron, Sanders,
//! Druschel and Zwaenepoel, "Scalable Content-aware Request Distribution in Cluster-based Network Servers", USENIX 2000; and
//! Cherkasova and Karlsson, HPL-2001-2. What nodes decide and tell one another is the live node's protocol
//! ([`larder_core::peers`]), one state machine per node (`minds`), with the messages it makes; simulated are time, processors,
//! disks, interfaces, memories and clients.
//!
//! # A request's way
//!
//! ```text
//! interface to clients -> processor: parse -> decision
//!   here      memory, or disk -> processor: reply -> interface to clients
//!   forwarded processor: forward -> interface, wire, interface -> processor of the service node: accept -> memory, or disk
//!     portable      -> processor: relay -> interface, wire, interface -> processor of the initial node: relay, reply -> clients
//!     non-portable  -> processor of the service node: reply -> its interface to clients
//! ```
//!
//! Every station serves in order of arrival. A node has one processor, one disk, one interface to clients and, on fast networks,
//! one to other nodes; an interface is one station for both directions, as in the paper's model.
//!
//! # What the paper leaves open, and what is taken
//!
//! - A connection counts as load of the initial node from its arrival until the reply has left (portable) or until it is
//!   handed over (non-portable), and of the service node from the arrival of the forwarded request until it has sent the
//!   reply.
//! - Requests for a target that is being read at a node wait for that read, and count as misses. What is too large to be kept
//!   is read for each request. Memories are LRU. Traditional nodes do not keep large targets either.
//! - A relayed reply is not kept by the initial node.
//! - The service node parses a forwarded request and pays for its arrival: reading M1 of the model ([`crate::press`]).
//! - A message takes processor and interface at both ends and arrives after a latency; one to all takes the sender that many
//!   times over and reaches all at once. On fast networks a load is written into the memory of the others, which takes their
//!   interfaces but not their processors. Only on its way through stations is a message late; none is lost.
//! - Messages wait in line behind requests at processors, or go before them ([`Costs::messages_first`]): then requests that come later
//!   end later by what they take.
//! - Of CARD, every question, answer and end goes as the state machine sends it; the dispatcher's processor takes a decision for each
//!   question. A request that moves by handoff counts there until its reply is through, as in the live nodes, or until it
//!   has moved ([`Counted`]).
//! - Of WARD, an initial node counts a request when it is done with it. Making a table takes the maker's processor a time for each
//!   target, and is over after that; nodes have no other clock than the protocol's. Prices are those of the costs
//!   ([`Costs::prices`]).
//! - CARD's and WARD's nodes keep all that fits their memory; they know of no large targets.
//! - The dispatcher knows all memories and loads as they are. A request that is not large costs a question and its answer, its end
//!   and each change of a memory a message.
//! - Clients: as many connections as [`Cooperation::connections`] for each node, each with one request outstanding at a node
//!   drawn anew for each request; they take no time themselves. The default, half of T, keeps a balanced cluster just below
//!   T, since a forwarded request counts at two nodes.
//! - Measured is from the arrival of the first request after the warm-up to that of the last one.
//!
//! The same workload, settings and seed give the same outcome.

mod cluster;
mod costs;
mod draw;
mod engine;
mod minds;
mod outcome;
mod serve;
mod servers;
mod tell;

pub use cluster::{Cooperation, Given, Spread, WardSetup};
pub use costs::{Costs, Rate};
pub use outcome::{Busy, Outcome, Tables};
pub use servers::{Counted, Moving, Server};

use crate::{SimError, Workload};

/// Runs a workload; times of the trace are ignored, as the paper's clients do.
///
/// Time: linear in the requests and in the messages, each receiver's counted. Memory: the protocol's state of all nodes, which is
/// about 34 bytes per node and target.
///
/// # Errors
/// A parameter out of range, or a workload that contradicts itself.
pub fn cooperate(workload: &Workload, cluster: &Cooperation) -> Result<Outcome, SimError> {
    cluster.check(workload)?;
    Ok(engine::Engine::new(workload, cluster)?.run())
}

#[cfg(test)]
mod tests;
