//! Requests and replies, and what goes wrong with them.

use crate::kit::{Bench, PATIENCE, PATIENT, SHORT, echo, on_one_thread};
use larder_http::h1::{Body, Decoder, Piece};
use larder_http::relay::{ClientFault, Limits, Report, Stage};
use std::cell::Cell;
use std::io::ErrorKind;
use std::rc::Rc;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

#[test]
fn requests_follow_each_other_on_both_connections() {
    on_one_thread(async {
        let connections = Rc::new(Cell::new(0));
        let opened = connections.clone();
        let bench = Bench::new(move |number, talk| {
            opened.set(number + 1);
            echo(talk)
        })
        .await;
        let mut client = bench.client().await;
        for path in ["/a", "/b"] {
            client
                .say(format!(
                    "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: x-hop\r\nX-Hop: 1\r\nTE: trailers\r\n\r\n"
                ))
                .await;
            let head = client.head().await;
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Via: 1.1 one\r\n"), "{head}");
            let seen = client.head().await;
            assert_eq!(seen, format!("GET {path} HTTP/1.1\r\nHost: h\r\nVia: 1.1 one\r\n\r\n"));
        }
        // Two at once, the second of them in parts.
        client.say("\r\nGET /c HTTP/1.1\r\nHost: h\r\n\r\nGET /d HTTP/1.1\r\nHo").await;
        assert!(client.head().await.contains(" 200 ") && client.head().await.contains("/c"));
        client.say("st: h\r\nConnection: close\r\n\r\n").await;
        let last = client.rest().await;
        assert!(last.contains("Connection: close\r\n") && last.contains("GET /d "), "{last}");
        assert_eq!(connections.get(), 1);
        let reports = bench.reports(4).await;
        assert!(reports.iter().all(|report| report.complete && report.status == Some(200)), "{reports:?}");
    });
}

/// The contents of a body in chunks.
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
fn bodies_go_both_ways_as_they_come() {
    on_one_thread(async {
        for body in [
            "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: 1\r\n\r\n",
            "Content-Length: 3\r\n\r\nxyz",
        ] {
            let bench = Bench::new(|_, mut talk| async move {
                if talk.head().await.contains("Transfer-Encoding") {
                    let chunks = talk.until("0\r\n\r\n").await;
                    assert_eq!(contents(&chunks), "abc");
                } else {
                    assert_eq!(talk.until("xyz").await, "xyz");
                }
                talk.say(
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;e\r\nok\r\n0\r\nU: 2\r\n\r\n",
                )
                .await;
                echo(talk).await;
            })
            .await;
            let mut client = bench.client().await;
            let request = format!("POST / HTTP/1.1\r\nHost: h\r\n{body}GET /n HTTP/1.1\r\nHost: h\r\n\r\n");
            for byte in request.bytes() {
                client.say([byte]).await;
            }
            assert!(client.head().await.contains("Transfer-Encoding: chunked\r\n"));
            assert_eq!(client.head().await, "2\r\nok\r\n0\r\nU: 2\r\n\r\n");
            assert!(client.head().await.contains(" 200 ") && client.head().await.contains("GET /n "));
        }
    });
}

#[test]
fn large_bodies_wait_for_who_reads_slowly() {
    on_one_thread(async {
        const SIZE: usize = 8 << 20;
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            let mut left = SIZE;
            while left > 0 {
                left -= talk.read.len();
                talk.read.clear();
                if left > 0 {
                    assert!(talk.more().await);
                }
            }
            talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
            talk.say(vec![b'y'; SIZE]).await;
        })
        .await;
        let mut client = bench.client().await;
        client.say(format!("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: {SIZE}\r\n\r\n")).await;
        client.say(vec![b'x'; SIZE]).await;
        client.head().await;
        while client.read.len() < SIZE {
            assert!(client.more().await);
        }
        assert!(client.read.iter().all(|byte| *byte == b'y') && client.read.len() == SIZE);
        assert_eq!(bench.reports(1).await[0].body_bytes, SIZE as u64);
    });
}

