//! What the users of one thread share: notes, memory, the timer.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use super::board::Board;
use super::pauses::Pauses;
use super::seen::Seen;
use super::stage::Job;
use crate::client::connection::Buffers;
use crate::client::usage::Usage;
use crate::fault::Fault;
use crate::tally::Tally;

/// A finished request, as those see it who watch a run from outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// When, from the start of the run.
    pub(crate) at: Duration,
    pub(crate) outcome: Result<(), Fault>,
    pub(crate) latency: Duration,
    /// From the sending to the first byte of the reply, connecting included.
    pub(crate) first_byte: Duration,
    /// How long its connection took to make; `None` if it needed none or got none.
    pub(crate) connect: Option<Duration>,
    pub(crate) body_bytes: u64,
}

/// Watches every request of a run, from any thread.
pub(crate) trait Watch: std::fmt::Debug + Send + Sync {
    /// A request has ended.
    fn ended(&self, ended: &Ended);
}

/// Of one thread.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) job: Arc<Job>,
    pub(crate) board: Arc<Board>,
    pub(crate) watch: Option<Arc<dyn Watch>>,
    pub(crate) tally: RefCell<Tally>,
    pub(crate) seen: RefCell<Seen>,
    pub(crate) buffers: RefCell<Buffers>,
    pub(crate) pauses: Pauses,
    /// What this thread had used when its first page that counts began.
    pub(crate) usage_from: Cell<Option<Usage>>,
}

impl Bench {
    pub(crate) fn new(job: &Arc<Job>, board: &Arc<Board>, watch: Option<Arc<dyn Watch>>) -> Self {
        Self {
            job: Arc::clone(job),
            board: Arc::clone(board),
            watch,
            tally: RefCell::new(Tally::new(job.timeline_interval)),
            seen: RefCell::new(Seen::new()),
            buffers: RefCell::new(Buffers::new()),
            pauses: Pauses::default(),
            usage_from: Cell::new(None),
        }
    }

    /// Waits until a page is due. False if it is not to begin any more.
    pub(crate) async fn until(&self, due: Duration) -> bool {
        if due >= self.board.until() || self.job.stop.stopped() {
            return false;
        }
        let waited = self.pauses.until(self.board.start() + due.min(crate::run::RUN_MAX)).await;
        waited && due < self.board.until() && !self.job.stop.stopped()
    }
}
