//! Counts and histograms of pages, classes and connections of one user thread. Pure.

use std::time::Duration;

use larder_trace::synth::ServiceClass;

use crate::tally::LatencyHistogram;

/// A finished page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishedPage {
    pub(crate) class: ServiceClass,
    /// Whether it was due within the window.
    pub(crate) measured: bool,
    /// Whether it finished within the window.
    pub(crate) in_window: bool,
    pub(crate) due: Duration,
    pub(crate) started: Duration,
    pub(crate) done: Duration,
    pub(crate) ok: bool,
}

/// Pages or requests of one class.
#[derive(Debug)]
pub(crate) struct OutcomeStats {
    pub(crate) failed: u64,
    pub(crate) latency: LatencyHistogram,
}

impl OutcomeStats {
    fn new() -> Self {
        Self { failed: 0, latency: LatencyHistogram::new() }
    }

    /// Records a page or request.
    pub(crate) fn record(&mut self, ok: bool, latency: Duration) {
        if ok {
            self.latency.record(latency);
        } else {
            self.failed += 1;
        }
    }

    fn add(&mut self, other: &Self) {
        self.failed += other.failed;
        self.latency.add(&other.latency);
    }
}

/// All counts and histograms of a thread.
#[derive(Debug)]
pub(crate) struct PageStats {
    /// Counted pages.
    pub(crate) pages: OutcomeStats,
    /// Counted pages by the class of the base object, in the order of [`ServiceClass::ALL`].
    pub(crate) pages_by_class: [OutcomeStats; ServiceClass::COUNT],
    /// Delay of the pages' start after their due time.
    pub(crate) late: LatencyHistogram,
    /// Good pages that finished within the window.
    pub(crate) pages_in_window: u64,
    /// Counted requests by class.
    pub(crate) requests_by_class: [OutcomeStats; ServiceClass::COUNT],
    /// Connections opened within the window.
    pub(crate) connections_in_window: u64,
    /// Time to open these connections.
    pub(crate) connect: LatencyHistogram,
    /// Visits started, in the whole run.
    pub(crate) started: u64,
    /// Visits ended because a base object failed.
    pub(crate) abandoned: u64,
    /// Visits that waited because of the limit on users.
    pub(crate) waits: u64,
    /// Visits that were due but still waited when the run ended.
    pub(crate) missed: u64,
}

impl PageStats {
    pub(crate) fn new() -> Self {
        Self {
            pages: OutcomeStats::new(),
            pages_by_class: std::array::from_fn(|_| OutcomeStats::new()),
            late: LatencyHistogram::new(),
            pages_in_window: 0,
            requests_by_class: std::array::from_fn(|_| OutcomeStats::new()),
            connections_in_window: 0,
            connect: LatencyHistogram::new(),
            started: 0,
            abandoned: 0,
            waits: 0,
            missed: 0,
        }
    }

    /// Records a finished page.
    pub(crate) fn record_page(&mut self, page: &FinishedPage) {
        self.pages_in_window += u64::from(page.ok && page.in_window);
        if !page.measured {
            return;
        }
        let latency = page.done.saturating_sub(page.due);
        self.late.record(page.started.saturating_sub(page.due));
        self.pages.record(page.ok, latency);
        self.pages_by_class[page.class.index()].record(page.ok, latency);
    }

    /// Adds the statistics of another thread.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.pages.add(&other.pages);
        self.late.add(&other.late);
        for class in 0..ServiceClass::COUNT {
            self.pages_by_class[class].add(&other.pages_by_class[class]);
            self.requests_by_class[class].add(&other.requests_by_class[class]);
        }
        self.pages_in_window += other.pages_in_window;
        self.connections_in_window += other.connections_in_window;
        self.connect.add(&other.connect);
        self.started += other.started;
        self.abandoned += other.abandoned;
        self.waits += other.waits;
        self.missed += other.missed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_due_within_the_window_count_from_their_due_time() {
        let ms = Duration::from_millis;
        let page = FinishedPage {
            class: ServiceClass::Db,
            measured: true,
            in_window: true,
            due: ms(100),
            started: ms(130),
            done: ms(150),
            ok: true,
        };
        let mut page_stats = PageStats::new();
        page_stats.record_page(&page);
        page_stats.record_page(&FinishedPage { in_window: false, done: ms(300), ..page });
        page_stats.record_page(&FinishedPage { ok: false, ..page });
        page_stats.record_page(&FinishedPage { measured: false, ..page });
        let mut all = PageStats::new();
        all.merge(&page_stats);
        all.merge(&page_stats);
        assert_eq!((all.pages.latency.0.len(), all.pages.failed, all.pages_in_window), (4, 2, 4));
        assert_eq!(all.pages_by_class[ServiceClass::Db.index()].latency.0.len(), 4);
        assert_eq!(all.pages_by_class[ServiceClass::N.index()].latency.0.len(), 0);
        assert_eq!((all.pages.latency.0.min() + 500_000) / 1_000_000, 50);
        assert_eq!((all.pages.latency.0.max() + 500_000) / 1_000_000, 200);
        assert_eq!((all.late.0.max() + 500_000) / 1_000_000, 30);
    }
}
