//! State that the users of one thread share, and the interface of request observers.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use super::page_stats::PageStats;
use super::run_state::UserRunState;
use super::settings::CheckedSettings;
use super::timer_queue::TimerQueue;
use crate::client::connection::Buffers;
use crate::client::cpu::CpuSample;
use crate::fault::Fault;
use crate::tally::Tally;

/// A finished request, as reported to observers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishedRequest {
    /// Time when it finished, from the start of the run.
    pub(crate) at: Duration,
    pub(crate) outcome: Result<(), Fault>,
    pub(crate) latency: Duration,
    /// Time from sending to the first byte of the reply, including the time to connect.
    pub(crate) first_byte: Duration,
    /// Time to open its connection; `None` if no connection was opened.
    pub(crate) connect: Option<Duration>,
    pub(crate) body_bytes: u64,
}

/// Observes all requests of a run, from any thread.
pub(crate) trait RequestObserver: std::fmt::Debug + Send + Sync {
    /// Called after each request.
    fn request_finished(&self, request: &FinishedRequest);
}

/// State of one thread.
#[derive(Debug)]
pub(crate) struct UserContext {
    pub(crate) job: Arc<CheckedSettings>,
    pub(crate) state: Arc<UserRunState>,
    pub(crate) observer: Option<Arc<dyn RequestObserver>>,
    pub(crate) tally: RefCell<Tally>,
    pub(crate) page_stats: RefCell<PageStats>,
    pub(crate) buffers: RefCell<Buffers>,
    pub(crate) timers: TimerQueue,
    /// CPU time of this thread at the start of its first counted page.
    pub(crate) cpu_start: Cell<Option<CpuSample>>,
}

impl UserContext {
    pub(crate) fn new(
        job: &Arc<CheckedSettings>,
        state: &Arc<UserRunState>,
        observer: Option<Arc<dyn RequestObserver>>,
    ) -> Self {
        Self {
            job: Arc::clone(job),
            state: Arc::clone(state),
            observer,
            tally: RefCell::new(Tally::new(job.timeline_interval)),
            page_stats: RefCell::new(PageStats::new()),
            buffers: RefCell::new(Buffers::new()),
            timers: TimerQueue::default(),
            cpu_start: Cell::new(None),
        }
    }

    /// Waits until a page is due. Returns false if the page must not start, because the run is over.
    pub(crate) async fn wait_until(&self, due: Duration) -> bool {
        if due >= self.state.until() || self.job.stop.is_stopped() {
            return false;
        }
        let waited = self.timers.wait_until(self.state.start() + due.min(crate::pacer::RUN_MAX)).await;
        waited && due < self.state.until() && !self.job.stop.is_stopped()
    }
}
