//! The outcome of a simulated run.

use hdrhistogram::Histogram;
use larder_core::policy::Reason;
use serde::{Deserialize, Serialize};

/// Delays of requests or pages in seconds of simulated time, including the wait at the front-end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Delays {
    /// The number of measured delays.
    pub count: u64,
    /// The mean.
    pub mean_s: f64,
    /// The median. Percentiles are read from a histogram with 1 % resolution.
    pub p50_s: f64,
    /// The 90th percentile.
    pub p90_s: f64,
    /// The 99th percentile.
    pub p99_s: f64,
    /// The maximum.
    pub max_s: f64,
}

/// A histogram of delays, with their exact sum and maximum.
#[derive(Clone, Debug)]
pub struct DelayLog {
    histogram: Histogram<u64>,
    sum_ns: u128,
    count: u64,
    max_ns: u64,
}

/// The longest delay that the histogram distinguishes, in us: 10,000 s.
const LONGEST_US: u64 = 10_000_000_000;

impl DelayLog {
    /// Creates an empty log.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_US, 2)
            .unwrap_or_else(|error| unreachable!("the bounds are fixed and valid: {error}"));
        Self { histogram, sum_ns: 0, count: 0, max_ns: 0 }
    }

    /// Records a delay of `ns` nanoseconds.
    pub fn note(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.div_ceil(1_000).max(1));
        self.sum_ns += u128::from(ns);
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Removes all delays.
    pub fn clear(&mut self) {
        self.histogram.reset();
        (self.sum_ns, self.count, self.max_ns) = (0, 0, 0);
    }

    /// Returns the summary of the delays; zeros if there are none.
    pub fn delays(&self) -> Delays {
        let at = |q: f64| (self.histogram.value_at_quantile(q) as f64 / 1e6).min(self.max_ns as f64 / 1e9);
        if self.count == 0 {
            return Delays::default();
        }
        Delays {
            count: self.count,
            mean_s: self.sum_ns as f64 / self.count as f64 / 1e9,
            p50_s: at(0.5),
            p90_s: at(0.9),
            p99_s: at(0.99),
            max_s: self.max_ns as f64 / 1e9,
        }
    }

    /// Returns the share of the delays that are at most `seconds`, 0 to 1; 0 if there are none.
    pub fn share_within(&self, seconds: f64) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        self.histogram.count_between(0, (seconds * 1e6) as u64) as f64 / self.count as f64
    }
}

impl Default for DelayLog {
    fn default() -> Self {
        Self::new()
    }
}

/// The outcome of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeOutcome {
    /// Requests that the node served.
    pub requests: u64,
    /// Requests found in the node's memory.
    pub hits: u64,
    /// Utilisation of the processor, 0 to 1.
    pub cpu_busy: f64,
    /// Mean utilisation of the disks, 0 to 1.
    pub disk_busy: f64,
    /// Utilisation of the network interface, 0 to 1; 0 if the model has none.
    pub nic_busy: f64,
    /// Utilisation of the back-end server, 0 to 1; 0 if the model has none.
    pub back_busy: f64,
    /// Share of the time with fewer requests than [`Scenario::idle_below`](crate::Scenario::idle_below), 0 to
    /// 1.
    pub idle: f64,
}

/// The outcome of a run. All values but `requests_all` count after the warm-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests of the run, warm-up included.
    pub requests_all: u64,
    /// Requests served and measured.
    pub requests: u64,
    /// Requests that the dispatcher refused.
    pub refused: u64,
    /// Measured time in simulated seconds.
    pub seconds: f64,
    /// Requests served per simulated second by the whole cluster.
    pub throughput: f64,
    /// Requests that ended per simulated second, from the first measured arrival to the last arrival. A
    /// longer run tends to this value, because it excludes the drain of the cluster at the end. It equals
    /// `throughput` if fewer than half of the requests had ended by then.
    pub steady_throughput: f64,
    /// Requests whose item was in the memory of the node that served it.
    pub hits: u64,
    /// Requests that shared a read of another request; they count as misses.
    pub shared: u64,
    /// Requests served from another node's memory (global memory only).
    pub peer_hits: u64,
    /// `1 - (hits + peer_hits) / requests`: the miss ratio as the LARD paper defines it.
    pub miss_ratio: f64,
    /// Bytes sent to clients.
    pub bytes_sent: u64,
    /// Bytes read from disk or origin.
    pub bytes_read: u64,
    /// Delays of requests.
    pub delay: Delays,
    /// Spread of the nodes' mean delays in seconds: the slowest node less the fastest, as a mean over whole
    /// windows of 20 s. 0 if the run is shorter than one window.
    pub delay_apart_s: f64,
    /// Delays of pages, if the clients fetch pages.
    pub page_delay: Option<Delays>,
    /// Share of the time that a node is underutilised, as the mean over the nodes (LARD section 3.3).
    pub idle_share: f64,
    /// Share of the requests that another node served than the one the client had reached.
    pub forwarded_share: f64,
    /// Requests of the busiest node, relative to the mean.
    pub imbalance: f64,
    /// Utilisation of the front-end, 0 to 1; 0 if the model has none.
    pub front_busy: f64,
    /// The outcomes of the nodes, by slot.
    pub nodes: Vec<NodeOutcome>,
    /// Decisions by reason, without reasons that did not occur, in the order of [`Reason::ALL`].
    pub reasons: Vec<(String, u64)>,
}

/// Counts of decisions by reason.
#[derive(Clone, Debug)]
pub(crate) struct ReasonCounts([u64; Reason::ALL.len()]);

impl ReasonCounts {
    pub(crate) const fn new() -> Self {
        Self([0; Reason::ALL.len()])
    }

    pub(crate) fn note(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }

    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        let all = Reason::ALL.into_iter().map(|reason| (reason.name().to_owned(), self.0[reason as usize]));
        all.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_as_listed() {
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at, "{reason}");
        }
    }

    #[test]
    fn delays_are_exact_in_mean_and_within_a_percent_in_rank() {
        let mut log = DelayLog::new();
        (1..=1_000).for_each(|ms| log.note(ms * 1_000_000));
        let delays = log.delays();
        assert!((delays.mean_s - 0.5005).abs() < 1e-9 && delays.max_s == 1.0);
        assert!((delays.p90_s - 0.9).abs() < 0.01 && (delays.p50_s - 0.5).abs() < 0.006);
        assert!((log.share_within(0.25) - 0.25).abs() < 0.01);
    }
}
