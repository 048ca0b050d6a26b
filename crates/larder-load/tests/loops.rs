//! Closed and open loops against a correct server.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Next, Server, reply, run, send, try_run};
use larder_load::{Arrivals, Method, Reuse, Warning};

#[test]
fn one_client_keeps_the_order_and_the_connection() {
    let server = Server::plain("hello");
    let mut plan = server.plan(&["/a", "/b?c=d", "/e"], 7);
    plan.order = [2, 0, 1].into();
    plan.warmup_requests = 3;
    let report = run(plan);
    assert_eq!(server.targets(), ["/e", "/a", "/b?c=d", "/e", "/a", "/b?c=d", "/e"]);
    assert_eq!((report.finished, report.warmup, report.ok), (7, 3, 4));
    assert_eq!((report.body_bytes, report.connections.opened), (20, 1));
    assert_eq!(report.timeline.rows.iter().map(|row| row.ok).sum::<u64>(), 7);
    assert_eq!(report.latency.samples, 4);
    assert!(report.requests_per_s > 0.0);
}

#[test]
fn as_many_requests_are_outstanding_as_there_are_clients() {
    // Each group of three requests waits until all three are outstanding, so with fewer clients the run would not end.
    let barrier = Arc::new(std::sync::Barrier::new(3));
    let server = Server::start(move |_, stream| {
        barrier.wait();
        reply(stream, "200 OK", "", b"x")
    });
    for threads in [1, 2] {
        let mut plan = server.plan(&["/"], 30);
        plan.arrivals = Arrivals::Closed { clients: 3 };
        plan.threads = threads;
        let report = run(plan);
        assert_eq!((report.ok, report.connections.opened), (30, 3));
    }
    assert_eq!(server.notes.busy_max.load(Ordering::SeqCst), 3);
}

#[test]
fn several_addresses_take_turns_and_passed_on_replies_are_counted() {
    let node = |cache: &'static str| {
        Server::start(move |_, stream| reply(stream, "200 OK", &format!("Cache-Status: {cache}\r\n"), b"x"))
    };
    for clients in [1, 3] {
        let (one, other) = (node("a; hit"), node("a; hit, b; fwd=uri-miss"));
        let mut plan = one.plan(&["/"], 20);
        plan.other_addresses = vec![other.address];
        plan.arrivals = Arrivals::Closed { clients };
        plan.warmup_requests = 4;
        let report = run(plan);
        assert_eq!((one.targets().len(), other.targets().len()), (10, 10));
        // At least one connection to each address; idle connections are reused.
        assert!(
            (2..=2 * u64::from(clients)).contains(&report.connections.opened),
            "{:?}",
            report.connections
        );
        let cache = report.cache;
        assert_eq!((cache.hits, cache.misses, cache.passed_on, cache.passed_on_hits), (16, 0, 8, 8));
        assert_eq!(report.nodes.len(), 1);
        assert_eq!(report.setup.address, format!("{} {}", one.address, other.address));
    }
}

#[test]
fn connections_can_be_limited_to_one_request() {
    let server = Server::start(|request, stream| {
        assert!(request.head.contains("Connection: close\r\n"));
        reply(stream, "200 OK", "", b"x")
    });
    let mut plan = server.plan(&["/"], 9);
    plan.reuse = Reuse::PerRequest;
    assert_eq!(run(plan).connections.opened, 9);
    assert_eq!(server.notes.connections.load(Ordering::SeqCst), 9);
}

