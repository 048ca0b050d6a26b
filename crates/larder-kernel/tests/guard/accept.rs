//! Listeners accept connections from valid cookies only.

use crate::frame::{ACK, FIN, RST, SYN, Segment};
use crate::lab::{INTERFACE, KEY, Lab, NO_KEY, OLD_KEY, address, eventually, vip};
use crate::support::{
    COOKIE, SERVICE, accept, closed, connect, count, exchange, expect_bytes, first_segment_of, listen,
    start_lab,
};
use crate::wire::{SACK, TIMESTAMPS, WSCALE, tcp_info};
use larder_kernel::guard::GuardService;
use larder_kernel::{CookieKey, SynAckCookie, SynOptions};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::time::Duration;

#[test]
fn listener_accepts_connection_from_cookie() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
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
        lab.settings().from_node.clear();
    }
    assert_eq!((count(&guard, "accepted"), count(&guard, "refused")), (2, 0));
}

/// Scales of sending and receiving, which share a byte.
fn wscales(info: &libc::tcp_info) -> (u8, u8) {
    // Two fields of four bits, which libc combines.
    (info.tcpi_snd_rcv_wscale & 15, info.tcpi_snd_rcv_wscale >> 4)
}

/// The cookie carries exactly the options that the client offers.
#[test]
fn client_options_are_kept() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
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
fn dual_stack_listener_accepts_both_families() {
    let Some((lab, _guard)) = start_lab(COOKIE) else { return };
    let listener = listen(&lab, "[::]:80".parse().expect("an address"));
    for v6 in [false, true] {
        exchange(&lab, &listener, v6);
    }
}

#[test]
fn forged_cookie_is_refused_and_both_keys_are_accepted() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    // The client does not know the connection opened in its name, and would reset it.
    lab.settings().mute = true;
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        for (port, key) in [(5001, KEY), (5002, OLD_KEY)] {
            lab.inject(&first_segment_of(v6, port, key));
            assert_eq!(accept(&listener).peer_addr().expect("a peer").port(), port);
        }
        let older = CookieKey([7, 7]);
        let refused = |port: u16, key: CookieKey| {
            // The first time, it may have overtaken a first segment.
            eventually("a reset", || {
                lab.inject(&first_segment_of(v6, port, key));
                larder_testkit::take_time(Duration::from_millis(20));
                let reset = |s: &Segment| s.flags & RST != 0 && s.to == first_segment_of(v6, port, key).from;
                lab.settings().from_node.iter().any(reset).then_some(())
            });
        };
        refused(5003, older);
        refused(5004, NO_KEY);
        // An empty key slot accepts nothing, not even the key of zeros.
        guard.set_keys(&[KEY, NO_KEY]).expect("set");
        refused(5005, NO_KEY);
        guard.set_keys(&[KEY, OLD_KEY]).expect("set");
        assert!(listener.accept().is_err(), "nobody else");
    }
    assert_eq!(count(&guard, "accepted"), 4);
    assert!(count(&guard, "refused") >= 12);
}

#[test]
fn nothing_is_reset_during_grace() {
    let Some((lab, guard)) = start_lab(GuardService { grace: true, ..COOKIE }) else { return };
    lab.settings().mute = true;
    lab.inject(&first_segment_of(false, 5001, KEY));
    eventually("a refusal", || (count(&guard, "refused") == 1).then_some(()));
    let listener = listen(&lab, vip(false));
    // The client retransmits, and now the server has started.
    lab.inject(&first_segment_of(false, 5001, KEY));
    let _server = accept(&listener);
    assert!(lab.settings().from_node.iter().all(|segment| segment.flags & RST == 0));
}

#[test]
fn node_drops_syns_and_switch_answers_them() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let _listener = listen(&lab, vip(false));
    let syn = Segment { seq: 7, ..Segment::new(SocketAddr::new(address(false, 2), 6001), vip(false), SYN) };
    lab.inject(&syn);
    eventually("a SYN", || (count(&guard, "syn") == 1).then_some(()));
    assert!(lab.settings().from_node.is_empty());
    guard.set_service(SERVICE, vip(false), GuardService { syns: true, ..COOKIE }).expect("set");
    lab.inject(&syn);
    lab.expect_from_node("an answer", |segment| segment.flags == SYN | ACK);
}

