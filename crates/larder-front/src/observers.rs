//! The owner of records about requests: the access log, traces, the record of decisions, the shadow, and the hottest targets.

use crate::hottest::HotList;
use crate::recorder::Recorder;
use crate::shadow::Feed;
use larder_edge::access::AccessLog;
use larder_spans::Tracer;
use std::sync::Arc;

/// Observes requests. All threads share it.
#[derive(Debug)]
pub(crate) struct Observers {
    pub(crate) access: Option<AccessLog>,
    /// The place to which spans go, if requests are traced.
    pub(crate) tracer: Option<Tracer>,
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// The way to the shadow, if there is one.
    pub(crate) shadow: Option<Arc<Feed>>,
    pub(crate) hottest: HotList,
}
