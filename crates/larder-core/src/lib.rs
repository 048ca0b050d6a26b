//! Decisions of the cluster: which node serves a request, when a request must wait, and which objects a cache keeps.
//!
//! The crate is pure. Time is an argument of type [`time::Time`], and random numbers come from a seed. Nothing here opens
//! a socket, reads a clock, starts a thread or writes a log. The live switch, the nodes and the simulator all run this code.
//!
//! # Choose nodes in a program
//! A program creates a [`Dispatcher`], asks it about each request, and reports the end of each request:
//!
//! ```
//! use larder_core::{Arrival, Dispatcher, NodeSpec, PolicyKind, Reason, Request, Settings, TargetId, Time};
//!
//! let settings = Settings { policy: PolicyKind::LardR, ..Settings::default() };
//! let dispatcher = Dispatcher::new(settings, &["a", "b", "c"].map(NodeSpec::named))?;
//!
//! let request = Request::new(TargetId::of(b"www.example.org/index.html"));
//! let Arrival::Start(first) = dispatcher.arrive(Time::ZERO, request) else { unreachable!() };
//! // ... send the request to the node `first.node`, and the reply to the client ...
//! let mut started = Vec::new();
//! dispatcher.finish(Time::from_millis(5), first.node, &mut started);
//!
//! let Arrival::Start(second) = dispatcher.arrive(Time::from_millis(9), request) else { unreachable!() };
//! assert_eq!((first.reason, second.reason), (Reason::First, Reason::Local));
//! assert_eq!(first.node, second.node, "the target stays where it is cached");
//! # Ok::<(), larder_core::dispatch::SettingsError>(())
//! ```
//!
//! | to | see |
//! |---|---|
//! | decide, queue, retry and end requests; explain a decision | [`dispatch`] |
//! | choose a policy and its settings; read reasons | [`policy`] |
//! | add, drain, weigh and remove nodes; read their load | [`nodes`] |
//! | turn a request's head into a target, a route and a class | [`rules`] |
//! | pass the learned state to another process | [`snapshot`] |
//! | let nodes cooperate without a dispatcher | [`peers`] |
//! | let several dispatchers before the same nodes agree | [`switches`] |
//! | record decisions and repeat them | [`record`] |
//!
//! `larder-embed` offers the dispatcher with node ids and a config, and `liblarder` offers it to programs in C.
//!
//! Without the default feature `std` the crate needs only `alloc`.

#![cfg_attr(not(any(feature = "std", test)), no_std)]

extern crate alloc;

pub mod cache;
pub mod cache_status;
pub mod census;
pub mod chain;
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