#[test]
fn first_segment_may_carry_a_fin() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
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
            lab.settings().to_node.iter().filter(|s| s.flags & FIN != 0 && !s.payload.is_empty()).count();
        assert_eq!(alone, 1, "data and FIN in one segment");
        lab.settings().to_node.clear();
    }
    eventually("four ends", || (count(&guard, "closed") == 4).then_some(()));
    let mut ended = Vec::new();
    closed(&guard, &mut ended);
    assert!(ended.iter().all(|(_, first_seq)| first_seq.is_some()));
}

/// Packets that the kernel passes through its layers in one batch: the second reaches the program before the first has
/// made a socket. Nothing is retransmitted, so a lost packet stays lost.
#[test]
fn packets_right_after_the_first_are_not_lost() {
    let services = [COOKIE, GuardService { grace: true, ..COOKIE }, GuardService { stash: true, ..COOKIE }];
    for service in services {
        let Some((lab, guard)) = start_lab(service) else { return };
        lab.settings().mute = true;
        lab.receive_in_batches();
        let listener = listen(&lab, vip(false));
        for port in 5000..5100 {
            let first = first_segment_of(false, port, KEY);
            let seq = first.seq.wrapping_add(5);
            let second = Segment { seq, payload: b"second".to_vec(), ..first.clone() };
            let fin =
                Segment { seq: seq.wrapping_add(6), flags: FIN | ACK, payload: Vec::new(), ..first.clone() };
            lab.inject_all(&[first.clone(), first, second, fin]);
            let mut server = accept(&listener);
            let mut all = Vec::new();
            server.read_to_end(&mut all).expect("all of it");
            assert_eq!(all, b"GET /second");
        }
        let counts = ["accepted", "refused", "stashed"].map(|name| count(&guard, name));
        assert!(counts[0] >= 100 && counts[1..] == [0, 0], "{counts:?}");
        assert!(lab.settings().from_node.iter().all(|segment| segment.flags & RST == 0));
    }
}

/// On a network that reorders packets.
#[test]
fn segment_that_overtakes_the_first_is_not_reset() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    lab.settings().mute = true;
    let listener = listen(&lab, vip(false));
    let first = first_segment_of(false, 5001, KEY);
    let second = Segment { seq: first.seq.wrapping_add(5), payload: b"second".to_vec(), ..first.clone() };
    lab.inject_all(&[second.clone(), first]);
    let mut server = accept(&listener);
    expect_bytes(&mut server, b"GET /");
    // The client retransmits what is not acknowledged.
    lab.inject(&second);
    expect_bytes(&mut server, b"second");
    assert_eq!(count(&guard, "accepted"), 1);
    assert!(lab.settings().from_node.iter().all(|segment| segment.flags & RST == 0));
}

/// The first segment of a connection from this port, of a client with timestamps.
fn first_segment(port: u16) -> Segment {
    let first = first_segment_of(false, port, KEY);
    let offered = SynOptions { mss: 1440, sack: false, timestamps: true, wscale: None };
    let isn = first.seq.wrapping_sub(1);
    let SynAckCookie { cookie, echo } = SynAckCookie::make(KEY, (first.from, first.to), isn, offered, 1);
    let echo = echo.expect("timestamps were offered");
    let options = [&[1, 1, 8, 10], 1_u32.to_be_bytes().as_slice(), echo.to_be_bytes().as_slice()].concat();
    Segment { ack: cookie.0.wrapping_add(1), options, ..first }
}

