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

mod costs;
mod engine;
mod minds;
mod outcome;
mod serve;
mod servers;
mod tell;

pub use costs::{Costs, Rate};
pub use outcome::{Busy, Outcome, Tables};
pub use servers::{Counted, Moving, Server};

use core::time::Duration;
use std::sync::Arc;

use larder_core::Bytes;
use larder_core::dispatch::Settings;
use larder_core::peers::{CardSettings, PressSettings, Rest, SharingSettings, WardSettings};
use larder_core::policy::table::RouteTable;
use serde::{Deserialize, Serialize};

use crate::{SimError, Workload};

/// Which node a client's request comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// Any, drawn anew for each: the paper's clients.
    #[default]
    Random,
    /// One after another.
    RoundRobin,
    /// Each node has connections of its own, which ask for what was dealt to it: the first, the one after as many as there are
    /// nodes, and so on. The WARD paper's clients. With a switch all connections are its own, as with [`Spread::RoundRobin`].
    Dealt,
}

/// How nodes work with routing tables.
#[derive(Clone, Debug, PartialEq)]
pub struct WardSetup {
    /// The protocol's settings; the memory is the cluster's.
    pub settings: WardSettings,
    /// How much of a target's count goes over into the next period, in thousandths, at most 1,000.
    pub carry_permille: u16,
    /// A table that the first node is given.
    pub given: Option<Given>,
}

/// A routing table that comes from elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// After so many requests have come.
    pub after: usize,
    /// For as many nodes as there are.
    pub table: Arc<RouteTable>,
}

impl Default for WardSetup {
    /// Live settings, but: targets that the table does not have are served where they come, as in the paper; there is one
    /// table, which is made once a node has counted 10,000 requests.
    fn default() -> Self {
        let never = Duration::from_secs(31 * 86_400);
        let settings = WardSettings { rest: Rest::Here, refresh: Some(never), ..WardSettings::default() };
        Self { settings, carry_permille: 500, given: None }
    }
}

/// A cluster and how it is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Cooperation {
    /// How it serves.
    pub server: Server,
    /// Nodes, 1 to 10,000; a dispatcher comes on top.
    pub nodes: u16,
    /// Memory of a node; that of [`Cooperation::protocol`] does not count.
    pub memory: Bytes,
    /// Connections of clients for each node, 1 to 10,000. Default 40.
    pub connections: u32,
    /// Where requests come to.
    pub spread: Spread,
    /// Requests that come first and are not measured; None: a third.
    pub warmup: Option<usize>,
    /// For the draw of nodes.
    pub seed: u64,
    /// What things take.
    pub costs: Costs,
    /// How requests move; PRESS's relay, all others' handoff.
    pub moving: Moving,
    /// The protocol's settings: PRESS. Default: those of the live nodes, but that reads are not told, as in the paper, and that one
    /// window decides on going back.
    pub protocol: PressSettings,
    /// CARD, and the switch's dispatcher.
    pub card: CardSettings,
    /// Until when CARD's dispatcher counts what is handed over.
    pub counted: Counted,
    /// WARD.
    pub ward: WardSetup,
}

impl Cooperation {
    /// Nodes with the paper's settings.
    pub fn new(server: Server, nodes: u16, memory: Bytes) -> Self {
        Self {
            server,
            nodes,
            memory,
            connections: 40,
            spread: Spread::Random,
            warmup: None,
            seed: 1,
            costs: Costs::default(),
            moving: server.moving(),
            protocol: PressSettings {
                tell_reads: false,
                sharing: SharingSettings { off_windows: 1, ..SharingSettings::default() },
                ..PressSettings::default()
            },
            card: CardSettings {
                dispatcher: Settings { shards: 1, ..Settings::default() },
                ..CardSettings::default()
            },
            counted: Counted::default(),
            ward: WardSetup::default(),
        }
    }

    fn check(&self, workload: &Workload) -> Result<(), SimError> {
        let wrong = |key, range| Err(SimError::OutOfRange { key, range });
        if !(1..=10_000).contains(&self.nodes) {
            return wrong("nodes", "1 to 10000");
        }
        if !(1..=10_000).contains(&self.connections) {
            return wrong("connections", "1 to 10000");
        }
        let protocol = &self.protocol;
        if protocol.load_step == 0
            || protocol.overload == 0
            || protocol.sharing.window == 0
            || protocol.sharing.off_windows == 0
        {
            return wrong("protocol", "positive: load_step, overload, sharing.window, sharing.off_windows");
        }
        if protocol.beat.is_zero() || protocol.stale_after <= protocol.beat {
            return wrong("protocol", "such that beat is above 0 and stale_after above beat");
        }
        self.check_card()?;
        self.check_ward()?;
        self.costs.check()?;
        workload.check()?;
        if workload.requests.len() >= u32::MAX as usize {
            return Err(SimError::Workload("there may be at most 4,294,967,294 requests"));
        }
        Ok(())
    }

    fn check_card(&self) -> Result<(), SimError> {
        let CardSettings { patience, retry, waiting_max, dispatcher, .. } = &self.card;
        if patience.is_zero() || retry.is_zero() || *waiting_max == 0 {
            let range = "positive: patience, retry, waiting_max";
            return Err(SimError::OutOfRange { key: "card", range });
        }
        Ok(dispatcher.validate()?)
    }

    fn check_ward(&self) -> Result<(), SimError> {
        let WardSettings { refresh, beat, retry, patience, targets_max, .. } = self.ward.settings;
        let wrong = |range| Err(SimError::OutOfRange { key: "ward", range });
        if refresh.is_some_and(|refresh| refresh.is_zero()) || beat.is_zero() || retry.is_zero() {
            return wrong("positive: refresh, beat, retry");
        }
        if patience < retry || targets_max < 64 || self.ward.carry_permille > 1_000 {
            return wrong(
                "such that patience is at least retry, targets_max at least 64, carry_permille at most 1000",
            );
        }
        match &self.ward.given {
            Some(given) if given.table.nodes() != self.nodes => {
                wrong("such that the given table is for all nodes")
            }
            _ => Ok(()),
        }
    }
}

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

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a number drawn from a number.
const fn draw(value: u64) -> u64 {
    let z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
