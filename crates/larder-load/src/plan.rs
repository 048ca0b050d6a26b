//! What to send, when, and for how long. [`Plan`] is what a caller fills in; it is checked once, before a run.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::pacer::{Pacer, PacerError};

/// Longest target, bytes.
pub const TARGET_BYTES_MAX: usize = 65_536;
/// Most clients or connections of a run.
pub const CONNECTIONS_MAX: u32 = 1_000_000;
/// Most further addresses of a run.
pub const OTHERS_MAX: usize = 1_023;
/// Most threads of a run.
pub const THREADS_MAX: u32 = 256;
/// Longest limit for one request.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(3_600);
/// Most bytes of extra request headers.
pub const HEADERS_BYTES_MAX: usize = 32_768;

/// When requests are sent.
#[derive(Clone, Debug)]
pub enum Arrivals {
    /// Each of `clients` (1..=[`CONNECTIONS_MAX`]) keeps one request outstanding: the next is sent when the answer
    /// is complete. Finds the highest throughput; its latencies say little, as a slow server slows the asking too.
    Closed {
        /// Number of clients.
        clients: u32,
    },
    /// Requests are due at a fixed rate whatever the answers do.
    OpenConstant {
        /// Requests per second.
        rate: f64,
    },
    /// Requests are due at the times of the trace.
    OpenTrace {
        /// Time of each element of [`Plan::order`]; only differences count.
        times: Arc<[Duration]>,
        /// Factor by which the trace runs faster than it was recorded.
        speedup: f64,
        /// Resolution of the times: requests that share one are spread over up to this span. Zero: not spread.
        resolution: Duration,
    },
}

impl Arrivals {
    /// The load model's name: `closed`, `open-constant`, `open-trace`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Closed { .. } => "closed",
            Self::OpenConstant { .. } => "open-constant",
            Self::OpenTrace { .. } => "open-trace",
        }
    }

    fn pacer(&self) -> Result<Option<Pacer>, PacerError> {
        match self {
            Self::Closed { .. } => Ok(None),
            Self::OpenConstant { rate } => Pacer::constant(*rate).map(Some),
            Self::OpenTrace { times, speedup, resolution } => {
                Pacer::trace(times, *speedup, *resolution).map(Some)
            }
        }
    }
}

/// What happens to a connection after a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// It carries the next request, if the server allows it.
    #[default]
    KeepAlive,
    /// It is closed; `Connection: close` is sent.
    PerRequest,
}

/// The request method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// `GET`.
    #[default]
    Get,
    /// `HEAD`.
    Head,
}

impl Method {
    /// As it is sent.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
        }
    }
}

/// Ends a run early from outside. Clones share the switch.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// No request is sent from now on; those under way are waited for.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`Stop::stop`] was called.
    pub fn stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A whole run.
///
/// Request number `i` asks for `targets[order[i % order.len()]]`. Numbers are handed out in order to whichever
/// client is free next, so that the order of a trace is kept across clients.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where to connect to.
    pub address: SocketAddr,
    /// Further addresses of the same site, at most [`OTHERS_MAX`]: requests go to `address` and these in turn, as by
    /// round-robin DNS. Each client has a connection to each.
    pub others: Vec<SocketAddr>,
    /// The `Host` header.
    pub host: String,
    /// What can be asked for, as sent in the request line. See [`crate::target::wire`] for names from logs.
    pub targets: Arc<[String]>,
    /// What is asked for, as indices into `targets`.
    pub order: Arc<[u32]>,
    /// When.
    pub arrivals: Arrivals,
    /// Number of requests; beyond the order's length it starts again. `None`: once through the order, or without
    /// limit if `duration` is given.
    pub requests: Option<u64>,
    /// No request is sent after this long. `None`: no limit.
    pub duration: Option<Duration>,
    /// The first this many requests are sent but do not count.
    pub warmup_requests: u64,
    /// Requests due before this time do not count either.
    pub warmup_time: Duration,
    /// Limit for one request, from when a connection takes it up to its last byte; above 0, up to [`TIMEOUT_MAX`].
    pub timeout: Duration,
    /// Body size of each target. A reply with status 200 and another size is a fault.
    pub expected_sizes: Option<Arc<[u64]>>,
    /// What happens to a connection after a reply.
    pub reuse: Reuse,
    /// Open loop only: most connections at a time. Requests that find none free wait, and their latency shows it.
    pub connections_max: u32,
    /// Threads that drive the clients, 1..=[`THREADS_MAX`]. With one, requests leave exactly in order.
    pub threads: u32,
    /// The request method.
    pub method: Method,
    /// Further request headers.
    pub headers: Vec<(String, String)>,
    /// How many nodes are expected to answer. Nodes that never do count in the imbalance only if this is given.
    pub nodes_expected: Option<u32>,
    /// Length of a row of the timeline, at least 1 ms; doubles when the run outgrows it.
    pub timeline_interval: Duration,
    /// Ends the run early.
    pub stop: Stop,
}

