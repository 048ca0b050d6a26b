//! A client with every permitted behaviour, which verifies every byte of every reply.
//!
//! Blocking sockets on threads in a namespace. Faults are: a refused or reset connection, a pause longer than
//! the limit, a wrong status or length, and a wrong, missing or surplus byte.

use larder_testkit::http::head_bytes;
use larder_testkit::take_time;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::content::Target;

/// Longest head of a reply.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Behaviour of a client on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// One request with `Connection: close`. The server closes.
    Plain,
    /// All requests at once. The server closes after the last reply.
    Pipelined,
    /// Closes its side after its last request. The server closes.
    HalfClosing,
    /// Resets the connection after this many bytes of the first reply's content.
    Resetting { after: u64 },
    /// Sends the head in two pieces with a pause between them.
    Split { at: usize, pause: Duration, no_delay: bool },
    /// One request after another. The client closes.
    KeptAlive,
    /// One request after another; the last one has `Connection: close`. The server closes.
    KeptToTheEnd,
    /// One request with this number of fields in its head, 2 or more. The client closes.
    Fields { count: usize },
    /// A HEAD request. The server closes.
    HeadOnly,
    /// One request with a field of this length, so that its head takes several segments. The server closes.
    LongHead { bytes: usize },
    /// One request. The client rests after each 64 KB of the reply.
    Slow { rest: Duration },
    /// One request. The client rests after the reply, and then closes.
    Resting { rest: Duration },
}

impl Behaviour {
    /// Reports waits that no party causes. The client's kernel holds back the second piece until the first is
    /// acknowledged (Nagle's algorithm, RFC 896). The server's kernel delays that acknowledgement (RFC 1122
    /// section 4.2.3.2).
    fn may_wait(self) -> bool {
        matches!(self, Self::Split { no_delay: false, .. })
    }
}

/// A connection to make.
#[derive(Clone, Debug)]
pub struct Plan {
    pub behaviour: Behaviour,
    pub server: SocketAddr,
    /// Reuses the thread's own port instead of one that the kernel chooses.
    pub same_port: bool,
    /// Requested targets, never empty. The behaviour determines whether more than one is requested.
    pub targets: Vec<Target>,
}

/// A fault of a connection.
#[derive(Debug)]
pub enum Fault {
    Connect(io::Error),
    Reset,
    /// No byte arrived for this long.
    Stall(Duration),
    Io(io::Error),
    /// A head that is no correct reply to this request.
    Head(String),
    Wrong {
        path: String,
        offset: u64,
    },
    /// The connection ended too early.
    Short {
        path: String,
        got: u64,
        bytes: u64,
    },
    /// Bytes after the last reply.
    Surplus,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "not connected: {error}"),
            Self::Reset => f.write_str("reset"),
            Self::Stall(limit) => write!(f, "nothing for {limit:?}"),
            Self::Io(error) => write!(f, "{error}"),
            Self::Head(text) => write!(f, "a wrong head: {text:?}"),
            Self::Wrong { path, offset } => write!(f, "{path}: a wrong byte at {offset}"),
            Self::Short { path, got, bytes } => write!(f, "{path}: {got} of {bytes} bytes"),
            Self::Surplus => f.write_str("more came than was asked for"),
        }
    }
}

/// Durations of one connection.
#[derive(Debug, Default)]
struct Times {
    /// The client's address, once connected.
    from: Option<SocketAddr>,
    connect: Duration,
    /// Time from a request's last byte to its reply's first, by reply. With pipelining, only of the first
    /// reply.
    first_byte: Vec<Duration>,
    /// Longest pause within a reply.
    pause: Duration,
}

