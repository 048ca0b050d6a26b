//! Rules of HTTP that a proxy must keep, and limits.

use crate::kit::{Bench, PATIENT, SHORT, echo, on_one_thread};
use larder_http::relay::{Limits, Refusal, Stage};
use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::spawn_local;

/// The heads of requests that a server has got.
type Seen = Rc<RefCell<Vec<String>>>;

/// A server that notes heads and answers each with `reply`.
async fn noting(reply: &'static str) -> (Bench, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    let bench = Bench::new(move |_, mut talk| {
        let noted = noted.clone();
        async move {
            loop {
                let Some(head) = talk.next_head().await else { return };
                noted.borrow_mut().push(head);
                talk.say(reply).await;
            }
        }
    })
    .await;
    (bench, seen)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A server that refuses an upload and closes must not make a request of the rest of the body.
#[test]
fn the_rest_of_a_body_is_no_request() {
    on_one_thread(async {
        let seen = Seen::default();
        let noted = seen.clone();
        let bench = Bench::new(move |_, mut talk| {
            let noted = noted.clone();
            async move {
                let head = talk.head().await;
                noted.borrow_mut().push(head);
                talk.say("HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n").await;
                // Closed with bytes unread: the proxy's next write fails.
            }
        })
        .await;
        let client = bench.client().await;
        let (mut read, mut write) = client.stream.into_split();
        let upload = spawn_local(async move {
            let mut sent = write
                .write_all(b"POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n")
                .await;
            for _ in 0..400 {
                sent = sent.and(write.write_all(&b"\r\n".repeat(16 << 10)).await);
            }
            sent.and(write.write_all(b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n").await)
        });
        let mut reply = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut read, &mut reply).await;
        let _ = upload.await;
        let reply = String::from_utf8_lossy(&reply);
        assert!(reply.starts_with("HTTP/1.1 413 ") && reply.contains("Connection: close\r\n"), "{reply}");
        assert!(seen.borrow().iter().all(|head| head.starts_with("POST /upload ")), "{seen:?}");
        assert_eq!(bench.reports(1).await.len(), 1);
    });
}

#[test]
fn no_tunnel_is_opened_by_connect() {
    on_one_thread(async {
        let (bench, seen) = noting(OK).await;
        let reply = bench.ask("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n").await;
        assert!(reply.starts_with("HTTP/1.1 405 ") && seen.borrow().is_empty(), "{reply}");
        assert_eq!(*bench.proxy().refusals.borrow(), [Refusal::Connect]);
    });
}

/// A server that dies with a request may have executed it.
#[test]
fn only_idempotent_requests_are_repeated() {
    on_one_thread(async {
        for (request, repeated) in [
            ("GET /b HTTP/1.1\r\nHost: h\r\n\r\n", true),
            ("PUT /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", true),
            ("POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", false),
        ] {
            let seen = Seen::default();
            let noted = seen.clone();
            let bench = Bench::new(move |number, mut talk| {
                let noted = noted.clone();
                async move {
                    loop {
                        let Some(head) = talk.next_head().await else { return };
                        if head.contains("Content-Length: 3") {
                            talk.until("abc").await;
                        }
                        let dies = number == 0 && head.contains("/b");
                        noted.borrow_mut().push(head);
                        if dies {
                            return;
                        }
                        talk.say(OK).await;
                    }
                }
            })
            .await;
            let mut client = bench.client().await;
            client.say("GET /a HTTP/1.1\r\nHost: h\r\n\r\n").await;
            client.until("ok").await;
            client.say(request).await;
            let status = client.until(" ").await + &client.until(" ").await;
            assert_eq!(status, if repeated { "HTTP/1.1 200 " } else { "HTTP/1.1 502 " }, "{request}");
            assert_eq!(seen.borrow().len(), if repeated { 3 } else { 2 }, "{request}");
            let told = bench.proxy().failures.borrow().iter().map(|failure| failure.0).collect::<Vec<_>>();
            assert_eq!(told, [Stage::Request { reused: true }], "{request}");
        }
    });
}

#[test]
fn only_protocols_that_both_sides_name_are_switched_to() {
    on_one_thread(async {
        for (version, fields, passed) in [
            ("1.1", "Connection: upgrade\r\nUpgrade: a, b\r\n", true),
            ("1.1", "Upgrade: a\r\n", false),
            ("1.0", "Connection: upgrade\r\nUpgrade: a\r\n", false),
            ("1.1", "Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n", false),
            ("1.1", "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: H2C\r\n", false),
        ] {
            let (bench, seen) = noting(OK).await;
            bench.ask(format!("GET / HTTP/{version}\r\nHost: h\r\n{fields}Connection: close\r\n\r\n")).await;
            let head = seen.borrow()[0].to_ascii_lowercase();
            assert_eq!(head.contains("connection: upgrade\r\nupgrade: a, b\r\n"), passed, "{head}");
            assert_eq!(head.contains("upgrade"), passed, "{head}");
            assert!(!head.contains("http2-settings"), "{head}");
        }
        for (offered, taken, status) in
            [("a", "Upgrade: A\r\n", "101"), ("a", "Upgrade: other\r\n", "502"), ("a", "", "502")]
        {
            let bench = Bench::new(move |_, mut talk| async move {
                talk.head().await;
                talk.say(format!("HTTP/1.1 101 x\r\nConnection: upgrade, x-hop\r\nX-Hop: 1\r\n{taken}\r\n"))
                    .await;
            })
            .await;
            let mut client = bench.client().await;
            client
                .say(format!(
                    "GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: {offered}\r\n\r\n"
                ))
                .await;
            let head = client.head().await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")) && !head.contains("X-Hop"), "{head}");
        }
    });
}

/// Bytes that come before another protocol was agreed on are not read as requests once it was refused.
#[test]
fn early_bytes_of_another_protocol_are_no_request() {
    on_one_thread(async {
        let (bench, seen) = noting(OK).await;
        let upgrade = "GET /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n";
        let reply = bench.ask(format!("{upgrade}GET /early HTTP/1.1\r\nHost: h\r\n\r\n")).await;
        assert!(reply.contains("Connection: close\r\n"), "{reply}");
        assert_eq!(seen.borrow().len(), 1);
        // A client that waits for the decision goes on.
        let mut client = bench.client().await;
        client.say(upgrade).await;
        client.until("ok").await;
        client.say("GET /b HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.until("ok").await;
    });
}

#[test]
fn bodies_are_delimited_anew() {
    on_one_thread(async {
        let (bench, seen) =
            noting("HTTP/1.1 200 OK\r\nContent-Length: 2\r\ncontent-length: 0002\r\n\r\nok").await;
        let reply = bench.ask("GET / HTTP/1.0\r\n\r\n").await;
        assert!(reply.matches("ontent-").count() == 1 && reply.contains("Content-Length: 2\r\n"), "{reply}");
        assert!(seen.borrow()[0].contains("\r\nHost: \r\n"), "{seen:?}");
        for (method, reply, fields) in [
            ("GET", "HTTP/1.1 204 x\r\nContent-Length: 5\r\n\r\n", ""),
            ("GET", "HTTP/1.1 204 x\r\nTransfer-Encoding: chunked\r\n\r\n", ""),
            ("GET", "HTTP/1.1 304 x\r\nContent-Length: 5\r\n\r\n", "Content-Length: 5\r\n"),
            ("HEAD", "HTTP/1.1 200 x\r\nContent-Length: 5\r\n\r\n", "Content-Length: 5\r\n"),
            ("HEAD", "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n", ""),
            ("GET", "HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n", "Content-Length: 0\r\n"),
        ] {
            let (bench, _) = noting(reply).await;
            let mut client = bench.client().await;
            for _ in 0..2 {
                client.say(format!("{method} / HTTP/1.1\r\nHost: h\r\n\r\n")).await;
                let head = client.head().await;
                let (line, rest) = head.split_once("\r\n").expect("a line");
                assert_eq!(rest, format!("Via: 1.1 one\r\n{fields}\r\n"), "{method} {reply:?} {line}");
            }
        }
    });
}

#[test]
fn a_server_sees_neither_the_spelling_of_chunks_nor_trailers() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            let head = talk.head().await;
            assert!(head.contains("\r\nTransfer-Encoding: chunked\r\n"), "{head}");
            assert_eq!(talk.until("0\r\n\r\n").await, "3\r\nabc\r\n0\r\n\r\n");
            talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n02 ;x\r\nok\r\n0\r\nA: 1\r\nSet-Cookie: 2\r\n\r\n").await;
            talk.rest().await;
        })
        .await;
        let request = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: cHuNkEd\r\nConnection: close\r\n\r\n";
        let reply = bench.ask(format!("{request}0003 ;x\r\nabc\r\n0 \r\nX-Forwarded-For: 1\r\n\r\n")).await;
        assert!(reply.ends_with("\r\n\r\n2\r\nok\r\n0\r\nA: 1\r\n\r\n"), "{reply}");
    });
}

