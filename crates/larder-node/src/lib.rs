//! A content node: a server for HTTP/1 and HTTP/2 with a bounded memory cache in front of a source of contents.
//!
//! ```text
//! client -> accept -> larder_http::relay -> service -> contents -> memory -> store: directory or model
//!                                                               -> origin -> memory, or an HTTP origin
//!                                                               -> programs of a modelled store
//! ```
//!
//! [`Node::new`] creates a node from a [`NodeConfig`]. [`Node::serve`] serves a listening socket until a future
//! completes. [`Node::change`] applies a changed configuration to a running node. [`larder_core::cache`] decides
//! which contents stay in memory.
//!
//! Contents up to the chunk size are read, stored and sent as one piece. Longer contents are read and stored in
//! chunks, so a range that misses reads only its own chunks. One read serves all concurrent requests for the same
//! contents. Each reply reports the cache's part in `Cache-Status` (RFC 9211).
//!
//! A store serves GET and HEAD only. A HEAD or conditional request that misses stores no body unless a body has
//! to be sent. A request for several ranges gets the whole contents. Files whose names begin with a dot are not
//! served. A change of a file is noticed at the next validity check of its cache entry.

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
mod lock;
mod machine;
mod memory;
mod metric_table;
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
    CacheConfig, ClientNoCache, ConfigError, CpuScope, Failover, HostHeader, Limits, ModelConfig, NodeConfig,
    OriginConfig, OriginTls, Preload, ProgramConfig, ReportConfig, StoreConfig, is_reserved,
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
pub use machine::Usage;
pub use memory::PurgeReport;
pub use node::{Node, NodeError, StartFacts, metrics};
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
