//! The guard and the injector against real sockets, in network namespaces.

mod guard_support;

use guard_support::frame::{ACK, FIN, PSH, RST, SYN, Segment, Wrapping};
use guard_support::wire::{SACK, TIMESTAMPS, WSCALE, set_repair, tcp_info};
use guard_support::{INTERFACE, KEY, Lab, NO_KEY, OLD_KEY, PATIENCE, address, eventually, vip};
use larder_handoff::guard::{
    Guard, GuardConfig, GuardError, GuardEvent, GuardService, Leave, Tunnel, TunnelKind, accepts_cookies,
};
use larder_handoff::inject::Tap;
use larder_handoff::{Cookie, CookieKey, FlowKey, SynOptions, abi};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const SERVICE: u16 = 5;
const COOKIE: GuardService = GuardService { cookie: true, stash: false, grace: false, syns: false };
const STASH: GuardService = GuardService { cookie: false, stash: true, grace: false, syns: false };

/// The lab with a guard on the node for both service addresses. `None`: not possible here; said why.
fn guarded(service: GuardService) -> Option<(Lab, Guard)> {
    let lab = Lab::new()?;
    if service.cookie && !accepts_cookies() {
        eprintln!("skipped: needs bpf_sk_assign_tcp_reqsk (Linux 6.9)");
        return None;
    }
    let guard = start(&lab, &unique_name());
    for v6 in [false, true] {
        guard.set_service(SERVICE, vip(v6), service).expect("set");
    }
    guard.set_keys(&[KEY, OLD_KEY]).expect("set");
    Some((lab, guard))
}

fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("guard-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn start(lab: &Lab, name: &str) -> Guard {
    let config = GuardConfig {
        name: name.to_owned(),
        interface: INTERFACE.to_owned(),
        ring_bytes: 1 << 20,
        conns_max: 4096,
    };
    lab.node.run(|| Guard::start(&config)).expect("entered").expect("a guard")
}

fn listen(lab: &Lab, at: SocketAddr) -> TcpListener {
    lab.node.run(|| TcpListener::bind(at)).expect("entered").expect("a listener")
}

fn connect(lab: &Lab, to: SocketAddr) -> TcpStream {
    let made = lab.client.run(|| TcpStream::connect_timeout(&to, PATIENCE)).expect("entered");
    patient(made.expect("a connection"))
}

fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("set");
    let (stream, _) = eventually("a connection to accept", || listener.accept().ok());
    stream.set_nonblocking(false).expect("set");
    patient(stream)
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream
}

fn count(guard: &Guard, name: &str) -> u64 {
    let at = abi::COUNTERS.iter().position(|&known| known == name).expect("a counter");
    guard.counters().expect("counters")[at]
}

fn expect_bytes(stream: &mut TcpStream, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).expect("bytes in time");
    assert!(got == expected, "other bytes");
}

/// A connection whose request has arrived: both ends.
fn exchange(lab: &Lab, listener: &TcpListener, v6: bool) -> (TcpStream, TcpStream) {
    let mut client = connect(lab, vip(v6));
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let mut server = accept(listener);
    expect_bytes(&mut server, b"GET / HTTP/1.1\r\n\r\n");
    (client, server)
}

/// Events read so far, each as text of ours.
fn closed(guard: &Guard, into: &mut Vec<(FlowKey, Option<u32>)>) {
    guard.read_events(|event| {
        if let GuardEvent::Closed { key, first_seq, .. } = event {
            into.push((key, first_seq));
        }
    });
}

fn stashed(guard: &Guard, into: &mut Vec<(FlowKey, bool, Vec<u8>)>) {
    guard.read_events(|event| {
        if let GuardEvent::Stash { key, frozen, packet, .. } = event {
            into.push((key, frozen, packet.to_vec()));
        }
    });
}

