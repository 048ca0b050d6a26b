//! Connections on addresses that an old connection still occupies, and old packets on new ones.

use crate::frame::{ACK, FIN, RST, Segment};
use crate::lab::{KEY, Lab, PATIENCE, address, eventually, vip};
use crate::support::{
    COOKIE, accept, closed, count, exchange, expect_bytes, first_segment_with, listen, start_lab,
    with_timeouts,
};
use crate::wire::tcp_info;
use larder_kernel::guard::Guard;
use larder_kernel::{SynAckCookie, SynOptions};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// A client socket with a fixed port.
fn connect_from(lab: &Lab, v6: bool, port: u16) -> TcpStream {
    let made = lab.client.run(|| {
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        socket.bind(&SocketAddr::new(any, port).into())?;
        // Until the last connection from this port has been acknowledged completely.
        eventually("a connection", || socket.connect(&vip(v6).into()).ok());
        Ok::<_, std::io::Error>(TcpStream::from(socket))
    });
    with_timeouts(made.expect("entered").expect("a connection"))
}

/// The server closes first, so that its TIME_WAIT is in the way of the next connection from the same port.
#[test]
fn addresses_are_reused_in_time_wait() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
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

/// Clients without options: their packets have no timestamps to distinguish old from new.
#[test]
fn addresses_are_reused_without_timestamps() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
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

/// A client that has disappeared and returns from the same port.
#[test]
fn addresses_are_reused_with_a_live_socket() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let mut client = connect_from(&lab, false, 7003);
    client.write_all(b"first").expect("sent");
    let mut forgotten = accept(&listener);
    expect_bytes(&mut forgotten, b"first");
    lab.settings().deaf = true;
    lab.settings().mute = true;
    // Closed with a RST, which leaves nothing at the client.
    Socket::from(client).set_linger(Some(Duration::ZERO)).expect("set");
    eventually("a lost reset", || lab.settings().lost.iter().any(|s| s.flags & RST != 0).then_some(()));
    lab.settings().deaf = false;
    lab.settings().mute = false;
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

/// A delayed copy of a first segment must not cause a second reply.
#[test]
fn late_copy_of_a_request_is_not_accepted() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let (client, mut server) = exchange(&lab, &listener, false);
    let first = lab.first_segment_from(client.local_addr().expect("an address")).expect("sent");
    // The client closes first, so that nothing is left at the node.
    drop(client);
    assert_eq!(server.read(&mut [0; 1]).expect("its end"), 0);
    drop(server);
    eventually("the end", || (count(&guard, "closed") == 1).then_some(()));
    lab.settings().from_node.clear();
    // The node's socket closes when the client has acknowledged its FIN. Until then it recognises the copy.
    eventually("a reset", || {
        lab.inject(&first);
        let seen = &lab.settings().from_node;
        seen.iter().any(|segment| segment.flags & RST != 0).then_some(())
    });
    assert!(listener.accept().is_err());
    assert_eq!(count(&guard, "accepted"), 1);
}

/// Many connections at once from few ports, so that nearly every one finds its predecessor in TIME_WAIT: none fails,
/// and none waits for a retransmission.
#[test]
fn many_connections_on_few_ports_never_wait() {
    const THREADS: u32 = 4;
    const EACH: u32 = 150;
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    lab.client.sysctl("net.ipv4.ip_local_port_range", "20000 20063").expect("set");
    let listener = listen(&lab, vip(false));
    let server = std::thread::spawn(move || {
        for _ in 0..THREADS * EACH {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut size = [0; 4];
            stream.read_exact(&mut size).expect("a request");
            let size = usize::try_from(u32::from_be_bytes(size)).expect("small");
            stream.write_all(&vec![b'r'; size]).expect("sent");
        }
    });
    let retransmitted: u32 = std::thread::scope(|scope| {
        let lab = &lab;
        let start = |thread| scope.spawn(move || connect_repeatedly(lab, thread, EACH));
        let clients: Vec<_> = (0..THREADS).map(start).collect();
        clients.into_iter().map(|client| client.join().expect("well")).sum()
    });
    server.join().expect("well");
    let counted = (count(&guard, "accepted"), count(&guard, "refused"));
    assert_eq!(counted, (u64::from(THREADS * EACH), 0));
    assert!(count(&guard, "stale_killed") > u64::from(THREADS * EACH) / 2, "the ports were few");
    assert_eq!(retransmitted, 0);
    eventually("every end, once", || (count(&guard, "closed") == u64::from(THREADS * EACH)).then_some(()));
    guard.each_connection(|conn| panic!("{conn:?} has ended")).expect("read");
}