/// Results of many connections.
#[derive(Debug, Default)]
pub struct Tally {
    /// Connections without a fault.
    pub right: usize,
    /// Completely verified replies.
    pub replies: usize,
    /// Verified bytes of content.
    pub bytes: u64,
    pub faults: Vec<(Plan, Fault)>,
    /// Client ports of connections with a fault, if known.
    pub fault_ports: Vec<u16>,
    connect: Vec<Duration>,
    first_byte: Vec<Duration>,
    pause: Vec<Duration>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.right += other.right;
        self.replies += other.replies;
        self.bytes += other.bytes;
        self.faults.extend(other.faults);
        self.fault_ports.extend(other.fault_ports);
        self.connect.extend(other.connect);
        self.first_byte.extend(other.first_byte);
        self.pause.extend(other.pause);
    }

    /// Returns the `q` quantiles of connect time, time to first byte, and longest pause.
    pub fn quantiles(&self, q: f64) -> [Duration; 3] {
        [&self.connect, &self.first_byte, &self.pause].map(|times| {
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let rank = (q * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        })
    }

    /// Fails with the first faults if there are any.
    pub fn assert_faultless(&self) {
        let shown: Vec<String> = self
            .faults
            .iter()
            .take(10)
            .map(|(plan, fault)| {
                format!(
                    "{:?} {:?} (same port: {}): {fault}",
                    plan.behaviour, plan.targets[0].path, plan.same_port
                )
            })
            .collect();
        assert!(shown.is_empty(), "{} faults, {} right: {shown:#?}", self.faults.len(), self.right);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} right, {} faults, {} replies, {} bytes",
            self.right,
            self.faults.len(),
            self.replies,
            self.bytes
        )?;
        for q in [0.5, 0.99, 0.999] {
            let [connect, first, pause] = self.quantiles(q);
            write!(f, "; p{}: connect {connect:?}, first byte {first:?}, pause {pause:?}", q * 100.0)?;
        }
        Ok(())
    }
}

/// Settings of the clients.
#[derive(Clone, Copy, Debug)]
pub struct ClientSettings {
    /// Number of concurrent connections.
    pub threads: usize,
    /// First of the ports for plans with `same_port`, one per thread. Outside of the kernel's range.
    pub first_port: u16,
    /// A longer silence is a fault.
    pub stall: Duration,
}

/// Runs all plans in the calling thread's namespace, which its threads inherit.
pub fn run(plans: &[Plan], setup: ClientSettings) -> Tally {
    run_shares(plans, setup, None)
}

/// Runs the plans repeatedly while `go` is set.
pub fn run_while(plans: &[Plan], setup: ClientSettings, go: &AtomicBool) -> Tally {
    run_shares(plans, setup, Some(go))
}

fn run_shares(plans: &[Plan], setup: ClientSettings, go: Option<&AtomicBool>) -> Tally {
    let share = plans.len().div_ceil(setup.threads).max(1);
    thread::scope(|scope| {
        let workers: Vec<_> = plans
            .chunks(share)
            .enumerate()
            .map(|(number, plans)| {
                let port = setup.first_port + u16::try_from(number).unwrap();
                scope.spawn(move || run_share(plans, port, setup.stall, go))
            })
            .collect();
        let mut tally = Tally::default();
        for worker in workers {
            tally.add(worker.join().unwrap());
        }
        tally
    })
}

fn run_share(plans: &[Plan], port: u16, stall: Duration, go: Option<&AtomicBool>) -> Tally {
    let mut tally = Tally::default();
    let rounds = if go.is_some() { usize::MAX } else { plans.len() };
    for plan in plans.iter().cycle().take(rounds) {
        if go.is_some_and(|go| !go.load(Ordering::Relaxed)) {
            break;
        }
        let mut times = Times::default();
        match run_plan(plan, port, stall, &mut times, &mut tally) {
            Ok(()) => tally.right += 1,
            Err(fault) => {
                println!("{:?} to {}, {:?}: {fault}", times.from, plan.server, plan.behaviour);
                tally.faults.push((plan.clone(), fault));
                tally.fault_ports.extend(times.from.map(|from| from.port()));
            }
        }
        tally.connect.push(times.connect);
        if !plan.behaviour.may_wait() {
            tally.first_byte.append(&mut times.first_byte);
            tally.pause.push(times.pause);
        }
    }
    tally
}

