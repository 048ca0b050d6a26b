//! Where a script is acted out, and how pages are fetched there.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::client::line::Way;
use crate::limits::make_room;
use crate::plan::{CONNECTIONS_MAX, Method, PlanError, Stop, THREADS_MAX, TIMEOUT_MAX, request_tail};
use crate::run::LoadError;
use crate::script::Script;

/// Most connections of one user at a time.
pub const PARALLEL_MAX: u32 = 64;
/// Largest factor on pauses.
pub const TIME_SCALE_MAX: f64 = 1_000.0;

/// For how long a user keeps a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// For one request, as HTTP/1.0: `Connection: close` is sent.
    Request,
    /// For one page, as a server that gives up idle connections soon makes it.
    #[default]
    Page,
    /// For the whole visit, pauses included.
    Visit,
}

impl Keep {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::Request, Self::Page, Self::Visit];

    /// Its name in files and arguments.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Page => "page",
            Self::Visit => "visit",
        }
    }
}

impl std::str::FromStr for Keep {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|keep| keep.name() == name);
        found.ok_or_else(|| "connections are kept for a request, a page or a visit".to_owned())
    }
}

/// Where a script is acted out, and how.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Where to connect to.
    pub address: SocketAddr,
    /// The `Host` header.
    pub host: String,
    /// Further request headers.
    pub headers: Vec<(String, String)>,
    /// Most connections of one user at a time, 1..=[`PARALLEL_MAX`]. Default 2 (RFC 2616 section 8.1.4).
    pub parallel: u32,
    /// For how long a user keeps a connection.
    pub keep: Keep,
    /// Limit for one request, connecting included; above 0, up to an hour. Default 30 s.
    pub timeout: Duration,
    /// Factor on the script's pauses, 0 to [`TIME_SCALE_MAX`]. Default 1. Times at which open users begin stay.
    pub time_scale: f64,
    /// Threads that drive the users, 1 to 256. Default 1.
    pub threads: u32,
    /// Whether a document of another size than the script's is a fault. Default true.
    pub check_sizes: bool,
    /// How many nodes are expected to answer; see [`crate::Plan::nodes_expected`].
    pub nodes_expected: Option<u32>,
    /// Length of a row of the timeline, at least 1 ms; doubles when the run outgrows it. Default 1 s.
    pub timeline_interval: Duration,
    /// Ends the run early.
    pub stop: Stop,
}

impl Stage {
    /// The defaults at a server.
    pub fn new(address: SocketAddr, host: &str) -> Self {
        Self {
            address,
            host: host.to_owned(),
            headers: Vec::new(),
            parallel: 2,
            keep: Keep::default(),
            timeout: Duration::from_secs(30),
            time_scale: 1.0,
            threads: 1,
            check_sizes: true,
            nodes_expected: None,
            timeline_interval: Duration::from_secs(1),
            stop: Stop::default(),
        }
    }

    /// Checks everything for at most `users` users at a time, and makes room for their connections.
    pub(crate) fn job(&self, script: &Script, users: u32) -> Result<Job, LoadError> {
        let limit = |what, value: u64, max: u64| {
            if (1..=max).contains(&value) { Ok(()) } else { Err(PlanError::Limit { what, value, max }) }
        };
        limit("connections of a user", u64::from(self.parallel), u64::from(PARALLEL_MAX))?;
        limit("threads", u64::from(self.threads), u64::from(THREADS_MAX))?;
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        limit("timeout in microseconds", micros(self.timeout), micros(TIMEOUT_MAX))?;
        if !(0.0..=TIME_SCALE_MAX).contains(&self.time_scale) {
            return Err(PlanError::TimeScale(self.time_scale).into());
        }
        let connections = u64::from(users) * u64::from(self.parallel);
        limit("users times connections of a user", connections, u64::from(CONNECTIONS_MAX))?;
        let connections_max = u32::try_from(connections).unwrap_or(CONNECTIONS_MAX);
        make_room(connections_max)?;
        let keep = self.keep != Keep::Request;
        Ok(Job {
            script: script.clone(),
            way: Way { address: self.address, method: Method::Get, timeout: self.timeout, keep },
            tail: request_tail(&self.host, &self.headers, !keep)?,
            host: self.host.clone(),
            parallel: self.parallel as usize,
            connections_max,
            keep: self.keep,
            time_scale: self.time_scale,
            threads: self.threads.min(users).max(1),
            check_sizes: self.check_sizes,
            nodes_expected: self.nodes_expected,
            timeline_interval: self.timeline_interval,
            stop: self.stop.clone(),
        })
    }
}

/// A stage that was checked, and its script.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) script: Script,
    pub(crate) way: Way,
    /// All of a request's head that follows the target.
    pub(crate) tail: Vec<u8>,
    pub(crate) host: String,
    pub(crate) parallel: usize,
    pub(crate) connections_max: u32,
    pub(crate) keep: Keep,
    pub(crate) time_scale: f64,
    pub(crate) threads: u32,
    pub(crate) check_sizes: bool,
    pub(crate) nodes_expected: Option<u32>,
    pub(crate) timeline_interval: Duration,
    pub(crate) stop: Stop,
}

impl Job {
    /// Says plainly that there is no server, where a run would only count faults.
    pub(crate) async fn probe(&self) -> Result<(), LoadError> {
        crate::run::probe(self.way.address, self.way.timeout).await
    }

    /// A pause as this stage has it.
    pub(crate) fn scaled(&self, pause: Duration) -> Duration {
        Duration::try_from_secs_f64(pause.as_secs_f64() * self.time_scale).unwrap_or(Duration::MAX)
    }
}

/// The system refused something.
pub(crate) fn system(error: io::Error) -> LoadError {
    LoadError::System(error)
}
