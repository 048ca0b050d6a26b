//! Handle of a running switch for an admin interface: [`SwitchHandle`] and its status types.

mod explain;
mod hottest;
mod live;
mod metrics;
mod purge;
mod reloads;
mod routes;
mod shadow;
mod shadow_metrics;
mod status;

pub use explain::ExplainReply;
pub use hottest::HotTarget;
pub use larder_peer_switches::{PeerSwitchStatus, SetsStatus, SwitchesStatus};
pub use live::{DeliveryCount, Latency, LiveStatus};
pub use reloads::{NodeReloadState, ShareReloadState};
pub use routes::{ClassStatus, RouteError, RouteStatus, ShareError};
pub use shadow::{MemoryStatus, PolicyShadow, ShadowFigures, ShadowStatus};
pub use status::{NodeJoinError, NodeStatus, SwitchHandle, SwitchStatus, UnknownNode};
