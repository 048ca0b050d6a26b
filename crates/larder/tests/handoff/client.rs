//! A client that behaves in every way a client may, and believes nothing: it verifies every byte of every reply.
//!
//! Blocking sockets on threads in a namespace. What counts as wrong: a connection refused or reset, a pause longer than
//! the limit, a status or length that is not the target's, a wrong, missing or surplus byte.

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

/// How a client behaves on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// One request, `Connection: close`; the server closes.
    Plain,
    /// All requests at once, without waiting; the server closes after the last reply.
    Pipelined,
    /// Ends its own side right after its last request; the server closes.
    HalfClosing,
    /// Resets the connection after this many bytes of the first reply's content.
    Resetting { after: u64 },
    /// Sends the head in two pieces, a pause in between.
    Split { at: usize, pause: Duration, no_delay: bool },
    /// One request after another; the client closes.
    KeptAlive,
    /// One request after another, the last of which says so; the server closes.
    KeptToTheEnd,
    /// One request with so many fields in its head, 2 or more; the client closes.
    Fields { count: usize },
    /// Asks for the head alone; the server closes.
    HeadOnly,
    /// One request with a field of this length in its head, so that it takes several segments; the server closes.
    LongHead { bytes: usize },
    /// One request; after each 64 KB of its reply the client rests for so long.
    Slow { rest: Duration },
    /// One request; the connection stays open for so long after its reply, and the client closes.
    Resting { rest: Duration },
}

impl Manner {
    /// The client's own kernel holds the second piece back until the first is acknowledged (Nagle's algorithm, RFC 896),
    /// and the server's takes its time with that (RFC 1122 section 4.2.3.2): such waits are nobody's fault.
    fn waits_by_itself(self) -> bool {
        matches!(self, Self::Split { no_delay: false, .. })
    }
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Plan {
    pub manner: Manner,
    pub server: SocketAddr,
    /// Use the thread's own port again and again, rather than one that the kernel chooses.
    pub same_port: bool,
    /// What is asked for; the manner says whether more than one. Never empty.
    pub targets: Vec<Target>,
}

/// What went wrong.
#[derive(Debug)]
pub enum Fault {
    Connect(io::Error),
    Reset,
    /// Nothing came for this long.
    Stall(Duration),
    Io(io::Error),
    /// A head that is no right reply to this request.
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
    /// More came than was asked for.
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

/// What one connection took.
#[derive(Debug, Default)]
struct Times {
    /// The client's address, once connected.
    from: Option<SocketAddr>,
    connect: Duration,
    /// From a request's last byte to its reply's first, by reply (pipelined: of the first reply only).
    first_byte: Vec<Duration>,
    /// The longest pause while a reply was under way.
    pause: Duration,
}

/// What many connections came to.
#[derive(Debug, Default)]
pub struct Tally {
    /// Connections without a fault.
    pub right: usize,
    /// Replies verified to their last byte.
    pub replies: usize,
    /// Bytes of content verified.
    pub bytes: u64,
    pub faults: Vec<(Plan, Fault)>,
    /// The clients' ports of connections with a fault, where they had one.
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

