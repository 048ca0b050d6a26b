//! Decisions of the cluster: which node serves a request, when a request must wait, and which objects a cache keeps.
//!
//! The crate is pure. Time is an argument of type [`time::Time`], and random numbers come from a seed. Nothing here opens
//! a socket, reads a clock, starts a thread or writes a log. The live switch, the nodes and the simulator all run this code.
//!
//! [`dispatch::Dispatcher`] is the starting point for a reader.
//!
//! Without the default feature `std` the crate needs only `alloc`.

#![cfg_attr(not(any(feature = "std", test)), no_std)]

extern crate alloc;

pub mod cache;
pub mod cache_status;
pub mod census;
pub mod class;
mod clock;
pub mod cost;
mod curve;
pub mod dispatch;
pub mod handoff;
pub mod id;
pub mod lateral;
pub mod life_table;
pub mod nodes;
pub mod peers;
pub mod policy;
mod range;
pub mod read_log;
mod read_source;
pub mod record;
pub mod rules;
pub mod shadow;
pub mod snapshot;
mod spread;
pub mod switches;
mod sync;
pub mod time;
pub mod top_targets;
pub mod unit;
mod wire;

pub use class::ServiceClass;
pub use dispatch::{
    Arrival, CacheEvent, CacheResult, Decision, DequeuedRequest, Dispatcher, ExcludedNodes, Refusal,
    ReplyFeedback, Request, RouteSpec, Settings,
};
pub use id::{NodeId, RouteId, TargetId, Ticket};
pub use nodes::{
    GroupId, Groups, LoadReport, NodeRow, NodeSpec, NodeState, Nodes, ReceivedReport, Signal, Weight,
};
pub use policy::{PolicyKind, Reason};
pub use snapshot::{Snapshot, SnapshotError};
pub use time::Time;
pub use unit::Bytes;
pub use wire::WireError;