#[test]
fn a_listener_accepts_from_the_cookie() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    guard.set_tag(9).expect("set");
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        let (mut client, mut server) = exchange(&lab, &listener, v6);
        assert_eq!(server.peer_addr().expect("a peer"), client.local_addr().expect("an address"));
        let reply: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
        let sent = reply.clone();
        let writer = std::thread::spawn(move || {
            server.write_all(&sent).expect("sent");
            server
        });
        expect_bytes(&mut client, &reply);
        let server = writer.join().expect("written");
        let info = tcp_info(&server);
        assert_eq!(info.tcpi_options & (TIMESTAMPS | SACK | WSCALE), TIMESTAMPS | SACK | WSCALE);
        // The MTU less headers and timestamps: 1500 - 20 - 20 - 12, or 1500 - 40 - 20 - 12.
        assert_eq!(info.tcpi_snd_mss, if v6 { 1428 } else { 1448 });
        let (client_sends, client_receives) = wscales(&tcp_info(&client));
        assert_eq!((wscales(&info), client_sends), ((client_receives, 7), 7));
        let tagged = lab.expect_from_node("a timestamp", |segment| segment.timestamps().is_some());
        assert_eq!(tagged.timestamps().expect("there").0 >> 24, 9, "the tag");
        lab.orders().from_node.clear();
    }
    assert_eq!((count(&guard, "accepted"), count(&guard, "refused")), (2, 0));
}

/// Scales of sending and receiving, which share a byte.
fn wscales(info: &libc::tcp_info) -> (u8, u8) {
    // Two fields of four bits, of which libc makes one.
    (info.tcpi_snd_rcv_wscale & 15, info.tcpi_snd_rcv_wscale >> 4)
}

/// Whatever the client offers comes out of the cookie again, and nothing else.
#[test]
fn the_clients_options_are_kept() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    for offered in 0..8_u8 {
        for (bit, name) in
            [(TIMESTAMPS, "tcp_timestamps"), (SACK, "tcp_sack"), (WSCALE, "tcp_window_scaling")]
        {
            let value = if offered & bit == 0 { "0" } else { "1" };
            lab.client.sysctl(&format!("net.ipv4.{name}"), value).expect("set");
        }
        let (mut client, mut server) = exchange(&lab, &listener, false);
        let info = tcp_info(&server);
        assert_eq!(info.tcpi_options & 7, offered);
        assert_eq!(info.tcpi_snd_mss, if offered & TIMESTAMPS == 0 { 1460 } else { 1448 });
        server.write_all(b"answer").expect("sent");
        expect_bytes(&mut client, b"answer");
    }
    assert_eq!(count(&guard, "accepted"), 8);
}

#[test]
fn a_dual_stack_listener_accepts_both() {
    let Some((lab, _guard)) = guarded(COOKIE) else { return };
    let listener = listen(&lab, "[::]:80".parse().expect("an address"));
    for v6 in [false, true] {
        exchange(&lab, &listener, v6);
    }
}

/// A segment that claims to be the first of a connection.
fn claim(v6: bool, port: u16, key: CookieKey) -> Segment {
    let from = SocketAddr::new(address(v6, 2), port);
    let options = SynOptions { mss: 1440, sack: false, timestamps: false, wscale: None };
    let cookie = Cookie::make(key, from, vip(v6), 1000, options);
    let ack = cookie.0.wrapping_add(1);
    Segment { seq: 1001, ack, payload: b"GET /".to_vec(), ..Segment::new(from, vip(v6), ACK | PSH) }
}

#[test]
fn a_forged_cookie_is_refused_and_both_keys_are_believed() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    // The client knows nothing of what is claimed in its name, and would reset it.
    lab.orders().mute = true;
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        for (port, key) in [(5001, KEY), (5002, OLD_KEY)] {
            lab.inject(&claim(v6, port, key));
            assert_eq!(accept(&listener).peer_addr().expect("a peer").port(), port);
        }
        let older = CookieKey([7, 7]);
        for (port, key) in [(5003, older), (5004, NO_KEY)] {
            lab.inject(&claim(v6, port, key));
            lab.expect_from_node("a reset", |s| {
                s.flags & RST != 0 && s.to.port() == port && s.to.is_ipv6() == v6
            });
        }
        // An empty slot believes nothing, not even the empty key.
        guard.set_keys(&[KEY, NO_KEY]).expect("set");
        lab.inject(&claim(v6, 5005, NO_KEY));
        lab.expect_from_node("a reset", |s| {
            s.flags & RST != 0 && s.to.port() == 5005 && s.to.is_ipv6() == v6
        });
        guard.set_keys(&[KEY, OLD_KEY]).expect("set");
        assert!(listener.accept().is_err(), "nobody else");
    }
    assert_eq!((count(&guard, "accepted"), count(&guard, "refused")), (4, 6));
}

