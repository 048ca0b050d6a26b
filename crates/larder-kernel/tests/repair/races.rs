//! Races and their fixes: each test shows that the connection survives with the fix, and does not without.

use crate::moves::{move_to, pattern, read_exactly, stream};
use crate::net::{Family, Net, skipped};
use larder_kernel::repair::{
    CheckpointCause, ConnectionFate, KillResult, RaceFixes, RestoreError, RestoreOptions, TcpInfo,
    checkpoint, close_silently, kill_socket, restore, resume,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Snapshots taken while the client writes all the time: how many, and how many of them were torn. Ends after
/// `tries_max` or `torn_max`. A snapshot is whole when the bytes that it has end where it says that the next byte is
/// expected.
fn count_torn_snapshots(fixes: &RaceFixes, tries_max: u32, torn_max: u32) -> (u32, u32) {
    let net = Net::new(Family::V4);
    let (client, mut server) = net.connect(&net.listen(0), None);
    let begin = checkpoint(server.as_fd(), fixes).expect("a connection at rest").rcv_nxt;
    resume(server.as_fd()).expect("a frozen socket");
    // The writer fills at most this much while the reader rests, never more than a checkpoint carries.
    socket2::SockRef::from(&server).set_recv_buffer_size(1 << 20).expect("an option");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_to_cpu(1);
            let mut client = &client;
            while !done.load(Ordering::Relaxed) {
                client.write_all(&[7; 100]).expect("an open connection");
            }
        });
        let reader = scope.spawn(|| {
            pin_to_cpu(0);
            let counted = count_torn_in_thread(&mut server, begin, fixes, tries_max, torn_max);
            done.store(true, Ordering::Relaxed);
            // Reads what the writer still has to write.
            server.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
            while server.read(&mut [0; 1 << 16]).is_ok_and(|length| length > 0) {}
            counted
        });
        reader.join().expect("no torn thread")
    })
}

/// The two ends run at the same time if there are two processors.
fn pin_to_cpu(number: usize) {
    let mut set = CpuSet::new();
    set.set(number);
    if sched_setaffinity(None, &set).is_err() {
        eprintln!("processor {number} is not ours");
    }
}

fn count_torn_in_thread(
    server: &mut TcpStream,
    begin: u32,
    fixes: &RaceFixes,
    tries_max: u32,
    torn_max: u32,
) -> (u32, u32) {
    let (mut read, mut torn) = (0_u32, 0);
    for tries in 0..tries_max {
        let taken = match checkpoint(server.as_fd(), fixes) {
            Ok(taken) => taken,
            // The writer may outrun every attempt; that is an error, not a torn snapshot.
            Err(e) => {
                assert!(matches!(e.cause, CheckpointCause::Moving), "{e}");
                assert_eq!(e.connection, ConnectionFate::Usable);
                let length = server.read(&mut [0; 1 << 16]).expect("bytes");
                read = read.wrapping_add(u32::try_from(length).expect("few"));
                continue;
            }
        };
        resume(server.as_fd()).expect("a frozen socket");
        read = read.wrapping_add(u32::try_from(taken.received.len()).expect("few"));
        torn += u32::from(begin.wrapping_add(read) != taken.rcv_nxt);
        if torn == torn_max {
            return (tries + 1, torn);
        }
        read_exactly(server, taken.received.len());
    }
    (tries_max, torn)
}

#[test]
fn snapshot_is_consistent_while_bytes_arrive() {
    if skipped() {
        return;
    }
    let without = RaceFixes { stable_snapshot: false, ..RaceFixes::default() };
    let (tries, torn_without) = count_torn_snapshots(&without, 200_000, 20);
    assert_eq!(torn_without, 20, "of {tries} snapshots: the test proves nothing");
    assert_eq!(count_torn_snapshots(&RaceFixes::default(), tries.max(3000), 1).1, 0);
}

