//! What a run found: figures, their distribution, and whether they can be trusted.
//!
//! The report is data first: it serialises to the JSON whose schema is in `report.schema.json` beside this crate's
//! manifest, and reads back from it. [`Report::render`] makes the table for people.

pub(crate) mod compare;
pub(crate) mod latency;
mod render;
pub(crate) mod warning;

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::client::usage::Spent;
use crate::fault::Fault;
use crate::plan::{Arrivals, Reuse};
use crate::shared::Shared;
use crate::tally::Tally;
use crate::timeline::Row;
use latency::Latency;
use warning::Warning;

/// Name and version of the JSON. The number rises when a field changes its meaning or goes.
pub const SCHEMA: &str = "larder-load/1";

/// The result of one run. Unless said otherwise, figures are of the measured part, the warm-up left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// What was asked for.
    pub setup: Setup,
    /// Requests finished in the whole run, warm-up included.
    pub finished: u64,
    /// Requests of the warm-up, which count nowhere but here, in `finished` and in the timeline.
    pub warmup: u64,
    /// Good replies: complete, status below 400, of the expected size.
    pub ok: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Failures by kind; kinds that did not occur are left out.
    pub faults: BTreeMap<Fault, u64>,
    /// Complete replies by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Seconds from when the first counted request was due to the last byte of the last one.
    pub measured_s: f64,
    /// Good replies per second of `measured_s`.
    pub requests_per_s: f64,
    /// Good replies per second between the first counted request and the moment a client found none left to send.
    /// Counts all replies that ended in this time, those to late warm-up requests too. `None` if it had no length.
    pub requests_per_s_busy: Option<f64>,
    /// Seconds at the end of `measured_s` in which not all clients had work.
    pub tail_s: f64,
    /// Body bytes of good replies.
    pub body_bytes: u64,
    /// Body bytes of good replies per second of `measured_s`.
    pub body_bytes_per_s: f64,
    /// From when a request was due to the last byte of its good reply.
    pub latency: Latency,
    /// The same from when it was in fact sent: what a client that forgives its own lateness would show.
    pub service: Latency,
    /// From when a request was due to the first byte of its good reply.
    pub first_byte: Latency,
    /// Latency of the replies that a named cache gave from what it held.
    pub hit_latency: Latency,
    /// Latency of the other replies of named caches.
    pub miss_latency: Latency,
    /// How long after it was due a request was sent, failed ones included.
    pub send_lag: Latency,
    /// How connections were used, in the whole run.
    pub connections: Connections,
    /// What `Cache-Status` said.
    pub cache: Cache,
    /// Per node, by name.
    pub nodes: Vec<Node>,
    /// Requests of the busiest node over the mean of all nodes; `None` without names. 1 is even.
    pub imbalance_requests: Option<f64>,
    /// The same of body bytes.
    pub imbalance_bytes: Option<f64>,
    /// The whole run over time.
    pub timeline: Timeline,
    /// What the clients themselves used.
    pub generator: Generator,
    /// Reasons to doubt the figures.
    pub warnings: Vec<Warning>,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Setup {
    /// Load model: `closed`, `open-constant` or `open-trace`; of users, `sessions-open`, `sessions-closed` or `dbench`.
    pub load_model: String,
    /// Where the requests went; several addresses, which took turns, are separated by spaces.
    pub address: String,
    /// The `Host` header.
    pub host: String,
    /// Clients of a closed loop, users of a closed load.
    pub clients: Option<u32>,
    /// Requests per second asked for by the schedule of an open loop, on average.
    pub rate: Option<f64>,
    /// Factor on the times of a trace.
    pub speedup: Option<f64>,
    /// Most connections at a time.
    pub connections_max: u32,
    /// Whether connections carried more than one request.
    pub keep_alive: bool,
    /// Threads of clients.
    pub threads: u32,
    /// Limit for one request, seconds.
    pub timeout_s: f64,
    /// Requests asked for; `None` if only time limited the run.
    pub requests: Option<u64>,
    /// Limit on the sending time, seconds.
    pub duration_s: Option<f64>,
    /// Requests of the warm-up asked for.
    pub warmup_requests: u64,
    /// Time of the warm-up asked for, seconds.
    pub warmup_s: f64,
    /// Distinct targets that could be asked for.
    pub targets: u64,
}

/// How connections were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Connections {
    /// Connections made.
    pub opened: u64,
    /// Requests sent again, once, because the server had closed the kept-alive connection before any byte of a reply.
    pub stale_retries: u64,
    /// Open loop: requests that found all connections busy.
    pub waits: u64,
}

/// What `Cache-Status` (RFC 9211) said; of several caches, the one closest to the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cache {
    /// Good replies a named cache gave from what it held.
    pub hits: u64,
    /// Other good replies of named caches.
    pub misses: u64,
    /// Good replies without a cache's name.
    pub unnamed: u64,
    /// Of the hits and misses, replies that a further cache passed on.
    #[serde(default)]
    pub passed_on: u64,
    /// Hits among those.
    #[serde(default)]
    pub passed_on_hits: u64,
    /// Replies whose `Cache-Status` breaks its grammar.
    pub malformed: u64,
    /// Hits over hits and misses; `None` without either.
    pub hit_ratio: Option<f64>,
    /// The same, weighted by body bytes.
    pub byte_hit_ratio: Option<f64>,
}

/// What one node answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Its name in `Cache-Status`; bytes that are no UTF-8 are replaced.
    pub name: String,
    /// Good replies.
    pub requests: u64,
    /// Hits among them.
    pub hits: u64,
    /// Their body bytes.
    pub bytes: u64,
}

