//! The facts about the log, which need no simulation.

use larder_core::Time;
use larder_trace::stats::Coverage;

use super::result::LogFacts;
use crate::workload::Workload;

/// The shares of the requests at which the coverage is stated, in thousandths.
const GRID_PERMILLE: [u16; 14] = [100, 200, 300, 400, 500, 600, 700, 800, 900, 950, 970, 980, 990, 1_000];

/// Computes the facts about a log. O(items * log items + requests).
pub(super) fn compute_facts(workload: &Workload, counts: &[u32], warmup: usize) -> LogFacts {
    let requests = workload.requests.len();
    let measured = (requests - warmup).max(1);
    let mut seen = vec![false; workload.items.len()];
    let first =
        |(at, item): (usize, &u32)| !core::mem::replace(&mut seen[*item as usize], true) && at >= warmup;
    let cold = workload.requests.iter().enumerate().map(first).filter(|cold| *cold).count();
    let asked: f64 = workload.requests.iter().map(|item| workload.items[*item as usize].bytes as f64).sum();
    let coverage = compute_coverage(workload, counts);
    let span_s = workload
        .times
        .first()
        .zip(workload.times.last())
        .map(|(first, last)| seconds(*last) - seconds(*first));
    let span_s = span_s.filter(|span| *span > 0.0);
    LogFacts {
        requests: requests as u64,
        warmup_requests: warmup as u64,
        targets: counts.iter().filter(|count| **count > 0).count() as u64,
        working_set_bytes: workload.bytes(),
        request_bytes_mean: asked / requests.max(1) as f64,
        hottest_share: f64::from(counts.iter().copied().max().unwrap_or(0)) / requests.max(1) as f64,
        cold_share: cold as f64 / measured as f64,
        core98_bytes: coverage.iter().find(|p| p.requests_permille == 980).and_then(|p| p.bytes).unwrap_or(0),
        seconds: span_s,
        rate_mean: span_s.map(|span| requests as f64 / span),
        rate_peak: span_s.map(|_| find_peak_rate(&workload.times)),
        coverage,
    }
}

fn seconds(time: Time) -> f64 {
    time.as_nanos() as f64 / 1e9
}

/// Returns the request rate of the busiest minute that begins with a request, in requests per second.
fn find_peak_rate(times: &[Time]) -> f64 {
    let mut most = 0;
    let mut begin = 0;
    for (at, time) in times.iter().enumerate() {
        while time.as_nanos() - times[begin].as_nanos() >= 60_000_000_000 {
            begin += 1;
        }
        most = most.max(at + 1 - begin);
    }
    most as f64 / 60.0
}

fn compute_coverage(workload: &Workload, counts: &[u32]) -> Vec<Coverage> {
    let mut order: Vec<u32> = (0..counts.len() as u32).filter(|item| counts[*item as usize] > 0).collect();
    order.sort_unstable_by_key(|item| (core::cmp::Reverse(counts[*item as usize]), *item));
    let (requests, bytes) = (workload.requests.len() as u64, workload.bytes());
    let moved: f64 = order.iter().map(|item| weight(workload, counts, *item)).sum();
    let mut points = Vec::new();
    let mut grid = GRID_PERMILLE.into_iter().peekable();
    let (mut taken, mut held, mut sent) = (0_u64, 0_u64, 0.0);
    for (rank, item) in (1_u64..).zip(&order) {
        taken += u64::from(counts[*item as usize]);
        held += workload.items[*item as usize].bytes;
        sent += weight(workload, counts, *item);
        while let Some(permille) = grid.next_if(|permille| taken * 1_000 >= requests * u64::from(*permille)) {
            points.push(Coverage {
                requests_permille: permille,
                targets: rank,
                targets_share: rank as f64 / order.len() as f64,
                bytes: Some(held),
                working_set_share: Some(held as f64 / bytes.max(1) as f64),
                transferred_share: Some(sent / moved.max(1.0)),
            });
        }
    }
    points
}

fn weight(workload: &Workload, counts: &[u32], item: u32) -> f64 {
    f64::from(counts[item as usize]) * workload.items[item as usize].bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Item;
    use larder_core::TargetId;

    #[test]
    fn facts_of_a_log_by_hand() {
        // Item 0 is requested three times, item 1 twice, item 2 once. The first two requests are the warm-up.
        let requests = vec![0, 1, 0, 1, 2, 0];
        let items =
            [100, 10, 1_000].into_iter().zip(1..).map(|(b, id)| Item::file(TargetId(id), b)).collect();
        let times = [0, 30, 59, 60, 61, 200].map(Time::from_secs).to_vec();
        let workload = Workload { items, requests, times };
        let facts = compute_facts(&workload, &workload.counts(), 2);
        assert_eq!((facts.requests, facts.targets, facts.working_set_bytes), (6, 3, 1_110));
        assert_eq!((facts.hottest_share, facts.cold_share), (0.5, 0.25));
        // 98 % of six requests are all six; half of them are for item 0.
        assert_eq!(facts.core98_bytes, 1_110);
        assert_eq!(
            facts.coverage.iter().find(|p| p.requests_permille == 500).and_then(|p| p.bytes),
            Some(100)
        );
        // Three requests lie between 0 s and 60 s, four between 30 s and 90 s.
        assert_eq!(facts.rate_peak, Some(4.0 / 60.0));
        assert_eq!(facts.rate_mean, Some(6.0 / 200.0));
    }
}