#[test]
fn within_grace_nothing_is_reset() {
    let Some((lab, guard)) = guarded(GuardService { grace: true, ..COOKIE }) else { return };
    lab.orders().mute = true;
    lab.inject(&claim(false, 5001, KEY));
    eventually("a refusal", || (count(&guard, "refused") == 1).then_some(()));
    let listener = listen(&lab, vip(false));
    // The client sends it again, and now the server has started.
    lab.inject(&claim(false, 5001, KEY));
    let _server = accept(&listener);
    assert!(lab.orders().from_node.iter().all(|segment| segment.flags & RST == 0));
}

#[test]
fn a_node_does_not_answer_syns_but_a_front_end_does() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let _listener = listen(&lab, vip(false));
    let syn = Segment { seq: 7, ..Segment::new(SocketAddr::new(address(false, 2), 6001), vip(false), SYN) };
    lab.inject(&syn);
    eventually("a SYN", || (count(&guard, "syn") == 1).then_some(()));
    assert!(lab.orders().from_node.is_empty());
    guard.set_service(SERVICE, vip(false), GuardService { syns: true, ..COOKIE }).expect("set");
    lab.inject(&syn);
    lab.expect_from_node("an answer", |segment| segment.flags == SYN | ACK);
}

/// A client socket with a port of its own.
fn connect_from(lab: &Lab, v6: bool, port: u16) -> TcpStream {
    let made = lab.client.run(|| {
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        socket.bind(&SocketAddr::new(any, port).into())?;
        // Until the last connection from this port has had its last acknowledgement.
        eventually("a connection", || socket.connect(&vip(v6).into()).ok());
        Ok::<_, std::io::Error>(TcpStream::from(socket))
    });
    patient(made.expect("entered").expect("a connection"))
}

/// The server closes first, so that its TIME_WAIT is in the way of the next connection from the same port.
#[test]
fn addresses_are_reused_over_time_wait() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        for round in 0..5_u8 {
            let mut client = connect_from(&lab, v6, 7001);
            client.write_all(&[round; 600]).expect("sent");
            let mut server = accept(&listener);
            expect_bytes(&mut server, &[round; 600]);
            server.write_all(&[round; 3000]).expect("sent");
            drop(server);
            let mut all = Vec::new();
            client.read_to_end(&mut all).expect("all of it");
            assert!(all == [round; 3000]);
        }
    }
    assert_eq!((count(&guard, "accepted"), count(&guard, "stale_killed")), (10, 8));
}

/// Clients whose options are none: their packets hold no timestamps to tell old from new.
#[test]
fn addresses_are_reused_without_timestamps() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    lab.client.sysctl("net.ipv4.tcp_timestamps", "0").expect("set");
    let listener = listen(&lab, vip(false));
    for round in 0..3_u8 {
        let mut client = connect_from(&lab, false, 7002);
        client.write_all(&[round; 100]).expect("sent");
        let mut server = accept(&listener);
        expect_bytes(&mut server, &[round; 100]);
        drop(server);
        assert_eq!(client.read(&mut [0; 1]).expect("its end"), 0);
    }
    assert_eq!((count(&guard, "accepted"), count(&guard, "stale_killed")), (3, 2));
}

