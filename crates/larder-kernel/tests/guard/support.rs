//! Helpers of these tests.

use crate::frame::{ACK, PSH, Segment};
use crate::lab::{INTERFACE, KEY, Lab, OLD_KEY, PATIENCE, address, eventually, vip};
use larder_kernel::guard::{Guard, GuardConfig, GuardEvent, GuardService, accepts_cookies};
use larder_kernel::{CookieKey, FlowKey, SynAckCookie, SynOptions, abi};
use larder_testkit::skip;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) const SERVICE: u16 = 5;

pub(crate) const COOKIE: GuardService =
    GuardService { cookie: true, stash: false, grace: false, syns: false };

pub(crate) const STASH: GuardService = GuardService { cookie: false, stash: true, grace: false, syns: false };

/// Whether the kernel makes connections from cookies; if not, the test is skipped.
pub(crate) fn cookies_or_skip() -> bool {
    let accepts = accepts_cookies();
    if !accepts {
        skip("needs bpf_sk_assign_tcp_reqsk (Linux 6.9)");
    }
    accepts
}

/// Returns the lab with a guard on the node for both service addresses. `None` if this is not possible here; the reason
/// is printed.
pub(crate) fn start_lab(service: GuardService) -> Option<(Lab, Guard)> {
    let lab = Lab::new()?;
    if service.cookie && !cookies_or_skip() {
        return None;
    }
    let guard = start(&lab, &unique_name());
    for v6 in [false, true] {
        guard.set_service(SERVICE, vip(v6), service).expect("set");
    }
    guard.set_keys(&[KEY, OLD_KEY]).expect("set");
    Some((lab, guard))
}

pub(crate) fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("guard-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn start(lab: &Lab, name: &str) -> Guard {
    let config = GuardConfig {
        name: name.to_owned(),
        interface: INTERFACE.to_owned(),
        ring_bytes: 1 << 20,
        connections_max: 4096,
    };
    lab.node.run(|| Guard::start(&config)).expect("entered").expect("a guard")
}

pub(crate) fn listen(lab: &Lab, at: SocketAddr) -> TcpListener {
    lab.node.run(|| TcpListener::bind(at)).expect("entered").expect("a listener")
}

pub(crate) fn connect(lab: &Lab, to: SocketAddr) -> TcpStream {
    let made = lab.client.run(|| TcpStream::connect_timeout(&to, PATIENCE)).expect("entered");
    with_timeouts(made.expect("a connection"))
}

pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("set");
    let (stream, _) = eventually("a connection to accept", || listener.accept().ok());
    stream.set_nonblocking(false).expect("set");
    with_timeouts(stream)
}

pub(crate) fn with_timeouts(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream
}

pub(crate) fn count(guard: &Guard, name: &str) -> u64 {
    let at = abi::COUNTERS.iter().position(|&known| known == name).expect("a counter");
    guard.counters().expect("counters")[at]
}

pub(crate) fn expect_bytes(stream: &mut TcpStream, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).expect("bytes in time");
    assert!(got == expected, "other bytes");
}

/// Returns both ends of a connection whose request has arrived.
pub(crate) fn exchange(lab: &Lab, listener: &TcpListener, v6: bool) -> (TcpStream, TcpStream) {
    let mut client = connect(lab, vip(v6));
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let mut server = accept(listener);
    expect_bytes(&mut server, b"GET / HTTP/1.1\r\n\r\n");
    (client, server)
}

/// Events read so far, each as a text.
pub(crate) fn closed(guard: &Guard, into: &mut Vec<(FlowKey, Option<u32>)>) {
    guard.read_events(|event| {
        if let GuardEvent::Closed { key, first_seq, .. } = event {
            into.push((key, first_seq));
        }
    });
}

/// A segment that claims to be the first of a connection.
pub(crate) fn first_segment_of(v6: bool, port: u16, key: CookieKey) -> Segment {
    first_segment_with(v6, port, key, 1000)
}

/// Does the same with an initial sequence number.
pub(crate) fn first_segment_with(v6: bool, port: u16, key: CookieKey, isn: u32) -> Segment {
    let from = SocketAddr::new(address(v6, 2), port);
    let options = SynOptions { mss: 1440, sack: false, timestamps: false, wscale: None };
    let cookie = SynAckCookie::make(key, (from, vip(v6)), isn, options, 0).cookie;
    let ack = cookie.0.wrapping_add(1);
    Segment {
        seq: isn.wrapping_add(1),
        ack,
        payload: b"GET /".to_vec(),
        ..Segment::new(from, vip(v6), ACK | PSH)
    }
}