impl Plan {
    /// A closed loop of 64 clients, once through `order`, of which the first third warms up; 30 s per request.
    pub fn new(address: SocketAddr, host: &str, targets: Arc<[String]>, order: Arc<[u32]>) -> Self {
        let warmup_requests = order.len() as u64 / 3;
        Self {
            address,
            others: Vec::new(),
            host: host.to_owned(),
            targets,
            order,
            arrivals: Arrivals::Closed { clients: 64 },
            requests: None,
            duration: None,
            warmup_requests,
            warmup_time: Duration::ZERO,
            timeout: Duration::from_secs(30),
            expected_sizes: None,
            reuse: Reuse::default(),
            connections_max: 1_024,
            threads: 1,
            method: Method::default(),
            headers: Vec::new(),
            nodes_expected: None,
            timeline_interval: Duration::from_secs(1),
            stop: Stop::default(),
        }
    }

    /// Clients of a closed loop, or most senders of an open one: each has a connection to each address.
    pub fn senders(&self) -> u32 {
        match self.arrivals {
            Arrivals::Closed { clients } => clients,
            _ => self.connections_max,
        }
    }

    /// Most connections the run may hold at a time.
    pub fn connections(&self) -> u32 {
        self.senders().saturating_mul(u32::try_from(self.others.len() + 1).unwrap_or(u32::MAX))
    }

    pub(crate) fn check(self) -> Result<Job, PlanError> {
        self.check_targets()?;
        self.check_limits()?;
        let total = self.requests.or_else(|| self.duration.is_none().then_some(self.order.len() as u64));
        let pacer = self.arrivals.pacer()?;
        let tail = request_tail(&self.host, &self.headers, self.reuse == Reuse::PerRequest)?;
        Ok(Job { plan: self, total, pacer, tail })
    }

    fn check_targets(&self) -> Result<(), PlanError> {
        if self.order.is_empty() {
            return Err(PlanError::NoRequests);
        }
        for target in &*self.targets {
            check_target(target)?;
        }
        if let Some(index) = self.order.iter().find(|index| **index as usize >= self.targets.len()) {
            return Err(PlanError::Order { index: *index, targets: self.targets.len() });
        }
        let lengths = [
            self.expected_sizes.as_ref().map(|sizes| (sizes.len(), self.targets.len())),
            if let Arrivals::OpenTrace { times, .. } = &self.arrivals {
                Some((times.len(), self.order.len()))
            } else {
                None
            },
        ];
        match lengths.into_iter().flatten().find(|(len, expected)| len != expected) {
            Some((len, expected)) => Err(PlanError::Lengths { len, expected }),
            None => Ok(()),
        }
    }

    fn check_limits(&self) -> Result<(), PlanError> {
        let limit = |what, value: u64, max: u64| {
            if (1..=max).contains(&value) { Ok(()) } else { Err(PlanError::Limit { what, value, max }) }
        };
        limit("addresses", self.others.len() as u64 + 1, OTHERS_MAX as u64 + 1)?;
        limit("connections", u64::from(self.connections()), u64::from(CONNECTIONS_MAX))?;
        limit("threads", u64::from(self.threads), u64::from(THREADS_MAX))?;
        limit("requests", self.requests.unwrap_or(1), 1 << 53)?;
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        limit("timeout in microseconds", micros(self.timeout), micros(TIMEOUT_MAX))
    }
}

