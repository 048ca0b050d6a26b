//! Requests and replies, and their failures.

use crate::kit::{LONG_LIMITS, SHORT, TIMEOUT, TestRelay, echo, run_on_one_thread};
use larder_http::h1::{Body, Decoder, Piece};
use larder_http::relay::{ClientFault, Limits, Report, Stage};
use std::cell::Cell;
use std::io::ErrorKind;
use std::rc::Rc;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

#[test]
fn both_connections_are_reused() {
    run_on_one_thread(async {
        let connections = Rc::new(Cell::new(0));
        let opened = connections.clone();
        let relay = TestRelay::new(move |number, connection| {
            opened.set(number + 1);
            echo(connection)
        })
        .await;
        let mut client = relay.client().await;
        for path in ["/a", "/b"] {
            client
                .send_bytes(format!(
                    "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: x-hop\r\nX-Hop: 1\r\nTE: trailers\r\n\r\n"
                ))
                .await;
            let head = client.read_head().await;
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Via: 1.1 one\r\n"), "{head}");
            let seen = client.read_head().await;
            assert_eq!(seen, format!("GET {path} HTTP/1.1\r\nHost: h\r\nVia: 1.1 one\r\n\r\n"));
        }
        // Two requests arrive together, and the second one is incomplete.
        client.send_bytes("\r\nGET /c HTTP/1.1\r\nHost: h\r\n\r\nGET /d HTTP/1.1\r\nHo").await;
        assert!(client.read_head().await.contains(" 200 ") && client.read_head().await.contains("/c"));
        client.send_bytes("st: h\r\nConnection: close\r\n\r\n").await;
        let last = client.read_to_end().await;
        assert!(last.contains("Connection: close\r\n") && last.contains("GET /d "), "{last}");
        assert_eq!(connections.get(), 1);
        let reports = relay.reports(4).await;
        assert!(reports.iter().all(|report| report.complete && report.status == Some(200)), "{reports:?}");
    });
}

/// Returns the content of a chunked body.
fn contents(chunks: &str) -> String {
    let (mut decoder, mut rest, mut contents) = (Decoder::new(Body::Chunks), chunks.as_bytes(), Vec::new());
    while !rest.is_empty() {
        let step = decoder.step(rest).expect("chunks");
        assert!(step.taken > 0, "bytes follow the body");
        if step.piece == Piece::Data {
            contents.extend_from_slice(&rest[..step.taken]);
        }
        rest = &rest[step.taken..];
    }
    assert!(decoder.is_ended());
    String::from_utf8(contents).expect("text")
}

#[test]
fn bodies_are_relayed_in_both_directions() {
    run_on_one_thread(async {
        for body in [
            "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: 1\r\n\r\n",
            "Content-Length: 3\r\n\r\nxyz",
        ] {
            let relay = TestRelay::new(|_, mut connection| async move {
                if connection.read_head().await.contains("Transfer-Encoding") {
                    let chunks = connection.read_until("0\r\n\r\n").await;
                    assert_eq!(contents(&chunks), "abc");
                } else {
                    assert_eq!(connection.read_until("xyz").await, "xyz");
                }
                connection
                    .send_bytes(
                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;e\r\nok\r\n0\r\nU: 2\r\n\r\n",
                    )
                    .await;
                echo(connection).await;
            })
            .await;
            let mut client = relay.client().await;
            let request = format!("POST / HTTP/1.1\r\nHost: h\r\n{body}GET /n HTTP/1.1\r\nHost: h\r\n\r\n");
            for byte in request.bytes() {
                client.send_bytes([byte]).await;
            }
            assert!(client.read_head().await.contains("Transfer-Encoding: chunked\r\n"));
            assert_eq!(client.read_head().await, "2\r\nok\r\n0\r\nU: 2\r\n\r\n");
            assert!(
                client.read_head().await.contains(" 200 ") && client.read_head().await.contains("GET /n ")
            );
        }
    });
}

#[test]
fn large_bodies_wait_for_slow_readers() {
    run_on_one_thread(async {
        const SIZE: usize = 8 << 20;
        let relay = TestRelay::new(|_, mut connection| async move {
            connection.read_head().await;
            let mut left = SIZE;
            while left > 0 {
                left -= connection.read.len();
                connection.read.clear();
                if left > 0 {
                    assert!(connection.read_more().await);
                }
            }
            connection.send_bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
            connection.send_bytes(vec![b'y'; SIZE]).await;
        })
        .await;
        let mut client = relay.client().await;
        client.send_bytes(format!("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: {SIZE}\r\n\r\n")).await;
        client.send_bytes(vec![b'x'; SIZE]).await;
        client.read_head().await;
        while client.read.len() < SIZE {
            assert!(client.read_more().await);
        }
        assert!(client.read.iter().all(|byte| *byte == b'y') && client.read.len() == SIZE);
        assert_eq!(relay.reports(1).await[0].body_bytes, SIZE as u64);
    });
}