#[test]
fn an_interim_reply_is_not_the_beginning_of_a_reply() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").await;
        })
        .await;
        let old = bench.ask("GET / HTTP/1.0\r\n\r\n").await;
        assert!(old.starts_with("HTTP/1.1 502 "), "{old}");
        let new = bench.ask("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert!(new.starts_with("HTTP/1.1 103 ") && new.contains("HTTP/1.1 502 "), "{new}");
    });
}

#[test]
fn the_side_that_is_silent_is_the_one_that_is_due() {
    on_one_thread(async {
        let limits = Limits { server_read: SHORT, server_write: SHORT, ..PATIENT };
        // The server reads nothing of an upload, and the client has nowhere to put it.
        let bench = Bench::with(limits, |_, talk| async move {
            std::future::pending::<()>().await;
            drop(talk);
        })
        .await;
        let mut client = bench.client().await;
        client.say("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n").await;
        let (mut read, mut write) =
            std::mem::replace(&mut client.stream, TcpStream::connect(bench.address).await.expect("connects"))
                .into_split();
        spawn_local(async move { while write.write_all(&[0; 64 << 10]).await.is_ok() {} });
        let mut reply = [0; 13];
        tokio::io::AsyncReadExt::read_exact(&mut read, &mut reply).await.expect("a reply");
        assert_eq!(&reply, b"HTTP/1.1 504 ");
        // A client that waits for 100 is not late: the server is.
        let waiting = "PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
        let mut client = bench.client().await;
        client.say(waiting).await;
        assert!(client.head().await.starts_with("HTTP/1.1 504 "));
        // A client that sends no body is late.
        let limits = Limits { client_read: SHORT, client_write: SHORT, ..PATIENT };
        let bench = Bench::with(limits, |_, mut talk| async move {
            talk.rest().await;
        })
        .await;
        let late = bench.ask("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n").await;
        assert!(late.starts_with("HTTP/1.1 408 "), "{late}");
        assert!(bench.proxy().failures.borrow().is_empty());
    });
}