/// Returns the number of segments that the clients retransmitted.
fn connect_repeatedly(lab: &Lab, thread: u32, each: u32) -> u32 {
    let one = |i: u32| {
        let mut client = lab.client.run(|| {
            // All ports may be in use for a moment.
            eventually("a port", || TcpStream::connect(vip(false)).ok())
        });
        let client = client.as_mut().expect("entered");
        client.set_read_timeout(Some(PATIENCE)).expect("set");
        let size = (i * 7919 + thread) % 30_000;
        client.write_all(&size.to_be_bytes()).expect("sent");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("all of it");
        assert_eq!(answer.len(), usize::try_from(size).expect("small"));
        tcp_info(client).tcpi_total_retrans
    };
    (0..each).map(one).sum()
}

/// A new connection's first packets arrive in one batch while the old one is in TIME_WAIT. Nothing is retransmitted.
#[test]
fn packets_right_after_address_reuse_are_not_lost() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    lab.settings().mute = true;
    lab.receive_in_batches();
    let listener = listen(&lab, vip(false));
    for round in 0..50_u32 {
        let first = first_segment_with(false, 5001, KEY, 1000 + round * 1_000_000);
        let seq = first.seq.wrapping_add(5);
        let second = Segment { seq, payload: b"second".to_vec(), ..first.clone() };
        lab.inject_all(&[first.clone(), second]);
        let mut server = accept(&listener);
        expect_bytes(&mut server, b"GET /second");
        lab.settings().from_node.clear();
        // The server closes first, so that TIME_WAIT is at the node.
        drop(server);
        let fin = lab.expect_from_node("a FIN", |segment| segment.flags & FIN != 0);
        let ack = fin.seq.wrapping_add(1);
        let seq = seq.wrapping_add(6);
        lab.inject(&Segment { seq, ack, flags: FIN | ACK, payload: Vec::new(), ..first });
        lab.expect_from_node("its acknowledgement", |segment| segment.ack == seq.wrapping_add(1));
    }
    assert_eq!((count(&guard, "accepted"), count(&guard, "stale_killed")), (50, 49));
}

/// The first segment of a connection from port 5002 with this number; `clock` is that of its SYN-ACK.
fn first_segment(v6: bool, isn: u32, clock: u32, value: u32) -> Segment {
    let from = SocketAddr::new(address(v6, 2), 5002);
    let options = SynOptions { mss: 1440, sack: false, timestamps: true, wscale: None };
    let SynAckCookie { cookie, echo } = SynAckCookie::make(KEY, (from, vip(v6)), isn, options, clock);
    let echo = echo.expect("timestamps were offered");
    let stamps = [&[1, 1, 8, 10], value.to_be_bytes().as_slice(), echo.to_be_bytes().as_slice()].concat();
    Segment { ack: cookie.0.wrapping_add(1), options: stamps, ..first_segment_with(v6, 5002, KEY, isn) }
}

/// Opens connections on the same addresses, older ones first, then replays the older first segments: the newest
/// connection survives.
fn survives_late_segments(
    lab: &Lab,
    guard: &Guard,
    listener: &TcpListener,
    v6: bool,
    connections: &[Segment],
) {
    let key = vip(v6);
    let mut server = None;
    for (round, first) in connections.iter().enumerate() {
        lab.inject(first);
        let mut accepted = accept(listener);
        expect_bytes(&mut accepted, b"GET /");
        assert_eq!(accepted.local_addr().expect("an address"), key, "{round}");
        server = Some(accepted);
    }
    let ([older @ .., newer], Some(mut server)) = (connections, server) else { unreachable!("some") };
    for late in older {
        lab.inject(late);
    }
    let seq = newer.seq.wrapping_add(5);
    lab.inject(&Segment { seq, payload: b"more".to_vec(), ..newer.clone() });
    expect_bytes(&mut server, b"more");
    // And when it has closed, they are not answered.
    lab.inject(&Segment { seq: seq.wrapping_add(4), flags: RST, payload: Vec::new(), ..newer.clone() });
    assert!(server.read(&mut [0; 1]).is_err(), "it was reset");
    let refused = count(guard, "refused") + u64::try_from(older.len()).expect("few");
    for late in older {
        lab.inject(late);
    }
    eventually("refused", || (count(guard, "refused") >= refused).then_some(()));
    assert!(listener.accept().is_err());
}

/// A first segment that was so long on its way that another connection has its addresses now.
#[test]
fn late_first_segment_does_not_close_the_next_connection() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    lab.settings().mute = true;
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        let before = count(&guard, "stale_killed");
        // By the time of the SYN-ACK, whatever the client's own clock and numbers do.
        let stamped = [
            first_segment(v6, 1000, 2_046, 9),
            first_segment(v6, 500, 2_047, 7),
            first_segment(v6, 7000, 3, 3),
        ];
        survives_late_segments(&lab, &guard, &listener, v6, &stamped);
        assert_eq!(count(&guard, "stale_killed") - before, 2);
        // Without timestamps, the last one.
        let plain = [first_segment_with(v6, 5003, KEY, 1000), first_segment_with(v6, 5003, KEY, 500)];
        survives_late_segments(&lab, &guard, &listener, v6, &plain);
        assert_eq!(count(&guard, "stale_killed") - before, 3);
    }
    assert_eq!(count(&guard, "accepted"), 10);
}