#[test]
fn interim_replies_reach_clients_that_know_them() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            loop {
                let head = talk.head().await;
                if head.contains("Expect: 100-continue") {
                    talk.say("HTTP/1.1 100 Continue\r\n\r\n").await;
                    talk.until("abc").await;
                }
                talk.say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            }
        })
        .await;
        let mut client = bench.client().await;
        client.say("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n").await;
        assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
        client.say("abc").await;
        assert_eq!(client.head().await, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        assert!(client.until("ok").await.starts_with("HTTP/1.1 200 OK\r\n"));
        let mut old = bench.client().await;
        old.say("GET / HTTP/1.0\r\n\r\n").await;
        assert!(old.rest().await.starts_with("HTTP/1.1 200 OK\r\n"));
    });
}

#[test]
fn a_reply_that_ends_with_its_connection_gets_chunks() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say("HTTP/1.0 200 OK\r\n\r\nabc").await;
        })
        .await;
        let mut client = bench.client().await;
        client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(client.head().await.contains("Transfer-Encoding: chunked\r\n"));
        assert_eq!(client.head().await, "3\r\nabc\r\n0\r\n\r\n");
        let mut old = bench.client().await;
        old.say("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        let reply = old.rest().await;
        assert!(reply.ends_with("\r\n\r\nabc") && reply.contains("Connection: close\r\n"), "{reply}");
    });
}

#[test]
fn a_client_of_http10_gets_no_chunks() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\nT: 1\r\n\r\n").await;
            talk.rest().await;
        })
        .await;
        let mut old = bench.client().await;
        old.say("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        let reply = old.rest().await;
        assert!(reply.ends_with("\r\n\r\nabcd") && !reply.contains("Transfer-Encoding"), "{reply}");
    });
}

#[test]
fn an_early_reply_reaches_a_client_that_is_still_sending() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say("HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmuch")
                .await;
        })
        .await;
        let mut client = bench.client().await;
        client.say("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\nabc").await;
        let reply = client.until("much").await;
        assert!(reply.starts_with("HTTP/1.1 413 ") && reply.contains("Connection: close\r\n"), "{reply}");
        client.say("more").await;
        assert_eq!(client.rest().await, "");
    });
}

#[test]
fn another_protocol_is_carried_both_ways() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            let head = talk.head().await;
            assert!(head.contains("Connection: upgrade\r\nUpgrade: echo\r\n"), "{head}");
            talk.say("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello")
                .await;
            assert_eq!(talk.until("ping").await, "earlyping");
            talk.say("pong").await;
            assert_eq!(talk.rest().await, "", "the client's end is passed on");
            talk.say("last").await;
        })
        .await;
        let mut client = bench.client().await;
        client
            .say("GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\nearly")
            .await;
        assert!(client.head().await.contains("Upgrade: echo\r\n"));
        client.until("hello").await;
        client.say("ping").await;
        client.until("pong").await;
        client.stream.shutdown().await.expect("ends");
        assert_eq!(client.rest().await, "last");
        assert_eq!(
            bench.reports(1).await[0],
            Report { status: Some(101), body_bytes: 13, complete: true, fault: None }
        );
    });
}

#[test]
fn a_connection_that_the_server_has_closed_is_replaced() {
    on_one_thread(async {
        let bench = Bench::new(|number, mut talk| async move {
            talk.head().await;
            talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}")).await;
            // Closed when the next request comes, which the proxy cannot have noticed before.
            if number == 0 {
                talk.head().await;
            } else {
                talk.rest().await;
            }
        })
        .await;
        let mut client = bench.client().await;
        for number in 0..2 {
            client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            client.head().await;
            client.until(&number.to_string()).await;
        }
        let told = bench.proxy().failures.borrow().iter().map(|failure| failure.0).collect::<Vec<_>>();
        assert_eq!(told, [Stage::Request { reused: true }]);
    });
}

#[test]
fn what_a_server_does_wrong_is_told_by_its_stage() {
    on_one_thread(async {
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
            let bench = Bench::new(move |_, mut talk| async move {
                talk.head().await;
                talk.say(reply).await;
            })
            .await;
            let mut client = bench.client().await;
            client.say("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
            let got = client.rest().await;
            assert!(got.starts_with(seen) && !got.contains("\r\n0\r\n"), "{reply:?}: {got:?}");
            let (failed, error) = bench.proxy().failures.borrow()[0];
            assert_eq!((failed, error == ErrorKind::TimedOut), (stage, false), "{reply:?}");
        }
    });
}