/// A forged packet arrives after a connection's first segment, which has made no socket yet because the listener is
/// full. Strays from these addresses have come before, so the next one would be answered with a RST. That RST would
/// have the number that the client expects.
#[test]
fn forged_packet_after_the_first_segment_does_not_truncate() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    lab.settings().mute = true;
    let listener = listen_with_backlog_of_one(&lab);
    let firsts: Vec<Segment> = (5100..5110).map(first_segment).collect();
    let forged = |first: &Segment| Segment {
        seq: first.seq.wrapping_sub(50_000),
        flags: FIN | ACK,
        options: Vec::new(),
        payload: Vec::new(),
        ..first.clone()
    };
    let is_reset = |to: &Segment| {
        lab.settings().from_node.iter().any(|s| s.to == to.from && s.seq == to.ack && s.flags & RST != 0)
    };
    // Repeated strays are answered with a RST. These RSTs have another number than the ones below would have.
    let before: Vec<Segment> = firsts
        .iter()
        .map(|first| Segment { ack: first.ack.wrapping_add(1 << 16), ..forged(first) })
        .collect();
    eventually("resets", || {
        lab.inject_all(&before);
        before.iter().all(is_reset).then_some(())
    });
    for (port, first) in (5200..).zip(&firsts) {
        let accepted = count(&guard, "accepted");
        lab.inject_all(&[first_segment(port), first.clone(), forged(first)]);
        eventually("both cookies", || (count(&guard, "accepted") >= accepted + 2).then_some(()));
        expect_bytes(&mut accept(&listener), b"GET /");
        // The client retransmits what is not acknowledged.
        lab.inject(first);
        let mut server = accept(&listener);
        assert_eq!(server.peer_addr().expect("an address"), first.from);
        let seq = first.seq.wrapping_add(5);
        lab.inject(&Segment { seq, payload: b"more".to_vec(), ..first.clone() });
        expect_bytes(&mut server, b"GET /more");
        lab.expect_from_node("an ACK", |s| s.to == first.from && s.ack == seq.wrapping_add(4));
        assert!(!is_reset(first), "{first:?}");
    }
}

/// A listener whose queue is full with one connection.
fn listen_with_backlog_of_one(lab: &Lab) -> TcpListener {
    let socket = || -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&vip(false).into())?;
        socket.listen(0)?;
        Ok(socket)
    };
    lab.node.run(socket).expect("entered").expect("a listener").into()
}

/// A network that does not know an address floods its frames.
#[test]
fn frames_for_other_hosts_are_left_alone() {
    let Some((lab, guard)) = start_lab(GuardService { stash: true, ..COOKIE }) else { return };
    lab.settings().mute = true;
    lab.node.ip(&format!("link set {INTERFACE} promisc on")).expect("set");
    let listener = listen(&lab, vip(false));
    lab.inject_for_another(&first_segment_of(false, 5001, KEY));
    lab.inject_for_another(&first_segment_of(false, 5002, NO_KEY));
    lab.inject(&first_segment_of(false, 5003, KEY));
    assert_eq!(accept(&listener).peer_addr().expect("a peer").port(), 5003);
    assert_eq!((count(&guard, "accepted"), count(&guard, "stashed")), (1, 0));
}

/// A switch's stack: connections that it accepts itself and connections from cookies, side by side.
#[test]
fn stack_handshake_works_beside_cookies() {
    let services =
        [GuardService { syns: true, ..COOKIE }, GuardService { syns: true, stash: true, ..COOKIE }];
    for service in services {
        let Some((lab, guard)) = start_lab(service) else { return };
        for v6 in [false, true] {
            let listener = listen(&lab, vip(v6));
            for own in [true, false, true] {
                lab.settings().pass_syns = own;
                let (mut client, mut server) = exchange(&lab, &listener, v6);
                server.write_all(b"answer").expect("sent");
                drop(server);
                let mut answer = Vec::new();
                client.read_to_end(&mut answer).expect("all of it");
                assert_eq!(answer, b"answer");
            }
        }
        eventually("six ends", || (count(&guard, "closed") == 6).then_some(()));
        assert_eq!((count(&guard, "accepted"), count(&guard, "stashed")), (2, 0));
    }
}
