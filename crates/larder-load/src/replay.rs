//! Conversion of traces into requests.

use std::sync::Arc;
use std::time::Duration;

use larder_trace::Trace;

use crate::target::request_target;

/// The parts of a [`Trace`] that a [`Plan`](crate::Plan) takes.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Targets as they are sent. The server of the trace must use the same names.
    pub targets: Arc<[String]>,
    /// Size of each target's body, bytes.
    pub sizes: Arc<[u64]>,
    /// Target of each request, as an index into `targets`.
    pub order: Arc<[u32]>,
    /// Time of each request, from the first one.
    pub times: Arc<[Duration]>,
}

impl From<&Trace> for Replay {
    fn from(trace: &Trace) -> Self {
        Self {
            targets: trace.targets.iter().map(|target| request_target(&target.name).into_owned()).collect(),
            sizes: trace.targets.iter().map(|target| target.size.get()).collect(),
            order: trace.requests.iter().map(|request| request.target).collect(),
            times: trace
                .requests
                .iter()
                .map(|request| Duration::from_nanos(request.time.as_nanos()))
                .collect(),
        }
    }
}
