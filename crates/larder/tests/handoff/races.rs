//! Races of socket migration that the switch has a fix for. Without its fix, each race costs connections;
//! with the fix, none.
//!
//! Switch and node run in this process, in separate namespaces. Thus a fix can be disabled, and the node can
//! be slowed down.

use larder_testkit::http::take_head;
use larder_testkit::{eventually_async, or_skip, take_time, within};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use larder_core::NodeSpec;
use larder_handoff::agent::{
    Agent, AgentConfig, KernelEvent, LinuxKernel, NodeKernel, RestoreRequest, RestoredConnection,
    RestoredSink, ServiceRules,
};
use larder_handoff::channel::Timing;
use larder_handoff::channel::identity::Identity;
use larder_handoff::channel::message::Refusal;
use larder_kernel::guard::InboundTunnel;
use larder_kernel::netns::{Namespace, Topology, TopologySpec};
use larder_kernel::plane::Plane;
use larder_kernel::repair::RaceFixes;
use larder_kernel::{CookieKey, FlowKey};
use larder_switch::{
    HandoffConfig, Handshake, MechanismSetting, NodeEntry, NodeHandoff, Switch, SwitchConfig, SwitchHandle,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::{mpsc, oneshot};

use crate::plans::Random;

const PATIENCE: Duration = Duration::from_secs(30);
/// A client that receives nothing for this long counts as stalled.
const STALL: Duration = Duration::from_millis(1_500);
const THREADS: usize = 8;
/// Attempts to provoke a race without its fix, and attempts to get a run on an idle machine with all fixes.
const TRIES_MAX: usize = 6;
/// Longest wait of a thread for a processor on a machine that counts as idle. It is shorter than a
/// retransmission and than a channel's timeout, which clients would notice as stalls.
const LATE_MAX: Duration = Duration::from_millis(200);

/// A kernel interface that delays the restore of a connection.
struct SlowKernel {
    host: LinuxKernel,
    before: Duration,
}

impl NodeKernel for SlowKernel {
    fn accepts_cookies(&self) -> bool {
        false
    }

    fn set_service(&self, id: u16, address: SocketAddr, rules: ServiceRules) -> io::Result<()> {
        self.host.set_service(id, address, rules)
    }

    fn remove_service(&self, address: SocketAddr) -> io::Result<()> {
        self.host.remove_service(address)
    }

    fn set_keys(&self, keys: &[CookieKey; 2]) -> io::Result<()> {
        self.host.set_keys(keys)
    }

    fn set_tag(&self, tag: u8) -> io::Result<()> {
        self.host.set_tag(tag)
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        self.host.events_fd()
    }

    fn read_events(&self, seen: &mut dyn FnMut(KernelEvent<'_>)) -> usize {
        self.host.read_events(seen)
    }

    fn each_connection(&self, see: &mut dyn FnMut(FlowKey, u32)) {
        self.host.each_connection(see);
    }

    fn add_tunnel(&self, tunnel: &InboundTunnel) -> io::Result<()> {
        self.host.add_tunnel(tunnel)
    }

    fn remove_tunnel(&self, tunnel: &InboundTunnel) -> io::Result<()> {
        self.host.remove_tunnel(tunnel)
    }

    fn each_socket(&self, see: &mut dyn FnMut(SocketAddr, SocketAddr)) -> io::Result<()> {
        self.host.each_socket(see)
    }

    fn each_silent(&self, span: Duration, see: &mut dyn FnMut(FlowKey, u32)) {
        self.host.each_silent(span, see);
    }

    fn restore(&self, moved: RestoreRequest<'_>) -> Result<RestoredConnection, (Refusal, String)> {
        take_time(self.before);
        self.host.restore(moved)
    }

    fn add_connection(&self, key: FlowKey) {
        self.host.add_connection(key);
    }

    fn remove_connection(&self, key: FlowKey) {
        self.host.remove_connection(key);
    }

    fn freeze(&self, key: FlowKey) -> io::Result<()> {
        self.host.freeze(key)
    }

    fn thaw(&self, key: FlowKey) -> io::Result<()> {
        self.host.thaw(key)
    }

    fn reinject(&self, packet: &[u8]) -> io::Result<()> {
        self.host.reinject(packet)
    }

    fn inject(&self, packet: &[u8]) -> io::Result<()> {
        self.host.inject(packet)
    }
}

/// Answers each request `GET /<bytes>` with this many bytes, until the client closes its side.
fn serve(mut stream: TcpStream, first: Vec<u8>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut got = first;
    loop {
        while let Some(head) = take_head(&mut got) {
            let bytes: usize = head[5..].split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n")?;
            stream.write_all(&vec![b'x'; bytes])?;
        }
        let mut chunk = [0; 4_096];
        match stream.read(&mut chunk)? {
            0 => return Ok(()),
            length => got.extend_from_slice(&chunk[..length]),
        }
    }
}

/// A runtime in a namespace. Drop stops its task.
struct TaskThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<larder_kernel::netns::NamespaceThread<()>>,
}

impl TaskThread {
    fn start<F>(namespace: &Namespace, work: impl FnOnce(oneshot::Receiver<()>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()>,
    {
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(work(stopped));
        };
        Self { stop: Some(stop), thread: Some(namespace.thread(run).unwrap()) }
    }
}

impl Drop for TaskThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// Measures the longest delay with which a thread of this process gets a processor.
struct Lateness {
    worst: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Lateness {
    fn watch() -> Self {
        let watch = Self { worst: Arc::default(), stop: Arc::default() };
        let (worst, stop) = (watch.worst.clone(), watch.stop.clone());
        thread::spawn(move || {
            let nap = Duration::from_millis(5);
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                take_time(nap);
                let late = began.elapsed().saturating_sub(nap).as_micros();
                worst.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        watch
    }

    fn worst(&self) -> Duration {
        Duration::from_micros(self.worst.load(Ordering::Relaxed))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Behaviour of a client.
#[derive(Clone, Copy, Debug)]
enum ClientBehaviour {
    /// Sends a second request shortly after the first.
    Pipelining,
    /// Closes its side shortly after its request.
    HalfClosing,
    /// Closes its side in the middle of a long reply.
    EndingEarly,
    /// Resets the connection after its reply, and reconnects at once from the same port.
    Returning,
}

fn take(stream: &mut TcpStream, bytes: usize) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n").len();
    stream.read_exact(&mut vec![0; head + bytes])
}

/// Makes two connections from one port. The first one ends by a reset, so that the port is free at once.
fn reconnect_at_once(server: SocketAddr) -> io::Result<()> {
    let request = b"GET /20000 HTTP/1.1\r\nHost: a\r\n\r\n";
    // Below the range from which the kernel assigns ports.
    static PORT: AtomicU16 = AtomicU16::new(10_000);
    let from = SocketAddr::from(([0; 4], PORT.fetch_add(1, Ordering::Relaxed)));
    for _ in 0..2 {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&server.into(), STALL)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(STALL))?;
        stream.write_all(request)?;
        take(&mut stream, 20_000)?;
        // The close may be late: a process that another test starts holds all descriptors until its `exec`.
        rustix::net::connect_unspec(&stream)?;
    }
    Ok(())
}

fn ask(server: SocketAddr, behaviour: ClientBehaviour, gap: Duration) -> io::Result<()> {
    if matches!(behaviour, ClientBehaviour::Returning) {
        return reconnect_at_once(server);
    }
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STALL))?;
    let (bytes, long) = (20_000, 4_000_000);
    let pause = || {
        let began = Instant::now();
        while began.elapsed() < gap {
            std::hint::spin_loop();
        }
    };
    let request = |bytes: usize| format!("GET /{bytes} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes();
    match behaviour {
        ClientBehaviour::Pipelining => {
            stream.write_all(&request(bytes))?;
            pause();
            stream.write_all(&request(bytes))?;
            take(&mut stream, bytes)?;
            take(&mut stream, bytes)?;
        }
        ClientBehaviour::HalfClosing => {
            stream.write_all(&request(bytes))?;
            pause();
            stream.shutdown(Shutdown::Write)?;
            take(&mut stream, bytes)?;
        }
        ClientBehaviour::EndingEarly => {
            stream.write_all(&request(long))?;
            stream.read_exact(&mut [0; 50_000])?;
            stream.shutdown(Shutdown::Write)?;
            take_time(Duration::from_millis(20));
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest)?;
            if rest.len() + 50_000 < long {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            return Ok(());
        }
        ClientBehaviour::Returning => return Ok(()),
    }
    // A client that has closed its side cannot close it again.
    if matches!(behaviour, ClientBehaviour::Pipelining) {
        stream.shutdown(Shutdown::Write)?;
    }
    match stream.read(&mut [0; 1])? {
        0 => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn has_fault(server: SocketAddr, behaviour: ClientBehaviour, gap: Duration, explain: impl Fn()) -> bool {
    let asked = ask(server, behaviour, gap);
    if let Err(error) = &asked {
        println!("{behaviour:?} after {gap:?}: {error}");
        explain();
    }
    asked.is_err()
}

/// Prints the sockets of all hosts and the counters of the switch's kernel plane.
fn explain(topology: &Topology, switch: &SwitchHandle) {
    for host in topology.hosts() {
        let sockets = host.namespace.output(Command::new("ss").arg("-tinmo"));
        let sockets = sockets.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        println!("{}: {}", host.port, sockets.unwrap_or_else(|error| error.to_string()));
    }
    let of_interest = ["larder_switch_plane_total", "larder_switch_handoff", "larder_switch_deliveries"];
    for line in switch.metrics_text().lines().filter(|line| !line.ends_with(" 0")) {
        if of_interest.iter().any(|name| line.starts_with(name)) {
            println!("{line}");
        }
    }
}

/// Runs connections through a switch with these fixes to a node with this delay. Returns the number of
/// connections with a fault, or `None` without privileges.
#[expect(clippy::too_many_lines, reason = "one scene, from its hosts to its end")]
fn count_faults(fixes: RaceFixes, slow: Duration, behaviour: ClientBehaviour, count: usize) -> Option<usize> {
    let spec = TopologySpec { nodes: 1, ..TopologySpec::default() };
    let topology = or_skip(Topology::new(&spec))?;
    let (switch_id, node_id) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let service: SocketAddr = (topology.vip4, 80).into();
    let (host, front) = (&topology.nodes[0], topology.front());
    let (control, own) = (SocketAddr::from((host.v4, 7946)), SocketAddr::from((host.v4, 80)));
    let name = crate::cluster::Cluster::instance("race");
    let left = name.clone();
    let agent = AgentConfig {
        name: "n".to_owned(),
        listen: control,
        identity: node_id.clone(),
        switches: vec![switch_id.public()],
        interface: Some("eth0".to_owned()),
        services: vec![service],
        lateral: false,
        timing: Timing::default(),
    };
    let programs = name.clone();
    let node = TaskThread::start(&host.namespace, move |stopped| async move {
        let slow = SlowKernel { host: LinuxKernel::start(&programs, "eth0", true).unwrap(), before: slow };
        let (sink, mut sockets) = mpsc::channel::<RestoredConnection>(64);
        let agent = Agent::start(agent, Some(Arc::new(slow)), Some(RestoredSink::new(sink))).await.unwrap();
        let listener = TcpListener::bind(own).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || serve(stream, Vec::new()));
            }
        });
        let serving = async {
            while let Some(restored) = sockets.recv().await {
                thread::spawn(move || serve(restored.socket.into(), restored.received));
            }
        };
        tokio::select! {
            _ = stopped => {}
            () = serving => {}
        }
        agent.stop().await;
    });
    let mut entry = NodeEntry::new(NodeSpec::named("n"), own.to_string());
    entry.handoff = Some(NodeHandoff { control: control.to_string(), key: node_id.public() });
    let mut config = SwitchConfig::new(vec![service], vec![entry]);
    config.handoff = HandoffConfig {
        setting: MechanismSetting::Repair,
        handshake: Handshake::Stack,
        name,
        interface: Some("eth0".to_owned()),
        identity: Some(switch_id),
        repair_bytes_min: 0,
        locality_lost_max: 1.0,
        fixes,
        ..HandoffConfig::default()
    };
    config.timeouts.drain = Duration::from_millis(1);
    let (ready, is_ready) = std::sync::mpsc::channel();
    let switch = TaskThread::start(&front.namespace, move |stopped| async move {
        let switch = Switch::bind(config).unwrap();
        let handle = switch.handle();
        let watching = async {
            let up = || handle.nodes().iter().any(|node| node.handoff.as_ref().is_some_and(|h| h.repair));
            eventually_async("the node can take connections", || up().then_some(())).await;
            let _ = ready.send(handle);
            let _ = stopped.await;
        };
        switch.run(watching).await.unwrap();
    });
    let handle = is_ready.recv_timeout(PATIENCE).unwrap();
    let explained = Once::new();
    // Without a fix, faults are expected.
    let explain = || {
        if fixes == RaceFixes::default() {
            explained.call_once(|| explain(&topology, &handle));
        }
    };
    let client = &topology.client().namespace;
    let clients = || {
        thread::scope(|scope| {
            let one = |number: usize| {
                let mut random = Random(number as u64);
                let some = (0..count / THREADS).map(move |_| Duration::from_micros(random.next() % 300));
                scope.spawn(move || some.filter(|gap| has_fault(service, behaviour, *gap, explain)).count())
            };
            let threads: Vec<_> = (0..THREADS).map(one).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        })
    };
    let wrong = client.run(clients).unwrap();
    drop((switch, node));
    // The plane keeps remaining connections for the next start of the switch, which never comes. The switch's
    // last task may hold the plane for a moment.
    within(STALL, || Plane::clean(&left).is_ok());
    Some(wrong)
}

/// Counts faults with all fixes, on an idle machine. Faults while threads waited for a processor prove
/// nothing, because clients and the control channel notice such waits as stalls.
fn count_faults_with_all_fixes(slow: Duration, behaviour: ClientBehaviour, count: usize) -> Option<usize> {
    for _ in 0..TRIES_MAX {
        let lateness = Lateness::watch();
        let faults = count_faults(RaceFixes::default(), slow, behaviour, count)?;
        if faults == 0 || lateness.worst() < LATE_MAX {
            return Some(faults);
        }
        println!("{faults} of {count} went wrong, but threads waited up to {:?}: again", lateness.worst());
    }
    panic!("the machine has no time: threads wait longer than {LATE_MAX:?} whenever this is tried");
}

/// Checks that no connection fails with all fixes, with and without the node's delay. Without this one fix at
/// least `least` must fail.
fn check_fix(without: RaceFixes, slow: Duration, behaviour: ClientBehaviour, count: usize, least: usize) {
    for slow in [Duration::ZERO, slow] {
        let Some(faults) = count_faults_with_all_fixes(slow, behaviour, count) else { return };
        assert_eq!(faults, 0, "of {count} with the fix, {behaviour:?}, {slow:?}");
    }
    // The outcome of a race is random.
    let mut tries = (0..TRIES_MAX).map(|_| count_faults(without, slow, behaviour, count).unwrap());
    let faults = tries.find(|faults| *faults >= least).unwrap_or(0);
    println!("{behaviour:?}: {faults} of {count} went wrong without the fix, none of {} with it", 2 * count);
    assert!(faults >= least, "{faults} of {count} without the fix: the test proves nothing");
}

/// R1: A packet arrives after the snapshot and before packets are forwarded to the node.
#[test]
fn packets_are_forwarded_before_the_socket_freezes() {
    let without = RaceFixes { forward_first: false, ..RaceFixes::default() };
    check_fix(without, Duration::from_micros(300), ClientBehaviour::Pipelining, 160, 1);
}

/// R2: A packet arrives at the node before the socket is restored.
#[test]
fn early_packets_wait_for_their_socket() {
    let without = RaceFixes { stash_early: false, ..RaceFixes::default() };
    check_fix(without, Duration::from_millis(5), ClientBehaviour::HalfClosing, 160, 1);
}

/// R8: A client opens a new connection with the addresses of one that was moved.
#[test]
fn a_new_connection_may_have_an_old_ones_addresses() {
    let without = RaceFixes { syn_replaces_flow: false, ..RaceFixes::default() };
    check_fix(without, Duration::from_micros(300), ClientBehaviour::Returning, 16, 1);
}

/// R9: Packets arrive after the front-end has seen the end of the connection.
#[test]
fn late_packets_still_go_to_the_node() {
    let without = RaceFixes { keep_entry: false, ..RaceFixes::default() };
    check_fix(without, Duration::from_micros(300), ClientBehaviour::EndingEarly, 64, 5);
}
