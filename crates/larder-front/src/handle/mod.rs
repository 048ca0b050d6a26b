//! A running switch, as an admin interface sees it: [`SwitchHandle`], and what it tells.

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
mod switches;

pub use explain::ExplainReply;
pub use hottest::HotTarget;
pub use live::{DeliveryCount, Latency, LiveStatus};
pub use reloads::{NodeReloadState, ShareReloadState};
pub use routes::{ClassStatus, RouteFault, RouteStatus, ShareRefused};
pub use shadow::{MemoryStatus, PolicyShadow, ShadowFigures, ShadowStatus};
pub use status::{JoinRefused, NodeStatus, SwitchHandle, SwitchStatus, UnknownNode};
pub use switches::{OtherStatus, SetsStatus, SwitchesStatus};
