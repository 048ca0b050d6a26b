//! The live content node: HTTP/1 and HTTP/2 in front of a bounded memory cache in front of a store.
//!
//! ```text
//! client -> accept -> larder_http::relay -> service -> contents -> memory (larder_core::cache decides what stays) -> store: directory | model
//!                                                                                                                 or origin
//! ```
//!
//! [`Node::new`] takes a [`NodeConfig`], [`Node::serve`] a listening socket and a future that ends it. [`Node::change`] tells a
//! running node what may be otherwise.
//! Contents up to the chunk size are read, kept and sent whole; longer ones in chunks, so that a range that misses
//! reads no more than its chunks. One read serves all who wait for the same thing. Every reply says in
//! `Cache-Status` (RFC 9211) what the cache did for it.
//!
//! Choices of ours: GET and HEAD only. HEAD and conditional requests that miss look at the store and put nothing
//! into the cache unless a body has to be sent. A request for several ranges gets the whole. Files whose names begin
//! with a dot are not served. A changed file is noticed within the time between two checks of its validity.

mod accept;
mod access_log;
mod body;
mod common_parts;
mod concurrency;
mod config;
mod connection;
mod contents;
mod cooperate;
mod counters;
mod edge;
mod handoff;
mod http;
mod lifecycle;
mod machine;
mod memory;
mod node;
mod object;
mod objects;
mod origin;
mod pages;
mod purge;
mod reply;
mod report;
mod request_trace;
mod responder;
mod service;
mod settings;
mod signing;
mod store;
mod uptime;

pub use accept::{DrainReport, IncomingHandoffs};
pub use access_log::ACCESS_FIELDS;
pub use config::{
    Amount, CacheConfig, ClientNoCache, ConfigError, CpuConfig, CpuScope, DynamicConfig, DynamicDisk,
    Failover, HandlerConfig, HostHeader, Limits, NodeConfig, OriginConfig, OriginTls, Preload, ReportConfig,
    StoreConfig, is_reserved,
};
pub use contents::LateralConfig;
pub use cooperate::{
    Analyst, CooperateConfig, CooperateError, CooperatePolicy, MemberView, PeersMemory, PeersView, TableView,
    WardConfig,
};
pub use edge::{Listeners, TlsView};
pub use handoff::{
    PeerHandoff, PeerHandoffConfig, PeerHandoffError, PeerHandoffView, RelayReason,
    SERVICES_MAX as HANDOFF_SERVICES_MAX,
};
pub use larder_core::cost::{DiskModel, ProcessorModel};
pub use machine::{ScratchError, Usage};
pub use memory::PurgeReport;
pub use node::{Node, NodeError};
pub use origin::{OriginStats, OriginStatus};
pub use report::{DeviceSource, LoadCounters, NodeStats, ReloadCounts};
pub use signing::SigningKeys;
pub use store::{DirectoryError, ManifestError};

/// Entry points for the fuzz targets: parsers of foreign bytes, with the checks that must hold for any input.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::http::condition::fuzz_conditions;
    pub use crate::http::path::fuzz_resolve;
    pub use crate::http::range::fuzz_parse as fuzz_range;
    pub use crate::store::fuzz_manifest;
}
