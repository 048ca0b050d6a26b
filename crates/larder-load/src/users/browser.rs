//! A user's browser: fetches a base object, then the embedded objects, over a few connections.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::context::{FinishedRequest, UserContext};
use super::page_stats::FinishedPage;
use super::settings::ConnectionLifetime;
use crate::client::cpu::CpuSample;
use crate::client::sender::{CONNECT_FAILURE_DELAY, classify_reply};
use crate::client::slot::ConnectionSlot;
use crate::fault::Fault;
use crate::script::Page;
use crate::tally::Sample;

/// A connection slot and its request buffer.
#[derive(Debug)]
struct Fetcher {
    slot: ConnectionSlot,
    request: Vec<u8>,
}

/// A browser. Its connection slots are created on demand.
#[derive(Debug, Default)]
pub(crate) struct Browser {
    fetchers: Vec<Fetcher>,
}

/// The result of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageResult {
    /// Time when the page finished, from the start of the run.
    pub(crate) done: Duration,
    /// The result of the base object.
    pub(crate) base: Result<(), Fault>,
}

impl Browser {
    /// Fetches a page that was due at `due` and records the result.
    pub(crate) async fn fetch_page(
        &mut self,
        context: &UserContext,
        page: &Page,
        due: Duration,
    ) -> PageResult {
        let (job, state) = (&context.job, &context.state);
        let objects = job.script.objects(page);
        let measured = state.in_window(due);
        if measured && context.cpu_start.get().is_none() {
            context.cpu_start.set(Some(CpuSample::current_thread()));
        }
        let started = state.now();
        self.add_fetchers(1, job.request.timeout);
        let base = self.fetchers[0].fetch(context, objects[0], Some(due), measured).await;
        let mut failed = base.is_err();
        if base.is_ok() && objects.len() > 1 {
            failed = !self.fetch_embedded(context, &objects[1..], measured).await;
        }
        if job.keep == ConnectionLifetime::Page {
            self.close();
        }
        let done = state.now();
        let class = job.script.resources()[objects[0] as usize].class;
        let in_window = state.in_window(done);
        let end = FinishedPage { class, measured, in_window, due, started, done, ok: !failed };
        context.page_stats.borrow_mut().record_page(&end);
        if base == Err(Fault::Connect) {
            tokio::time::sleep(CONNECT_FAILURE_DELAY).await;
        }
        PageResult { done, base }
    }

    /// Closes all connections.
    pub(crate) fn close(&mut self) {
        for fetcher in &mut self.fetchers {
            fetcher.slot.close();
        }
    }

    /// Adds fetchers until there are `count`.
    fn add_fetchers(&mut self, count: usize, timeout: Duration) {
        while self.fetchers.len() < count {
            self.fetchers.push(Fetcher { slot: ConnectionSlot::new(timeout), request: Vec::new() });
        }
    }

    /// Fetches the embedded objects of a page. Returns whether all succeeded.
    async fn fetch_embedded(&mut self, context: &UserContext, objects: &[u32], measured: bool) -> bool {
        let job = &context.job;
        let fetchers = job.parallel.min(objects.len());
        self.add_fetchers(fetchers, job.request.timeout);
        let embedded =
            EmbeddedObjects { context, objects, measured, next: Cell::new(0), all_ok: Cell::new(true) };
        let mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::with_capacity(fetchers);
        for fetcher in &mut self.fetchers[..fetchers] {
            tasks.push(Box::pin(embedded.fetch(fetcher)));
        }
        join_all(tasks).await;
        embedded.all_ok.get()
    }
}

/// The embedded objects of a page, which all fetchers take from.
struct EmbeddedObjects<'b> {
    context: &'b UserContext,
    objects: &'b [u32],
    measured: bool,
    next: Cell<usize>,
    all_ok: Cell<bool>,
}

impl EmbeddedObjects<'_> {
    /// Fetches one object after another until none is left.
    async fn fetch(&self, fetcher: &mut Fetcher) {
        while let Some(object) = self.objects.get(self.next.get()) {
            self.next.set(self.next.get() + 1);
            let stopped = self.context.job.stop.is_stopped();
            if stopped || fetcher.fetch(self.context, *object, None, self.measured).await.is_err() {
                self.all_ok.set(false);
            }
        }
    }
}

/// Waits for all of a few tasks. Polls all of them whenever one makes progress.
async fn join_all(mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    poll_fn(|cx| {
        tasks.retain_mut(|task| task.as_mut().poll(cx).is_pending());
        if tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Fetcher {
    /// Fetches one object that was due at `due`, or now if `None`.
    async fn fetch(
        &mut self,
        context: &UserContext,
        object: u32,
        due: Option<Duration>,
        measured: bool,
    ) -> Result<(), Fault> {
        let (job, state) = (&context.job, &context.state);
        let resource = &job.script.resources()[object as usize];
        self.request.clear();
        self.request.extend_from_slice(b"GET ");
        self.request.extend_from_slice(resource.path.as_bytes());
        self.request.extend_from_slice(&job.tail);
        let sent = state.now();
        let exchanged = self.slot.exchange(&job.request, &self.request, &context.buffers).await;
        let expected = (job.check_sizes && !resource.dynamic).then_some(resource.bytes);
        let outcome =
            exchanged.map_err(|failed| failed.fault).and_then(|_| classify_reply(&self.slot, expected));
        let done = state.now();
        let first_byte = exchanged.map_or(done, |at: Instant| at.saturating_duration_since(state.start()));
        let intended = due.unwrap_or(sent);
        let (reader, cost) = (&self.slot.reader, self.slot.cost);
        let in_window = state.in_window(done);
        let mut tally = context.tally.borrow_mut();
        tally.connections.opened += cost.opened;
        tally.connections.stale_retries += cost.stale_retries;
        tally.record(&Sample {
            measured,
            while_busy: in_window,
            intended,
            sent,
            first_byte,
            done,
            outcome,
            status: if exchanged.is_ok() { reader.status() } else { 0 },
            body_bytes: reader.body_bytes(),
            node: reader.cache().name(),
            hit: reader.cache().hit(),
            caches: reader.cache().members(),
            cache_malformed: reader.cache_malformed(),
        });
        drop(tally);
        let mut page_stats = context.page_stats.borrow_mut();
        if measured {
            page_stats.requests_by_class[resource.class.index()]
                .record(outcome.is_ok(), done.saturating_sub(intended));
        }
        if in_window {
            page_stats.connections_in_window += cost.opened;
            if let Some(connect) = cost.connect {
                page_stats.connect.record(connect);
            }
        }
        drop(page_stats);
        state.count(outcome.is_ok());
        if let Some(observer) = &context.observer {
            observer.request_finished(&FinishedRequest {
                at: done,
                outcome,
                latency: done.saturating_sub(intended),
                first_byte: first_byte.saturating_sub(sent),
                connect: cost.connect,
                body_bytes: reader.body_bytes(),
            });
        }
        outcome
    }
}
