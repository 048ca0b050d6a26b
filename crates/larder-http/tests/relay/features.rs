//! Replaced content, resumed replies, private connections, and the end of a worker.

use crate::kit::{ScriptedConnection, TestRelay, echo, run_on_one_thread};
use larder_http::relay::{ClientFault, Report, Stage};
use std::cell::Cell;
use std::io::ErrorKind;
use std::rc::Rc;
use tokio::io::AsyncReadExt;

const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

/// Starts a server that sends the first reply on its first connection and closes it, and the second reply on
/// other connections.
async fn two_replies(first: &'static str, second: &'static str) -> TestRelay {
    TestRelay::new(move |number, mut connection| async move {
        connection.read_head().await;
        connection.send_bytes(if number == 0 { first } else { second }).await;
        if number > 0 {
            connection.read_to_end().await;
        }
    })
    .await
}

#[test]
fn replaced_content_has_an_unknown_length() {
    run_on_one_thread(async {
        for (reply, version, seen) in [
            ("Content-Length: 5\r\n\r\nabcde", "1.1", "\r\n\r\n6\r\nABCDE!\r\n0\r\n\r\n"),
            ("Content-Length: 5\r\n\r\nabcde", "1.0", "\r\n\r\nABCDE!"),
            (
                "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nT: 1\r\n\r\n",
                "1.1",
                "\r\n0\r\nT: 1\r\n\r\n",
            ),
            ("\r\nabc", "1.1", "\r\n1\r\n!\r\n0\r\n\r\n"),
            ("Content-Length: 0\r\n\r\n", "1.1", "Content-Length: 0\r\nConnection: close\r\n\r\n"),
        ] {
            let relay = TestRelay::new(move |_, mut connection| async move {
                connection.read_head().await;
                connection.send_bytes(format!("HTTP/1.1 200 OK\r\n{reply}")).await;
            })
            .await;
            relay.proxy().replaces_body.set(true);
            let got = relay
                .request(format!("GET /loud HTTP/{version}\r\nHost: h\r\nConnection: close\r\n\r\n"))
                .await;
            assert!(got.ends_with(seen), "{reply:?} {version}: {got:?}");
            assert_eq!(got.contains("chunked"), version == "1.1" && !reply.contains("Length: 0"), "{got:?}");
            assert!(relay.reports(1).await[0].complete);
        }
    });
}

#[test]
fn another_server_completes_a_broken_reply() {
    run_on_one_thread(async {
        let relay = two_replies(
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123",
            "HTTP/1.1 206 Partial\r\nX: 1\r\nContent-Length: 6\r\n\r\n456789",
        )
        .await;
        relay.proxy().retries.set(1);
        let mut client = relay.client().await;
        client.send_bytes(GET).await;
        let head = client.read_head().await;
        assert!(head.starts_with("HTTP/1.1 200 ") && !head.contains("X: 1"), "{head}");
        assert!(!head.contains("Connection: close"), "{head}");
        assert_eq!(client.read_until("456789").await, "0123456789");
        let recorded = relay.proxy().failures.borrow().clone();
        assert_eq!(recorded, [(Stage::Reply { begun: true }, ErrorKind::UnexpectedEof)]);
        let report = relay.reports(1).await[0];
        assert_eq!(report, Report { status: Some(200), body_bytes: 10, complete: true, fault: None });
    });
}

#[test]
fn a_continuation_of_another_length_is_refused() {
    run_on_one_thread(async {
        for second in [
            "HTTP/1.1 206 Partial\r\nContent-Length: 7\r\n\r\n4567890",
            "HTTP/1.1 206 Partial\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n456789\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n456789",
        ] {
            let relay = two_replies("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123", second).await;
            relay.proxy().retries.set(1);
            let got = relay.request(GET).await;
            assert!(got.ends_with("\r\n\r\n0123"), "{second}: {got:?}");
            assert!(!relay.reports(1).await[0].complete);
        }
    });
}

#[test]
fn a_refused_body_is_not_completed() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            assert!(!connection.read_to_end().await.contains("refused"));
        })
        .await;
        let reply = relay.request("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nrefused").await;
        assert!(reply.starts_with("HTTP/1.1 413 ") && reply.contains("Connection: close\r\n"), "{reply}");
        assert_eq!(relay.reports(1).await[0].fault, Some(ClientFault::Refused));
    });
}

