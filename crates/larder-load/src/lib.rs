//! Clients: pacing, honest latency, validity of a run. They know nothing of what they measure.
//!
//! A [`Plan`] says what to ask for, when, and how long; [`run()`] does it and returns a [`Report`]. A [`Script`] says what
//! users do who fetch pages and think; [`users::run`] has them come at random or keeps a fixed number of them there,
//! [`users::sweep()`] tries several numbers, and [`dbench::run`] finds out how many a cluster carries.
//!
//! * **Closed loop**: N clients, each with one request outstanding. Gives the highest throughput.
//! * **Open loop**: requests are due by a schedule ([`Pacer`]), at a constant rate or at a trace's own times, and are
//!   timed from the moment they were *due*: a server that stalls delays what should have been sent meanwhile, and
//!   that delay counts (no coordinated omission; Gil Tene, wrk2).
//!
//! # What counts
//! Requests are numbered in the order of the plan. Those below the warm-up's number are sent and do not count. The
//! measured part begins when the first counted request is due and ends with the last byte of the last one;
//! [`Report::requests_per_s`] is the good replies of that part over that time. Towards the end, clients run out of
//! requests one by one and the load sinks: [`Report::requests_per_s_busy`] leaves that tail out and counts what was
//! completed between the first counted request and the moment the first client found nothing left. Where the two
//! differ by much the run was too short, and a [`Warning`] says so.
//!
//! A request fails with one [`Fault`]; failed requests are in no latency figure. A request on a kept-alive connection
//! that the server closed before any byte of the reply is no failure: it is sent once more on a new connection, and
//! counted in [`Connections::stale_retries`].
//!
//! # How
//! Each thread of clients has its own single-threaded runtime: clients neither migrate nor lock, and the thread's
//! processor time is theirs alone even if the server under test runs in the same process. HTTP/1.1 is spoken directly
//! on the socket with `httparse` for the heads: one write, one wait and one read per small reply.

mod client;
pub mod dbench;
mod fault;
mod limits;
mod pacer;
mod plan;
mod replay;
mod report;
mod run;
mod script;
mod shared;
mod tally;
pub mod target;
mod timeline;
pub mod users;
pub mod wire;

pub use dbench::{DbenchPlan, DbenchReport};
pub use fault::Fault;
pub use limits::TooFewFiles;
pub use pacer::{Pacer, PacerError, RATE_MAX, RATE_MIN, SPEEDUP_MAX};
pub use plan::{
    Arrivals, CONNECTIONS_MAX, HEADERS_BYTES_MAX, Method, OTHERS_MAX, Plan, PlanError, Reuse, Stop,
    TARGET_BYTES_MAX, THREADS_MAX, TIMEOUT_MAX,
};
pub use replay::Replay;
pub use report::compare::{Change, Comparison};
pub use report::latency::{Latency, QuantilePoint};
pub use report::warning::Warning;
pub use report::{Cache, Connections, Generator, Node, Report, SCHEMA, Setup, Timeline};
pub use run::{LoadError, Progress, RUN_MAX, run};
pub use script::extract::{Extract, Extracted, PROFILES_MAX};
pub use script::paths::Paths;
pub use script::{Listed, Offer, Page, Script, ScriptError, Visit};
pub use tally::NODES_MAX;
pub use timeline::{ROWS_MAX, Row};
pub use users::report::{CdfPoint, ClassRow, Pages, USERS_SCHEMA, UsersReport, UsersSetup, UsersWarning};
pub use users::stage::{Keep, PARALLEL_MAX, Stage, TIME_SCALE_MAX};
pub use users::{USERS_MAX, UserPlan, UserProgress, Users};