/// Whether a target can stand in a request line.
pub(crate) fn check_target(target: &str) -> Result<(), PlanError> {
    let plain = target.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    if plain && target.starts_with('/') && target.len() <= TARGET_BYTES_MAX {
        return Ok(());
    }
    Err(PlanError::Target(target.chars().take(80).collect()))
}

/// All of a request's head that is the same for every target. `close` asks for the connection's end.
pub(crate) fn request_tail(
    host: &str,
    headers: &[(String, String)],
    close: bool,
) -> Result<Vec<u8>, PlanError> {
    let mut tail = format!(" HTTP/1.1\r\nHost: {}\r\n", header_value("Host", host)?);
    let own = |name: &str| headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    if !own("user-agent") {
        tail.push_str(concat!("User-Agent: larder-load/", env!("CARGO_PKG_VERSION"), "\r\n"));
    }
    for (name, value) in headers {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let framing = ["content-length", "transfer-encoding", "connection", "host", "expect", "upgrade"];
        if name.is_empty() || !name.bytes().all(token) || framing.contains(&&*name.to_ascii_lowercase()) {
            return Err(PlanError::Header(name.chars().take(80).collect()));
        }
        tail.push_str(&format!("{name}: {}\r\n", header_value(name, value)?));
    }
    if close {
        tail.push_str("Connection: close\r\n");
    }
    tail.push_str("\r\n");
    if tail.len() > HEADERS_BYTES_MAX {
        return Err(PlanError::Limit {
            what: "bytes of request headers",
            value: tail.len() as u64,
            max: HEADERS_BYTES_MAX as u64,
        });
    }
    Ok(tail.into_bytes())
}

fn header_value<'a>(name: &str, value: &'a str) -> Result<&'a str, PlanError> {
    let plain = value.bytes().all(|byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f));
    if plain { Ok(value) } else { Err(PlanError::Header(name.chars().take(80).collect())) }
}

/// A plan that was checked, and what follows from it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) plan: Plan,
    /// Number of requests; `None` if only time limits the run.
    pub(crate) total: Option<u64>,
    /// The schedule; `None` in a closed loop.
    pub(crate) pacer: Option<Pacer>,
    tail: Vec<u8>,
}

impl Job {
    /// Where request `number` goes: the place of the address, and the address.
    pub(crate) fn destination(&self, number: u64) -> (usize, SocketAddr) {
        let place = (number % (self.plan.others.len() as u64 + 1)) as usize;
        (place, place.checked_sub(1).map_or(self.plan.address, |other| self.plan.others[other]))
    }

    /// Writes the head of request `number` in place of what `head` holds; returns the target's index.
    pub(crate) fn write_request(&self, number: u64, head: &mut Vec<u8>) -> usize {
        let order = &self.plan.order;
        let target = order[(number % order.len() as u64) as usize] as usize;
        head.clear();
        head.extend_from_slice(self.plan.method.name().as_bytes());
        head.push(b' ');
        head.extend_from_slice(self.plan.targets[target].as_bytes());
        head.extend_from_slice(&self.tail);
        target
    }
}

