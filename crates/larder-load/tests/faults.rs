//! Servers that misbehave: each misdeed has its name in the report.

mod common;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Server, Then, reply, run, send, try_run};
use larder_load::{Fault, LoadError, Warning};

#[test]
fn each_misdeed_is_counted_by_its_name() {
    let server = Server::start(|asked, stream| match asked.target {
        "/short" => {
            send(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
            Then::Close
        }
        "/short-chunked" => {
            send(stream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc");
            Then::Close
        }
        "/reset" => {
            send(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
            Then::Reset
        }
        "/garbage" => send(stream, b"220 mail.example.org ESMTP\r\n\r\n"),
        "/cut-head" => {
            send(stream, b"HTTP/1.1 200 OK\r\nConte");
            Then::Close
        }
        "/404" => reply(stream, "404 Not Found", "", b"no"),
        "/503" => reply(stream, "503 Busy", "Retry-After: 1\r\n", b"later"),
        "/silent" => Then::Close,
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
    // A fresh connection each, so that none of the misdeeds can pass for a stale one.
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
fn a_server_that_stalls_costs_one_time_limit_and_no_more() {
    let server = Server::start(|asked, stream| {
        match asked.target {
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
fn a_connection_that_was_closed_while_idle_is_replaced_and_that_is_no_failure() {
    let server = Server::start(|asked, stream| match asked.nth {
        0 => reply(stream, "200 OK", "", b"ok"),
        _ => Then::Close,
    });
    let report = run(server.plan(&["/a"], 5));
    assert_eq!((report.ok, report.failed), (5, 0));
    assert_eq!((report.connections.opened, report.connections.stale_retries), (5, 4));
}

#[test]
fn only_one_retry_and_only_before_the_first_byte() {
    // The kept connection breaks off in the reply: that is a failure.
    let server = Server::start(|asked, stream| match asked.nth {
        0 => reply(stream, "200 OK", "", b"ok"),
        _ => {
            send(stream, b"HTTP/1.1 200");
            Then::Close
        }
    });
    let report = run(server.plan(&["/a"], 4));
    assert_eq!((report.ok, report.connections.stale_retries), (2, 0));
    assert_eq!(report.faults, BTreeMap::from([(Fault::BadReply, 2)]));

    // Both the kept connection and the new one say nothing.
    let server = Server::start(|asked, stream| match asked.target {
        "/a" => reply(stream, "200 OK", "", b"ok"),
        _ => Then::Close,
    });
    let report = run(server.plan(&["/a", "/b"], 2));
    assert_eq!(report.faults, BTreeMap::from([(Fault::NoReply, 1)]));
    assert_eq!(server.targets(), ["/a", "/b", "/b"]);
}

#[test]
fn a_server_that_goes_away_fails_the_rest() {
    // The listener takes the probe and one connection, then is gone.
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
fn no_server_at_all_is_an_error_and_no_report() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut plan = Server::plain("").plan(&["/a"], 4);
    plan.address = address;
    assert!(matches!(try_run(plan, &|_| ()), Err(LoadError::Unreachable { .. })));
}

#[test]
fn endless_and_oversized_heads_end_in_a_fault() {
    let server = Server::start(|asked, stream| {
        let line = "X-Filler: 0123456789012345678901234567890123456789\r\n";
        let lines = if asked.target == "/many" { line.repeat(200) } else { String::new() };
        send(stream, format!("HTTP/1.1 200 OK\r\n{lines}").as_bytes());
        if asked.target == "/long" {
            send(stream, format!("X: {}\r\n\r\n", "x".repeat(200_000)).as_bytes());
        }
        Then::Close
    });
    let mut plan = server.plan(&["/many", "/long"], 2);
    plan.reuse = larder_load::Reuse::PerRequest;
    let report = run(plan);
    assert_eq!(report.failed, 2);
    assert_eq!(report.latency.samples, 0);
    assert_eq!(server.notes.connections.load(Ordering::SeqCst), 2);
}
