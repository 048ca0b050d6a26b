//! The decisions of a proxy about replies and connections.

use crate::kit::{Bench, PATIENCE, Talk, echo, on_one_thread};
use larder_http::relay::{ClientFault, Stage};
use std::cell::Cell;
use std::io::ErrorKind;
use std::rc::Rc;
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;
use tokio::time::timeout;

const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

/// A server whose first connection breaks off, and whose second one sends `rest`.
async fn breaking_off(rest: &'static str) -> Bench {
    let bench = Bench::new(move |number, mut talk| async move {
        talk.head().await;
        if number == 0 {
            talk.say("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc").await;
        } else {
            talk.say(rest).await;
            talk.rest().await;
        }
    })
    .await;
    bench.proxy().retries.set(1);
    bench
}

#[test]
fn the_rest_of_a_reply_comes_from_another_server() {
    on_one_thread(async {
        let bench =
            breaking_off("HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\nX: 1\r\n\r\ndef").await;
        let mut client = bench.client().await;
        client.say(GET).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && !head.contains("X: 1"), "{head}");
        client.until("abcdef").await;
        let report = bench.reports(1).await[0];
        assert_eq!((report.status, report.body_bytes, report.complete), (Some(200), 6, true));
        assert_eq!(
            *bench.proxy().failures.borrow(),
            [(Stage::Reply { begun: true }, ErrorKind::UnexpectedEof)]
        );
    });
}

#[test]
fn a_rest_of_another_length_is_refused() {
    on_one_thread(async {
        for rest in [
            "HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\n\r\ndefg",
            "HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ndef\r\n0\r\n\r\n",
            // It is the whole again.
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ndef",
        ] {
            let bench = breaking_off(rest).await;
            let reply = bench.ask(GET).await;
            assert!(reply.ends_with("\r\n\r\nabc"), "{reply}");
            let report = bench.reports(1).await[0];
            assert_eq!((report.status, report.body_bytes, report.complete), (Some(200), 3, false));
        }
    });
}

#[test]
fn changed_contents_have_another_length() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            while let Some(head) = talk.next_head().await {
                let is_chunked = head.contains("chunked");
                let body = if is_chunked {
                    "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
                } else {
                    "Content-Length: 3\r\n\r\nabc"
                };
                talk.say(format!("HTTP/1.1 200 OK\r\n{body}")).await;
            }
        })
        .await;
        bench.proxy().loud.set(true);
        let mut client = bench.client().await;
        for accept in ["identity", "chunked"] {
            client.say(format!("GET /loud HTTP/1.1\r\nHost: h\r\nAccept: {accept}\r\n\r\n")).await;
            let head = client.head().await;
            assert!(head.contains("Transfer-Encoding: chunked\r\n") && !head.contains("Content-Length"));
            let contents = client.until("0\r\n\r\n").await;
            assert!(
                ["4\r\nABC!\r\n0\r\n\r\n", "3\r\nABC\r\n1\r\n!\r\n0\r\n\r\n"].contains(&&*contents),
                "{contents}"
            );
        }
        client.say("HEAD /loud HTTP/1.1\r\nHost: h\r\nAccept: identity\r\n\r\n").await;
        let old = bench.ask("GET /loud HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        assert!(old.ends_with("\r\n\r\nABC!") && old.contains("Connection: close\r\n"), "{old}");
        assert!(!old.contains("Content-Length") && !old.contains("Transfer-Encoding"), "{old}");
    });
}

#[test]
fn a_body_that_the_proxy_refuses_is_answered() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            assert_eq!(talk.rest().await.find("refused"), None);
        })
        .await;
        let reply = bench.ask("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nrefused").await;
        assert!(reply.starts_with("HTTP/1.1 413 ") && reply.contains("Connection: close\r\n"), "{reply}");
        let report = bench.reports(1).await[0];
        assert_eq!((report.status, report.fault), (Some(413), Some(ClientFault::Refused)));
    });
}

#[test]
fn a_connection_that_is_not_shared_belongs_to_its_client() {
    on_one_thread(async {
        let (opened, closed) = (Rc::new(Cell::new(0)), Rc::new(Notify::new()));
        let (count, told) = (opened.clone(), closed.clone());
        let bench = Bench::new(move |number, talk| {
            count.set(number + 1);
            let told = told.clone();
            async move {
                echo(talk).await;
                told.notify_one();
            }
        })
        .await;
        bench.proxy().shares.set(false);
        let (mut first, mut second) = (bench.client().await, bench.client().await);
        for _ in 0..2 {
            for client in [&mut first, &mut second] {
                client.say(GET).await;
                client.head().await;
                client.head().await;
            }
        }
        assert_eq!(opened.get(), 2);
        drop(first);
        timeout(PATIENCE, closed.notified()).await.expect("it ends with its client");
        second.say(GET).await;
        second.head().await;
        assert_eq!(opened.get(), 2);
    });
}

#[test]
fn idle_connections_end_at_once_when_the_proxy_drains() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let (mut idle, mut new) = (bench.client().await, bench.client().await);
        idle.say(GET).await;
        idle.head().await;
        idle.head().await;
        bench.worker.drain();
        assert_eq!(idle.rest().await, "");
        assert_eq!(new.rest().await, "");
    });
}

#[test]
fn a_proxy_that_retires_serves_a_request_that_is_on_its_way() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut client = bench.client().await;
        client.say(GET).await;
        client.head().await;
        client.head().await;
        bench.worker.retire();
        client.say(GET).await;
        assert!(client.rest().await.contains("Connection: close\r\n"));
    });
}

/// Only a reset shows such a client that its reply is not whole.
#[test]
fn a_truncated_reply_resets_the_connection_of_an_old_client() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\nd").await;
        })
        .await;
        let Talk { mut stream, .. } = {
            let mut client = bench.client().await;
            client.say("GET / HTTP/1.0\r\n\r\n").await;
            client
        };
        let read = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.expect("it ends");
        assert_eq!(read.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
        assert!(!bench.reports(1).await[0].complete);
    });
}
