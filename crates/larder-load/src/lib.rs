//! An HTTP load generator: pacing, latency without coordinated omission, and checks of a run's validity. It is independent of
//! the server under test.
//!
//! A [`Plan`] states the requests, their schedule and the run's length; [`run()`] executes it and returns a [`Report`]. A
//! [`Script`] describes users who fetch pages and pause; [`users::run`] simulates users who arrive over time or a fixed number
//! of users, [`users::sweep()`] repeats the run for several numbers of users, and [`dbench::run`] measures how many users a
//! cluster can serve.
//!
//! * **Closed loop**: N clients, each with one request outstanding. It measures the maximum throughput.
//! * **Open loop**: requests are due by a schedule ([`Pacer`]), at a constant rate or at the times of a trace. Latency counts
//!   from the time a request was *due*. If the server stalls, the delay of the requests due meanwhile is part of their
//!   latency (no coordinated omission; Gil Tene, wrk2).
//!
//! # What counts
//! Requests are numbered in the order of the plan. The first ones, up to the warm-up's number, are sent but not counted. The
//! measured part begins when the first counted request is due and ends with the last byte of the last reply.
//! [`Report::requests_per_s`] is the number of good replies in that part divided by its length. At the end, clients run out
//! of requests one after another, and the load falls. [`Report::requests_per_s_busy`] excludes that tail: it counts the
//! replies up to the moment when the first client found no request. If the two rates differ by much, the run was too short,
//! and a [`Warning`] says so.
//!
//! A failed request has exactly one [`Fault`] and is excluded from all latencies. If the server closes a kept-alive
//! connection before the first byte of a reply, the request has not failed: it is retried once on a new connection and
//! counted in [`Connections::stale_retries`].
//!
//! # Implementation
//! Each client thread has its own single-threaded runtime. Clients do not migrate between threads and take no locks, and the
//! thread's CPU time can be measured even if the server runs in the same process. HTTP/1.1 is implemented directly on the
//! socket with `httparse`: a small reply takes one write, one poll and one read.

mod client;
pub mod dbench;
mod fault;
mod file_limit;
mod pacer;
mod plan;
mod replay;
mod report;
mod run;
mod run_state;
mod script;
mod tally;
pub mod target;
mod timeline;
pub mod users;
pub mod wire;

pub use dbench::{DbenchPlan, DbenchReport};
pub use fault::Fault;
pub use file_limit::FileLimitError;
pub use pacer::{Pacer, PacerError, RATE_MAX, RATE_MIN, RUN_MAX, SPEEDUP_MAX};
pub use plan::{
    Arrivals, CONNECTIONS_MAX, HEADERS_BYTES_MAX, Method, OTHER_ADDRESSES_MAX, Plan, PlanError, Reuse,
    StopHandle, TARGET_BYTES_MAX, THREADS_MAX, TIMEOUT_MAX,
};
pub use replay::Replay;
pub use report::compare::{Change, Comparison};
pub use report::latency::{Latency, QuantilePoint};
pub use report::warning::Warning;
pub use report::{Cache, Connections, Generator, Node, Report, SCHEMA, Setup, Timeline};
pub use run::{LoadError, Progress, run};
pub use script::extract::{ExtractionCounts, PROFILES_MAX, ProfileExtraction};
pub use script::prefixes::PathPrefixes;
pub use script::{ManifestScope, Page, Resource, Script, ScriptError, Visit};
pub use tally::NODES_MAX;
pub use timeline::{ROWS_MAX, Row};
pub use users::report::{CdfPoint, ClassRow, Pages, USERS_SCHEMA, UsersReport, UsersSetup, UsersWarning};
pub use users::settings::{ConnectionLifetime, PARALLEL_MAX, TIME_SCALE_MAX, UserSettings};
pub use users::{USERS_MAX, UserPlan, UserProgress, Users};
