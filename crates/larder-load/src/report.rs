//! The report of a run: figures, distributions, and warnings about their validity.
//!
//! The report serialises to JSON, whose schema is `report.schema.json` beside this crate's manifest, and deserialises from
//! it. [`Report::render`] formats it as text.

pub(crate) mod compare;
pub(crate) mod latency;
mod render;
pub(crate) mod warning;

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::client::cpu::CpuUsage;
use crate::fault::Fault;
use crate::plan::{Arrivals, Reuse};
use crate::run_state::RunState;
use crate::tally::Tally;
use crate::timeline::Row;
use latency::Latency;
use warning::Warning;

/// Name and version of the JSON. The number rises when a field changes its meaning or is removed.
pub const SCHEMA: &str = "larder-load/1";

/// The result of a run. Unless stated otherwise, figures cover the measured part, without the warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Settings of the run.
    pub setup: Setup,
    /// Requests finished in the whole run, warm-up included.
    pub finished: u64,
    /// Requests of the warm-up. They are counted only here, in `finished` and in the timeline.
    pub warmup: u64,
    /// Good replies: complete, status below 400, of the expected size.
    pub ok: u64,
    /// Failed requests.
    pub failed: u64,
    /// Failures by kind, without kinds that did not occur.
    pub faults: BTreeMap<Fault, u64>,
    /// Complete replies by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Seconds from the due time of the first counted request to the last byte of the last one.
    pub measured_s: f64,
    /// Good replies per second of `measured_s`.
    pub requests_per_s: f64,
    /// Good replies per second from the first counted request to the time when a client first found no request left. All
    /// replies that finished in this time are counted, also those to late warm-up requests. `None` if its length is zero.
    pub requests_per_s_busy: Option<f64>,
    /// Seconds at the end of `measured_s` in which some clients had no requests left.
    pub tail_s: f64,
    /// Body bytes of good replies.
    pub body_bytes: u64,
    /// Body bytes of good replies per second of `measured_s`.
    pub body_bytes_per_s: f64,
    /// Time from when a request was due to the last byte of its good reply.
    pub latency: Latency,
    /// Time from when a request was sent to the last byte of its good reply, as measured by a client with coordinated
    /// omission.
    pub service: Latency,
    /// Time from when a request was due to the first byte of its good reply.
    pub first_byte: Latency,
    /// Latency of hits of named caches.
    pub hit_latency: Latency,
    /// Latency of misses of named caches.
    pub miss_latency: Latency,
    /// Time from when a request was due to when it was sent, including failed requests.
    pub send_lag: Latency,
    /// Counts of connections in the whole run.
    pub connections: Connections,
    /// Results of caches, from `Cache-Status`.
    pub cache: Cache,
    /// Counts by node.
    pub nodes: Vec<Node>,
    /// Requests of the busiest node divided by the mean of all nodes; `None` without node names. 1 means balanced.
    pub imbalance_requests: Option<f64>,
    /// The same ratio for body bytes.
    pub imbalance_bytes: Option<f64>,
    /// The whole run over time.
    pub timeline: Timeline,
    /// CPU usage of the client threads.
    pub generator: Generator,
    /// Reasons to doubt the figures.
    pub warnings: Vec<Warning>,
}

/// Settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Setup {
    /// Load model: `closed`, `open-constant` or `open-trace`; for users `sessions-open`, `sessions-closed` or `dbench`.
    pub load_model: String,
    /// Addresses of the server, separated by spaces; requests went to them in turn.
    pub address: String,
    /// The `Host` header.
    pub host: String,
    /// Clients of a closed loop, or users of a closed load.
    pub clients: Option<u32>,
    /// Mean requests per second of an open loop's schedule.
    pub rate: Option<f64>,
    /// Factor on the times of a trace.
    pub speedup: Option<f64>,
    /// Maximum concurrent connections.
    pub connections_max: u32,
    /// Whether connections carried more than one request.
    pub keep_alive: bool,
    /// Client threads.
    pub threads: u32,
    /// Timeout of a request, in seconds.
    pub timeout_s: f64,
    /// Number of requests; `None` if the run was limited by time only.
    pub requests: Option<u64>,
    /// Time limit for sending requests, in seconds.
    pub duration_s: Option<f64>,
    /// Requests of the warm-up.
    pub warmup_requests: u64,
    /// Time of the warm-up, in seconds.
    pub warmup_s: f64,
    /// Number of distinct targets.
    pub targets: u64,
}

/// Counts of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Connections {
    /// Connections opened.
    pub opened: u64,
    /// Requests retried, once each, because the server closed the kept-alive connection before the first byte of a reply.
    pub stale_retries: u64,
    /// Open loop: requests that waited because all connections were busy.
    pub waits: u64,
}

