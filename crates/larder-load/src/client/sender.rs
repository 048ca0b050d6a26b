//! One sender: takes a request, sends it over its connection, judges the reply, takes notes.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::Buffers;
use super::line::{Line, Way};
use super::usage::Usage;
use crate::fault::Fault;
use crate::plan::{Method, Plan, Reuse};
use crate::shared::{Claim, Shared};
use crate::tally::{Sample, Tally};

/// How long a sender rests when it could not connect: a dead server must not be asked in a busy loop.
pub(crate) const CONNECT_REST: Duration = Duration::from_millis(10);

/// What the senders of one thread share.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tally: RefCell<Tally>,
    buffers: RefCell<Buffers>,
    /// What this thread had used when it took up its first counted request.
    pub(crate) usage_from: Cell<Option<Usage>>,
}

impl Bench {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let tally = Tally::new(shared.job.plan.timeline_interval);
        Self {
            shared,
            tally: RefCell::new(tally),
            buffers: RefCell::new(Buffers::new()),
            usage_from: Cell::new(None),
        }
    }
}

/// A sender and its lines, one to each address, which it keeps between requests.
#[derive(Debug)]
pub(crate) struct Sender {
    lines: Vec<Line>,
    request: Vec<u8>,
}

impl Sender {
    pub(crate) fn new(plan: &Plan) -> Self {
        let lines = (0..=plan.others.len()).map(|_| Line::new(plan.timeout)).collect();
        Self { lines, request: Vec::new() }
    }

    /// Sends one request, reads its reply to the end, and records what came of it.
    pub(crate) async fn perform(&mut self, bench: &Bench, claim: Claim) {
        let job = &bench.shared.job;
        let begun = Instant::now();
        if claim.measured && bench.usage_from.get().is_none() {
            bench.usage_from.set(Some(Usage::of_this_thread()));
        }
        let target = job.write_request(claim.number, &mut self.request);
        let (place, address) = job.destination(claim.number);
        let way = Way {
            address,
            method: job.plan.method,
            timeout: job.plan.timeout,
            keep: job.plan.reuse == Reuse::KeepAlive,
        };
        let line = &mut self.lines[place];
        let exchanged = line.exchange(&way, &self.request, &bench.buffers).await;
        let outcome = exchanged.map_err(|broken| broken.fault).and_then(|_| expect(line, bench, target));
        note(line, bench, claim, begun, exchanged.ok(), outcome);
        bench.shared.count(outcome.is_ok());
        if outcome == Err(Fault::Connect) {
            tokio::time::sleep(CONNECT_REST).await;
        }
    }
}

/// Records what came of a request. `first_byte`: when the reply began, if all of it came.
fn note(
    line: &Line,
    bench: &Bench,
    claim: Claim,
    begun: Instant,
    first_byte: Option<Instant>,
    outcome: Result<(), Fault>,
) {
    let since_start = |at: Instant| at.saturating_duration_since(bench.shared.start());
    let done = bench.shared.now();
    let reader = &line.reader;
    let mut tally = bench.tally.borrow_mut();
    tally.connections.opened += line.effort.opened;
    tally.connections.stale_retries += line.effort.stale;
    tally.record(&Sample {
        measured: claim.measured,
        while_busy: bench.shared.while_busy(done),
        intended: claim.intended,
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

/// What a reply for the plan's target of that number is worth.
fn expect(line: &Line, bench: &Bench, target: usize) -> Result<(), Fault> {
    let plan = &bench.shared.job.plan;
    let expected = match &plan.expected_sizes {
        Some(sizes) if plan.method == Method::Get => Some(sizes[target]),
        _ => None,
    };
    judge(line, expected)
}

/// What a complete reply is worth; `expected` is its size, if it is to have one.
pub(crate) fn judge(line: &Line, expected: Option<u64>) -> Result<(), Fault> {
    match line.reader.status() {
        400..=499 => Err(Fault::Status4xx),
        500.. => Err(Fault::Status5xx),
        200 if expected.is_some_and(|bytes| bytes != line.reader.body_bytes()) => Err(Fault::WrongSize),
        _ => Ok(()),
    }
}
