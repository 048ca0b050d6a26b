//! Servers that misbehave: the report counts each kind of fault.

mod common;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Next, Server, reply, run, send, try_run};
use larder_load::{Fault, LoadError, Warning};
use larder_testkit::free_port;

#[test]
fn each_fault_is_counted_by_kind() {
    let server = Server::start(|request, stream| match request.target {
        "/short" => {
            send(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
            Next::Close
        }
        "/short-chunked" => {
            send(stream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc");
            Next::Close
        }
        "/reset" => {
            send(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
            Next::Reset
        }
        "/garbage" => send(stream, b"220 mail.example.org ESMTP\r\n\r\n"),
        "/cut-head" => {
            send(stream, b"HTTP/1.1 200 OK\r\nConte");
            Next::Close
        }
        "/404" => reply(stream, "404 Not Found", "", b"no"),
        "/503" => reply(stream, "503 Busy", "Retry-After: 1\r\n", b"later"),
        "/silent" => Next::Close,
        "/wrong-size" => reply(stream, "200 OK", "", b"four"),
        _ => reply(stream, "200 OK", "", b"three"),
    });
    let targets = [
        "/short",
        "/short-chunked",
        "/reset",
        "/garbage",
        "/cut-head",
        "/404",
        "/503",
        "/silent",
        "/wrong-size",
        "/fine",
    ];
    let mut plan = server.plan(&targets, targets.len() as u64);
    plan.expected_sizes = Some(targets.iter().map(|_| 5).collect());
    // A new connection for each request, so that no fault looks like a stale connection.
    plan.reuse = larder_load::Reuse::PerRequest;
    let report = run(plan);
    let expected = BTreeMap::from([
        (Fault::ShortBody, 2),
        (Fault::Reset, 1),
        (Fault::BadReply, 2),
        (Fault::Status4xx, 1),
        (Fault::Status5xx, 1),
        (Fault::NoReply, 1),
        (Fault::WrongSize, 1),
    ]);
    assert_eq!(report.faults, expected);
    assert_eq!((report.ok, report.failed, report.finished), (1, 9, 10));
    assert_eq!(report.latency.samples, 1);
    assert_eq!(report.statuses, BTreeMap::from([(200, 2), (404, 1), (503, 1)]));
    assert!(report.warnings.contains(&Warning::Failures { failed: 9, of: 10 }));
    assert_eq!(server.targets(), targets);
}

#[test]
fn a_stalled_server_costs_one_timeout() {
    let server = Server::start(|request, stream| {
        match request.target {
            "/stall-head" => std::thread::park(),
            "/stall-body" => {
                send(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nabc");
                std::thread::park();
            }
            _ => {}
        }
        reply(stream, "200 OK", "", b"ok")
    });
    let mut plan = server.plan(&["/a", "/stall-head", "/b", "/stall-body", "/c"], 5);
    plan.timeout = Duration::from_secs(1);
    let report = run(plan);
    assert_eq!(report.faults, BTreeMap::from([(Fault::Timeout, 2)]));
    assert_eq!(report.ok, 3);
    // A connection that timed out is not used again.
    assert_eq!(report.connections.opened, 3);
    assert_eq!(report.connections.stale_retries, 0);
}

#[test]
fn a_connection_closed_while_idle_is_replaced_without_a_failure() {
    let server = Server::start(|request, stream| match request.nth {
        0 => reply(stream, "200 OK", "", b"ok"),
        _ => Next::Close,
    });
    let report = run(server.plan(&["/a"], 5));
    assert_eq!((report.ok, report.failed), (5, 0));
    assert_eq!((report.connections.opened, report.connections.stale_retries), (5, 4));
}

#[test]
fn only_one_retry_and_only_before_the_first_byte() {
    // The kept-alive connection breaks within the reply, which is a failure.
    let server = Server::start(|request, stream| match request.nth {
        0 => reply(stream, "200 OK", "", b"ok"),
        _ => {
            send(stream, b"HTTP/1.1 200");
            Next::Close
        }
    });
    let report = run(server.plan(&["/a"], 4));
    assert_eq!((report.ok, report.connections.stale_retries), (2, 0));
    assert_eq!(report.faults, BTreeMap::from([(Fault::BadReply, 2)]));

    // Both the kept-alive connection and the new one close without a reply.
    let server = Server::start(|request, stream| match request.target {
        "/a" => reply(stream, "200 OK", "", b"ok"),
        _ => Next::Close,
    });
    let report = run(server.plan(&["/a", "/b"], 2));
    assert_eq!(report.faults, BTreeMap::from([(Fault::NoReply, 1)]));
    assert_eq!(server.targets(), ["/a", "/b", "/b"]);
}

#[test]
fn requests_fail_after_the_server_has_gone() {
    // The listener accepts the probe and one connection, and closes then.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        use std::io::Read;
        let (probe, _) = listener.accept().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        drop(probe);
        drop(listener);
        let _ = stream.read(&mut [0; 1_000]).unwrap();
        reply(&mut stream, "200 OK", "Connection: close\r\n", b"ok");
    });
    let mut plan = Server::plain("").plan(&["/a"], 4);
    plan.address = address;
    let report = run(plan);
    serving.join().unwrap();
    assert_eq!(report.ok, 1);
    assert_eq!(report.faults, BTreeMap::from([(Fault::Connect, 3)]));
}

#[test]
fn a_missing_server_is_an_error() {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut plan = Server::plain("").plan(&["/a"], 4);
    plan.address = address;
    assert!(matches!(try_run(plan, &|_| ()), Err(LoadError::Unreachable { .. })));
}

#[test]
fn endless_and_oversized_heads_are_faults() {
    let server = Server::start(|request, stream| {
        let line = "X-Filler: 0123456789012345678901234567890123456789\r\n";
        let lines = if request.target == "/many" { line.repeat(200) } else { String::new() };
        send(stream, format!("HTTP/1.1 200 OK\r\n{lines}").as_bytes());
        if request.target == "/long" {
            send(stream, format!("X: {}\r\n\r\n", "x".repeat(200_000)).as_bytes());
        }
        Next::Close
    });
    let mut plan = server.plan(&["/many", "/long"], 2);
    plan.reuse = larder_load::Reuse::PerRequest;
    let report = run(plan);
    assert_eq!(report.failed, 2);
    assert_eq!(report.latency.samples, 0);
    assert_eq!(server.notes.connections.load(Ordering::SeqCst), 2);
}
