//! Settings of simulated users: the server, and how pages are fetched.

use std::net::SocketAddr;
use std::time::Duration;

use crate::client::slot::RequestSettings;
use crate::file_limit::raise_file_limit;
use crate::plan::{CONNECTIONS_MAX, Method, PlanError, StopHandle, THREADS_MAX, TIMEOUT_MAX, request_tail};
use crate::run::LoadError;
use crate::script::Script;

/// Maximum concurrent connections of a user.
pub const PARALLEL_MAX: u32 = 64;
/// Maximum factor on pauses.
pub const TIME_SCALE_MAX: f64 = 1_000.0;

/// How long a user keeps a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionLifetime {
    /// For one request, as in HTTP/1.0; requests have `Connection: close`.
    Request,
    /// For one page, as with a server that soon closes idle connections.
    #[default]
    Page,
    /// For the whole visit, including pauses.
    Visit,
}

impl ConnectionLifetime {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Request, Self::Page, Self::Visit];

    /// The value's name in files and arguments.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Page => "page",
            Self::Visit => "visit",
        }
    }
}

impl std::str::FromStr for ConnectionLifetime {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|keep| keep.name() == name);
        found.ok_or_else(|| "connections are kept for a request, a page or a visit".to_owned())
    }
}

/// The server, and how users fetch pages from it.
#[derive(Clone, Debug)]
pub struct UserSettings {
    /// The server's address.
    pub address: SocketAddr,
    /// The `Host` header.
    pub host: String,
    /// Additional request headers.
    pub headers: Vec<(String, String)>,
    /// Maximum concurrent connections of a user, 1..=[`PARALLEL_MAX`]. Default 2 (RFC 2616 section 8.1.4).
    pub parallel: u32,
    /// How long a user keeps a connection.
    pub keep: ConnectionLifetime,
    /// Timeout of a request, including the time to connect; above 0, up to an hour. Default 30 s.
    pub timeout: Duration,
    /// Factor on the script's pauses, 0 to [`TIME_SCALE_MAX`]. Default 1. It does not change arrival times.
    pub time_scale: f64,
    /// User threads, 1 to 256. Default 1.
    pub threads: u32,
    /// Whether a document whose size differs from the script is a fault. Default true.
    pub check_sizes: bool,
    /// Number of nodes expected to reply; see [`crate::Plan::nodes_expected`].
    pub nodes_expected: Option<u32>,
    /// Initial interval of the timeline, at least 1 ms. It doubles when the number of rows reaches its limit. Default 1 s.
    pub timeline_interval: Duration,
    /// Ends the run early.
    pub stop: StopHandle,
}

impl UserSettings {
    /// The default settings for a server.
    pub fn new(address: SocketAddr, host: &str) -> Self {
        Self {
            address,
            host: host.to_owned(),
            headers: Vec::new(),
            parallel: 2,
            keep: ConnectionLifetime::default(),
            timeout: Duration::from_secs(30),
            time_scale: 1.0,
            threads: 1,
            check_sizes: true,
            nodes_expected: None,
            timeline_interval: Duration::from_secs(1),
            stop: StopHandle::default(),
        }
    }

    /// Checks the settings for at most `users` concurrent users, and raises the limit on open files for their connections.
    pub(crate) fn check(&self, script: &Script, users: u32) -> Result<CheckedSettings, LoadError> {
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
        raise_file_limit(connections_max)?;
        let keep_alive = self.keep != ConnectionLifetime::Request;
        Ok(CheckedSettings {
            script: script.clone(),
            request: RequestSettings {
                address: self.address,
                method: Method::Get,
                timeout: self.timeout,
                keep_alive,
            },
            tail: request_tail(&self.host, &self.headers, !keep_alive)?,
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

/// Checked settings, with the script.
#[derive(Debug)]
pub(crate) struct CheckedSettings {
    pub(crate) script: Script,
    pub(crate) request: RequestSettings,
    /// The part of a request's head that follows the target.
    pub(crate) tail: Vec<u8>,
    pub(crate) host: String,
    pub(crate) parallel: usize,
    pub(crate) connections_max: u32,
    pub(crate) keep: ConnectionLifetime,
    pub(crate) time_scale: f64,
    pub(crate) threads: u32,
    pub(crate) check_sizes: bool,
    pub(crate) nodes_expected: Option<u32>,
    pub(crate) timeline_interval: Duration,
    pub(crate) stop: StopHandle,
}

impl CheckedSettings {
    /// Checks that the server accepts connections.
    pub(crate) async fn probe(&self) -> Result<(), LoadError> {
        crate::run::probe(self.request.address, self.request.timeout).await
    }

    /// Applies the time scale to a pause.
    pub(crate) fn scaled(&self, pause: Duration) -> Duration {
        Duration::try_from_secs_f64(pause.as_secs_f64() * self.time_scale).unwrap_or(Duration::MAX)
    }
}