/// Results of caches, from `Cache-Status` (RFC 9211); of several caches, the one closest to the origin counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cache {
    /// Good replies that were hits of a named cache.
    pub hits: u64,
    /// Good replies that were misses of a named cache.
    pub misses: u64,
    /// Good replies without a cache's name.
    pub unnamed: u64,
    /// Hits and misses whose reply passed another cache.
    #[serde(default)]
    pub passed_on: u64,
    /// Hits whose reply passed another cache.
    #[serde(default)]
    pub passed_on_hits: u64,
    /// Replies with a malformed `Cache-Status`.
    pub malformed: u64,
    /// Hits divided by hits plus misses; `None` without either.
    pub hit_ratio: Option<f64>,
    /// The hit ratio weighted by body bytes.
    pub byte_hit_ratio: Option<f64>,
}

/// Counts of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// The node's name in `Cache-Status`; invalid UTF-8 is replaced.
    pub name: String,
    /// Good replies.
    pub requests: u64,
    /// Hits among them.
    pub hits: u64,
    /// Body bytes of the good replies.
    pub bytes: u64,
}

/// Counts of the whole run by interval. A request counts in the interval in which it finished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timeline {
    /// Length of an interval, in seconds.
    pub interval_s: f64,
    /// Start of the measured part, in seconds from the start of the run; `None` if there is none.
    pub measured_from_s: Option<f64>,
    /// Time when a client first found no request left, in seconds from the start of the run.
    pub dry_from_s: Option<f64>,
    /// One row for each interval. `nodes` of a row are in the order of `Report::nodes`.
    pub rows: Vec<Row>,
}

/// CPU usage of the client threads in the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Generator {
    /// CPU time of the client threads for each finished request, in microseconds; 0 if none finished.
    pub cpu_us_per_request: f64,
    /// Share of time in which the busiest client thread ran.
    pub running_max: f64,
    /// Largest share of time in which a client thread was runnable but waited for a CPU; `None` if unknown.
    pub waiting_max: Option<f64>,
}

/// Facts about a run that are not in the tallies of its threads.
#[derive(Debug)]
pub(crate) struct RunSummary {
    pub(crate) setup: Setup,
    /// Due time of the first counted request, from the start of the run.
    pub(crate) measured_from: Option<Duration>,
    /// Time when a client first found no request left, from the start of the run.
    pub(crate) exhausted_at: Option<Duration>,
    pub(crate) nodes_expected: Option<u32>,
    /// Whether the run was ended early.
    pub(crate) stopped: bool,
}

impl RunSummary {
    pub(crate) fn new(shared: &RunState) -> Self {
        Self {
            setup: Setup::new(shared),
            measured_from: shared.measured_from(),
            exhausted_at: shared.exhausted_at(),
            nodes_expected: shared.job.plan.nodes_expected,
            stopped: shared.job.plan.stop.is_stopped(),
        }
    }
}

impl Report {
    pub(crate) fn new(summary: RunSummary, tally: &Tally, cpu_usage: &[CpuUsage]) -> Self {
        let from = summary.measured_from.unwrap_or_default();
        let exhausted = summary.exhausted_at.unwrap_or(tally.last_done);
        let measured = tally.last_done.saturating_sub(from);
        let busy = exhausted.min(tally.last_done).saturating_sub(from);
        let failed = tally.faults.iter().sum();
        let per_s = |count: u64| ratio(count as f64, measured.as_secs_f64()).unwrap_or(0.0);
        let nodes = node_rows(tally);
        let expected = summary.nodes_expected.unwrap_or(0);
        let mut report = Self {
            schema: SCHEMA.to_owned(),
            setup: summary.setup,
            finished: tally.finished,
            warmup: tally.warmup,
            ok: tally.ok,
            failed,
            faults: Fault::ALL.into_iter().zip(tally.faults).filter(|(_, count)| *count > 0).collect(),
            statuses: tally.statuses.clone(),
            measured_s: measured.as_secs_f64(),
            requests_per_s: per_s(tally.ok),
            requests_per_s_busy: ratio(tally.ok_while_busy as f64, busy.as_secs_f64()),
            tail_s: tally.last_done.saturating_sub(exhausted.max(from)).as_secs_f64(),
            body_bytes: tally.body_bytes,
            body_bytes_per_s: per_s(tally.body_bytes),
            latency: Latency::new(&tally.latency),
            service: Latency::new(&tally.service),
            first_byte: Latency::new(&tally.first_byte),
            hit_latency: Latency::new(&tally.hits),
            miss_latency: Latency::new(&tally.misses),
            send_lag: Latency::new(&tally.send_lag),
            connections: Connections {
                opened: tally.connections.opened,
                stale_retries: tally.connections.stale_retries,
                waits: tally.connections.waits,
            },
            cache: Cache::new(tally),
            imbalance_requests: imbalance(nodes.iter().map(|node| node.requests), expected),
            imbalance_bytes: imbalance(nodes.iter().map(|node| node.bytes), expected),
            nodes,
            timeline: Timeline {
                interval_s: tally.timeline.interval().as_secs_f64(),
                measured_from_s: summary.measured_from.map(|from| from.as_secs_f64()),
                dry_from_s: summary.exhausted_at.map(|at| at.as_secs_f64()),
                rows: tally.timeline.rows().to_vec(),
            },
            generator: Generator::new(cpu_usage, tally.ok + failed),
            warnings: Vec::new(),
        };
        report.warnings = warning::check(&report, summary.stopped);
        report
    }
}

