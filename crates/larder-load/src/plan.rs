//! The plan of a run: requests, schedule, length. A caller fills in a [`Plan`], which is checked once before the run.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::pacer::{Pacer, PacerError};

/// Longest target. Bytes.
pub const TARGET_BYTES_MAX: usize = 65_536;
/// Maximum clients or connections of a run.
pub const CONNECTIONS_MAX: u32 = 1_000_000;
/// Maximum additional addresses of a run.
pub const OTHER_ADDRESSES_MAX: usize = 1_023;
/// Maximum threads of a run.
pub const THREADS_MAX: u32 = 256;
/// Longest timeout of a request.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(3_600);
/// Maximum size of the request headers after the request line. Bytes.
pub const HEADERS_BYTES_MAX: usize = 32_768;

/// When requests are sent.
#[derive(Clone, Debug)]
pub enum Arrivals {
    /// Each of `clients` (1..=[`CONNECTIONS_MAX`]) keeps one request outstanding: it sends the next when the reply is complete.
    /// Measures the maximum throughput. Its latencies mean little, because a slow server also slows the clients.
    Closed {
        /// Number of clients.
        clients: u32,
    },
    /// Requests are due at a fixed rate, independent of the replies.
    OpenConstant {
        /// Requests per second.
        rate: f64,
    },
    /// Requests are due at the times of the trace.
    OpenTrace {
        /// Time of each element of [`Plan::order`]; only differences matter.
        times: Arc<[Duration]>,
        /// Factor by which the trace is replayed faster than recorded.
        speedup: f64,
        /// Resolution of the times. Requests with equal times are spread over at most this span; zero disables spreading.
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

/// Use of a connection after a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// The connection carries the next request, if the server allows it.
    #[default]
    KeepAlive,
    /// The connection is closed; requests have `Connection: close`.
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
    /// The method's name in the request line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
        }
    }
}

/// Handle that ends a run early. Clones control the same run.
#[derive(Clone, Debug, Default)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// Stops sending. Requests in flight finish.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`StopHandle::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The plan of a run.
///
/// Request number `i` requests `targets[order[i % order.len()]]`. Numbers are assigned in order to the next free client, so
/// that the order of a trace is kept across clients.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server's address.
    pub address: SocketAddr,
    /// Additional addresses of the same site, at most [`OTHER_ADDRESSES_MAX`]. Requests go to all addresses in turn, as with
    /// round-robin DNS. Each client has a connection to each address.
    pub other_addresses: Vec<SocketAddr>,
    /// The `Host` header.
    pub host: String,
    /// Request targets, as sent in the request line. See [`crate::target::request_target`] for names from logs.
    pub targets: Arc<[String]>,
    /// The sequence of requests, as indices into `targets`.
    pub order: Arc<[u32]>,
    /// The load model.
    pub arrivals: Arrivals,
    /// Number of requests; `order` is repeated if it is shorter. `None`: once through `order`, or no limit if `duration` is
    /// given.
    pub requests: Option<u64>,
    /// Time after which no request is sent. `None`: no limit.
    pub duration: Option<Duration>,
    /// Number of requests at the start that are sent but not counted.
    pub warmup_requests: u64,
    /// Requests due before this time are not counted either.
    pub warmup_time: Duration,
    /// Timeout of a request, from the time a connection takes it to the last byte of the reply; above 0, up to
    /// [`TIMEOUT_MAX`].
    pub timeout: Duration,
    /// Body size of each target. A reply with status 200 and another size has failed.
    pub expected_sizes: Option<Arc<[u64]>>,
    /// Use of a connection after a reply.
    pub reuse: Reuse,
    /// Open loop only: maximum concurrent connections. A request that finds none free waits, and the wait is part of its
    /// latency.
    pub connections_max: u32,
    /// Client threads, 1..=[`THREADS_MAX`]. With one thread, requests are sent exactly in order.
    pub threads: u32,
    /// The request method.
    pub method: Method,
    /// Additional request headers.
    pub headers: Vec<(String, String)>,
    /// Number of nodes expected to reply. Without it, the imbalance ignores nodes that never reply.
    pub nodes_expected: Option<u32>,
    /// Initial interval of the timeline, at least 1 ms. It doubles when the number of rows reaches its limit.
    pub timeline_interval: Duration,
    /// Ends the run early.
    pub stop: StopHandle,
}

impl Plan {
    /// A closed loop of 64 clients, once through `order` with the first third as warm-up, and a timeout of 30 s.
    pub fn new(address: SocketAddr, host: &str, targets: Arc<[String]>, order: Arc<[u32]>) -> Self {
        let warmup_requests = order.len() as u64 / 3;
        Self {
            address,
            other_addresses: Vec::new(),
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
            stop: StopHandle::default(),
        }
    }

    /// Number of clients of a closed loop, or maximum senders of an open one. Each has a connection to each address.
    pub fn senders(&self) -> u32 {
        match self.arrivals {
            Arrivals::Closed { clients } => clients,
            _ => self.connections_max,
        }
    }

