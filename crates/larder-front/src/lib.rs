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
mod cache_status;
mod clients;
mod clock;
mod config;
mod copies;
mod decider;
mod dial;
mod edits;
mod explain;
mod failure;
mod guard;
mod guards;
mod handle;
mod handoff;
mod health;
mod hedge;
mod hottest;
mod lease;
mod live;
mod long_lived;
mod metrics;
mod node;
mod node_log;
mod nodes;
mod observers;
mod preface;
mod purge;
mod recorder;
mod reloads;
mod request;
mod route_status;
mod routes;
mod routing;
mod shadow;
mod signals;
mod split;
mod switch;
mod target;
mod waiting;
mod wish;
mod workers;

pub use access_fields::ACCESS_FIELDS;
pub use beside::{OtherStatus, SetsStatus, SwitchesConfig, SwitchesStatus};
pub use budget::RetryConfig;
pub use cache_status::{CacheOutcome, cache_outcome};
pub use clients::ClientLimits;
pub use config::{Check, ConfigError, HealthConfig, Limits, NodeEntry, SwitchConfig, Timeouts};
pub use copies::MirrorOf;
pub use dial::{AnnounceOf, ProxyVersion, Reach, TlsOf};
pub use edits::{
    Answer, Coding, Compression, EditError, Edits, FieldRules, PathRewrite, RequestId, SameSite, Side, Stage,
    Sticky, StickyBy, StickyCookie, StickyKey, Template,
};
pub use explain::ExplainReply;
pub use failure::{ERROR_HEADER, Failure};
pub use guard::{Guard, Users, UsersError};
pub use handle::{JoinRefused, NodeStatus, SwitchHandle, SwitchStatus, UnknownNode};
pub use handoff::{
    Delivery, Facts, Forward, HandoffConfig, HandoffError, HandoffStatus, Handshake, Mechanism, NodeHandoff,
    Setting, Speaks, UnknownMechanism, Why,
};
pub use health::OutlierConfig;
pub use hedge::Hedge;
pub use hottest::HotTarget;
pub use larder_edge::{AcmeChallenge, AcmeStatus, AcmeStore, AcmeStored, AddressRange};
pub use larder_edge::{
    CertificateFault, CertificateStatus, ClientCertificates, OutboundTls, TlsConfig, TlsVersion,
};
pub use live::{DeliveryCount, Latency, LiveStatus};
pub use long_lived::LongLivedConfig;
pub use metrics::{METRICS, Metric, MetricKind};
pub use purge::{NodePurge, PurgeReport};
pub use recorder::{RecordConfig, RecordStartError, RecordStatus};
pub use reloads::{NodeStanding, ReloadCounts, ShareStanding};
pub use route_status::{ClassStatus, RouteFault, RouteStatus, ShareRefused};
pub use routes::{DEFAULT_ROUTE, ROUTES_MAX, Route};
pub use shadow::{MemoryStatus, PolicyShadow, ShadowConfig, ShadowFigures, ShadowStatus};
pub use signals::{CacheSignalsConfig, ReportStatus, SignalSource, SignalsConfig, UnknownSource};
pub use split::{ShareOf, SplitBy};
pub use switch::{AdmissionLimit, Prepared, Switch, SwitchError, listen};
pub use target::{TargetKey, target_key};

/// Entry points for the fuzz targets: parsers of what nodes and clients say, with the checks that must hold for any input.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::edits::fuzz_asked;
    pub use crate::handoff::fuzzing::{fuzz_first, fuzz_held};
    pub use crate::signals::fuzzing::{fuzz_orca, fuzz_pages, fuzz_stream};
    pub use larder_edge::fuzzing::fuzz_announcement;
}
