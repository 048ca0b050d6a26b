//! Attackers that observe segments of clients and know the sequence numbers of their connections almost. They
//! send RSTs, FINs, data and acknowledgements whose numbers are wrong by a byte to a megabyte.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use larder_kernel::frame::TcpFrame;
use larder_kernel::frame::tcp_flag::{ACK, FIN, PSH, RST, SYN};
use larder_kernel::netns::{Capture, Host, INTERFACE, Namespace, Wire};

use crate::client::{self, ClientSettings};
use crate::cluster::{Cluster, Spec};
use crate::content::Content;
use crate::plans::{Random, mixed};

const SIZES: [u64; 5] = [1, 100, 1_000, 10_000, 100_000];
/// Size of the steady transfers' replies. Bytes.
const LARGE: u64 = 300_000_000;
const HANDOFF: &str = "mechanism = \"cookie\"\nidle_after = \"60s\"\nlocality_lost_max = 1.0";
const SETUP: ClientSettings =
    ClientSettings { threads: 4, first_port: 20_000, stall: Duration::from_secs(10) };
const LOAD: &str = "larder_switch_node_load";
/// Number of transfers that last the whole test and are attacked too.
const STEADY: usize = 8;
/// Upper limit of what a client sends on one connection. Bytes. A RST that is ahead by less could have the
/// exact number on arrival, because the client may have sent more meanwhile.
const CLIENT_BYTES_MAX: usize = 8_192;
/// Time limit until the counts agree.
const SETTLED_WITHIN: Duration = Duration::from_secs(2);

/// A segment that a client has sent.
struct Segment {
    from: SocketAddr,
    to: SocketAddr,
    /// Sequence number after its payload.
    seq: u32,
    ack: u32,
}

impl Segment {
    /// `None` if the frame is no data or acknowledgement segment.
    fn read(frame: &[u8]) -> Option<Self> {
        let TcpFrame { from, to, seq, ack, flags, payload, .. } = TcpFrame::parse(frame)?;
        let seq = seq.wrapping_add(payload.len() as u32);
        (flags & (SYN | RST | FIN | ACK) == ACK).then_some(Self { from, to, seq, ack })
    }

    /// Returns flags, sequence number and acknowledgement number that the socket must reject. The sequence
    /// number is never the expected one. Except for RSTs it is outside the window, because data in the window
    /// can break any connection (RFC 5961 section 5).
    fn forge(&self, random: &mut Random) -> (u8, u32, u32) {
        let ahead = 200_000 + random.below(1 << 20) as u32;
        // More than a socket can have sent without an acknowledgement.
        let unsent = (9 << 20) + random.below(6 << 20) as u32;
        let behind = 1 + random.below(65_535) as u32;
        let in_window = (CLIENT_BYTES_MAX + random.below(65_536 - CLIENT_BYTES_MAX)) as u32;
        match random.below(7) {
            0 => (RST, self.seq.wrapping_add(in_window), 0),
            1 => (RST, self.seq.wrapping_sub(behind), 0),
            2 => (RST | ACK, self.seq.wrapping_add(ahead), self.ack),
            3 => (FIN | ACK, self.seq.wrapping_add(ahead), self.ack),
            4 => (FIN | ACK, self.seq.wrapping_sub(behind), self.ack),
            5 => (PSH | ACK, self.seq.wrapping_add(ahead), self.ack),
            _ => (ACK, self.seq, self.ack.wrapping_add(unsent)),
        }
    }
}

/// Sends a forged segment for every third observed one while `go` is set. Returns the number of forged
/// segments.
fn attack(cluster: &Cluster, go: &AtomicBool) -> u64 {
    let client = cluster.topology.client();
    let front = cluster.topology.front().mac;
    let mut capture = Capture::open(&cluster.topology.hub).unwrap();
    let wire = Wire::open(&client.namespace).unwrap();
    let ifindex = client.namespace.ifindex(INTERFACE).unwrap();
    let services = cluster.service();
    let (mut random, mut sent) = (Random(71), 0);
    while go.load(Ordering::Relaxed) {
        let captured = capture.read(64, Duration::from_millis(5)).unwrap();
        for segment in captured.iter().filter_map(|one| Segment::read(&one.frame)) {
            if !services.contains(&segment.to) || random.below(3) != 0 {
                continue;
            }
            let (flags, seq, ack) = segment.forge(&mut random);
            let frame = TcpFrame {
                macs: [client.mac, front],
                from: segment.from,
                to: segment.to,
                seq,
                ack,
                flags,
                window: 501,
                options: &[],
                payload: if flags & PSH == 0 { &[] } else { b"GET / HTTP/1.1\r\n\r\n" },
            };
            sent += u64::from(wire.send(ifindex, &frame.bytes().unwrap()).is_ok());
        }
    }
    sent
}