#[test]
fn interim_replies_reach_http11_clients() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            loop {
                let head = connection.read_head().await;
                if head.contains("Expect: 100-continue") {
                    connection.send_bytes("HTTP/1.1 100 Continue\r\n\r\n").await;
                    connection.read_until("abc").await;
                }
                connection.send_bytes("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            }
        })
        .await;
        let mut client = relay.client().await;
        client
            .send_bytes("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
            .await;
        assert_eq!(client.read_head().await, "HTTP/1.1 100 Continue\r\n\r\n");
        client.send_bytes("abc").await;
        assert_eq!(client.read_head().await, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        assert!(client.read_until("ok").await.starts_with("HTTP/1.1 200 OK\r\n"));
        let mut old = relay.client().await;
        old.send_bytes("GET / HTTP/1.0\r\n\r\n").await;
        assert!(old.read_to_end().await.starts_with("HTTP/1.1 200 OK\r\n"));
    });
}

#[test]
fn a_reply_that_ends_by_close_is_chunked() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            connection.read_head().await;
            connection.send_bytes("HTTP/1.0 200 OK\r\n\r\nabc").await;
        })
        .await;
        let mut client = relay.client().await;
        client.send_bytes("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(client.read_head().await.contains("Transfer-Encoding: chunked\r\n"));
        assert_eq!(client.read_head().await, "3\r\nabc\r\n0\r\n\r\n");
        let mut old = relay.client().await;
        old.send_bytes("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        let reply = old.read_to_end().await;
        assert!(reply.ends_with("\r\n\r\nabc") && reply.contains("Connection: close\r\n"), "{reply}");
    });
}

#[test]
fn an_http10_client_gets_no_chunks() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            connection.read_head().await;
            connection.send_bytes("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\nT: 1\r\n\r\n").await;
            connection.read_to_end().await;
        })
        .await;
        let mut old = relay.client().await;
        old.send_bytes("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        let reply = old.read_to_end().await;
        assert!(reply.ends_with("\r\n\r\nabcd") && !reply.contains("Transfer-Encoding"), "{reply}");
    });
}

#[test]
fn an_early_reply_reaches_a_client_that_is_still_sending() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            connection.read_head().await;
            connection
                .send_bytes(
                    "HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmuch",
                )
                .await;
        })
        .await;
        let mut client = relay.client().await;
        client.send_bytes("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\nabc").await;
        let reply = client.read_until("much").await;
        assert!(reply.starts_with("HTTP/1.1 413 ") && reply.contains("Connection: close\r\n"), "{reply}");
        client.send_bytes("more").await;
        assert_eq!(client.read_to_end().await, "");
    });
}

#[test]
fn another_protocol_is_relayed_in_both_directions() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            let head = connection.read_head().await;
            assert!(head.contains("Connection: upgrade\r\nUpgrade: echo\r\n"), "{head}");
            connection
                .send_bytes(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello",
                )
                .await;
            assert_eq!(connection.read_until("ping").await, "earlyping");
            connection.send_bytes("pong").await;
            assert_eq!(connection.read_to_end().await, "", "the client's end is passed on");
            connection.send_bytes("last").await;
        })
        .await;
        let mut client = relay.client().await;
        client
            .send_bytes(
                "GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\nearly",
            )
            .await;
        assert!(client.read_head().await.contains("Upgrade: echo\r\n"));
        client.read_until("hello").await;
        client.send_bytes("ping").await;
        client.read_until("pong").await;
        client.stream.shutdown().await.expect("ends");
        assert_eq!(client.read_to_end().await, "last");
        assert_eq!(
            relay.reports(1).await[0],
            Report { status: Some(101), body_bytes: 13, complete: true, fault: None }
        );
    });
}

#[test]
fn a_connection_that_the_server_has_closed_is_replaced() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|number, mut connection| async move {
            connection.read_head().await;
            connection.send_bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}")).await;
            // The connection is closed when the next request arrives. The proxy cannot detect this before.
            if number == 0 {
                connection.read_head().await;
            } else {
                connection.read_to_end().await;
            }
        })
        .await;
        let mut client = relay.client().await;
        for number in 0..2 {
            client.send_bytes("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            client.read_head().await;
            client.read_until(&number.to_string()).await;
        }
        let recorded = relay.proxy().failures.borrow().iter().map(|failure| failure.0).collect::<Vec<_>>();
        assert_eq!(recorded, [Stage::Request { reused: true }]);
    });
}