/// Returns what the server reads after the move from a client that wrote "last words" and closed its side, and what the
/// client then reads.
fn half_closed(family: Family, fixes: RaceFixes) -> (Result<Vec<u8>, ErrorKind>, Vec<u8>) {
    let net = Net::new(family);
    let (mut client, server) = net.connect(&net.listen(0), None);
    client.write_all(b"last words").expect("an open connection");
    client.shutdown(Shutdown::Write).expect("an open connection");
    let started = Instant::now();
    while TcpInfo::read(server.as_fd()).expect("a connection").state != 8 {
        assert!(started.elapsed() < Duration::from_secs(5), "the FIN did not come");
        std::thread::yield_now();
    }
    let (taken, restored) = move_to(&net, 1, server, &RestoreOptions { reinject: true, fixes });
    assert_eq!(taken.received, b"last words");
    assert_eq!(taken.fin_received, fixes.half_closed);
    let inject = restored.fin_packet.clone();
    let mut server = stream(restored);
    assert_eq!(inject.is_some(), fixes.half_closed);
    if let Some(packet) = inject {
        net.client.run(|| send_raw(&packet, family));
    }
    server.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let mut read = Vec::new();
    let read = server.read_to_end(&mut read).map(|_| read).map_err(|e| e.kind());
    server.write_all(b"the answer").expect("a half-open connection");
    drop(server);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("an answer and its end");
    (read, answer)
}

/// Sends an IP packet as the client would, to the host that has the connection now.
fn send_raw(packet: &[u8], family: Family) {
    let (domain, address, upper) = match family {
        Family::V4 => (socket2::Domain::IPV4, "10.9.0.100:0", packet),
        Family::V6 => (socket2::Domain::IPV6, "[fd00:9::100]:0", packet),
    };
    let raw = socket2::Protocol::from(255);
    let socket = socket2::Socket::new(domain, socket2::Type::RAW, Some(raw)).expect("a raw socket");
    if family == Family::V6 {
        socket.set_header_included_v6(true).expect("an option");
    }
    let to: std::net::SocketAddr = address.parse().expect("an address");
    socket.send_to(upper, &to.into()).expect("a route to the host");
}

#[test]
fn half_closed_client_gets_its_response() {
    if skipped() {
        return;
    }
    for family in [Family::V4, Family::V6] {
        let (read, answer) = half_closed(family, RaceFixes::default());
        assert_eq!((read, answer.as_slice()), (Ok(b"last words".to_vec()), &b"the answer"[..]));
    }
    let (read, _) = half_closed(Family::V4, RaceFixes { half_closed: false, ..RaceFixes::default() });
    assert_eq!(read, Err(ErrorKind::WouldBlock), "the end was seen without the mend");
}

#[test]
fn stale_socket_is_destroyed() {
    if skipped() {
        return;
    }
    let net = Net::new(Family::V4);
    let listener = net.listen(0);
    for waiting in [false, true] {
        // With timestamps, a socket in TIME_WAIT is no obstacle (`tcp_twsk_unique`).
        net.client.sysctl("ipv4/tcp_timestamps", if waiting { "0" } else { "1" });
        net.open(0);
        net.point(0);
        let (client, server) = net.connect(&listener, None);
        let taken = checkpoint(server.as_fd(), &RaceFixes::default()).expect("an open connection");
        close_silently(OwnedFd::from(server)).expect("a frozen socket");
        // A socket with the same addresses: open, or in TIME_WAIT because this side closed first.
        let old = net.hosts[0].run(|| restore(&taken, &RestoreOptions::default())).expect("a free pair");
        let mut client = client;
        let kept = if waiting {
            drop(stream(old));
            assert_eq!(client.read(&mut [0; 9]).expect("the end"), 0);
            drop(client);
            // The client's last segment is in flight; the end of a socket has no other sign here.
            larder_testkit::take_time(Duration::from_millis(50));
            None
        } else {
            Some((old, client))
        };
        let without = RaceFixes { kill_stale: false, ..RaceFixes::default() };
        let options = RestoreOptions { reinject: false, fixes: without };
        let refused = net.hosts[0].run(|| restore(&taken, &options));
        let error = refused.expect_err("restored beside a stale socket without the mend");
        let RestoreError::Kernel { step: "connect", source } = error else {
            unreachable!("{error}");
        };
        assert_eq!(source.kind(), ErrorKind::AddrNotAvailable);
        let other = "10.9.2.2:1".parse().expect("an address");
        assert_eq!(
            net.hosts[0].run(|| kill_socket(taken.local, other)).expect("an answer"),
            KillResult::NotFound
        );
        net.hosts[0].run(|| restore(&taken, &RestoreOptions::default())).expect("the mend");
        drop(kept);
    }
}

