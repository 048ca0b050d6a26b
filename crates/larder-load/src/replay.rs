//! A trace as something to send.

use std::sync::Arc;
use std::time::Duration;

use larder_trace::Trace;

use crate::target::wire;

/// The parts of a [`Trace`] that a [`Plan`](crate::Plan) takes.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Targets as they are sent. Whoever serves the trace must know them by these names.
    pub targets: Arc<[String]>,
    /// Size of each target's body, bytes.
    pub sizes: Arc<[u64]>,
    /// Which target each request asks for.
    pub order: Arc<[u32]>,
    /// When, from the trace's first request.
    pub times: Arc<[Duration]>,
}

impl From<&Trace> for Replay {
    fn from(trace: &Trace) -> Self {
        Self {
            targets: trace.targets.iter().map(|target| wire(&target.name).into_owned()).collect(),
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
