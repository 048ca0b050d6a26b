//! A sender: sends requests one after another, checks the replies and records the results.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::Buffers;
use super::cpu::CpuSample;
use super::slot::{ConnectionSlot, RequestSettings};
use crate::fault::Fault;
use crate::plan::{Method, Plan, Reuse};
use crate::run_state::{RunState, ScheduledRequest};
use crate::tally::{Sample, Tally};

/// Delay after a failed connection attempt, so that a dead server does not cause a busy loop.
pub(crate) const CONNECT_FAILURE_DELAY: Duration = Duration::from_millis(10);

/// State that the senders of one thread share.
#[derive(Debug)]
pub(crate) struct SenderContext {
    pub(crate) shared: Arc<RunState>,
    pub(crate) tally: RefCell<Tally>,
    buffers: RefCell<Buffers>,
    /// CPU time of this thread at its first counted request.
    pub(crate) cpu_start: Cell<Option<CpuSample>>,
}

impl SenderContext {
    pub(crate) fn new(shared: Arc<RunState>) -> Self {
        let tally = Tally::new(shared.job.plan.timeline_interval);
        Self {
            shared,
            tally: RefCell::new(tally),
            buffers: RefCell::new(Buffers::new()),
            cpu_start: Cell::new(None),
        }
    }
}

/// A sender, with a connection slot for each address.
#[derive(Debug)]
pub(crate) struct RequestSender {
    slots: Vec<ConnectionSlot>,
    request: Vec<u8>,
}

impl RequestSender {
    pub(crate) fn new(plan: &Plan) -> Self {
        let slots = (0..=plan.other_addresses.len()).map(|_| ConnectionSlot::new(plan.timeout)).collect();
        Self { slots, request: Vec::new() }
    }

    /// Sends one request, reads the whole reply, and records the result.
    pub(crate) async fn send(&mut self, context: &SenderContext, scheduled: ScheduledRequest) {
        let job = &context.shared.job;
        let begun = Instant::now();
        if scheduled.measured && context.cpu_start.get().is_none() {
            context.cpu_start.set(Some(CpuSample::current_thread()));
        }
        let target = job.write_request(scheduled.number, &mut self.request);
        let (index, address) = job.destination(scheduled.number);
        let settings = RequestSettings {
            address,
            method: job.plan.method,
            timeout: job.plan.timeout,
            keep_alive: job.plan.reuse == Reuse::KeepAlive,
        };
        let slot = &mut self.slots[index];
        let exchanged = slot.exchange(&settings, &self.request, &context.buffers).await;
        let outcome =
            exchanged.map_err(|failed| failed.fault).and_then(|_| check_reply(slot, context, target));
        record(slot, context, scheduled, begun, exchanged.ok(), outcome);
        context.shared.count(outcome.is_ok());
        if outcome == Err(Fault::Connect) {
            tokio::time::sleep(CONNECT_FAILURE_DELAY).await;
        }
    }
}

/// Records the result of a request. `first_byte` is the time of the reply's first byte, if the reply is complete.
fn record(
    slot: &ConnectionSlot,
    context: &SenderContext,
    scheduled: ScheduledRequest,
    begun: Instant,
    first_byte: Option<Instant>,
    outcome: Result<(), Fault>,
) {
    let since_start = |at: Instant| at.saturating_duration_since(context.shared.start());
    let done = context.shared.now();
    let reader = &slot.reader;
    let mut tally = context.tally.borrow_mut();
    tally.connections.opened += slot.cost.opened;
    tally.connections.stale_retries += slot.cost.stale_retries;
    tally.record(&Sample {
        measured: scheduled.measured,
        while_busy: context.shared.while_busy(done),
        intended: scheduled.intended,
        sent: since_start(begun),
        first_byte: first_byte.map_or(done, since_start),
        done,
        outcome,
        status: if first_byte.is_some() { reader.status() } else { 0 },
        body_bytes: reader.body_bytes(),
        node: reader.cache().name(),
        hit: reader.cache().hit(),
        caches: reader.cache().members(),
        cache_malformed: reader.cache_malformed(),
    });
}

/// Classifies a reply, with the expected size of the plan's target number `target`.
fn check_reply(slot: &ConnectionSlot, context: &SenderContext, target: usize) -> Result<(), Fault> {
    let plan = &context.shared.job.plan;
    let expected = match &plan.expected_sizes {
        Some(sizes) if plan.method == Method::Get => Some(sizes[target]),
        _ => None,
    };
    classify_reply(slot, expected)
}

/// Classifies a complete reply. `expected` is the expected size, if known.
pub(crate) fn classify_reply(slot: &ConnectionSlot, expected: Option<u64>) -> Result<(), Fault> {
    match slot.reader.status() {
        400..=499 => Err(Fault::Status4xx),
        500.. => Err(Fault::Status5xx),
        200 if expected.is_some_and(|bytes| bytes != slot.reader.body_bytes()) => Err(Fault::WrongSize),
        _ => Ok(()),
    }
}
