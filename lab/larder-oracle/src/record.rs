//! The record of a case: requests, origin exchanges and replies, with times. The model judges this record only.

use crate::case::Case;
use crate::wire::Fields;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Field with the number of the exchange from which a reply's body comes.
pub const BODY_MARK: &str = "x-oracle-body";
/// Prefix of the names of fields by which a 304 adds itself to the reply that it renews. The exchange's number follows.
pub const RENEWAL_MARK: &str = "x-oracle-renewal-";
/// Field with run and step of a request, by which the origin assigns an exchange to the request.
pub const REQUEST_MARK: &str = "x-oracle-request";

/// The clock of a case: time since its start, and wall time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    wall_s: i64,
    wall_ms: u32,
}

impl Clock {
    /// Starts a clock.
    pub fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), wall_s: wall.as_secs() as i64, wall_ms: wall.subsec_millis() }
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Converts a time since the start to seconds since 1970.
    pub fn wall_s(&self, at: Duration) -> i64 {
        self.wall_s + (at + Duration::from_millis(u64::from(self.wall_ms))).as_secs() as i64
    }

    /// Formats the date `shift_s` seconds after the start.
    pub fn date(&self, shift_s: i64) -> String {
        let at = Duration::from_secs((self.wall_s + shift_s).max(0) as u64);
        httpdate::fmt_http_date(UNIX_EPOCH + at)
    }
}

/// A request of a client.
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

/// A reply that a client received.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Status.
    pub status: u16,
    /// Fields.
    pub fields: Fields,
    /// Body.
    pub body: Vec<u8>,
    /// Whether the body is complete by its framing.
    pub whole: bool,
}

/// A request of a client and its result.
#[derive(Clone, Debug)]
pub struct ClientExchange {
    /// The request.
    pub request: Request,
    /// Time at which the client started to send the request.
    pub sent: Duration,
    /// Time at which the last byte of the reply was received.
    pub done: Duration,
    /// The reply, or an error text.
    pub reply: Result<Reply, String>,
}

/// A reply of the origin.
#[derive(Clone, Debug)]
pub struct OriginReply {
    /// Status.
    pub status: u16,
    /// Fields.
    pub fields: Fields,
    /// The whole body, even if the origin closes the connection within it.
    pub body: Vec<u8>,
}

/// A request that reached the origin, and the origin's reply.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Step of the request.
    pub step: usize,
    /// Method of the request to the origin.
    pub method: String,
    /// Fields of the request to the origin.
    pub request_fields: Fields,
    /// Time at which the request was received.
    pub arrived: Duration,
    /// Time at which the origin started to send the head; `None` before.
    pub replied: Option<Duration>,
    /// Time at which the origin had sent the whole reply; `None` before, and if it closed the connection.
    pub ended: Option<Duration>,
    /// The reply; `None` if the origin closes the connection instead.
    pub reply: Option<OriginReply>,
}

impl Exchange {
    /// Whether the origin failed: it closed the connection, or sent an error for which a stale reply may be used.
    pub fn has_failed(&self) -> bool {
        self.reply.as_ref().is_none_or(|reply| matches!(reply.status, 500 | 502 | 503 | 504))
    }

    /// Whether the connection was closed within the reply.
    pub fn is_broken_off(&self) -> bool {
        self.replied.is_some() && self.ended.is_none()
    }
}

/// The record of a case.
#[derive(Clone, Debug)]
pub struct Record {
    /// The case.
    pub case: Arc<Case>,
    /// The clock of the case.
    pub clock: Clock,
    /// One entry for each step.
    pub client_exchanges: Vec<ClientExchange>,
    /// Exchanges in order of arrival at the origin. Marks contain the index of an exchange.
    pub exchanges: Vec<Exchange>,
    /// Number of entry points of the system.
    pub entry_points: usize,
    /// Whether all requests went through one cache, so that an unsafe request must invalidate replies for later ones.
    pub one_cache: bool,
    /// Whether a request that must not be repeated may be lost; the client gets 502 then.
    pub loses_requests: bool,
}