fn run_plan(
    plan: &Plan,
    port: u16,
    stall: Duration,
    times: &mut Times,
    tally: &mut Tally,
) -> Result<(), Fault> {
    let stream = connect(plan, port, stall, times).map_err(Fault::Connect)?;
    times.from = stream.local_addr().ok();
    let rest = match plan.behaviour {
        Behaviour::Slow { rest } => rest,
        _ => Duration::ZERO,
    };
    let mut replies = Replies { stream, buffer: Vec::new(), stall, rest, times, tally };
    let last = plan.targets.len() - 1;
    match plan.behaviour {
        Behaviour::Plain | Behaviour::LongHead { .. } | Behaviour::Slow { .. } => {
            replies.send(&head(plan, 0, true))?;
            replies.take(&plan.targets[0])?;
            replies.end()
        }
        Behaviour::Resting { rest } => {
            replies.send(&head(plan, 0, false))?;
            replies.take(&plan.targets[0])?;
            take_time(rest);
            if replies.buffer.is_empty() { Ok(()) } else { Err(Fault::Surplus) }
        }
        Behaviour::HeadOnly => {
            replies.send(&head(plan, 0, true))?;
            replies.take_part(&plan.targets[0], 0)?;
            replies.end()
        }
        Behaviour::Pipelined | Behaviour::HalfClosing => {
            let heads: Vec<u8> = (0..=last).flat_map(|n| head(plan, n, n == last)).collect();
            replies.send(&heads)?;
            if plan.behaviour == Behaviour::HalfClosing {
                replies.stream.shutdown(Shutdown::Write).map_err(io_fault)?;
            }
            plan.targets.iter().try_for_each(|target| replies.take(target))?;
            replies.end()
        }
        Behaviour::Resetting { after } => {
            replies.send(&head(plan, 0, true))?;
            replies.take_part(&plan.targets[0], after)?;
            let socket = socket2::SockRef::from(&replies.stream);
            socket.set_linger(Some(Duration::ZERO)).map_err(Fault::Io)
        }
        Behaviour::Split { at, pause, no_delay } => {
            replies.stream.set_nodelay(no_delay).map_err(Fault::Io)?;
            let head = head(plan, 0, true);
            let (first, second) = head.split_at(at.min(head.len()));
            replies.send(first)?;
            take_time(pause);
            replies.send(second)?;
            replies.take(&plan.targets[0])?;
            replies.end()
        }
        Behaviour::KeptAlive | Behaviour::KeptToTheEnd | Behaviour::Fields { .. } => {
            let closes = plan.behaviour == Behaviour::KeptToTheEnd;
            for (n, target) in plan.targets.iter().enumerate() {
                replies.send(&head(plan, n, closes && n == last))?;
                replies.take(target)?;
            }
            if closes {
                return replies.end();
            }
            if replies.buffer.is_empty() { Ok(()) } else { Err(Fault::Surplus) }
        }
    }
}

/// Connects as soon as the client's kernel has released an earlier connection from the same port.
fn connect(plan: &Plan, port: u16, stall: Duration, times: &mut Times) -> io::Result<TcpStream> {
    let until = Instant::now() + stall;
    loop {
        let started = Instant::now();
        let connected = connect_once(plan, port, stall);
        times.connect = started.elapsed();
        match connected {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable && started < until => {
                take_time(Duration::from_millis(1));
            }
            connected => return connected,
        }
    }
}

fn connect_once(plan: &Plan, port: u16, stall: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(plan.server), Type::STREAM, Some(Protocol::TCP))?;
    if plan.same_port {
        let any: IpAddr = match plan.server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // IPv4 and IPv6 have separate ports.
        if plan.server.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(any, port).into())?;
    }
    socket.set_tcp_nodelay(true)?;
    socket.set_read_timeout(Some(stall))?;
    socket.connect_timeout(&plan.server.into(), stall)?;
    Ok(socket.into())
}

