//! When not to believe a report.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Report;

/// Fewer good replies than this leave the 99th percentile to ten of them.
const SAMPLES_MIN: u64 = 1_000;
/// A shorter measured part says more about its ends than about the server.
const MEASURED_S_MIN: f64 = 1.0;
/// Requests sent later than this, at the 99th percentile, make the clients part of what is measured.
const LAG_P99_US_MAX: f64 = 2_000.0;
/// Share of time a client thread may run or want to.
const BUSY_MAX: f64 = 0.9;
/// Share of the measured part in which clients may lack work.
const TAIL_MAX: f64 = 0.1;
/// Share of the rate asked for that must be answered.
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
    /// Too few good replies for the tail of the distribution.
    TooFewSamples {
        /// Good replies.
        samples: u64,
        /// How many it takes.
        needed: u64,
    },
    /// The measured part was short.
    ShortRun {
        /// Its length, seconds.
        measured_s: f64,
        /// How long it must be.
        needed_s: f64,
    },
    /// Requests failed; the latencies leave them out.
    Failures {
        /// How many.
        failed: u64,
        /// Of how many.
        of: u64,
    },
    /// Requests left later than they were due (open loop).
    LateSends {
        /// 99th percentile of the lateness, microseconds.
        lag_us_p99: f64,
        /// What is tolerated.
        limit_us: f64,
    },
    /// All connections were busy when requests were due (open loop).
    OutOfConnections {
        /// How often.
        waits: u64,
        /// The limit on connections.
        connections_max: u32,
    },
    /// The answers came slower than the rate asked for: latencies grow with the length of the run.
    RateNotReached {
        /// Requests per second asked for.
        asked: f64,
        /// Good replies per second while requests were due.
        reached: f64,
    },
    /// A client thread ran, or wanted to, nearly all the time: the clients were the bottleneck.
    SaturatedClient {
        /// Share of time it ran.
        running: f64,
        /// Share of time it waited for a processor.
        waiting: f64,
    },
    /// For much of the measured part, clients had run out of requests.
    LongTail {
        /// That time, seconds.
        tail_s: f64,
        /// The measured part, seconds.
        measured_s: f64,
    },
    /// Some replies named a cache and some did not, or not in a way that can be read.
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
                write!(f, "nothing was measured: the warm-up took all {warmup} requests")
            }
            Self::TooFewSamples { samples, needed } => {
                write!(f, "only {samples} good replies: percentiles need {needed}")
            }
            Self::ShortRun { measured_s, needed_s } => {
                write!(f, "the measured part lasted {measured_s:.3} s, less than {needed_s} s")
            }
            Self::Failures { failed, of } => {
                write!(f, "{failed} of {of} requests failed, and no latency below includes them")
            }
            Self::LateSends { lag_us_p99, limit_us } => write!(
                f,
                "requests left late, {:.1} ms at the 99th percentile (limit {:.1} ms): the clients are part of what was measured",
                lag_us_p99 / 1e3,
                limit_us / 1e3
            ),
            Self::OutOfConnections { waits, connections_max } => {
                write!(f, "{waits} requests were due while all {connections_max} connections were busy")
            }
            Self::RateNotReached { asked, reached } => write!(
                f,
                "{asked:.1} requests/s were due and {reached:.1} were answered: not a steady state, latencies grow with the run"
            ),
            Self::SaturatedClient { running, waiting } => write!(
                f,
                "a client thread ran {:.0} % and waited for a processor {:.0} % of the time: the clients are the bottleneck",
                running * 100.0,
                waiting * 100.0
            ),
            Self::LongTail { tail_s, measured_s } => {
                write!(f, "clients were without work for {tail_s:.2} s of {measured_s:.2} s")
            }
            Self::UnnamedReplies { unnamed, of } => {
                write!(f, "{unnamed} of {of} good replies did not say which cache answered")
            }
            Self::Interrupted => write!(f, "the run was stopped early"),
        }
    }
}

/// Every reason to doubt `report`.
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
        // A trace's rate changes over its length; only a constant one can be held against a mean.
        let constant = report.setup.speedup.is_none();
        warn(constant && reached < asked * RATE_MIN, Warning::RateNotReached { asked, reached });
    }
    let (running, waiting) = (report.generator.running_max, report.generator.waiting_max.unwrap_or(0.0));
    warn(running + waiting > BUSY_MAX, Warning::SaturatedClient { running, waiting });
    warnings
}