    /// Share `q` of connections were made, of replies began, and of connections paused at the longest, within these times.
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
                    plan.manner, plan.targets[0].path, plan.same_port
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

/// How connections are made.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Connections at a time.
    pub threads: usize,
    /// Ports from here on, one a thread, are for plans with `same_port`; outside of the kernel's range.
    pub first_port: u16,
    /// A longer silence is a fault.
    pub stall: Duration,
}

/// Carries out all plans. In the calling thread's namespace: threads inherit it.
pub fn run(plans: &[Plan], setup: Setup) -> Tally {
    run_shares(plans, setup, None)
}

/// Carries out the plans over and over for as long as `go` says so.
pub fn run_while(plans: &[Plan], setup: Setup, go: &AtomicBool) -> Tally {
    run_shares(plans, setup, Some(go))
}

fn run_shares(plans: &[Plan], setup: Setup, go: Option<&AtomicBool>) -> Tally {
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
        match carry_out(plan, port, stall, &mut times, &mut tally) {
            Ok(()) => tally.right += 1,
            Err(fault) => {
                println!("{:?} to {}, {:?}: {fault}", times.from, plan.server, plan.manner);
                tally.faults.push((plan.clone(), fault));
                tally.fault_ports.extend(times.from.map(|from| from.port()));
            }
        }
        tally.connect.push(times.connect);
        if !plan.manner.waits_by_itself() {
            tally.first_byte.append(&mut times.first_byte);
            tally.pause.push(times.pause);
        }
    }
    tally
}

fn carry_out(
    plan: &Plan,
    port: u16,
    stall: Duration,
    times: &mut Times,
    tally: &mut Tally,
) -> Result<(), Fault> {
    let stream = connect(plan, port, stall, times).map_err(Fault::Connect)?;
    times.from = stream.local_addr().ok();
    let rest = match plan.manner {
        Manner::Slow { rest } => rest,
        _ => Duration::ZERO,
    };
    let mut replies = Replies { stream, buffer: Vec::new(), stall, rest, times, tally };
    let last = plan.targets.len() - 1;
    match plan.manner {
        Manner::Plain | Manner::LongHead { .. } | Manner::Slow { .. } => {
            replies.send(&head(plan, 0, true))?;
            replies.take(&plan.targets[0])?;
            replies.end()
        }
        Manner::Resting { rest } => {
            replies.send(&head(plan, 0, false))?;
            replies.take(&plan.targets[0])?;
            take_time(rest);
            if replies.buffer.is_empty() { Ok(()) } else { Err(Fault::Surplus) }
        }
        Manner::HeadOnly => {
            replies.send(&head(plan, 0, true))?;
            replies.take_part(&plan.targets[0], 0)?;
            replies.end()
        }
        Manner::Pipelined | Manner::HalfClosing => {
            let heads: Vec<u8> = (0..=last).flat_map(|n| head(plan, n, n == last)).collect();
            replies.send(&heads)?;
            if plan.manner == Manner::HalfClosing {
                replies.stream.shutdown(Shutdown::Write).map_err(io_fault)?;
            }
            plan.targets.iter().try_for_each(|target| replies.take(target))?;
            replies.end()
        }
        Manner::Resetting { after } => {
            replies.send(&head(plan, 0, true))?;
            replies.take_part(&plan.targets[0], after)?;
            let socket = socket2::SockRef::from(&replies.stream);
            socket.set_linger(Some(Duration::ZERO)).map_err(Fault::Io)
        }
        Manner::Split { at, pause, no_delay } => {
            replies.stream.set_nodelay(no_delay).map_err(Fault::Io)?;
            let head = head(plan, 0, true);
            let (first, second) = head.split_at(at.min(head.len()));
            replies.send(first)?;
            take_time(pause);
            replies.send(second)?;
            replies.take(&plan.targets[0])?;
            replies.end()
        }
        Manner::KeptAlive | Manner::KeptToTheEnd | Manner::Fields { .. } => {
            let says_so = plan.manner == Manner::KeptToTheEnd;
            for (n, target) in plan.targets.iter().enumerate() {
                replies.send(&head(plan, n, says_so && n == last))?;
                replies.take(target)?;
            }
            if says_so {
                return replies.end();
            }
            if replies.buffer.is_empty() { Ok(()) } else { Err(Fault::Surplus) }
        }
    }
}

/// Connects as soon as the client's own kernel is done with an earlier connection from the same port.
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
        // IPv4 and IPv6 each have the port for themselves.
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

/// The head of the `n`th request.
pub fn head(plan: &Plan, n: usize, close: bool) -> Vec<u8> {
    let connection = if close { "Connection: close\r\n" } else { "" };
    let path = &plan.targets[n].path;
    let method = if plan.manner == Manner::HeadOnly { "HEAD" } else { "GET" };
    let filler = match plan.manner {
        Manner::LongHead { bytes } => format!("X-Filler: {}\r\n", "x".repeat(bytes)),
        Manner::Fields { count } => (2..count).map(|n| format!("X-Field-{n}: x\r\n")).collect(),
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

/// Reads replies from a connection.
struct Replies<'a> {
    stream: TcpStream,
    /// Read and not yet looked at.
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

    /// Reads more; `false` at the end.
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

    /// Reads a whole reply and verifies it.
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
            if let Some(offset) = target.first_wrong(offset, &self.buffer[..length]) {
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
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
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

    /// The server must close now, and send nothing more.
    fn end(&mut self) -> Result<(), Fault> {
        if self.buffer.is_empty() && !self.more()? { Ok(()) } else { Err(Fault::Surplus) }
    }
}
