//! A cluster without a front-end: nodes take any request and forward it to the node that should serve it.
//! PRESS, CARD and WARD.
//!
//! The papers are Carrera and Bianchini, "Efficiency vs. Portability in Cluster-Based Network Servers", PPoPP
//! 2001; Aron, Sanders, Druschel and Zwaenepoel, "Scalable Content-aware Request Distribution in
//! Cluster-based Network Servers", USENIX 2000; and Cherkasova and Karlsson, HPL-2001-2. Decisions and
//! messages come from the live node's protocol ([`larder_core::peers`]), with one state machine per node
//! (`protocols`). Time, processors, disks, interfaces, memories and clients are simulated.
//!
//! # The path of a request
//!
//! ```text
//! interface to clients -> processor: parse -> decision
//!   local     memory, or disk -> processor: reply -> interface to clients
//!   forwarded processor: forward -> interface, wire, interface -> processor of the service node: accept -> memory, or disk
//!     portable      -> processor: relay -> interface, wire, interface -> processor of the initial node: relay, reply -> clients
//!     non-portable  -> processor of the service node: reply -> its interface to clients
//! ```
//!
//! Every station serves in order of arrival. A node has one processor, one disk, one interface to clients
//! and, on fast networks, one interface to other nodes. An interface is one station for both directions, as
//! in the paper's model.
//!
//! # Points that the papers leave open
//!
//! - A connection counts as load of the initial node from its arrival until the reply has left (portable) or
//!   until it is handed off (non-portable). It counts as load of the service node from the arrival of the
//!   forwarded request until the node has sent the reply. [`RelayedLoad`] has the other reading for portable
//!   servers.
//! - Requests for a target that is being read at a node wait for that read, and count as misses. A target
//!   that is too large to be kept is read for each request. Memories are LRU. Traditional nodes keep targets
//!   of every size, since they do not run the algorithm that contains the rule for large targets.
//! - The initial node does not keep a relayed reply.
//! - The service node parses a forwarded request and pays for its arrival: variant M1 of the model
//!   ([`crate::press`]).
//! - A message takes processor and interface at both ends and arrives after a latency. A broadcast takes the
//!   sender this time for each receiver and reaches all receivers at once. On fast networks a load is written
//!   into the memory of the other nodes, which takes their interfaces but not their processors. Messages are
//!   delayed by stations only; none is lost.
//! - Messages queue behind requests at processors, or go before them ([`CooperationCosts::messages_first`]).
//!   In the latter case, later requests are delayed by the messages.
//! - CARD sends every question, answer and end as the state machine does. The dispatcher's processor spends a
//!   decision on each question. A request that is handed off counts there until its reply has been sent, as
//!   in the live nodes, or until it has moved ([`LoadAccounting`]).
//! - In WARD, an initial node counts a request when it has completed it. Computing a table takes the maker's
//!   processor a time for each target. Nodes have no timers besides the protocol's. The costs for
//!   ward-analysis come from the cost model ([`CooperationCosts::ward_costs`]).
//! - The nodes of CARD and WARD keep everything that fits into their memory; they have no limit for large
//!   targets.
//! - The separate dispatcher knows all memories and loads exactly. A request that is not large costs a
//!   question and an answer. Its end, and each change of a memory, costs a message.
//! - Clients have [`CooperativeCluster::connections`] connections per node, each with one outstanding
//!   request. The node of each request is drawn at random; clients take no time themselves. The default, half
//!   of T, keeps a balanced cluster just below T, because a forwarded request counts at two nodes.
//! - The measured part lasts from the arrival of the first request after the warm-up to that of the last
//!   request.
//!
//! The same workload, settings and seed give the same outcome.

mod cluster;
mod costs;
mod engine;
mod messages;
mod outcome;
mod protocols;
mod requests;
mod servers;

pub use cluster::{CooperativeCluster, PresetTable, RequestSpread, WardSetup};
pub use costs::{CooperationCosts, LinearCost};
pub use outcome::{CooperationOutcome, TableStats, Utilisation};
pub use servers::{ForwardingMode, LoadAccounting, RelayedLoad, ServerKind};

use crate::{SimError, Workload};

/// Runs a workload on a cluster. The times of the trace are ignored, as in the paper.
///
/// Time: linear in the requests and in the messages, counted per receiver. Memory: the protocol's state of
/// all nodes, which is about 34 bytes per node and target.
///
/// # Errors
/// Returns an error for a parameter out of range, or for an inconsistent workload.
pub fn cooperate(workload: &Workload, cluster: &CooperativeCluster) -> Result<CooperationOutcome, SimError> {
    cluster.check(workload)?;
    Ok(engine::CooperationEngine::new(workload, cluster)?.run())
}

#[cfg(test)]
mod tests;