/// Returns the head of the `n`th request.
pub fn head(plan: &Plan, n: usize, close: bool) -> Vec<u8> {
    let connection = if close { "Connection: close\r\n" } else { "" };
    let path = &plan.targets[n].path;
    let method = if plan.behaviour == Behaviour::HeadOnly { "HEAD" } else { "GET" };
    let filler = match plan.behaviour {
        Behaviour::LongHead { bytes } => format!("X-Filler: {}\r\n", "x".repeat(bytes)),
        Behaviour::Fields { count } => (2..count).map(|n| format!("X-Field-{n}: x\r\n")).collect(),
        _ => String::new(),
    };
    let lines = format!("{method} {path} HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: verifier\r\n");
    format!("{lines}{filler}{connection}\r\n").into_bytes()
}

fn io_fault(error: io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Fault::Reset,
        _ => Fault::Io(error),
    }
}

/// Reader of the replies on a connection.
struct Replies<'a> {
    stream: TcpStream,
    /// Bytes that are received and not yet parsed.
    buffer: Vec<u8>,
    stall: Duration,
    rest: Duration,
    times: &'a mut Times,
    tally: &'a mut Tally,
}

impl Replies<'_> {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.stream.write_all(bytes).map_err(io_fault)
    }

    /// Reads more bytes. Returns `false` at the end.
    fn more(&mut self) -> Result<bool, Fault> {
        let mut chunk = [0; 1 << 16];
        take_time(self.rest);
        let asked = Instant::now();
        let read = loop {
            match self.stream.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Fault::Stall(self.stall));
                }
                other => break other.map_err(io_fault)?,
            }
        };
        self.times.pause = self.times.pause.max(asked.elapsed());
        self.buffer.extend_from_slice(&chunk[..read]);
        Ok(read > 0)
    }

    /// Reads and verifies a whole reply.
    fn take(&mut self, target: &Target) -> Result<(), Fault> {
        self.take_part(target, target.bytes)?;
        self.tally.replies += 1;
        Ok(())
    }

    /// Reads a reply's head and the first `bytes` of its content.
    fn take_part(&mut self, target: &Target, bytes: u64) -> Result<(), Fault> {
        self.take_head(target)?;
        let mut offset = 0;
        while offset < bytes {
            if self.buffer.is_empty() && !self.more()? {
                return Err(Fault::Short { path: target.path.clone(), got: offset, bytes: target.bytes });
            }
            let length = (target.bytes - offset).min(self.buffer.len() as u64) as usize;
            if let Some(offset) = target.first_difference(offset, &self.buffer[..length]) {
                return Err(Fault::Wrong { path: target.path.clone(), offset });
            }
            self.buffer.drain(..length);
            offset += length as u64;
            self.tally.bytes += length as u64;
        }
        Ok(())
    }

    fn take_head(&mut self, target: &Target) -> Result<(), Fault> {
        let asked = Instant::now();
        if self.buffer.is_empty() && self.more()? {
            self.times.first_byte.push(asked.elapsed());
        }
        let end = loop {
            if let Some(end) = head_bytes(&self.buffer) {
                break end;
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(Fault::Head("without end".to_owned()));
            }
            if !self.more()? {
                return Err(Fault::Short { path: target.path.clone(), got: 0, bytes: target.bytes });
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        if !head.starts_with("http/1.1 200 ") || length != Some(target.bytes) {
            return Err(Fault::Head(head));
        }
        self.buffer.drain(..end);
        Ok(())
    }

    /// Checks that the server closes and sends nothing more.
    fn end(&mut self) -> Result<(), Fault> {
        if self.buffer.is_empty() && !self.more()? { Ok(()) } else { Err(Fault::Surplus) }
    }
}
