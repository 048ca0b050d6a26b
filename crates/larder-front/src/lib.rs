//! The live switch: accepts clients, asks the dispatcher for every request, relays.
//!
//! [`larder_core::Dispatcher`] decides; this crate acts. It owns the sockets: its threads (`workers`) accept connections and serve
//! them by [`larder_http::relay`], which parses, relays and pools. `request` asks the dispatcher for a node for every request, also on
//! kept-alive connections. A lease holds what a request has taken (a place among the admitted, load at a node) and gives it back exactly
//! once, however the request ends. `health` tells the dispatcher which nodes answer.
//!
//! Every limit has a named outcome ([`Failure`]), which the client sees in the header `x-larder-error`, the log in
//! the field `error` and the metrics in the label `error`.

mod accept;
mod access_fields;
mod admission_log;
mod backups;
mod beside;
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
mod recorder;
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
mod waiting;
mod wish;
mod workers;

pub use access_fields::ACCESS_FIELDS;
pub use beside::SwitchesConfig;
pub use budget::RetryConfig;
pub use clients::ClientLimits;
pub use config::SwitchConfig;
pub use config_error::ConfigError;
pub use dial::{AnnounceOf, ProxyVersion, Reach, TlsOf};
pub use edits::{
    Answer, Coding, Compression, EditError, Edits, FieldRules, PathRewrite, RequestId, SameSite, Side, Stage,
    Sticky, StickyBy, StickyCookie, StickyKey, Template,
};
pub use failure::{ERROR_HEADER, Failure};
pub use guard::{Guard, Users, UsersError};
pub use handle::{
    ClassStatus, DeliveryCount, ExplainReply, HotTarget, JoinRefused, Latency, LiveStatus, MemoryStatus,
    NodeStanding, NodeStatus, OtherStatus, PolicyShadow, RouteFault, RouteStatus, SetsStatus, ShadowFigures,
    ShadowStatus, ShareRefused, ShareStanding, SwitchHandle, SwitchStatus, SwitchesStatus, UnknownNode,
};
pub use handoff::{
    Delivery, Facts, Forward, HandoffConfig, HandoffError, HandoffStatus, Handshake, Mechanism, NodeHandoff,
    Setting, Speaks, UnknownMechanism, Why,
};
pub use health::OutlierConfig;
pub use hedge::Hedge;
pub use larder_edge::{AcmeChallenge, AcmeStatus, AcmeStore, AcmeStored, AddressRange};
pub use larder_edge::{
    CertificateFault, CertificateStatus, ClientCertificates, OutboundTls, TlsConfig, TlsVersion,
};
pub use limits::{Check, HealthConfig, Limits, Timeouts};
pub use long_lived::LongLivedConfig;
pub use metrics::{METRICS, Metric, MetricKind};
pub use mirror::MirrorOf;
pub use node::NodeError;
pub use node_entry::NodeEntry;
pub use purge::{NodePurge, PurgeReport};
pub use recorder::{RecordConfig, RecordStartError, RecordStatus};
pub use reload_counts::ReloadCounts;
pub use routes::{DEFAULT_ROUTE, ROUTES_MAX, Route};
pub use shadow::ShadowConfig;
pub use shared::SwitchError;
pub use signals::{CacheSignalsConfig, ReportStatus, SignalSource, SignalsConfig, UnknownSource};
pub use split::{ShareOf, SplitBy};
pub use switch::{AdmissionLimit, Prepared, Switch, listen};
pub use target::{TargetKey, target_key};

/// Entry points for the fuzz targets: parsers of what nodes and clients say, with the checks that must hold for any input.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::edits::fuzz_asked;
    pub use crate::handoff::fuzzing::{fuzz_first, fuzz_held};
    pub use crate::signals::fuzzing::{fuzz_orca, fuzz_pages, fuzz_stream};
    pub use larder_edge::fuzzing::fuzz_announcement;
}