/// A client that vanished without a word, and comes again from the same port.
#[test]
fn addresses_are_reused_over_a_live_socket() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let mut client = connect_from(&lab, false, 7003);
    client.write_all(b"first").expect("sent");
    let mut forgotten = accept(&listener);
    expect_bytes(&mut forgotten, b"first");
    lab.orders().deaf = true;
    lab.orders().mute = true;
    // Closed with a RST, which leaves nothing at the client.
    Socket::from(client).set_linger(Some(Duration::ZERO)).expect("set");
    eventually("a lost reset", || lab.orders().lost.iter().any(|s| s.flags & RST != 0).then_some(()));
    lab.orders().deaf = false;
    lab.orders().mute = false;
    let mut client = connect_from(&lab, false, 7003);
    client.write_all(b"second").expect("sent");
    let mut server = accept(&listener);
    expect_bytes(&mut server, b"second");
    server.write_all(b"answer").expect("sent");
    expect_bytes(&mut client, b"answer");
    assert!(forgotten.read(&mut [0; 8]).is_err(), "it was reset");
    assert_eq!((count(&guard, "accepted"), count(&guard, "stale_killed")), (2, 1));
    let mut ended = Vec::new();
    closed(&guard, &mut ended);
    assert_eq!(ended.len(), 1, "the first has ended, the second lives");
}

/// A copy of a first segment that was long on its way must not have the request answered again.
#[test]
fn a_late_copy_of_a_request_is_not_accepted() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let (client, mut server) = exchange(&lab, &listener, false);
    let first = lab.first_of(client.local_addr().expect("an address")).expect("sent");
    // The client closes first, so that nothing stays at the node.
    drop(client);
    assert_eq!(server.read(&mut [0; 1]).expect("its end"), 0);
    drop(server);
    eventually("the end", || (count(&guard, "closed") == 1).then_some(()));
    lab.orders().from_node.clear();
    // The node's socket goes when the client has acknowledged its FIN. Until then it takes the copy for what it is.
    eventually("a reset", || {
        lab.inject(&first);
        let seen = &lab.orders().from_node;
        seen.iter().any(|segment| segment.flags & RST != 0).then_some(())
    });
    assert!(listener.accept().is_err());
    assert_eq!(count(&guard, "accepted"), 1);
}

#[test]
fn a_first_segment_may_carry_a_fin() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        for request in [&b"only this"[..], b""] {
            let mut client = connect(&lab, vip(v6));
            // Both in one segment, as if the client were slow to send.
            let socket = Socket::from(client);
            socket.set_tcp_nodelay(false).expect("set");
            socket.set_tcp_cork(true).expect("set");
            client = socket.into();
            client.write_all(request).expect("sent");
            client.shutdown(Shutdown::Write).expect("shut");
            let mut server = accept(&listener);
            let mut got = Vec::new();
            server.read_to_end(&mut got).expect("all of it");
            assert_eq!(got, request);
            server.write_all(b"answer").expect("sent");
            drop(server);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).expect("all of it");
            assert_eq!(answer, b"answer");
        }
        let alone =
            lab.orders().to_node.iter().filter(|s| s.flags & FIN != 0 && !s.payload.is_empty()).count();
        assert_eq!(alone, 1, "data and FIN in one segment");
        lab.orders().to_node.clear();
    }
    eventually("four ends", || (count(&guard, "closed") == 4).then_some(()));
    let mut ended = Vec::new();
    closed(&guard, &mut ended);
    assert!(ended.iter().all(|(_, first_seq)| first_seq.is_some()));
}

#[test]
fn ends_are_told_once_and_live_connections_listed() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let mut ended = Vec::new();
    let live = || {
        let mut live = Vec::new();
        guard.each_conn(|conn| live.push((conn.key, conn.first_seq))).expect("read");
        live
    };
    for who_first in ["client", "server", "reset"] {
        let (client, server) = exchange(&lab, &listener, false);
        let from = client.local_addr().expect("an address");
        let key = FlowKey::new(from, SERVICE);
        let first_seq = lab.first_of(from).map(|segment| segment.seq);
        assert_eq!(live(), [(key, first_seq)], "{who_first}");
        closed(&guard, &mut ended);
        assert!(ended.is_empty(), "{who_first}");
        match who_first {
            "client" => {
                drop(client);
                eventually("half an end", || {
                    lab.orders().to_node.iter().any(|s| s.from == from && s.flags & FIN != 0).then_some(())
                });
                closed(&guard, &mut ended);
                assert!(ended.is_empty(), "half closed");
                drop(server);
            }
            "server" => {
                drop(server);
                drop(client);
            }
            _ => {
                Socket::from(client).set_linger(Some(Duration::ZERO)).expect("set");
                drop(server);
            }
        }
        eventually(who_first, || {
            closed(&guard, &mut ended);
            (!ended.is_empty()).then_some(())
        });
        assert_eq!(ended, [(key, first_seq)], "{who_first}");
        assert_eq!(live(), []);
        ended.clear();
    }
    std::thread::sleep(Duration::from_millis(50));
    closed(&guard, &mut ended);
    assert!(ended.is_empty());
}

