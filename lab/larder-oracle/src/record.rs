//! Record of a case: requests, origin exchanges and replies, with times. The model judges this record and nothing else.

use crate::case::Case;
use crate::wire::Fields;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Names the exchange that a reply's body comes from.
pub const BODY_MARK: &str = "x-oracle-body";
/// Begins the names of the fields by which a 304 adds itself to the reply that it renews. The exchange's number follows.
pub const RENEWAL_MARK: &str = "x-oracle-renewal-";
/// Names run and step of a request, so that the origin knows which request an exchange belongs to.
pub const REQUEST_MARK: &str = "x-oracle-request";

/// The times of a case: since its start, and on the wall.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    wall_s: i64,
    wall_ms: u32,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), wall_s: wall.as_secs() as i64, wall_ms: wall.subsec_millis() }
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Seconds since 1970 at a time since the start.
    pub fn wall_s(&self, at: Duration) -> i64 {
        self.wall_s + (at + Duration::from_millis(u64::from(self.wall_ms))).as_secs() as i64
    }

    /// Date `shift_s` seconds after the start.
    pub fn date(&self, shift_s: i64) -> String {
        let at = Duration::from_secs((self.wall_s + shift_s).max(0) as u64);
        httpdate::fmt_http_date(UNIX_EPOCH + at)
    }
}

/// A request as the client sent it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method.
    pub method: String,
    /// Host in lower case.
    pub host: String,
    /// Path and query.
    pub target: String,
    /// Whether the client is a trusted relay.
    pub relayed: bool,
    /// All fields.
    pub fields: Fields,
}

/// Reply that the client received.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Status.
    pub status: u16,
    /// Fields.
    pub fields: Fields,
    /// Body.
    pub body: Vec<u8>,
    /// Whether the body ended as its framing says.
    pub whole: bool,
}

/// A request of a client, and what came of it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The request.
    pub request: Request,
    /// Time at which the client began to send it.
    pub sent: Duration,
    /// Time at which the reply's last byte had come.
    pub done: Duration,
    /// The reply, or the reason why there is none.
    pub reply: Result<Reply, String>,
}

/// A reply of the origin.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Status.
    pub status: u16,
    /// Fields.
    pub fields: Fields,
    /// Body, whole even if the origin closes the connection in its middle.
    pub body: Vec<u8>,
}

/// A request that reached the origin, and the origin's reply.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Step of the request.
    pub step: usize,
    /// Method that the origin was asked with.
    pub method: String,
    /// Fields that the origin was asked with.
    pub asked: Fields,
    /// Time at which the request had come.
    pub arrived: Duration,
    /// Time at which the origin began to send the head; `None` before.
    pub replied: Option<Duration>,
    /// Time at which the origin had sent all; `None` before, and if it closed the connection.
    pub ended: Option<Duration>,
    /// The reply; `None` if the origin closes the connection instead.
    pub sent: Option<Sent>,
}

impl Exchange {
    /// Whether the origin failed: it closed the connection, or sent an error that lets stale replies stand in.
    pub fn has_failed(&self) -> bool {
        self.sent.as_ref().is_none_or(|sent| matches!(sent.status, 500 | 502 | 503 | 504))
    }

    /// Whether the connection ended within the reply.
    pub fn is_broken_off(&self) -> bool {
        self.replied.is_some() && self.ended.is_none()
    }
}

/// A case that has run.
#[derive(Clone, Debug)]
pub struct Record {
    /// The case.
    pub case: Arc<Case>,
    /// Its clock.
    pub clock: Clock,
    /// One entry for each step.
    pub asked: Vec<Asked>,
    /// In order of arrival at the origin. Marks name an exchange by its index.
    pub exchanges: Vec<Exchange>,
    /// Number of doors of the system.
    pub doors: usize,
    /// Whether all requests went through one cache, so that an unsafe request must invalidate what later ones get.
    pub one_cache: bool,
    /// Whether a request that must not be sent twice may be lost on its way, which the client is told by 502.
    pub loses_requests: bool,
}