impl Setup {
    fn new(shared: &RunState) -> Self {
        let plan = &shared.job.plan;
        let (clients, speedup) = match plan.arrivals {
            Arrivals::Closed { clients } => (Some(clients), None),
            Arrivals::OpenConstant { .. } => (None, None),
            Arrivals::OpenTrace { speedup, .. } => (None, Some(speedup)),
        };
        Self {
            load_model: plan.arrivals.name().to_owned(),
            address: plan
                .other_addresses
                .iter()
                .fold(plan.address.to_string(), |all, one| format!("{all} {one}")),
            host: plan.host.clone(),
            clients,
            rate: shared.job.pacer.as_ref().map(crate::pacer::Pacer::mean_rate),
            speedup,
            connections_max: plan.connections(),
            keep_alive: plan.reuse == Reuse::KeepAlive,
            threads: plan.threads,
            timeout_s: plan.timeout.as_secs_f64(),
            requests: shared.job.total,
            duration_s: plan.duration.map(|duration| duration.as_secs_f64()),
            warmup_requests: plan.warmup_requests,
            warmup_s: plan.warmup_time.as_secs_f64(),
            targets: plan.targets.len() as u64,
        }
    }
}

impl Cache {
    fn new(tally: &Tally) -> Self {
        let rows = tally.nodes.rows();
        let hits: u64 = rows.iter().map(|(_, row)| row.hits).sum();
        let named: u64 = rows.iter().map(|(_, row)| row.requests).sum();
        Self {
            hits,
            misses: named - hits,
            unnamed: tally.ok - named,
            passed_on: tally.passed_on,
            passed_on_hits: tally.passed_on_hits,
            malformed: tally.cache_malformed,
            hit_ratio: ratio(hits as f64, named as f64),
            byte_hit_ratio: ratio(tally.hit_bytes as f64, tally.known_bytes as f64),
        }
    }
}

impl Generator {
    fn new(cpu_usage: &[CpuUsage], requests: u64) -> Self {
        let running: Duration = cpu_usage.iter().map(|cpu_usage| cpu_usage.running).sum();
        let share = |part: Duration, cpu_usage: &CpuUsage| {
            ratio(part.as_secs_f64(), cpu_usage.wall.as_secs_f64()).unwrap_or(0.0)
        };
        Self {
            cpu_us_per_request: ratio(running.as_secs_f64() * 1e6, requests as f64).unwrap_or(0.0),
            running_max: cpu_usage
                .iter()
                .map(|cpu_usage| share(cpu_usage.running, cpu_usage))
                .fold(0.0, f64::max),
            waiting_max: cpu_usage
                .iter()
                .filter_map(|cpu_usage| cpu_usage.waiting.map(|waiting| share(waiting, cpu_usage)))
                .reduce(f64::max),
        }
    }
}

fn node_rows(tally: &Tally) -> Vec<Node> {
    let rows = tally.nodes.rows().iter();
    rows.map(|(name, row)| Node {
        name: String::from_utf8_lossy(name).into_owned(),
        requests: row.requests,
        hits: row.hits,
        bytes: row.bytes,
    })
    .collect()
}

/// The largest value divided by the mean of at least `expected` values (missing ones are 0).
fn imbalance(values: impl ExactSizeIterator<Item = u64> + Clone, expected: u32) -> Option<f64> {
    let count = values.len().max(expected as usize);
    let sum: u64 = values.clone().sum();
    ratio(values.max()? as f64 * count as f64, sum as f64)
}

/// `part / whole`; `None` if `whole` is not positive.
fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imbalance_is_the_largest_value_over_the_mean() {
        assert_eq!(imbalance([10u64, 10].into_iter(), 0), Some(1.0));
        assert_eq!(imbalance([30u64, 10].into_iter(), 0), Some(1.5));
        // A node that never replied halves the mean.
        assert_eq!(imbalance([10u64].into_iter(), 2), Some(2.0));
        assert_eq!(imbalance([].into_iter(), 2), None);
        assert_eq!(imbalance([0u64].into_iter(), 1), None);
    }
}