#[test]
fn connections_without_requests_end_in_time() {
    on_one_thread(async {
        let limits = Limits { head: Duration::from_millis(200), keepalive: SHORT, ..PATIENT };
        let bench = Bench::with(limits, |_, talk| echo(talk)).await;
        let mut client = bench.client().await;
        client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.head().await;
        client.head().await;
        assert_eq!(client.rest().await, "", "idle");
        // Empty lines do not renew the deadline of a head.
        let client = bench.client().await;
        let (mut read, mut write) = client.stream.into_split();
        spawn_local(async move {
            let mut pace = tokio::time::interval(Duration::from_millis(10));
            while write.write_all(b"\r\n").await.is_ok() {
                pace.tick().await;
            }
        });
        let mut reply = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut read, &mut reply).await;
        assert!(reply.is_empty() || reply.starts_with(b"HTTP/1.1 408 "));
    });
}

/// Deadlines hold on a thread that never waits.
#[test]
fn deadlines_pass_while_the_thread_is_busy() {
    on_one_thread(async {
        let busy = Rc::new(Cell::new(true));
        let going = busy.clone();
        spawn_local(async move {
            while going.get() {
                tokio::task::yield_now().await;
            }
        });
        let bench = Bench::with(Limits { head: SHORT, ..PATIENT }, |_, talk| echo(talk)).await;
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = bench.client().await;
            client.say("GET / HTTP/1.1\r\nHo").await;
            clients.push(client);
        }
        for mut client in clients {
            assert!(client.rest().await.starts_with("HTTP/1.1 408 "));
        }
        busy.set(false);
    });
}

#[test]
fn a_client_that_ends_its_side_gets_its_reply_where_that_is_allowed() {
    on_one_thread(async {
        for half_close in [true, false] {
            let bench = Bench::with(Limits { half_close, ..PATIENT }, |_, mut talk| async move {
                talk.head().await;
                // The end of the client has come to the proxy by then, or comes before this.
                talk.say(OK).await;
                talk.rest().await;
            })
            .await;
            let mut client = bench.client().await;
            client.say("GET /later HTTP/1.1\r\nHost: h\r\n\r\n").await;
            client.stream.shutdown().await.expect("ends");
            if half_close {
                bench.proxy().decides.notify_one();
                assert!(client.rest().await.ends_with("\r\n\r\nok"));
            } else {
                assert_eq!(bench.reports(1).await[0].status, None);
            }
        }
    });
}

/// A kernel that is left with unread bytes resets the connection, and the client loses what it has not read.
#[test]
fn the_last_reply_is_read_by_a_client_that_sends_more() {
    on_one_thread(async {
        const SIZE: usize = 4 << 20;
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
            talk.say(vec![b'y'; SIZE]).await;
        })
        .await;
        bench.worker.retire();
        let mut client = bench.client().await;
        client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(6_000)).await;
        client.head().await;
        while client.read.len() < SIZE {
            assert!(client.more().await, "{} bytes came", client.read.len());
        }
    });
}

#[test]
fn a_server_that_cannot_be_reached_is_told_with_its_error() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = closed.local_addr().expect("bound");
        drop(closed);
        let unreachable = bench.before(address).await;
        let reply = unreachable.ask("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert!(reply.starts_with("HTTP/1.1 502 "), "{reply}");
        assert_eq!(unreachable.proxy().failures.borrow()[0], (Stage::Connect, ErrorKind::ConnectionRefused));
    });
}