    /// Maximum concurrent connections of the run.
    pub fn connections(&self) -> u32 {
        self.senders().saturating_mul(u32::try_from(self.other_addresses.len() + 1).unwrap_or(u32::MAX))
    }

    pub(crate) fn check(self) -> Result<CheckedPlan, PlanError> {
        self.check_targets()?;
        self.check_limits()?;
        let total = self.requests.or_else(|| self.duration.is_none().then_some(self.order.len() as u64));
        let pacer = self.arrivals.pacer()?;
        let tail = request_tail(&self.host, &self.headers, self.reuse == Reuse::PerRequest)?;
        Ok(CheckedPlan { plan: self, total, pacer, tail })
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
        limit("addresses", self.other_addresses.len() as u64 + 1, OTHER_ADDRESSES_MAX as u64 + 1)?;
        limit("connections", u64::from(self.connections()), u64::from(CONNECTIONS_MAX))?;
        limit("threads", u64::from(self.threads), u64::from(THREADS_MAX))?;
        limit("requests", self.requests.unwrap_or(1), 1 << 53)?;
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        limit("timeout in microseconds", micros(self.timeout), micros(TIMEOUT_MAX))
    }
}

/// Checks that a target can be sent in a request line.
pub(crate) fn check_target(target: &str) -> Result<(), PlanError> {
    let plain = target.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    if plain && target.starts_with('/') && target.len() <= TARGET_BYTES_MAX {
        return Ok(());
    }
    Err(PlanError::Target(target.chars().take(80).collect()))
}

/// Builds the part of a request's head that follows the target. `close` adds `Connection: close`.
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

/// A checked plan, with derived values.
#[derive(Debug)]
pub(crate) struct CheckedPlan {
    pub(crate) plan: Plan,
    /// Number of requests; `None` if only time limits the run.
    pub(crate) total: Option<u64>,
    /// The schedule; `None` in a closed loop.
    pub(crate) pacer: Option<Pacer>,
    tail: Vec<u8>,
}

impl CheckedPlan {
    /// The index of the address for request `number`, and the address.
    pub(crate) fn destination(&self, number: u64) -> (usize, SocketAddr) {
        let index = (number % (self.plan.other_addresses.len() as u64 + 1)) as usize;
        (index, index.checked_sub(1).map_or(self.plan.address, |other| self.plan.other_addresses[other]))
    }

    /// Replaces the contents of `head` by the head of request `number`. Returns the target's index.
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

/// Why a plan is invalid. The caller must change it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The order is empty.
    #[error("the plan has no requests")]
    NoRequests,
    /// A target is not in origin form, has bytes that need escaping, or is too long.
    #[error(
        "'{0}' cannot be sent as a target: it must begin with '/', be escaped, and have at most {TARGET_BYTES_MAX} bytes"
    )]
    Target(String),
    /// The order contains an index without a target.
    #[error("the order refers to target {index}, but there are {targets} targets")]
    Order {
        /// The index.
        index: u32,
        /// Number of targets.
        targets: usize,
    },
    /// The number of expected sizes differs from that of the targets, or the number of times from that of the order.
    #[error("a list has {len} entries, but {expected} are needed")]
    Lengths {
        /// Number of entries.
        len: usize,
        /// Number of entries needed.
        expected: usize,
    },
    /// A number is out of range.
    #[error("{what}: {value} is not within 1 to {max}")]
    Limit {
        /// Name of the number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The maximum.
        max: u64,
    },
    /// A header is malformed, or one that the client sets itself.
    #[error("header '{0}' cannot be set: malformed, or one that the client sets itself")]
    Header(String),
    /// The factor on pauses is not within 0 to 1,000.
    #[error("time scale {0} is not within 0 to 1000")]
    TimeScale(f64),
    /// The arrival rate of users is not above 0 and at most 100,000.
    #[error("a ramp of {0} users/s is not above 0 and at most 100000")]
    Ramp(f64),
    /// The schedule is invalid.
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
    fn the_order_is_followed_and_repeated() {
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
        let spread = Plan { other_addresses: vec![at(2), at(3)], ..plan() };
        assert_eq!((spread.senders(), spread.connections()), (64, 192));
        let job = spread.check().unwrap();
        let indices: Vec<_> = (0..4).map(|number| job.destination(number)).collect();
        assert_eq!(indices, [(0, at(1)), (1, at(2)), (2, at(3)), (0, at(1))]);
        let many = Plan { other_addresses: vec![at(2); OTHER_ADDRESSES_MAX + 1], ..plan() };
        assert!(matches!(many.check(), Err(PlanError::Limit { what: "addresses", .. })));
    }

    #[test]
    fn a_duration_replaces_the_limit_of_one_pass() {
        let timed = Plan { duration: Some(Duration::from_secs(1)), ..plan() };
        assert_eq!(timed.check().unwrap().total, None);
        let both = Plan { duration: Some(Duration::from_secs(1)), requests: Some(9), ..plan() };
        assert_eq!(both.check().unwrap().total, Some(9));
    }

    #[test]
    fn invalid_plans_are_refused() {
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
