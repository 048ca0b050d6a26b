//! A user's browser: fetches a base page, then what it embeds, over a few connections.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::bench::{Bench, Ended};
use super::seen::PageEnd;
use super::stage::Keep;
use crate::client::line::Line;
use crate::client::sender::{CONNECT_REST, judge};
use crate::client::usage::Usage;
use crate::fault::Fault;
use crate::script::Page;
use crate::tally::Sample;

/// A line and the memory of its request.
#[derive(Debug)]
struct Tab {
    line: Line,
    request: Vec<u8>,
}

/// A browser. Its lines are made when they are first needed.
#[derive(Debug, Default)]
pub(crate) struct Browser {
    tabs: Vec<Tab>,
}

/// What came of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    /// When it ended, from the start of the run.
    pub(crate) done: Duration,
    /// What came of the base page.
    pub(crate) base: Result<(), Fault>,
}

impl Browser {
    /// Fetches a page that was due at `due`, and takes notes.
    pub(crate) async fn page(&mut self, bench: &Bench, page: &Page, due: Duration) -> Fetched {
        let (job, board) = (&bench.job, &bench.board);
        let objects = job.script.objects(page);
        let measured = board.in_window(due);
        if measured && bench.usage_from.get().is_none() {
            bench.usage_from.set(Some(Usage::of_this_thread()));
        }
        let begun = board.now();
        self.reach(1, job.way.timeout);
        let base = self.tabs[0].fetch(bench, objects[0], Some(due), measured).await;
        let mut failed = base.is_err();
        if base.is_ok() && objects.len() > 1 {
            failed = !self.embedded(bench, &objects[1..], measured).await;
        }
        if job.keep == Keep::Page {
            self.close();
        }
        let done = board.now();
        let class = job.script.offers()[objects[0] as usize].class;
        let in_window = board.in_window(done);
        let end = PageEnd { class, measured, in_window, due, begun, done, ok: !failed };
        bench.seen.borrow_mut().page(&end);
        if base == Err(Fault::Connect) {
            tokio::time::sleep(CONNECT_REST).await;
        }
        Fetched { done, base }
    }

    /// Closes all connections.
    pub(crate) fn close(&mut self) {
        for tab in &mut self.tabs {
            tab.line.close();
        }
    }

    fn reach(&mut self, tabs: usize, timeout: Duration) {
        while self.tabs.len() < tabs {
            self.tabs.push(Tab { line: Line::new(timeout), request: Vec::new() });
        }
    }

    /// Fetches what a page embeds; whether all of it came.
    async fn embedded(&mut self, bench: &Bench, objects: &[u32], measured: bool) -> bool {
        let job = &bench.job;
        let tabs = job.parallel.min(objects.len());
        self.reach(tabs, job.way.timeout);
        let rest = Rest { bench, objects, measured, next: Cell::new(0), whole: Cell::new(true) };
        let mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::with_capacity(tabs);
        for tab in &mut self.tabs[..tabs] {
            tasks.push(Box::pin(rest.fetch(tab)));
        }
        all(tasks).await;
        rest.whole.get()
    }
}

/// What is left to fetch of a page, by all tabs.
struct Rest<'b> {
    bench: &'b Bench,
    objects: &'b [u32],
    measured: bool,
    next: Cell<usize>,
    whole: Cell<bool>,
}

impl Rest<'_> {
    /// Takes one object after another until none is left.
    async fn fetch(&self, tab: &mut Tab) {
        while let Some(object) = self.objects.get(self.next.get()) {
            self.next.set(self.next.get() + 1);
            let stopped = self.bench.job.stop.stopped();
            if stopped || tab.fetch(self.bench, *object, None, self.measured).await.is_err() {
                self.whole.set(false);
            }
        }
    }
}

/// Waits for all of a few tasks, each polled whenever one of them can go on.
async fn all(mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    poll_fn(|cx| {
        tasks.retain_mut(|task| task.as_mut().poll(cx).is_pending());
        if tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Tab {
    /// Fetches one object. It was due at `due`, or now.
    async fn fetch(
        &mut self,
        bench: &Bench,
        object: u32,
        due: Option<Duration>,
        measured: bool,
    ) -> Result<(), Fault> {
        let (job, board) = (&bench.job, &bench.board);
        let offer = &job.script.offers()[object as usize];
        self.request.clear();
        self.request.extend_from_slice(b"GET ");
        self.request.extend_from_slice(offer.path.as_bytes());
        self.request.extend_from_slice(&job.tail);
        let sent = board.now();
        let exchanged = self.line.exchange(&job.way, &self.request, &bench.buffers).await;
        let expected = (job.check_sizes && !offer.made).then_some(offer.bytes);
        let outcome = exchanged.map_err(|broken| broken.fault).and_then(|_| judge(&self.line, expected));
        let done = board.now();
        let first_byte = exchanged.map_or(done, |at: Instant| at.saturating_duration_since(board.start()));
        let intended = due.unwrap_or(sent);
        let (reader, effort) = (&self.line.reader, self.line.effort);
        let in_window = board.in_window(done);
        let mut tally = bench.tally.borrow_mut();
        tally.connections.opened += effort.opened;
        tally.connections.stale_retries += effort.stale;
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
        let mut seen = bench.seen.borrow_mut();
        if measured {
            seen.requests_of[offer.class.index()].note(outcome.is_ok(), done.saturating_sub(intended));
        }
        if in_window {
            seen.connections_in_window += effort.opened;
            if let Some(connect) = effort.connect {
                seen.connect.record(connect);
            }
        }
        drop(seen);
        board.count(outcome.is_ok());
        if let Some(watch) = &bench.watch {
            watch.ended(&Ended {
                at: done,
                outcome,
                latency: done.saturating_sub(intended),
                first_byte: first_byte.saturating_sub(sent),
                connect: effort.connect,
                body_bytes: reader.body_bytes(),
            });
        }
        outcome
    }
}