#[test]
fn server_failures_are_reported_with_their_stage() {
    run_on_one_thread(async {
        for (reply, stage, seen) in [
            ("", Stage::Request { reused: false }, "HTTP/1.1 502 "),
            ("nonsense\r\n\r\n", Stage::Reply { begun: false }, "HTTP/1.1 502 "),
            ("HTTP/1.1 101 x\r\n\r\n", Stage::Reply { begun: false }, "HTTP/1.1 502 "),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
                Stage::Reply { begun: true },
                "HTTP/1.1 200 ",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd",
                Stage::Reply { begun: true },
                "HTTP/1.1 200 ",
            ),
        ] {
            let relay = TestRelay::new(move |_, mut connection| async move {
                connection.read_head().await;
                connection.send_bytes(reply).await;
            })
            .await;
            let mut client = relay.client().await;
            client.send_bytes("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
            let got = client.read_to_end().await;
            assert!(got.starts_with(seen) && !got.contains("\r\n0\r\n"), "{reply:?}: {got:?}");
            let (failed, error) = relay.proxy().failures.borrow()[0];
            assert_eq!((failed, error == ErrorKind::TimedOut), (stage, false), "{reply:?}");
        }
    });
}

#[test]
fn a_server_timeout_is_reported() {
    run_on_one_thread(async {
        let relay = TestRelay::with(
            Limits { server_read: SHORT, server_write: SHORT, ..LONG_LIMITS },
            |_, mut connection| async move {
                connection.read_to_end().await;
            },
        )
        .await;
        let mut client = relay.client().await;
        client.send_bytes("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert!(client.read_to_end().await.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"));
        let (failed, error) = relay.proxy().failures.borrow()[0];
        assert_eq!((failed, error), (Stage::Request { reused: false }, ErrorKind::TimedOut));
    });
}

#[test]
fn malformed_and_missing_requests_are_refused() {
    run_on_one_thread(async {
        let relay =
            TestRelay::with(Limits { head: SHORT, ..LONG_LIMITS }, |_, connection| echo(connection)).await;
        let large = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "x".repeat(5_000));
        for (sent, seen) in [
            ("nonsense\r\n\r\n", "HTTP/1.1 400 "),
            (&large, "HTTP/1.1 431 "),
            ("GET / HTTP/1.1\r\nHo", "HTTP/1.1 408 "),
            ("", "HTTP/1.1 408 "),
            ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "HTTP/1.1 400 "),
        ] {
            let mut client = relay.client().await;
            client.send_bytes(sent).await;
            let got = client.read_to_end().await;
            assert!(got.starts_with(seen) && got.is_empty() == seen.is_empty(), "{sent:?}: {got:?}");
        }
    });
}

#[test]
fn a_client_disconnect_closes_the_server_connection() {
    run_on_one_thread(async {
        let left = Rc::new(Cell::new(false));
        let leaving = left.clone();
        let relay = TestRelay::new(move |_, mut connection| {
            let leaving = leaving.clone();
            async move {
                connection.read_head().await;
                assert_eq!(connection.read_to_end().await, "");
                leaving.set(true);
            }
        })
        .await;
        let mut client = relay.client().await;
        client.send_bytes("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        while relay.proxy().reports.borrow().is_empty() {
            // The request must have reached the server before the client disconnects.
            tokio::task::yield_now().await;
            if !left.get() {
                client.stream.shutdown().await.expect("ends");
            }
        }
        let wait = async {
            while !left.get() {
                tokio::task::yield_now().await;
            }
        };
        timeout(TIMEOUT, wait).await.expect("the server's connection ends");
        assert_eq!(relay.reports(1).await[0], Report { fault: Some(ClientFault::Gone), ..Report::default() });
    });
}

#[test]
fn connections_end_after_their_request_once_the_worker_retires() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        let mut client = relay.client().await;
        client.send_bytes("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.read_head().await;
        client.read_head().await;
        relay.worker.retire();
        client.send_bytes("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(client.read_to_end().await.contains("Connection: close\r\n"));
    });
}

#[test]
fn a_pending_decision_ends_when_the_client_disconnects() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        let mut client = relay.client().await;
        client.send_bytes("GET /later HTTP/1.1\r\nHost: h\r\n\r\nGET /own HTTP/1.1\r\nHost: h\r\n\r\n").await;
        relay.proxy().decides.notify_one();
        assert!(
            client.read_head().await.contains(" 200 ") && client.read_head().await.contains("GET /later ")
        );
        client.read_until("no\n").await;
        client.send_bytes("GET /later HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.stream.shutdown().await.expect("ends");
        assert_eq!(relay.reports(3).await[2], Report { fault: Some(ClientFault::Gone), ..Report::default() });
    });
}

#[test]
fn the_proxy_answers_requests_itself() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        let mut client = relay.client().await;
        client.send_bytes("GET /own HTTP/1.1\r\nHost: h\r\n\r\nHEAD /own HTTP/1.0\r\n\r\n").await;
        let own = client.read_until("no\n").await;
        assert_eq!(own, "HTTP/1.1 403 Forbidden\r\nX: 1\r\nContent-Length: 3\r\n\r\nno\n");
        let last = client.read_to_end().await;
        assert_eq!(last, "HTTP/1.1 403 Forbidden\r\nX: 1\r\nContent-Length: 3\r\nConnection: close\r\n\r\n");
        let reports = relay.reports(2).await;
        assert!(reports.iter().all(|report| report.complete && report.status == Some(403)), "{reports:?}");
    });
}
