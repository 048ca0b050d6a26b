//! The interface of cost models: the steps of a request, the stations they need, and values that several
//! models share.

use serde::{Deserialize, Serialize};

use crate::SimError;
use crate::source::ClientConnection;
use crate::workload::Item;

/// The progress of a request at its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestProgress {
    /// The model's number of the current stage; 0 when the request reaches its node.
    pub stage: u8,
    /// Bytes, blocks or packets done, in the unit of the model.
    pub done: u64,
}

/// The result of a node's lookup of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupOutcome {
    /// The node has not looked the item up yet.
    #[default]
    Unknown,
    /// The item is in the node's memory.
    Memory,
    /// The item is missing, and this request reads it.
    Read,
    /// The item is missing, and another request is reading it.
    Shared,
    /// The item is in the memory of another node (global memory).
    Peer,
    /// The item may not be kept in memory, so it was not looked up.
    Never,
}

/// The facts about a request at its node.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// The requested item.
    pub item: &'a Item,
    /// The result of the node's lookup.
    pub found: LookupOutcome,
    /// Whether the client had reached another node than the one that serves the request.
    pub forwarded: bool,
    /// The connection of the request.
    pub connection: ClientConnection,
}

/// The next step of a request. Times are in ns at speed 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceStep {
    /// The node looks the item up in its memory. Takes no time; afterwards [`RequestFacts::found`] is known.
    Lookup,
    /// Service by the node's processor.
    Cpu(u64),
    /// A wait for the node's processor. The next step is requested when the request reaches the head of the
    /// queue; [`ServiceStep::Serve`] then takes the processor at once. Not allowed with [`Stations::pools`]
    /// or [`Stations::timer`].
    Turn,
    /// Service by the node's processor for a request at the head of the queue ([`ServiceStep::Turn`]).
    Serve(u64),
    /// Service by the disk that holds the item.
    Disk(u64),
    /// Service by the node's network interface.
    Nic(u64),
    /// Service by the node's back-end server.
    Back(u64),
    /// Service by the processor of the node that the client had reached.
    OriginCpu(u64),
    /// Service by the processor of the node in whose memory the item was found.
    PeerCpu(u64),
    /// Service by one of the parallel read slots ([`CostModel::read_slots`]).
    Slot(u64),
    /// A delay that occupies no station.
    Pause(u64),
    /// A wait for the end of the read that this request shares.
    Await,
    /// A wait for the item's next chunk ([`Stations::tasks`]).
    NextChunk,
    /// The read has ended: the item is stored in the node's memory, and the requests that share the read
    /// continue. Takes no time.
    Stored,
    /// The request has been served.
    Done,
}

/// The stations that a model uses beside processor and disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stations {
    /// Whether nodes have network interfaces.
    pub nic: bool,
    /// Whether nodes have back-end servers.
    pub back: bool,
    /// Whether a node has several cores ([`CostModel::cores`]) and several parallel reads
    /// ([`CostModel::read_slots`]).
    pub pools: bool,
    /// Whether the front-end has several cores ([`CostModel::front_cores`]).
    pub front_pool: bool,
    /// Whether reads are tasks of their own, and long items are read and kept in chunks
    /// ([`CostModel::chunk_bytes`]), as in the live node.
    pub tasks: bool,
    /// Whether a job notices the end of its service by processor or disk late ([`CostModel::wake_ns`]).
    pub timer: bool,
}

impl Stations {
    /// Processor and disks only.
    pub const NONE: Self =
        Self { nic: false, back: false, pools: false, front_pool: false, tasks: false, timer: false };
}

/// The cost of a request at the front-end, before it goes to its node. If all values are 0, the front-end
/// costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontCost {
    /// Time of the front-end's processor per request, in ns.
    pub request_ns: u64,
    /// Time of the front-end's processor per KiB of the reply, in ns.
    pub kib_ns: u64,
    /// Delay that occupies no processor, in ns.
    pub delay_ns: u64,
}

/// A model of the time that a request takes at a node.
pub trait CostModel {
    /// The stations that the model uses.
    const STATIONS: Stations;

    /// Returns the request's next step, and updates its progress.
    fn next_step(&self, progress: &mut RequestProgress, facts: &RequestFacts<'_>) -> ServiceStep;

    /// Returns the number of cores of a node, if the model has [`Stations::pools`].
    fn cores(&self) -> u32 {
        1
    }

    /// Returns the number of cores of the front-end, if the model has [`Stations::front_pool`].
    fn front_cores(&self) -> u32 {
        1
    }

    /// Returns the number of parallel reads of each disk, if the model has [`Stations::pools`].
    fn read_slots(&self) -> u32 {
        1
    }

    /// Returns the chunk size in bytes, if the model has [`Stations::tasks`]. Longer items are read and kept
    /// in chunks.
    fn chunk_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Returns the disk time in ns for `len` bytes, if the `before` bytes in front of them have just been
    /// read and the model has [`Stations::tasks`].
    fn chunk_read_ns(&self, _before: u64, _len: u64) -> u64 {
        0
    }

    /// Returns the time in ns at which a job notices that its service by processor or disk ended at `end_ns`,
    /// if the model has [`Stations::timer`]. The result is at least `end_ns`.
    fn wake_ns(&self, end_ns: u64) -> u64 {
        end_ns
    }

    /// Returns the cost of a request at the front-end.
    fn front_cost(&self, _item: &Item, _link: &ClientConnection) -> FrontCost {
        FrontCost::default()
    }
}

/// A processor cost that grows linearly with the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestCost {
    /// Time per request, in us, 0 to 1,000,000.
    pub request_us: f64,
    /// Time per KiB of the reply, in us, 0 to 1,000,000.
    pub kib_us: f64,
}

impl RequestCost {
    /// Returns the time in ns of a request with a reply of `bytes` bytes.
    pub fn ns(&self, bytes: u64) -> u64 {
        us_to_ns(self.request_us) + us_to_ns(self.kib_us * bytes as f64 / 1_024.0)
    }

    pub(super) fn check(&self, request: &'static str, kib: &'static str) -> Result<(), SimError> {
        check_range(self.request_us, 1e6, request, "0 to 1,000,000 us")?;
        check_range(self.kib_us, 1e6, kib, "0 to 1,000,000 us")
    }
}

/// Converts microseconds into nanoseconds.
pub(super) fn us_to_ns(value: f64) -> u64 {
    (value * 1_000.0).round() as u64
}

pub(super) fn check_range(
    value: f64,
    most: f64,
    key: &'static str,
    range: &'static str,
) -> Result<(), SimError> {
    if (0.0..=most).contains(&value) { Ok(()) } else { Err(SimError::OutOfRange { key, range }) }
}