/// The whole run in equal intervals from its start, by the time a request ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timeline {
    /// Length of a row, seconds.
    pub interval_s: f64,
    /// When the measured part began, seconds from the start; `None` if it never did.
    pub measured_from_s: Option<f64>,
    /// When the first client found no request left, seconds from the start.
    pub dry_from_s: Option<f64>,
    /// One row per interval; `nodes` of a row are in the order of `Report::nodes`.
    pub rows: Vec<Row>,
}

/// What the clients themselves used of the machine in the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Generator {
    /// Processor time of the client threads per finished request, microseconds; 0 if none finished.
    pub cpu_us_per_request: f64,
    /// Share of time the busiest client thread ran.
    pub running_max: f64,
    /// Share of time the worst-off client thread was ready to run but had no processor; `None` if unknown.
    pub waiting_max: Option<f64>,
}

/// What a report says of a run beside what its clients have seen.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) setup: Setup,
    /// When the first counted request was due, from the start of the run.
    pub(crate) measured_from: Option<Duration>,
    /// When a client first found nothing left to send.
    pub(crate) dry_from: Option<Duration>,
    pub(crate) nodes_expected: Option<u32>,
    /// Whether the run was ended early.
    pub(crate) stopped: bool,
}

impl Frame {
    pub(crate) fn of(shared: &Shared) -> Self {
        Self {
            setup: Setup::new(shared),
            measured_from: shared.measured_from(),
            dry_from: shared.dry_from(),
            nodes_expected: shared.job.plan.nodes_expected,
            stopped: shared.job.plan.stop.stopped(),
        }
    }
}

impl Report {
    pub(crate) fn new(frame: Frame, tally: &Tally, spent: &[Spent]) -> Self {
        let from = frame.measured_from.unwrap_or_default();
        let dry = frame.dry_from.unwrap_or(tally.last_done);
        let measured = tally.last_done.saturating_sub(from);
        let busy = dry.min(tally.last_done).saturating_sub(from);
        let failed = tally.faults.iter().sum();
        let per_s = |count: u64| ratio(count as f64, measured.as_secs_f64()).unwrap_or(0.0);
        let nodes = nodes_of(tally);
        let expected = frame.nodes_expected.unwrap_or(0);
        let mut report = Self {
            schema: SCHEMA.to_owned(),
            setup: frame.setup,
            finished: tally.finished,
            warmup: tally.warmup,
            ok: tally.ok,
            failed,
            faults: Fault::ALL.into_iter().zip(tally.faults).filter(|(_, count)| *count > 0).collect(),
            statuses: tally.statuses.clone(),
            measured_s: measured.as_secs_f64(),
            requests_per_s: per_s(tally.ok),
            requests_per_s_busy: ratio(tally.ok_while_busy as f64, busy.as_secs_f64()),
            tail_s: tally.last_done.saturating_sub(dry.max(from)).as_secs_f64(),
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
                measured_from_s: frame.measured_from.map(|from| from.as_secs_f64()),
                dry_from_s: frame.dry_from.map(|dry| dry.as_secs_f64()),
                rows: tally.timeline.rows().to_vec(),
            },
            generator: Generator::new(spent, tally.ok + failed),
            warnings: Vec::new(),
        };
        report.warnings = warning::check(&report, frame.stopped);
        report
    }
}

impl Setup {
    fn new(shared: &Shared) -> Self {
        let plan = &shared.job.plan;
        let (clients, speedup) = match plan.arrivals {
            Arrivals::Closed { clients } => (Some(clients), None),
            Arrivals::OpenConstant { .. } => (None, None),
            Arrivals::OpenTrace { speedup, .. } => (None, Some(speedup)),
        };
        Self {
            load_model: plan.arrivals.name().to_owned(),
            address: plan.others.iter().fold(plan.address.to_string(), |all, one| format!("{all} {one}")),
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
    fn new(spent: &[Spent], requests: u64) -> Self {
        let running: Duration = spent.iter().map(|spent| spent.running).sum();
        let share = |part: Duration, spent: &Spent| {
            ratio(part.as_secs_f64(), spent.wall.as_secs_f64()).unwrap_or(0.0)
        };
        Self {
            cpu_us_per_request: ratio(running.as_secs_f64() * 1e6, requests as f64).unwrap_or(0.0),
            running_max: spent.iter().map(|spent| share(spent.running, spent)).fold(0.0, f64::max),
            waiting_max: spent
                .iter()
                .filter_map(|spent| spent.waiting.map(|waiting| share(waiting, spent)))
                .reduce(f64::max),
        }
    }
}

fn nodes_of(tally: &Tally) -> Vec<Node> {
    let rows = tally.nodes.rows().iter();
    rows.map(|(name, row)| Node {
        name: String::from_utf8_lossy(name).into_owned(),
        requests: row.requests,
        hits: row.hits,
        bytes: row.bytes,
    })
    .collect()
}

/// The largest over the mean, of at least `expected` values (missing ones are 0).
fn imbalance(values: impl ExactSizeIterator<Item = u64> + Clone, expected: u32) -> Option<f64> {
    let count = values.len().max(expected as usize);
    let sum: u64 = values.clone().sum();
    ratio(values.max()? as f64 * count as f64, sum as f64)
}

/// `part / whole`; `None` where that is no number.
fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imbalance_is_the_largest_over_the_mean() {
        assert_eq!(imbalance([10u64, 10].into_iter(), 0), Some(1.0));
        assert_eq!(imbalance([30u64, 10].into_iter(), 0), Some(1.5));
        // A node that never answered halves the mean.
        assert_eq!(imbalance([10u64].into_iter(), 2), Some(2.0));
        assert_eq!(imbalance([].into_iter(), 2), None);
        assert_eq!(imbalance([0u64].into_iter(), 1), None);
    }
}