#[test]
fn listening_socket_is_never_destroyed() {
    if skipped() {
        return;
    }
    for family in [Family::V4, Family::V6] {
        let net = Net::new(family);
        let listener = net.listen(0);
        let (client, server) = net.connect(&listener, None);
        let (local, remote) = (server.local_addr().expect("one"), server.peer_addr().expect("one"));
        let kill = || net.hosts[0].run(|| kill_socket(local, remote)).expect("an answer");
        assert_eq!(kill(), KillResult::Killed);
        drop((client, server));
        assert_eq!(kill(), KillResult::NotFound);
        assert_eq!(kill(), KillResult::NotFound);
        let (mut client, mut server) = net.connect(&listener, None);
        client.write_all(b"alive").expect("an open connection");
        assert_eq!(read_exactly(&mut server, 5), b"alive");
    }
}

/// Returns the largest segment that the client received from a restored socket.
fn segment_after_move(fixes: RaceFixes) -> u32 {
    let net = Net::new(Family::V4);
    let (mut client, server) = net.connect(&net.listen(0), None);
    let (_, restored) = move_to(&net, 1, server, &RestoreOptions { reinject: false, fixes });
    let mut server: TcpStream = stream(restored);
    std::thread::scope(|scope| {
        scope.spawn(|| server.write_all(&pattern(0, 20_000)).expect("an open connection"));
        assert!(read_exactly(&mut client, 20_000) == pattern(0, 20_000));
    });
    TcpInfo::read(client.as_fd()).expect("a connection").received_segment_bytes
}

#[test]
fn segments_are_full_size_after_a_move() {
    if skipped() {
        return;
    }
    assert_eq!(segment_after_move(RaceFixes::default()), 1448);
    assert!(segment_after_move(RaceFixes { segment_size: false, ..RaceFixes::default() }) <= 536);
}

#[test]
fn closed_connection_is_lost_and_closing_one_is_usable() {
    if skipped() {
        return;
    }
    let net = Net::new(Family::V4);
    let listener = net.listen(0);
    let (client, server) = net.connect(&listener, None);
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("an option");
    drop(client);
    let started = Instant::now();
    while TcpInfo::read(server.as_fd()).expect("a socket").state != 7 {
        assert!(started.elapsed() < Duration::from_secs(5), "the RST did not come");
        std::thread::yield_now();
    }
    let error = checkpoint(server.as_fd(), &RaceFixes::default()).expect_err("nothing to move");
    assert_eq!(error.connection, ConnectionFate::Gone);
    let (mut client, mut server) = net.connect(&listener, None);
    server.shutdown(Shutdown::Write).expect("an open connection");
    let error = checkpoint(server.as_fd(), &RaceFixes::default()).expect_err("a closing connection");
    assert!(matches!(error.cause, CheckpointCause::State(_)), "{error}");
    assert_eq!(error.connection, ConnectionFate::Usable);
    client.write_all(b"still here").expect("a half-open connection");
    assert_eq!(read_exactly(&mut server, 10), b"still here");
}
