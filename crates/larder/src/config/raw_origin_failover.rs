//! `[node.origin.failover]` as written, with its defaults.

use larder_node::Failover;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Span, Texts};

/// `[node.origin.failover]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawOriginFailover {
    /// Origins with the same contents as the one in url, for when it fails, in order: URLs with the same scheme. Required; at most 16.
    #[schemars(example = ["http://10.0.0.2:8000", "http://10.0.0.3:8000"])]
    pub(crate) urls: Texts,
    /// Statuses of a reply that tell that its origin has failed, such as [502, 503, 504].
    pub(crate) statuses: Vec<u16>,
    /// Time for which a failed origin is left; doubles with each further failure. 1ms to 1h.
    pub(crate) pause: Span,
    /// The longest such time. pause to 1d.
    pub(crate) pause_max: Span,
}

impl Default for RawOriginFailover {
    fn default() -> Self {
        let failover = Failover::new(Vec::new());
        Self {
            urls: Texts::default(),
            statuses: failover.statuses.iter().map(http::StatusCode::as_u16).collect(),
            pause: Span(failover.pause),
            pause_max: Span(failover.pause_max),
        }
    }
}