#[test]
fn every_framing_is_counted_exactly() {
    const LEN: usize = 3_000_001;
    let server = Server::start(|request, stream| {
        let body = vec![b'x'; LEN];
        match request.target {
            "/length" => reply(stream, "200 OK", "", &body),
            "/chunked" => {
                send(stream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                for part in body.chunks(100_000) {
                    send(stream, format!("{:x}\r\n", part.len()).as_bytes());
                    send(stream, part);
                    send(stream, b"\r\n");
                }
                send(stream, b"0\r\n\r\n")
            }
            "/close" => {
                send(stream, b"HTTP/1.1 200 OK\r\n\r\n");
                send(stream, &body);
                Next::Close
            }
            _ => {
                // An interim reply, and a head in small pieces.
                for byte in b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3000001\r\n\r\n"
                {
                    send(stream, &[*byte]);
                }
                send(stream, &body)
            }
        }
    });
    let targets = ["/length", "/chunked", "/close", "/trickle", "/length"];
    let mut plan = server.plan(&targets, 5);
    plan.expected_sizes = Some([LEN as u64; 5].into());
    let report = run(plan);
    assert_eq!((report.ok, report.failed), (5, 0), "{:?}", report.faults);
    assert_eq!(report.body_bytes, 5 * LEN as u64);
    // Only the reply that ends with its connection costs one.
    assert_eq!((report.connections.opened, report.connections.stale_retries), (2, 0));
}

#[test]
fn head_and_replies_without_body_leave_the_connection_usable() {
    let server = Server::start(|request, stream| match request.target {
        "/204" => send(stream, b"HTTP/1.1 204 No Content\r\n\r\n"),
        "/304" => send(stream, b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n"),
        _ => send(
            stream,
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.method.len()).as_bytes(),
        ),
    });
    let mut plan = server.plan(&["/204", "/304", "/200", "/200"], 4);
    plan.method = Method::Head;
    let report = run(plan);
    assert_eq!((report.ok, report.body_bytes, report.connections.opened), (4, 0, 1));
}

#[test]
fn nodes_hits_and_the_imbalance_are_counted() {
    let server = Server::start(|request, stream| {
        let cache = match request.target {
            "/a" => "Cache-Status: n1; hit\r\n",
            "/b" => "Cache-Status: n1; fwd=uri-miss; stored\r\n",
            "/c" => "Cache-Status: \"n 2\"; hit; ttl=3, edge; fwd=miss\r\n",
            _ => "",
        };
        reply(stream, "200 OK", cache, b"12345678")
    });
    let mut plan = server.plan(&["/a", "/b", "/c", "/a"], 400);
    plan.nodes_expected = Some(3);
    let report = run(plan.clone());
    let nodes: Vec<_> =
        report.nodes.iter().map(|node| (&*node.name, node.requests, node.hits, node.bytes)).collect();
    assert_eq!(nodes, [("n1", 300, 200, 2_400), ("n 2", 100, 100, 800)]);
    assert_eq!((report.cache.hits, report.cache.misses, report.cache.unnamed), (300, 100, 0));
    assert_eq!(report.cache.hit_ratio, Some(0.75));
    assert_eq!(report.imbalance_requests, Some(300.0 / (400.0 / 3.0)));
    assert_eq!((report.hit_latency.samples, report.miss_latency.samples), (300, 100));
    let sums =
        report.timeline.rows.iter().fold([0; 2], |sum, row| [sum[0] + row.nodes[0], sum[1] + row.nodes[1]]);
    assert_eq!(sums, [300, 100]);
}

#[test]
fn a_constant_rate_sends_all_due_requests_and_none_early() {
    let server = Server::plain("x");
    let mut plan = server.plan(&["/"], 1);
    plan.requests = None;
    plan.duration = Some(Duration::from_millis(500));
    plan.arrivals = Arrivals::OpenConstant { rate: 200.0 };
    let begun = std::time::Instant::now();
    let report = run(plan);
    // Number 99 is due at 495 ms and is the last before the end.
    assert_eq!((report.finished, report.ok), (100, 100));
    assert!(begun.elapsed() >= Duration::from_millis(495));
    assert!(report.measured_s >= 0.495);
    assert!(report.requests_per_s <= 100.0 / 0.495);
}

#[test]
fn a_trace_is_sent_at_its_times() {
    let server = Server::plain("x");
    let mut plan = server.plan(&["/a", "/b", "/c"], 3);
    plan.arrivals = Arrivals::OpenTrace {
        times: [100, 101, 104].map(Duration::from_secs).into(),
        speedup: 10.0,
        resolution: Duration::ZERO,
    };
    let report = run(plan);
    assert_eq!(server.targets(), ["/a", "/b", "/c"]);
    assert!(report.measured_s >= 0.4);
    assert_eq!((report.ok, report.setup.speedup), (3, Some(10.0)));
}

#[test]
fn a_stall_delays_all_requests_that_are_due_meanwhile() {
    // One connection, a request due every 10 ms, and a server that sleeps 400 ms over number 10. Number 10 + k can
    // leave no sooner than the stall ends, 400 - 10 k ms after it was due: of 60 requests, 31 see at least 100 ms,
    // however fast or slow the machine.
    let server = Server::start(|request, stream| {
        if request.nth == 10 {
            larder_testkit::take_time(Duration::from_millis(400));
        }
        reply(stream, "200 OK", "", b"x")
    });
    let mut plan = server.plan(&["/"], 60);
    plan.arrivals = Arrivals::OpenConstant { rate: 100.0 };
    plan.connections_max = 1;
    let report = run(plan);
    let at_half = report.latency.curve.iter().find(|point| point.quantile == 0.5).unwrap();
    assert!(at_half.us >= 99_000.0, "{at_half:?}");
    // Measured from sending, with coordinated omission, the same stall affects one request only.
    assert!(report.service.mean_us < report.latency.mean_us / 2.0);
    assert!(report.warnings.iter().any(|warning| matches!(warning, Warning::OutOfConnections { .. })));
    assert!(report.warnings.iter().any(|warning| matches!(warning, Warning::LateSends { .. })));
    assert_eq!(report.connections.opened, 1);
}

#[test]
fn without_a_connection_limit_a_stall_delays_one_request_only() {
    // Number 0 ends after all others have arrived, so they need other connections.
    let (others, all_here) = std::sync::mpsc::channel();
    let all_here = std::sync::Mutex::new(all_here);
    let server = Server::start(move |request, stream| {
        if request.target == "/0" {
            let waiting = all_here.lock().unwrap();
            for _ in 0..20 {
                waiting.recv().unwrap();
            }
        } else {
            others.send(()).unwrap();
        }
        reply(stream, "200 OK", "", b"x")
    });
    let targets: Vec<String> = (0..21).map(|i| format!("/{i}")).collect();
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let mut plan = server.plan(&targets, 21);
    plan.arrivals = Arrivals::OpenConstant { rate: 1_000.0 };
    let report = run(plan);
    assert_eq!((report.ok, report.connections.waits), (21, 0));
    assert!(report.connections.opened >= 2);
}

#[test]
fn a_stop_ends_the_run_with_a_report() {
    let server = Server::plain("x");
    let mut plan = server.plan(&["/"], 1);
    plan.requests = None;
    plan.duration = Some(Duration::from_secs(3_600));
    let stop = plan.stop.clone();
    let report = try_run(plan, &|progress| {
        if progress.finished > 0 {
            assert!(progress.measuring && progress.total.is_none());
            stop.stop();
        }
    })
    .unwrap();
    assert!(report.ok > 0);
    assert!(report.warnings.contains(&Warning::Interrupted));
}

#[test]
fn a_stop_ends_a_waiting_schedule() {
    let server = Server::plain("x");
    let mut plan = server.plan(&["/"], 2);
    plan.arrivals = Arrivals::OpenConstant { rate: 0.001 };
    let stop = plan.stop.clone();
    let report = try_run(plan, &|progress| {
        if progress.finished == 1 {
            stop.stop();
        }
    })
    .unwrap();
    assert_eq!(report.finished, 1);
}

#[test]
fn a_dropped_run_stops_its_clients() {
    let (gone, wait) = std::sync::mpsc::channel();
    let gone = std::sync::Mutex::new(gone);
    let server = Server::start(move |_, stream| {
        use std::io::Read;
        // Never replies; ends when the client closes.
        let read = stream.read(&mut [0]);
        gone.lock().unwrap().send(matches!(read, Ok(0) | Err(_))).unwrap();
        Next::Close
    });
    let mut plan = server.plan(&["/"], 1_000);
    plan.timeout = Duration::from_secs(3_600);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let arrived = async {
            while server.targets().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = larder_load::run(plan, &|_| ()) => panic!("nothing was answered"),
            () = arrived => {}
        }
    });
    assert!(wait.recv().unwrap());
}

#[test]
fn a_warm_up_longer_than_the_run_is_warned_of() {
    let server = Server::plain("x");
    let mut plan = server.plan(&["/"], 5);
    plan.warmup_requests = 5;
    let report = run(plan);
    assert_eq!((report.ok, report.finished, report.requests_per_s), (0, 5, 0.0));
    assert_eq!(report.warnings, [Warning::NothingMeasured { warmup: 5 }]);
}
