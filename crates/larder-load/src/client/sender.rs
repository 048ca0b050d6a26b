//! One sender: takes a request, sends it over its connection, judges the reply, takes notes.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::{Broken, Buffers, Connection};
use super::deadline::Deadline;
use super::usage::Usage;
use crate::fault::Fault;
use crate::plan::{Method, Reuse};
use crate::shared::{Claim, Shared};
use crate::tally::{Sample, Tally};
use crate::wire::reply::ReplyReader;

/// How long a sender rests when it could not connect: a dead server must not be asked in a busy loop.
const CONNECT_REST: Duration = Duration::from_millis(10);

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

/// A sender and its connection, which it keeps between requests.
#[derive(Debug)]
pub(crate) struct Sender {
    connection: Option<Connection>,
    reader: ReplyReader,
    request: Vec<u8>,
    deadline: Deadline,
}

impl Sender {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            connection: None,
            reader: ReplyReader::new(),
            request: Vec::new(),
            deadline: Deadline::after(timeout),
        }
    }

    /// Sends one request, reads its reply to the end, and records what came of it.
    pub(crate) async fn perform(&mut self, bench: &Bench, claim: Claim) {
        let job = &bench.shared.job;
        let begun = Instant::now();
        if claim.measured && bench.usage_from.get().is_none() {
            bench.usage_from.set(Some(Usage::of_this_thread()));
        }
        let target = job.write_request(claim.number, &mut self.request);
        self.deadline.restart(begun, job.plan.timeout);
        let exchanged = self.exchange(bench).await;
        if exchanged.is_err() || job.plan.reuse == Reuse::PerRequest || !self.reader.keep_alive() {
            self.connection = None;
        }
        let outcome = exchanged.map_err(|broken| broken.fault).and_then(|_| self.judge(bench, target));
        let since_start = |at: Instant| at.saturating_duration_since(bench.shared.start());
        let done = bench.shared.now();
        let replied = exchanged.is_ok();
        bench.tally.borrow_mut().record(&Sample {
            measured: claim.measured,
            while_busy: bench.shared.while_busy(done),
            intended: claim.intended,
            sent: since_start(begun),
            first_byte: exchanged.map_or(done, since_start),
            done,
            outcome,
            status: if replied { self.reader.status() } else { 0 },
            body_bytes: self.reader.body_bytes(),
            node: self.reader.cache().name(),
            hit: self.reader.cache().hit(),
            cache_malformed: self.reader.cache_malformed(),
        });
        bench.shared.count(outcome.is_ok());
        if outcome == Err(Fault::Connect) {
            tokio::time::sleep(CONNECT_REST).await;
        }
    }

    /// The exchange, once more on a new connection if the kept one turns out to have been closed meanwhile.
    async fn exchange(&mut self, bench: &Bench) -> Result<Instant, Broken> {
        let kept = self.connection.is_some();
        match self.exchange_once(bench).await {
            Err(broken) if kept && broken.may_be_stale => {
                bench.tally.borrow_mut().connections.stale_retries += 1;
                self.connection = None;
                self.exchange_once(bench).await
            }
            result => result,
        }
    }

    async fn exchange_once(&mut self, bench: &Bench) -> Result<Instant, Broken> {
        let plan = &bench.shared.job.plan;
        self.reader.begin(plan.method == Method::Head);
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let opened = Connection::open(plan.address, &mut self.deadline).await?;
                bench.tally.borrow_mut().connections.opened += 1;
                none.insert(opened)
            }
        };
        connection.exchange(&self.request, &mut self.reader, &bench.buffers, &mut self.deadline).await
    }

    fn judge(&self, bench: &Bench, target: usize) -> Result<(), Fault> {
        let plan = &bench.shared.job.plan;
        match self.reader.status() {
            400..=499 => Err(Fault::Status4xx),
            500.. => Err(Fault::Status5xx),
            200 if plan.method == Method::Get => match &plan.expected_sizes {
                Some(sizes) if sizes[target] != self.reader.body_bytes() => Err(Fault::WrongSize),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