/// A RST or FIN from nowhere near the connection ends nothing.
#[test]
fn a_forged_reset_is_not_an_end() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let (mut client, mut server) = exchange(&lab, &listener, false);
    let last = lab.orders().to_node.last().cloned().expect("sent");
    for flags in [RST, FIN | ACK] {
        let seq = last.seq.wrapping_add(0x5000_0000);
        lab.inject(&Segment { seq, flags, options: Vec::new(), payload: Vec::new(), ..last.clone() });
    }
    client.write_all(b"still here").expect("sent");
    expect_bytes(&mut server, b"still here");
    let mut live = 0;
    guard.each_conn(|_| live += 1).expect("read");
    assert_eq!((live, count(&guard, "closed")), (1, 0));
}

#[test]
fn tunnels_are_unwrapped() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let kinds = [
        (Wrapping::Ipip, TunnelKind::Ipip),
        (Wrapping::Gue(6080), TunnelKind::Gue { port: 6080 }),
        (Wrapping::GueDirect(6081), TunnelKind::Gue { port: 6081 }),
        (Wrapping::Vxlan(4789, 77), TunnelKind::Vxlan { port: 4789, vni: 77 }),
    ];
    for inner_v6 in [false, true] {
        let listener = listen(&lab, vip(inner_v6));
        for outer_v6 in [false, true] {
            let (from, to) = (address(outer_v6, 3), address(outer_v6, 17));
            for (wrapping, kind) in kinds {
                let tunnel = Tunnel { kind, local: to, remote: Some(from) };
                guard.add_tunnel(&tunnel).expect("added");
                lab.orders().wrapping = Some((wrapping, from, to));
                let before = count(&guard, "decapsulated");
                let (mut client, mut server) = exchange(&lab, &listener, inner_v6);
                // More than a segment, so that the kernel may merge what it can.
                let upload = [b'u'; 100_000];
                let writer = std::thread::spawn(move || {
                    client.write_all(&upload).expect("sent");
                    client
                });
                expect_bytes(&mut server, &upload);
                let mut client = writer.join().expect("written");
                server.write_all(b"answer").expect("sent");
                expect_bytes(&mut client, b"answer");
                assert!(count(&guard, "decapsulated") > before, "{wrapping:?} over IPv6 {outer_v6}");
                guard.remove_tunnel(&tunnel).expect("removed");
            }
        }
    }
    lab.orders().wrapping = None;
}

/// Tunnels carry nothing but packets to our listen addresses, from whom they are meant for.
#[test]
fn foreign_packets_in_tunnels_are_dropped() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let other = listen(&lab, SocketAddr::new(address(false, 100), 81));
    lab.orders().mute = true;
    let (from, to) = (address(false, 3), address(false, 17));
    let kind = TunnelKind::Vxlan { port: 4789, vni: 5 };
    guard.add_tunnel(&Tunnel { kind, local: to, remote: Some(from) }).expect("added");
    let bad = || count(&guard, "malformed");
    // Another service.
    lab.orders().wrapping = Some((Wrapping::Vxlan(4789, 5), from, to));
    let syn =
        Segment::new("10.9.0.2:9000".parse().expect("an address"), other.local_addr().expect("one"), SYN);
    lab.inject(&syn);
    eventually("a drop", || (bad() == 1).then_some(()));
    // Another network.
    lab.orders().wrapping = Some((Wrapping::Vxlan(4789, 6), from, to));
    lab.inject(&claim(false, 5001, KEY));
    eventually("a drop", || (bad() == 2).then_some(()));
    // Another sender: not our tunnel at all.
    lab.orders().wrapping = Some((Wrapping::Vxlan(4789, 5), address(false, 4), to));
    lab.inject(&claim(false, 5001, KEY));
    lab.orders().wrapping = Some((Wrapping::Vxlan(4789, 5), from, to));
    lab.inject(&claim(false, 5002, KEY));
    assert_eq!(accept(&listener).peer_addr().expect("a peer").port(), 5002);
    assert!(listener.accept().is_err());
    assert_eq!(bad(), 2);
}