#[test]
fn an_answer_skips_the_request_body() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        let mut client = relay.client().await;
        // The complete body has arrived, so that the connection continues after it.
        client.send_bytes("POST /own HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc").await;
        assert!(!client.read_head().await.contains("Connection: close"));
        client.read_until("no\n").await;
        client.send_bytes(GET).await;
        assert!(client.read_head().await.starts_with("HTTP/1.1 200 "));
        client.read_head().await;
        // A part of the body is missing. It could be read as a request.
        client.send_bytes("POST /own HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabc").await;
        assert!(client.read_head().await.contains("Connection: close"));
    });
}

#[test]
fn private_connections_are_not_shared() {
    run_on_one_thread(async {
        let (opened, closed) = (Rc::new(Cell::new(0)), Rc::new(tokio::sync::Notify::new()));
        let (count, ends) = (opened.clone(), closed.clone());
        let relay = TestRelay::new(move |number, connection| {
            count.set(number + 1);
            let ends = ends.clone();
            async move {
                echo(connection).await;
                ends.notify_one();
            }
        })
        .await;
        relay.proxy().shares_connections.set(false);
        let ask = async |client: &mut ScriptedConnection| {
            client.send_bytes(GET).await;
            client.read_head().await;
            client.read_head().await;
        };
        let (mut one, mut other) = (relay.client().await, relay.client().await);
        for _ in 0..3 {
            ask(&mut one).await;
            ask(&mut other).await;
        }
        assert_eq!(opened.get(), 2);
        drop(one);
        closed.notified().await;
        ask(&mut other).await;
        assert_eq!(opened.get(), 2);
    });
}

#[test]
fn idle_connections_end_when_the_worker_drains_and_not_when_it_retires() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        let (mut used, mut new) = (relay.client().await, relay.client().await);
        used.send_bytes(GET).await;
        used.read_head().await;
        used.read_head().await;
        relay.worker.retire();
        // A request that may be on its way is served.
        used.send_bytes(GET).await;
        assert!(used.read_head().await.contains("Connection: close\r\n"));
        used.read_to_end().await;
        let mut idle = relay.client().await;
        // Both connections are accepted before the worker drains.
        new.send_bytes("GET / HT").await;
        idle.send_bytes("GET /own HTTP/1.1\r\nHost: h\r\n\r\n").await;
        idle.read_head().await;
        relay.worker.drain();
        assert_eq!(idle.read_to_end().await, "no\n");
        new.send_bytes("TP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(new.read_to_end().await.starts_with("HTTP/1.1 200 "), "a head that has begun is served");
    });
}

/// In HTTP/1.0, only a reset shows that such a reply is incomplete.
#[test]
fn an_incomplete_reply_resets_an_http10_connection() {
    run_on_one_thread(async {
        let reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
        let relay = TestRelay::new(move |_, mut connection| async move {
            connection.read_head().await;
            connection.send_bytes(reply).await;
        })
        .await;
        let mut client = relay.client().await;
        client.send_bytes("GET / HTTP/1.0\r\n\r\n").await;
        let mut got = Vec::new();
        let end = client.stream.read_to_end(&mut got).await;
        assert_eq!(end.expect_err("no end").kind(), ErrorKind::ConnectionReset, "{got:?}");
        assert!(!relay.reports(1).await[0].complete);
    });
}

/// Content above a certain size is spliced.
#[test]
fn large_bodies_are_spliced_and_end_where_the_server_fails() {
    const SIZE: usize = 3 << 20;
    let contents: Rc<[u8]> = (0..SIZE).map(|at| (at % 251) as u8).collect();
    run_on_one_thread(async {
        let served = contents.clone();
        let relay = TestRelay::new(move |_, mut connection| {
            let served = served.clone();
            async move {
                while let Some(head) = connection.try_read_head().await {
                    let sent = if head.starts_with("GET /part ") { SIZE / 2 } else { SIZE };
                    connection.send_bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
                    connection.send_bytes(&served[..sent]).await;
                    if sent < SIZE {
                        return;
                    }
                }
            }
        })
        .await;
        let mut client = relay.client().await;
        for _ in 0..3 {
            client.send_bytes(GET).await;
            client.read_head().await;
            while client.read.len() < SIZE {
                assert!(client.read_more().await, "{} bytes came", client.read.len());
            }
            assert!(client.read == *contents, "other bytes");
            client.read.clear();
        }
        client.send_bytes("GET /part HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.read_head().await;
        while client.read_more().await {}
        assert!(client.read == contents[..SIZE / 2], "{} bytes", client.read.len());
        let reports = relay.reports(4).await;
        let recorded: Vec<_> =
            reports.iter().map(|report| (report.body_bytes as usize, report.complete)).collect();
        assert_eq!(recorded, [(SIZE, true), (SIZE, true), (SIZE, true), (SIZE / 2, false)]);
    });
}
