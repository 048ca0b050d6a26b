//! The interface of cost models: the steps of a request, the stations it needs, and values that several models have.

use serde::{Deserialize, Serialize};

use crate::SimError;
use crate::source::Link;
use crate::workload::Item;

/// The progress of a request at its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The model's own number of the stage; 0 when the request reaches its node.
    pub stage: u8,
    /// Bytes, blocks or packets done, as the model counts them.
    pub done: u64,
}

/// The place where a node found an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Found {
    /// It has not looked yet.
    #[default]
    Unknown,
    /// In its memory.
    Memory,
    /// Not there: this request reads it.
    Read,
    /// Not there, but another request is reading it.
    Shared,
    /// In the memory of another node (global memory).
    Peer,
    /// It may not be kept in memory, so it was not looked for.
    Never,
}

/// The facts about a request at its node.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The item that is asked for.
    pub item: &'a Item,
    /// The place where the node found it.
    pub found: Found,
    /// The client had reached another node than the one that serves.
    pub forwarded: bool,
    /// The connection it comes on.
    pub link: Link,
}

/// The next need of a request. Times in ns at speed 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The node looks into its memory. Takes no time; [`About::found`] is known afterwards.
    Lookup,
    /// The node's processor.
    Cpu(u64),
    /// Stands in line for the node's processor. The next step is asked for when the turn has come; [`Step::Serve`]
    /// then takes the processor at once. Not with [`Stations::pools`] or [`Stations::timer`].
    Turn,
    /// The node's processor from now on, for the request whose turn has come ([`Step::Turn`]).
    Serve(u64),
    /// The disk that holds the item.
    Disk(u64),
    /// The node's network interface.
    Nic(u64),
    /// The node's back-end server.
    Back(u64),
    /// The processor of the node that the client had reached.
    OriginCpu(u64),
    /// The processor of the node in whose memory the item was found.
    PeerCpu(u64),
    /// One of the places for reads at a time ([`CostModel::read_slots`]).
    Slot(u64),
    /// Time passes.
    Pause(u64),
    /// Until the read that this request shares has ended.
    Await,
    /// Until the item's next chunk is in memory ([`Stations::tasks`]).
    NextPart,
    /// The read has ended: the item goes to the node's memory, and whoever shares the read goes on. Takes no time.
    Stored,
    /// The request has been served.
    Done,
}

/// The stations that a model uses beside processor and disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stations {
    /// Network interfaces.
    pub nic: bool,
    /// Back-end servers.
    pub back: bool,
    /// Several cores in a node ([`CostModel::cores`]), and several reads at a time ([`CostModel::read_slots`]).
    pub pools: bool,
    /// Several cores in the front-end ([`CostModel::front_cores`]).
    pub front_pool: bool,
    /// Reads are tasks of their own that all wait for, and long items are read and kept in chunks
    /// ([`CostModel::chunk`]), as in the live node.
    pub tasks: bool,
    /// Whoever waits for processor or disk notices the end late ([`CostModel::wake_ns`]).
    pub timer: bool,
}

impl Stations {
    /// Processor and disks only.
    pub const NONE: Self =
        Self { nic: false, back: false, pools: false, front_pool: false, tasks: false, timer: false };
}

/// The time that a request takes of the front-end, before it goes to its node. All zero: the front-end costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontCost {
    /// Time of the front-end's one processor for each request, in ns.
    pub request_ns: u64,
    /// And for each KiB of the reply, in ns.
    pub kib_ns: u64,
    /// A delay that occupies nothing, in ns.
    pub delay_ns: u64,
}

/// A model of the time that a request takes of a node.
pub trait CostModel {
    /// The stations it uses.
    const STATIONS: Stations;

    /// The request's next step; changes its progress.
    fn next(&self, progress: &mut Progress, about: &About<'_>) -> Step;

    /// Cores of a node, where the model has [`Stations::pools`].
    fn cores(&self) -> u32 {
        1
    }

    /// Cores of the front-end, where the model has [`Stations::front_pool`].
    fn front_cores(&self) -> u32 {
        1
    }

    /// Reads that each disk of a node has under way at a time, where the model has [`Stations::pools`].
    fn read_slots(&self) -> u32 {
        1
    }

    /// Items above this many bytes are read and kept in chunks of it, where the model has [`Stations::tasks`].
    fn chunk(&self) -> u64 {
        u64::MAX
    }

    /// Disk time in ns for `len` bytes when the `before` bytes in front of them have just been read, likewise.
    fn piece_ns(&self, _before: u64, _len: u64) -> u64 {
        0
    }

    /// The time at which a job notices that its wait for processor or disk has ended at `end_ns`, where the model has
    /// [`Stations::timer`]. Not before `end_ns`.
    fn wake_ns(&self, end_ns: u64) -> u64 {
        end_ns
    }

    /// The time that a request takes of the front-end, by its item and the connection it comes on.
    fn front(&self, _item: &Item, _link: &Link) -> FrontCost {
        FrontCost::default()
    }
}

/// Processor time that grows with the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerRequest {
    /// Time of a request, in us, 0 to 1,000,000.
    pub request_us: f64,
    /// And for each KiB of its reply, in us, 0 to 1,000,000.
    pub kib_us: f64,
}

impl PerRequest {
    /// Time in ns of a request with a reply of so many bytes.
    pub fn ns(&self, bytes: u64) -> u64 {
        us(self.request_us) + us(self.kib_us * bytes as f64 / 1_024.0)
    }

    pub(super) fn check(&self, request: &'static str, kib: &'static str) -> Result<(), SimError> {
        within(self.request_us, 1e6, request, "0 to 1,000,000 us")?;
        within(self.kib_us, 1e6, kib, "0 to 1,000,000 us")
    }
}

/// A time in ns from microseconds.
pub(super) fn us(value: f64) -> u64 {
    (value * 1_000.0).round() as u64
}

pub(super) fn within(value: f64, most: f64, key: &'static str, range: &'static str) -> Result<(), SimError> {
    if (0.0..=most).contains(&value) { Ok(()) } else { Err(SimError::OutOfRange { key, range }) }
}