#[test]
fn packets_without_a_socket_are_stashed_and_given_back() {
    let Some((lab, guard)) = guarded(STASH) else { return };
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        let mut client = connect(&lab, vip(v6));
        client.write_all(b"hello").expect("sent");
        let mut kept = Vec::new();
        eventually("a stashed packet", || {
            stashed(&guard, &mut kept);
            (!kept.is_empty()).then_some(())
        });
        let (key, frozen, packet) = kept.remove(0);
        let from = client.local_addr().expect("an address");
        assert_eq!(key, FlowKey::new(from, SERVICE));
        assert!(!frozen);
        assert_eq!(Segment::read(&packet), lab.first_of(from));
        assert!(lab.orders().from_node.iter().all(|s| s.to != from), "no reset");
        if !accepts_cookies() {
            continue;
        }
        // Once the node believes cookies, the same packet opens the connection.
        guard.set_service(SERVICE, vip(v6), COOKIE).expect("set");
        let tap = lab.node.run(|| Tap::open(INTERFACE)).expect("entered").expect("a device");
        tap.write_frame(&packet).expect("written");
        let mut server = accept(&listener);
        expect_bytes(&mut server, b"hello");
        assert!(lab.node.ifindex(tap.name()).is_ok());
        let name = tap.name().to_owned();
        drop(tap);
        assert!(lab.node.ifindex(&name).is_err(), "the device is gone");
    }
}

/// Nothing that arrives while a connection is frozen reaches its socket, and nothing its socket sends gets out; what was
/// kept, merged by the kernel or not, continues the stream.
#[test]
fn a_frozen_connection_is_still_and_goes_on() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let tap = lab.node.run(|| Tap::open(INTERFACE)).expect("entered").expect("a device");
    lab.merge_segments();
    let mut merged = false;
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        let (mut client, mut server) = exchange(&lab, &listener, v6);
        let key = FlowKey::new(client.local_addr().expect("an address"), SERVICE);
        guard.freeze(key).expect("frozen");
        let dropped = count(&guard, "egress_dropped");
        let upload: Vec<u8> = (0..13_000_u32).map(|i| (i % 241) as u8).collect();
        client.write_all(&upload).expect("sent");
        let mut kept = Vec::new();
        eventually("all of it", || {
            stashed(&guard, &mut kept);
            let segments = kept.iter().filter_map(|(.., packet)| Segment::read(packet));
            (segments.map(|segment| segment.payload.len()).sum::<usize>() >= upload.len()).then_some(())
        });
        assert!(kept.iter().all(|(whose, frozen, _)| *whose == key && *frozen));
        server.set_nonblocking(true).expect("set");
        assert!(server.read(&mut [0; 1]).is_err(), "nothing arrived");
        server.set_nonblocking(false).expect("set");
        server.write_all(b"unheard").expect("sent");
        eventually("a dropped answer", || (count(&guard, "egress_dropped") > dropped).then_some(()));
        guard.thaw(key).expect("thawed");
        merged |= kept.iter().any(|(.., packet)| packet.len() > 2000);
        for (.., packet) in &kept {
            tap.write_frame(packet).expect("written");
        }
        expect_bytes(&mut server, &upload);
        expect_bytes(&mut client, b"unheard");
    }
    assert!(merged, "the kernel merges segments here");
}

