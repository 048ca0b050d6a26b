//! Passages: contents that change, the rest of a broken reply, connections of one client, and the end of a worker.

use crate::kit::{Bench, Talk, echo, on_one_thread};
use larder_http::relay::{ClientFault, Report, Stage};
use std::cell::Cell;
use std::io::ErrorKind;
use std::rc::Rc;
use tokio::io::AsyncReadExt;

const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

/// A server whose first connection gives the first reply and closes, and whose others give the second.
async fn two_replies(first: &'static str, second: &'static str) -> Bench {
    Bench::new(move |number, mut talk| async move {
        talk.head().await;
        talk.say(if number == 0 { first } else { second }).await;
        if number > 0 {
            talk.rest().await;
        }
    })
    .await
}

#[test]
fn other_contents_have_an_unknown_length() {
    on_one_thread(async {
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
            let bench = Bench::new(move |_, mut talk| async move {
                talk.head().await;
                talk.say(format!("HTTP/1.1 200 OK\r\n{reply}")).await;
            })
            .await;
            bench.proxy().loud.set(true);
            let got =
                bench.ask(format!("GET /loud HTTP/{version}\r\nHost: h\r\nConnection: close\r\n\r\n")).await;
            assert!(got.ends_with(seen), "{reply:?} {version}: {got:?}");
            assert_eq!(got.contains("chunked"), version == "1.1" && !reply.contains("Length: 0"), "{got:?}");
            assert!(bench.reports(1).await[0].complete);
        }
    });
}

#[test]
fn the_rest_of_a_reply_comes_from_another_server() {
    on_one_thread(async {
        let bench = two_replies(
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123",
            "HTTP/1.1 206 Partial\r\nX: 1\r\nContent-Length: 6\r\n\r\n456789",
        )
        .await;
        bench.proxy().retries.set(1);
        let mut client = bench.client().await;
        client.say(GET).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 200 ") && !head.contains("X: 1"), "{head}");
        assert!(!head.contains("Connection: close"), "{head}");
        assert_eq!(client.until("456789").await, "0123456789");
        let told = bench.proxy().failures.borrow().clone();
        assert_eq!(told, [(Stage::Reply { begun: true }, ErrorKind::UnexpectedEof)]);
        let report = bench.reports(1).await[0];
        assert_eq!(report, Report { status: Some(200), body_bytes: 10, complete: true, fault: None });
    });
}

#[test]
fn another_length_is_not_the_rest() {
    on_one_thread(async {
        for second in [
            "HTTP/1.1 206 Partial\r\nContent-Length: 7\r\n\r\n4567890",
            "HTTP/1.1 206 Partial\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n456789\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n456789",
        ] {
            let bench = two_replies("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123", second).await;
            bench.proxy().retries.set(1);
            let got = bench.ask(GET).await;
            assert!(got.ends_with("\r\n\r\n0123"), "{second}: {got:?}");
            assert!(!bench.reports(1).await[0].complete);
        }
    });
}

#[test]
fn a_body_that_is_refused_reaches_no_end() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            assert!(!talk.rest().await.contains("refused"));
        })
        .await;
        let reply = bench.ask("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nrefused").await;
        assert!(reply.starts_with("HTTP/1.1 413 ") && reply.contains("Connection: close\r\n"), "{reply}");
        assert_eq!(bench.reports(1).await[0].fault, Some(ClientFault::Refused));
    });
}

#[test]
fn an_answer_leaves_no_body_behind() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut client = bench.client().await;
        // All of the body is there: the connection goes on behind it.
        client.say("POST /own HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc").await;
        assert!(!client.head().await.contains("Connection: close"));
        client.until("no\n").await;
        client.say(GET).await;
        assert!(client.head().await.starts_with("HTTP/1.1 200 "));
        client.head().await;
        // A part of it is missing: it could be read as a request.
        client.say("POST /own HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabc").await;
        assert!(client.head().await.contains("Connection: close"));
    });
}

#[test]
fn connections_of_one_client_serve_no_other() {
    on_one_thread(async {
        let (opened, closed) = (Rc::new(Cell::new(0)), Rc::new(tokio::sync::Notify::new()));
        let (count, ends) = (opened.clone(), closed.clone());
        let bench = Bench::new(move |number, talk| {
            count.set(number + 1);
            let ends = ends.clone();
            async move {
                echo(talk).await;
                ends.notify_one();
            }
        })
        .await;
        bench.proxy().shares.set(false);
        let ask = async |client: &mut Talk| {
            client.say(GET).await;
            client.head().await;
            client.head().await;
        };
        let (mut one, mut other) = (bench.client().await, bench.client().await);
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
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let (mut used, mut new) = (bench.client().await, bench.client().await);
        used.say(GET).await;
        used.head().await;
        used.head().await;
        bench.worker.retire();
        // A request may be on its way, and is served.
        used.say(GET).await;
        assert!(used.head().await.contains("Connection: close\r\n"));
        used.rest().await;
        let mut idle = bench.client().await;
        // Both are accepted before the proxy drains.
        new.say("GET / HT").await;
        idle.say("GET /own HTTP/1.1\r\nHost: h\r\n\r\n").await;
        idle.head().await;
        bench.worker.drain();
        assert_eq!(idle.rest().await, "no\n");
        new.say("TP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(new.rest().await.starts_with("HTTP/1.1 200 "), "a head that has begun is served");
    });
}

/// HTTP/1.0 has no other sign that a reply is not whole.
#[test]
fn a_reply_that_breaks_off_resets_the_connection_where_its_end_would_look_right() {
    on_one_thread(async {
        let reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
        let bench = Bench::new(move |_, mut talk| async move {
            talk.head().await;
            talk.say(reply).await;
        })
        .await;
        let mut client = bench.client().await;
        client.say("GET / HTTP/1.0\r\n\r\n").await;
        let mut got = Vec::new();
        let end = client.stream.read_to_end(&mut got).await;
        assert_eq!(end.expect_err("no end").kind(), ErrorKind::ConnectionReset, "{got:?}");
        assert!(!bench.reports(1).await[0].complete);
    });
}

/// Above some size the contents pass through a pipe in the kernel.
#[test]
fn large_bodies_pass_whole_and_break_off_where_the_server_does() {
    const SIZE: usize = 3 << 20;
    let contents: Rc<[u8]> = (0..SIZE).map(|at| (at % 251) as u8).collect();
    on_one_thread(async {
        let served = contents.clone();
        let bench = Bench::new(move |_, mut talk| {
            let served = served.clone();
            async move {
                while let Some(head) = talk.next_head().await {
                    let sent = if head.starts_with("GET /part ") { SIZE / 2 } else { SIZE };
                    talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
                    talk.say(&served[..sent]).await;
                    if sent < SIZE {
                        return;
                    }
                }
            }
        })
        .await;
        let mut client = bench.client().await;
        for _ in 0..3 {
            client.say(GET).await;
            client.head().await;
            while client.read.len() < SIZE {
                assert!(client.more().await, "{} bytes came", client.read.len());
            }
            assert!(client.read == *contents, "other bytes");
            client.read.clear();
        }
        client.say("GET /part HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.head().await;
        while client.more().await {}
        assert!(client.read == contents[..SIZE / 2], "{} bytes", client.read.len());
        let reports = bench.reports(4).await;
        let told: Vec<_> =
            reports.iter().map(|report| (report.body_bytes as usize, report.complete)).collect();
        assert_eq!(told, [(SIZE, true), (SIZE, true), (SIZE, true), (SIZE / 2, false)]);
    });
}