/// Returns the number of open client sockets of a node (`net/tcp_states.h`).
fn sockets(node: &Host, client: &Host) -> usize {
    const LIVE: [&str; 2] = ["01", "08"];
    let words = |octets: &[u8]| -> String {
        let word = |four: &[u8]| format!("{:08X}", u32::from_ne_bytes(four.try_into().unwrap()));
        octets.chunks(4).map(word).collect()
    };
    let of = [words(&client.v4.octets()), words(&client.v6.octets())];
    let read = |namespace: &Namespace| {
        namespace
            .run(|| ["tcp", "tcp6"].map(|file| fs::read_to_string(format!("/proc/thread-self/net/{file}"))))
    };
    let is_live = |line: &&str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, remote, state) = (fields.next(), fields.next(), fields.next());
        local.is_some_and(|local| local.ends_with(":0050"))
            && remote.and_then(|remote| remote.split_once(':')).is_some_and(|(ip, _)| is_of(ip, &of))
            && state.is_some_and(|state| LIVE.contains(&state))
    };
    let texts = read(&node.namespace).unwrap().map(Result::unwrap);
    texts.iter().map(|text| text.lines().skip(1).filter(is_live).count()).sum()
}

/// Also matches an IPv4 address in an IPv6 socket.
fn is_of(ip: &str, of: &[String; 2]) -> bool {
    ip == of[0] || ip == of[1] || ip.strip_prefix("0000000000000000FFFF0000").is_some_and(|v4| v4 == of[0])
}

/// Waits until the dispatcher and the nodes both count `live` connections.
fn await_connection_count(cluster: &Cluster, live: usize) {
    let began = Instant::now();
    loop {
        let load = cluster.metric(LOAD, &[]);
        let has: usize =
            cluster.topology.nodes.iter().map(|node| sockets(node, cluster.topology.client())).sum();
        if load == live as u64 && has == live {
            return println!("load and sockets are {live} after {:?}", began.elapsed());
        }
        assert!(
            began.elapsed() < SETTLED_WITHIN,
            "load {load}, {has} sockets, {live} expected\n{}\n{}",
            cluster.admin("/metrics"),
            cluster.logs()
        );
        larder_testkit::take_time(Duration::from_millis(20));
    }
}

/// Reads slowly while `go` is set. Before a reply ends, the next request is sent.
fn read_slowly(stream: &mut TcpStream, request: &[u8], go: &AtomicBool) {
    let mut bytes = vec![0; 16_384];
    let (mut requests, mut received) = (1, 0);
    while go.load(Ordering::Relaxed) {
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "a transfer was cut after {received} bytes of {requests} replies");
        received += read as u64;
        // The rest of the reply equals the heads of the replies in size.
        if received >= requests * LARGE {
            stream.write_all(request).unwrap();
            requests += 1;
        }
        larder_testkit::take_time(Duration::from_millis(20));
    }
}

/// Clears the flags on drop, so that the threads also stop when the test fails.
struct StopOnDrop<'a>([&'a AtomicBool; 2]);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|go| go.store(false, Ordering::Relaxed));
    }
}

/// Runs steady transfers and `count` other connections under attack. No connection may fail, and the counts
/// must agree within two seconds.
pub(crate) fn check_connection_count(count: usize) {
    let content = Content::new(&[&SIZES[..], &[LARGE]].concat(), 1);
    let Some(cluster) = Cluster::new(&Spec { handoff: HANDOFF, ..Spec::default() }, content) else { return };
    let (large, usual): (Vec<_>, Vec<_>) =
        cluster.content.targets.iter().cloned().partition(|target| target.bytes == LARGE);
    let services = cluster.service();
    let client = &cluster.topology.client().namespace;
    let mut plans = mixed(72, count, &services, &usual);
    // A packet forged for a connection must not reach the next connection with the same addresses.
    plans.iter_mut().for_each(|plan| plan.same_port = false);
    let (forging, taking) = (AtomicBool::new(true), AtomicBool::new(true));
    let open = || -> Vec<TcpStream> {
        let connect = |number: usize| TcpStream::connect(services[number % 2]).unwrap();
        (0..STEADY).map(connect).collect()
    };
    let mut steady = client.run(open).unwrap();
    let request = format!("GET {} HTTP/1.1\r\nHost: www.example.com\r\n\r\n", large[0].path);
    let request = request.as_bytes();
    for stream in &mut steady {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // In one segment, because a head in several segments is relayed.
        stream.write_all(request).unwrap();
    }
    thread::scope(|scope| {
        let _stops = StopOnDrop([&forging, &taking]);
        let forger = scope.spawn(|| attack(&cluster, &forging));
        let takers: Vec<_> =
            steady.iter_mut().map(|stream| scope.spawn(|| read_slowly(stream, request, &taking))).collect();
        let tally = client.run(|| client::run(&plans, SETUP)).unwrap();
        println!("{tally}");
        tally.assert_faultless();
        await_connection_count(&cluster, STEADY);
        forging.store(false, Ordering::Relaxed);
        let sent = forger.join().unwrap();
        await_connection_count(&cluster, STEADY);
        taking.store(false, Ordering::Relaxed);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        let inexact = cluster.metric("larder_switch_plane_total", &["inexact_end"]);
        println!("{sent} forged, {inexact} ends with a wrong number");
        assert_eq!(tally.right, count);
        assert!(sent > count as u64 && inexact > sent / 4, "{sent} forged, {inexact} seen");
    });
    drop(steady);
    await_connection_count(&cluster, 0);
}

#[test]
fn the_account_is_right_whatever_is_forged() {
    check_connection_count(400);
}