/// A packet for a socket in repair waits, whatever the service says.
#[test]
fn packets_for_a_socket_in_repair_are_stashed() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let tap = lab.node.run(|| Tap::open(INTERFACE)).expect("entered").expect("a device");
    let listener = listen(&lab, vip(false));
    let (mut client, mut server) = exchange(&lab, &listener, false);
    set_repair(&server, 1).expect("into repair");
    client.write_all(b"wait").expect("sent");
    let mut kept = Vec::new();
    eventually("a stashed packet", || {
        stashed(&guard, &mut kept);
        (!kept.is_empty()).then_some(())
    });
    set_repair(&server, -1).expect("out of repair");
    tap.write_packet(&kept[0].2[14..]).expect("written");
    expect_bytes(&mut server, b"wait");
}

/// Programs and tables outlive the guard if told to, and connections never notice.
#[test]
fn a_guard_is_replaced_without_a_gap() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let (mut client, mut server) = exchange(&lab, &listener, false);
    let pins = guard.pins().to_owned();
    let name = pins.parent().and_then(|p| p.file_name()).and_then(|n| n.to_str()).expect("a name").to_owned();
    guard.stop(Leave::Guarding).expect("stopped");
    // Nobody is there, and still connections are accepted.
    let (_second_client, _second_server) = exchange(&lab, &listener, false);
    let guard = start(&lab, &name);
    assert!(guard.adopted());
    client.write_all(b"more").expect("sent");
    expect_bytes(&mut server, b"more");
    assert_eq!(count(&guard, "accepted"), 2);
    let (_third_client, _third_server) = exchange(&lab, &listener, false);
    let mut live = 0;
    guard.each_conn(|_| live += 1).expect("read");
    assert_eq!(live, 3);
    // Another size of a table is another make.
    guard.stop(Leave::Guarding).expect("stopped");
    let config =
        GuardConfig { name: name.clone(), interface: INTERFACE.into(), ring_bytes: 1 << 20, conns_max: 8192 };
    let guard = lab.node.run(|| Guard::start(&config)).expect("entered").expect("a guard");
    assert!(!guard.adopted());
    assert_eq!(count(&guard, "accepted"), 0);
    // As after a crash: nobody has stopped it.
    std::mem::forget(guard);
    Guard::clean(&name).expect("cleaned");
    assert!(!pins.exists());
}

#[test]
fn a_config_that_cannot_be_is_refused() {
    let Some((lab, guard)) = guarded(STASH) else { return };
    assert!(matches!(guard.set_tag(128), Err(GuardError::Config(_))));
    assert!(matches!(guard.set_service(64, vip(false), STASH), Err(GuardError::Config(_))));
    let tunnel =
        |vni| Tunnel { kind: TunnelKind::Vxlan { port: 4789, vni }, local: address(false, 17), remote: None };
    assert!(matches!(guard.add_tunnel(&tunnel(1 << 24)), Err(GuardError::Config(_))));
    let config = |interface: &str, ring_bytes, conns_max| GuardConfig {
        name: unique_name(),
        interface: interface.into(),
        ring_bytes,
        conns_max,
    };
    let start = |config| lab.node.run(|| Guard::start(&config)).expect("entered");
    assert!(matches!(start(config("nothing", 1 << 20, 4096)), Err(GuardError::Interface { .. })));
    assert!(matches!(start(config(INTERFACE, 1_000_000, 4096)), Err(GuardError::Config(_))));
    assert!(matches!(start(config(INTERFACE, 1 << 20, 1)), Err(GuardError::Config(_))));
    assert!(matches!(lab.node.run(|| Tap::open("nothing")), Ok(Err(GuardError::Interface { .. }))));
    let tap = lab.node.run(|| Tap::open(INTERFACE)).expect("entered").expect("a device");
    assert!(tap.write_frame(&[0; 14]).is_err());
    assert!(tap.write_frame(&[0; 70_000]).is_err());
    assert!(tap.write_packet(b"\x55 is neither 4 nor 6").is_err());
}