/// Why a plan cannot be run. The caller's to mend; trying again does not help.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The order is empty.
    #[error("there is nothing to ask for")]
    NoRequests,
    /// A target is no origin-form path, has bytes that need escaping, or is too long.
    #[error(
        "'{0}' cannot be sent as a target: it must begin with '/', be escaped, and have at most {TARGET_BYTES_MAX} bytes"
    )]
    Target(String),
    /// The order names a target that does not exist.
    #[error("the order names target {index}, of {targets}")]
    Order {
        /// The number found.
        index: u32,
        /// How many targets there are.
        targets: usize,
    },
    /// Expected sizes must match the targets, and times the order, one to one.
    #[error("a list has {len} entries where {expected} are needed")]
    Lengths {
        /// Entries found.
        len: usize,
        /// Entries needed.
        expected: usize,
    },
    /// A number is out of its range.
    #[error("{what}: {value} is not within 1 to {max}")]
    Limit {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The largest possible.
        max: u64,
    },
    /// A header would break the request, or is the client's own affair.
    #[error("header '{0}' cannot be set: malformed, or one that the client sets itself")]
    Header(String),
    /// The factor on pauses is no number from 0 to 1,000.
    #[error("time scale {0} is not within 0 to 1000")]
    TimeScale(f64),
    /// The rate at which users come is no number above 0 and up to 100,000.
    #[error("a ramp of {0} users/s is not above 0 and at most 100000")]
    Ramp(f64),
    /// The schedule is impossible.
    #[error(transparent)]
    Pacer(#[from] PacerError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let targets: Arc<[String]> = ["/a".to_owned(), "/b?c=d".to_owned()].into();
        Plan::new(SocketAddr::from(([127, 0, 0, 1], 1)), "example.org", targets, [1, 0, 1].into())
    }

    #[test]
    fn the_order_is_followed_and_starts_again() {
        let job = Plan { headers: vec![("X-A".into(), "b".into())], ..plan() }.check().unwrap();
        assert_eq!(job.total, Some(3));
        let mut head = Vec::new();
        let targets: Vec<usize> = (0..5).map(|number| job.write_request(number, &mut head)).collect();
        assert_eq!(targets, [1, 0, 1, 1, 0]);
        assert!(head.starts_with(b"GET /a HTTP/1.1\r\nHost: example.org\r\nUser-Agent: larder-load/"));
        assert!(head.ends_with(b"\r\nX-A: b\r\n\r\n"));
    }

    #[test]
    fn requests_go_to_the_addresses_in_turn() {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let spread = Plan { others: vec![at(2), at(3)], ..plan() };
        assert_eq!((spread.senders(), spread.connections()), (64, 192));
        let job = spread.check().unwrap();
        let places: Vec<_> = (0..4).map(|number| job.destination(number)).collect();
        assert_eq!(places, [(0, at(1)), (1, at(2)), (2, at(3)), (0, at(1))]);
        let many = Plan { others: vec![at(2); OTHERS_MAX + 1], ..plan() };
        assert!(matches!(many.check(), Err(PlanError::Limit { what: "addresses", .. })));
    }

    #[test]
    fn a_duration_lifts_the_limit_of_one_pass() {
        let timed = Plan { duration: Some(Duration::from_secs(1)), ..plan() };
        assert_eq!(timed.check().unwrap().total, None);
        let both = Plan { duration: Some(Duration::from_secs(1)), requests: Some(9), ..plan() };
        assert_eq!(both.check().unwrap().total, Some(9));
    }

    #[test]
    fn what_would_break_a_request_is_refused() {
        let refused = |plan: Plan| plan.check().unwrap_err();
        for target in ["", "a", "/a b", "/a\r\nX: y", "/ä", "http://h/"] {
            let targets: Arc<[String]> = ["/".to_owned(), target.to_owned()].into();
            assert!(matches!(refused(Plan { targets, ..plan() }), PlanError::Target(_)), "{target:?}");
        }
        for (name, value) in
            [("", "x"), ("A B", "x"), ("A", "x\r\nB: y"), ("content-length", "1"), ("Host", "x")]
        {
            let headers = vec![(name.to_owned(), value.to_owned())];
            assert!(matches!(refused(Plan { headers, ..plan() }), PlanError::Header(_)), "{name}: {value}");
        }
        assert!(matches!(refused(Plan { host: "a\nb".into(), ..plan() }), PlanError::Header(_)));
        assert_eq!(refused(Plan { order: [].into(), ..plan() }), PlanError::NoRequests);
        assert!(matches!(
            refused(Plan { order: [2].into(), ..plan() }),
            PlanError::Order { index: 2, targets: 2 }
        ));
        let sizes = Some([1u64].into());
        assert!(matches!(refused(Plan { expected_sizes: sizes, ..plan() }), PlanError::Lengths { .. }));
        assert!(matches!(refused(Plan { timeout: Duration::ZERO, ..plan() }), PlanError::Limit { .. }));
        assert!(matches!(
            refused(Plan { arrivals: Arrivals::Closed { clients: 0 }, ..plan() }),
            PlanError::Limit { .. }
        ));
        assert!(matches!(
            refused(Plan { arrivals: Arrivals::OpenConstant { rate: 0.0 }, ..plan() }),
            PlanError::Pacer(_)
        ));
    }
}
