//! What one thread of users has seen beside its requests: pages, classes, connections. Pure.

use std::time::Duration;

use larder_trace::synth::ServiceClass;

use crate::tally::Latencies;

/// A finished page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageEnd {
    pub(crate) class: ServiceClass,
    /// Whether it was due within the window.
    pub(crate) measured: bool,
    /// Whether it ended within the window.
    pub(crate) in_window: bool,
    pub(crate) due: Duration,
    pub(crate) begun: Duration,
    pub(crate) done: Duration,
    pub(crate) ok: bool,
}

/// Pages or requests of one class.
#[derive(Debug)]
pub(crate) struct ClassSeen {
    pub(crate) failed: u64,
    pub(crate) latency: Latencies,
}

impl ClassSeen {
    fn new() -> Self {
        Self { failed: 0, latency: Latencies::new() }
    }

    pub(crate) fn note(&mut self, ok: bool, latency: Duration) {
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

/// Everything.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Of pages that count.
    pub(crate) pages: ClassSeen,
    /// By the class of the base, in the order of [`ServiceClass::ALL`].
    pub(crate) pages_of: [ClassSeen; ServiceClass::COUNT],
    /// How long after it was due a page began.
    pub(crate) late: Latencies,
    /// Good pages that ended within the window.
    pub(crate) pages_in_window: u64,
    /// Of requests that count, by class.
    pub(crate) requests_of: [ClassSeen; ServiceClass::COUNT],
    /// Connections made within the window.
    pub(crate) connections_in_window: u64,
    /// How long they took to make.
    pub(crate) connect: Latencies,
    /// Visits begun, in the whole run.
    pub(crate) begun: u64,
    /// Visits given up because a base page failed.
    pub(crate) abandoned: u64,
    /// Visits that found too many users there and waited.
    pub(crate) waits: u64,
    /// Visits that were due and waited until the end of the run.
    pub(crate) missed: u64,
}

impl Seen {
    pub(crate) fn new() -> Self {
        Self {
            pages: ClassSeen::new(),
            pages_of: std::array::from_fn(|_| ClassSeen::new()),
            late: Latencies::new(),
            pages_in_window: 0,
            requests_of: std::array::from_fn(|_| ClassSeen::new()),
            connections_in_window: 0,
            connect: Latencies::new(),
            begun: 0,
            abandoned: 0,
            waits: 0,
            missed: 0,
        }
    }

    /// Takes a finished page in.
    pub(crate) fn page(&mut self, page: &PageEnd) {
        self.pages_in_window += u64::from(page.ok && page.in_window);
        if !page.measured {
            return;
        }
        let latency = page.done.saturating_sub(page.due);
        self.late.record(page.begun.saturating_sub(page.due));
        self.pages.note(page.ok, latency);
        self.pages_of[page.class.index()].note(page.ok, latency);
    }

    /// Adds what another thread has seen.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.pages.add(&other.pages);
        self.late.add(&other.late);
        for class in 0..ServiceClass::COUNT {
            self.pages_of[class].add(&other.pages_of[class]);
            self.requests_of[class].add(&other.requests_of[class]);
        }
        self.pages_in_window += other.pages_in_window;
        self.connections_in_window += other.connections_in_window;
        self.connect.add(&other.connect);
        self.begun += other.begun;
        self.abandoned += other.abandoned;
        self.waits += other.waits;
        self.missed += other.missed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_count_from_when_they_were_due_if_that_was_within_the_window() {
        let ms = Duration::from_millis;
        let page = PageEnd {
            class: ServiceClass::Db,
            measured: true,
            in_window: true,
            due: ms(100),
            begun: ms(130),
            done: ms(150),
            ok: true,
        };
        let mut seen = Seen::new();
        seen.page(&page);
        seen.page(&PageEnd { in_window: false, done: ms(300), ..page });
        seen.page(&PageEnd { ok: false, ..page });
        seen.page(&PageEnd { measured: false, ..page });
        let mut all = Seen::new();
        all.merge(&seen);
        all.merge(&seen);
        assert_eq!((all.pages.latency.0.len(), all.pages.failed, all.pages_in_window), (4, 2, 4));
        assert_eq!(all.pages_of[ServiceClass::Db.index()].latency.0.len(), 4);
        assert_eq!(all.pages_of[ServiceClass::N.index()].latency.0.len(), 0);
        assert_eq!((all.pages.latency.0.min() + 500_000) / 1_000_000, 50);
        assert_eq!((all.pages.latency.0.max() + 500_000) / 1_000_000, 200);
        assert_eq!((all.late.0.max() + 500_000) / 1_000_000, 30);
    }
}
