//! The part of the switch that records requests: the access log, traces, the decision record, the shadow, and the
//! most requested targets.

use crate::hottest::HotList;
use crate::shadow::ShadowFeed;
use larder_edge::access::AccessLog;
use larder_record::Recorder;
use larder_spans::Tracer;
use std::sync::Arc;

/// Observers of requests. All threads share them.
#[derive(Debug)]
pub(crate) struct Observers {
    pub(crate) access: Option<AccessLog>,
    /// Sender of spans; `None` if requests are not traced.
    pub(crate) tracer: Option<Tracer>,
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// Queue to the shadow thread; `None` if there is no shadow.
    pub(crate) shadow: Option<Arc<ShadowFeed>>,
    pub(crate) hottest: HotList,
}