#[test]
fn a_server_that_is_not_there_or_takes_too_long_is_told() {
    on_one_thread(async {
        let bench = Bench::with(
            Limits { server_read: SHORT, server_write: SHORT, ..PATIENT },
            |_, mut talk| async move {
                talk.rest().await;
            },
        )
        .await;
        let mut client = bench.client().await;
        client.say("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert!(client.rest().await.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"));
        let (failed, error) = bench.proxy().failures.borrow()[0];
        assert_eq!((failed, error), (Stage::Request { reused: false }, ErrorKind::TimedOut));
    });
}

#[test]
fn clients_that_send_nonsense_or_nothing_are_told_to_go() {
    on_one_thread(async {
        let bench = Bench::with(Limits { head: SHORT, ..PATIENT }, |_, talk| echo(talk)).await;
        let large = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "x".repeat(5_000));
        for (sent, seen) in [
            ("nonsense\r\n\r\n", "HTTP/1.1 400 "),
            (&large, "HTTP/1.1 431 "),
            ("GET / HTTP/1.1\r\nHo", "HTTP/1.1 408 "),
            ("", "HTTP/1.1 408 "),
            ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "HTTP/1.1 400 "),
        ] {
            let mut client = bench.client().await;
            client.say(sent).await;
            let got = client.rest().await;
            assert!(got.starts_with(seen) && got.is_empty() == seen.is_empty(), "{sent:?}: {got:?}");
        }
    });
}

#[test]
fn a_client_that_leaves_frees_the_server() {
    on_one_thread(async {
        let left = Rc::new(Cell::new(false));
        let leaving = left.clone();
        let bench = Bench::new(move |_, mut talk| {
            let leaving = leaving.clone();
            async move {
                talk.head().await;
                assert_eq!(talk.rest().await, "");
                leaving.set(true);
            }
        })
        .await;
        let mut client = bench.client().await;
        client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        while bench.proxy().reports.borrow().is_empty() {
            // The request must be at the server, or there is nothing to free.
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
        timeout(PATIENCE, wait).await.expect("the server's connection ends");
        assert_eq!(bench.reports(1).await[0], Report { fault: Some(ClientFault::Gone), ..Report::default() });
    });
}

#[test]
fn connections_end_after_their_request_while_the_proxy_drains() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut client = bench.client().await;
        client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.head().await;
        client.head().await;
        bench.worker.retire();
        client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(client.rest().await.contains("Connection: close\r\n"));
    });
}

#[test]
fn a_decision_may_take_its_time_and_ends_with_its_client() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut client = bench.client().await;
        client.say("GET /later HTTP/1.1\r\nHost: h\r\n\r\nGET /own HTTP/1.1\r\nHost: h\r\n\r\n").await;
        bench.proxy().decides.notify_one();
        assert!(client.head().await.contains(" 200 ") && client.head().await.contains("GET /later "));
        client.until("no\n").await;
        client.say("GET /later HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.stream.shutdown().await.expect("ends");
        assert_eq!(bench.reports(3).await[2], Report { fault: Some(ClientFault::Gone), ..Report::default() });
    });
}

#[test]
fn the_proxy_answers_itself() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut client = bench.client().await;
        client.say("GET /own HTTP/1.1\r\nHost: h\r\n\r\nHEAD /own HTTP/1.0\r\n\r\n").await;
        let own = client.until("no\n").await;
        assert_eq!(own, "HTTP/1.1 403 Forbidden\r\nX: 1\r\nContent-Length: 3\r\n\r\nno\n");
        let last = client.rest().await;
        assert_eq!(last, "HTTP/1.1 403 Forbidden\r\nX: 1\r\nContent-Length: 3\r\nConnection: close\r\n\r\n");
        let reports = bench.reports(2).await;
        assert!(reports.iter().all(|report| report.complete && report.status == Some(403)), "{reports:?}");
    });
}
