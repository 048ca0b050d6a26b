//! The switch: it accepts clients, asks the dispatcher for a node for every request, and relays the request to that
//! node.
//!
//! [`larder_core::Dispatcher`] decides and this crate acts. The threads in `workers` accept connections and serve
//! them with [`larder_http::relay`], which parses, relays and pools connections to nodes. `request` asks the
//! dispatcher for a node for every request, also on kept-alive connections. A `Lease` holds the admission and the
//! load of a request and returns them exactly once, however the request ends. `health` tells the dispatcher which
//! nodes answer. `handoff` delivers connections without a relay.
//!
//! Every limit has a named outcome ([`Failure`]). The client sees it in the header `x-larder-error`, the log in the
//! field `error` and the metrics in the label `error`.

mod accept;
mod access_fields;
mod admission_log;
mod affinity;
mod backups;
mod budget;
mod clients;
mod clock;
mod config;
mod config_error;
mod copies;
mod decider;
mod dial;
mod edits;
mod failure;
mod guard;
mod guards;
mod handle;
mod handoff;
mod health;
mod hedge;
mod hottest;
mod lease;
mod limits;
mod lock;
mod long_lived;
mod metrics;
mod mirror;
mod node;
mod node_entry;
mod node_log;
mod nodes;
mod observers;
mod preface;
mod purge;
mod reload_counts;
mod request;
mod routes;
mod routing;
mod shadow;
mod shared;
mod signals;
mod split;
mod switch;
mod target;
mod tokens;
mod waiters;
mod workers;

pub use access_fields::ACCESS_FIELDS;
pub use budget::RetryConfig;
pub use clients::ClientLimits;
pub use config::SwitchConfig;
pub use config_error::ConfigError;
pub use dial::{NodeAnnounce, NodeTls, NodeTransport, ProxyVersion};
pub use edits::{
    Compression, ContentCoding, DirectReply, EditError, Edits, FieldRules, MessageKind, PathRewrite,
    RequestId, SameSite, Sticky, StickyBy, StickyCookie, StickyKey, Template, TemplateStage,
};
pub use failure::{ERROR_HEADER, Failure};
pub use guard::{RouteGuard, Users, UsersError};
pub use handle::{
    ClassStatus, DeliveryCount, ExplainReply, HotTarget, Latency, LiveStatus, MemoryStatus, NodeJoinError,
    NodeReloadState, NodeStatus, PeerSwitchStatus, PolicyShadow, RouteError, RouteStatus, SetsStatus,
    ShadowFigures, ShadowStatus, ShareError, ShareReloadState, SwitchHandle, SwitchStatus, SwitchesStatus,
    UnknownNode,
};
pub use handoff::{
    ConnectionFacts, Delivery, DeliveryReason, Encapsulation, FirstBytes, HandoffConfig, HandoffError,
    HandoffStatus, Handshake, Mechanism, MechanismSetting, NodeHandoff, UnknownMechanism,
};
pub use health::OutlierConfig;
pub use hedge::HedgeConfig;
pub use larder_edge::{AcmeChallenge, AcmeStatus, AcmeStore, AddressRange, StoredCertificate};
pub use larder_edge::{
    CertificateFault, CertificateStatus, ClientCertificates, OutboundTls, TlsConfig, TlsVersion,
};
pub use larder_peer_switches::SwitchesConfig;
pub use larder_prompts::PromptConfig;
pub use larder_record::{RecordConfig, RecordStartError, RecordStatus};
pub use limits::{HealthCheck, HealthConfig, Limits, Timeouts};
pub use long_lived::LongLivedConfig;
pub use metrics::METRICS;
pub use mirror::MirrorConfig;
pub use node::NodeError;
pub use node_entry::NodeEntry;
pub use purge::{NodePurge, PurgeReport};
pub use reload_counts::ReloadCounts;
pub use routes::{DEFAULT_ROUTE, ROUTES_MAX, Route};
pub use shadow::ShadowConfig;
pub use shared::SwitchError;
pub use signals::{CacheSignalsConfig, ReportStatus, SignalSource, SignalsConfig, UnknownSource};
pub use split::{RouteShare, SplitBy};
pub use switch::{AdmissionLimit, PreparedSwitch, Switch, listen};
pub use target::{TargetKey, target_key};

/// Entry points of the fuzz targets: parsers of bytes from nodes and clients, with the checks that must hold for any
/// input.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::edits::fuzz_asked;
    pub use crate::handoff::fuzzing::{fuzz_first, fuzz_held};
    pub use crate::signals::fuzzing::{fuzz_orca, fuzz_pages, fuzz_stream};
    pub use larder_edge::fuzzing::fuzz_announcement;
}
