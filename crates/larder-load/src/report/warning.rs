//! Warnings about the validity of a report.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Report;

/// Minimum good replies. With this number, ten replies lie above the 99th percentile.
const SAMPLES_MIN: u64 = 1_000;
/// Minimum length of the measured part, in seconds. In shorter ones, start and end dominate.
const MEASURED_S_MIN: f64 = 1.0;
/// Maximum send delay at the 99th percentile. Above it, the clients' own delay distorts the latencies.
const LAG_P99_US_MAX: f64 = 2_000.0;
/// Maximum share of time in which a client thread runs or waits for a CPU.
const BUSY_MAX: f64 = 0.9;
/// Maximum share of the measured part in which some clients have no requests.
const TAIL_MAX: f64 = 0.1;
/// Minimum share of the scheduled rate that must be reached.
const RATE_MIN: f64 = 0.95;

/// A reason to doubt the figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Warning {
    /// The warm-up took all requests.
    NothingMeasured {
        /// Requests sent, all of them warm-up.
        warmup: u64,
    },
    /// There are too few good replies for the tail of the distribution.
    TooFewSamples {
        /// Good replies.
        samples: u64,
        /// Number needed.
        needed: u64,
    },
    /// The measured part was short.
    ShortRun {
        /// Length, in seconds.
        measured_s: f64,
        /// Length needed, in seconds.
        needed_s: f64,
    },
    /// Requests failed; latencies do not include them.
    Failures {
        /// Failed requests.
        failed: u64,
        /// All requests.
        of: u64,
    },
    /// Requests were sent later than they were due (open loop).
    LateSends {
        /// 99th percentile of the send delay, in microseconds.
        lag_us_p99: f64,
        /// Limit, in microseconds.
        limit_us: f64,
    },
    /// All connections were busy when requests were due (open loop).
    OutOfConnections {
        /// Number of requests that waited.
        waits: u64,
        /// The limit on connections.
        connections_max: u32,
    },
    /// The replies did not keep up with the scheduled rate, so latencies grow with the length of the run.
    RateNotReached {
        /// Scheduled requests per second.
        asked: f64,
        /// Good replies per second while requests were due.
        reached: f64,
    },
    /// A client thread ran or waited for a CPU nearly all the time, so the clients were the bottleneck.
    SaturatedClient {
        /// Share of time in which it ran.
        running: f64,
        /// Share of time in which it waited for a CPU.
        waiting: f64,
    },
    /// Some clients had no requests for a large share of the measured part.
    LongTail {
        /// Length of that time, in seconds.
        tail_s: f64,
        /// Length of the measured part, in seconds.
        measured_s: f64,
    },
    /// Some replies named a cache, and others did not or had a malformed `Cache-Status`.
    UnnamedReplies {
        /// Good replies without a name.
        unnamed: u64,
        /// Good replies.
        of: u64,
    },
    /// The run was stopped early.
    Interrupted,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingMeasured { warmup } => {
                write!(f, "nothing was measured: the warm-up used all {warmup} requests")
            }
            Self::TooFewSamples { samples, needed } => {
                write!(f, "only {samples} valid replies: percentiles need {needed}")
            }
            Self::ShortRun { measured_s, needed_s } => {
                write!(f, "the measured part lasted {measured_s:.3} s, less than {needed_s} s")
            }
            Self::Failures { failed, of } => {
                write!(f, "{failed} of {of} requests failed: the latencies below do not include them")
            }
            Self::LateSends { lag_us_p99, limit_us } => write!(
                f,
                "requests were sent late, {:.1} ms at the 99th percentile (limit {:.1} ms): the clients are part of the measurement",
                lag_us_p99 / 1e3,
                limit_us / 1e3
            ),
            Self::OutOfConnections { waits, connections_max } => {
                write!(f, "{waits} requests were due while all {connections_max} connections were busy")
            }
            Self::RateNotReached { asked, reached } => write!(
                f,
                "{asked:.1} requests/s were due and {reached:.1} were answered: no steady state, so latencies grow with the run"
            ),
            Self::SaturatedClient { running, waiting } => write!(
                f,
                "a client thread ran {:.0} % of the time and waited for a processor {:.0} %: the clients are the bottleneck",
                running * 100.0,
                waiting * 100.0
            ),
            Self::LongTail { tail_s, measured_s } => {
                write!(f, "clients were idle for {tail_s:.2} s of {measured_s:.2} s")
            }
            Self::UnnamedReplies { unnamed, of } => {
                write!(f, "{unnamed} of {of} valid replies do not name the cache that answered")
            }
            Self::Interrupted => write!(f, "the run was stopped early"),
        }
    }
}

/// Returns all warnings that apply to `report`.
pub(super) fn check(report: &Report, stopped: bool) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |applies: bool, warning: Warning| {
        if applies {
            warnings.push(warning);
        }
    };
    let measured = report.ok + report.failed;
    warn(stopped, Warning::Interrupted);
    if measured == 0 {
        warn(true, Warning::NothingMeasured { warmup: report.warmup });
        return warnings;
    }
    warn(report.failed > 0, Warning::Failures { failed: report.failed, of: measured });
    warn(report.ok < SAMPLES_MIN, Warning::TooFewSamples { samples: report.ok, needed: SAMPLES_MIN });
    let measured_s = report.measured_s;
    warn(measured_s < MEASURED_S_MIN, Warning::ShortRun { measured_s, needed_s: MEASURED_S_MIN });
    let tail_s = report.tail_s;
    warn(tail_s > measured_s * TAIL_MAX, Warning::LongTail { tail_s, measured_s });
    let unnamed = report.cache.unnamed;
    warn(unnamed > 0 && unnamed < report.ok, Warning::UnnamedReplies { unnamed, of: report.ok });
    if report.setup.clients.is_none() {
        let (waits, connections_max) = (report.connections.waits, report.setup.connections_max);
        warn(waits > 0, Warning::OutOfConnections { waits, connections_max });
        let lag_us_p99 = report.send_lag.p99_us;
        warn(lag_us_p99 > LAG_P99_US_MAX, Warning::LateSends { lag_us_p99, limit_us: LAG_P99_US_MAX });
        let asked = report.setup.rate.unwrap_or(0.0);
        let reached = report.requests_per_s_busy.unwrap_or(asked);
        // The rate of a trace varies, so only a constant rate can be compared with the mean.
        let constant = report.setup.speedup.is_none();
        warn(constant && reached < asked * RATE_MIN, Warning::RateNotReached { asked, reached });
    }
    let (running, waiting) = (report.generator.running_max, report.generator.waiting_max.unwrap_or(0.0));
    warn(running + waiting > BUSY_MAX, Warning::SaturatedClient { running, waiting });
    warnings
}
