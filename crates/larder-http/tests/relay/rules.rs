//! Rules of HTTP that a proxy must obey, and limits.

use crate::kit::{LONG_LIMITS, SHORT, TestRelay, echo, run_on_one_thread};
use larder_http::relay::{Limits, Refusal, Stage};
use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::spawn_local;

/// The heads of requests that a server has received.
type SeenHeads = Rc<RefCell<Vec<String>>>;

/// Starts a server that records heads, and sends `reply` to each.
async fn recording_relay(reply: &'static str) -> (TestRelay, SeenHeads) {
    let seen = SeenHeads::default();
    let noted = seen.clone();
    let relay = TestRelay::new(move |_, mut connection| {
        let noted = noted.clone();
        async move {
            loop {
                let Some(head) = connection.try_read_head().await else { return };
                noted.borrow_mut().push(head);
                connection.send_bytes(reply).await;
            }
        }
    })
    .await;
    (relay, seen)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// If the server refuses an upload and closes, the rest of the body must not become a request.
#[test]
fn the_rest_of_a_body_is_not_parsed_as_a_request() {
    run_on_one_thread(async {
        let seen = SeenHeads::default();
        let noted = seen.clone();
        let relay = TestRelay::new(move |_, mut connection| {
            let noted = noted.clone();
            async move {
                let head = connection.read_head().await;
                noted.borrow_mut().push(head);
                connection.send_bytes("HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n").await;
                // The connection is closed while bytes are unread, so that the next write of the proxy fails.
            }
        })
        .await;
        let client = relay.client().await;
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
        assert_eq!(relay.reports(1).await.len(), 1);
    });
}

#[test]
fn connect_is_refused() {
    run_on_one_thread(async {
        let (relay, seen) = recording_relay(OK).await;
        let reply = relay.request("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n").await;
        assert!(reply.starts_with("HTTP/1.1 405 ") && seen.borrow().is_empty(), "{reply}");
        assert_eq!(*relay.proxy().refusals.borrow(), [Refusal::Connect]);
    });
}

/// A server that fails during a request may have executed it.
#[test]
fn only_idempotent_requests_are_retried() {
    run_on_one_thread(async {
        for (request, repeated) in [
            ("GET /b HTTP/1.1\r\nHost: h\r\n\r\n", true),
            ("PUT /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", true),
            ("POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", false),
        ] {
            let seen = SeenHeads::default();
            let noted = seen.clone();
            let relay = TestRelay::new(move |number, mut connection| {
                let noted = noted.clone();
                async move {
                    loop {
                        let Some(head) = connection.try_read_head().await else { return };
                        if head.contains("Content-Length: 3") {
                            connection.read_until("abc").await;
                        }
                        let dies = number == 0 && head.contains("/b");
                        noted.borrow_mut().push(head);
                        if dies {
                            return;
                        }
                        connection.send_bytes(OK).await;
                    }
                }
            })
            .await;
            let mut client = relay.client().await;
            client.send_bytes("GET /a HTTP/1.1\r\nHost: h\r\n\r\n").await;
            client.read_until("ok").await;
            client.send_bytes(request).await;
            let status = client.read_until(" ").await + &client.read_until(" ").await;
            assert_eq!(status, if repeated { "HTTP/1.1 200 " } else { "HTTP/1.1 502 " }, "{request}");
            assert_eq!(seen.borrow().len(), if repeated { 3 } else { 2 }, "{request}");
            let recorded =
                relay.proxy().failures.borrow().iter().map(|failure| failure.0).collect::<Vec<_>>();
            assert_eq!(recorded, [Stage::Request { reused: true }], "{request}");
        }
    });
}

#[test]
fn only_offered_protocols_are_accepted() {
    run_on_one_thread(async {
        for (version, fields, passed) in [
            ("1.1", "Connection: upgrade\r\nUpgrade: a, b\r\n", true),
            ("1.1", "Upgrade: a\r\n", false),
            ("1.0", "Connection: upgrade\r\nUpgrade: a\r\n", false),
            ("1.1", "Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n", false),
            ("1.1", "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: H2C\r\n", false),
        ] {
            let (relay, seen) = recording_relay(OK).await;
            relay
                .request(format!("GET / HTTP/{version}\r\nHost: h\r\n{fields}Connection: close\r\n\r\n"))
                .await;
            let head = seen.borrow()[0].to_ascii_lowercase();
            assert_eq!(head.contains("connection: upgrade\r\nupgrade: a, b\r\n"), passed, "{head}");
            assert_eq!(head.contains("upgrade"), passed, "{head}");
            assert!(!head.contains("http2-settings"), "{head}");
        }
        for (offered, taken, status) in
            [("a", "Upgrade: A\r\n", "101"), ("a", "Upgrade: other\r\n", "502"), ("a", "", "502")]
        {
            let relay = TestRelay::new(move |_, mut connection| async move {
                connection.read_head().await;
                connection
                    .send_bytes(format!(
                        "HTTP/1.1 101 x\r\nConnection: upgrade, x-hop\r\nX-Hop: 1\r\n{taken}\r\n"
                    ))
                    .await;
            })
            .await;
            let mut client = relay.client().await;
            client
                .send_bytes(format!(
                    "GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: {offered}\r\n\r\n"
                ))
                .await;
            let head = client.read_head().await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")) && !head.contains("X-Hop"), "{head}");
        }
    });
}

/// Bytes that arrive before a switch of protocols are not parsed as requests if the switch is refused.
#[test]
fn early_bytes_of_another_protocol_are_not_parsed_as_a_request() {
    run_on_one_thread(async {
        let (relay, seen) = recording_relay(OK).await;
        let upgrade = "GET /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n";
        let reply = relay.request(format!("{upgrade}GET /early HTTP/1.1\r\nHost: h\r\n\r\n")).await;
        assert!(reply.contains("Connection: close\r\n"), "{reply}");
        assert_eq!(seen.borrow().len(), 1);
        // A client that waits for the reply keeps its connection.
        let mut client = relay.client().await;
        client.send_bytes(upgrade).await;
        client.read_until("ok").await;
        client.send_bytes("GET /b HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.read_until("ok").await;
    });
}

#[test]
fn body_delimiters_are_rewritten() {
    run_on_one_thread(async {
        let (relay, seen) =
            recording_relay("HTTP/1.1 200 OK\r\nContent-Length: 2\r\ncontent-length: 0002\r\n\r\nok").await;
        let reply = relay.request("GET / HTTP/1.0\r\n\r\n").await;
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
            let (relay, _) = recording_relay(reply).await;
            let mut client = relay.client().await;
            for _ in 0..2 {
                client.send_bytes(format!("{method} / HTTP/1.1\r\nHost: h\r\n\r\n")).await;
                let head = client.read_head().await;
                let (line, rest) = head.split_once("\r\n").expect("a line");
                assert_eq!(rest, format!("Via: 1.1 one\r\n{fields}\r\n"), "{method} {reply:?} {line}");
            }
        }
    });
}

#[test]
fn chunk_spelling_and_request_trailers_are_not_relayed() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            let head = connection.read_head().await;
            assert!(head.contains("\r\nTransfer-Encoding: chunked\r\n"), "{head}");
            assert_eq!(connection.read_until("0\r\n\r\n").await, "3\r\nabc\r\n0\r\n\r\n");
            connection.send_bytes("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n02 ;x\r\nok\r\n0\r\nA: 1\r\nSet-Cookie: 2\r\n\r\n").await;
            connection.read_to_end().await;
        })
        .await;
        let request = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: cHuNkEd\r\nConnection: close\r\n\r\n";
        let reply =
            relay.request(format!("{request}0003 ;x\r\nabc\r\n0 \r\nX-Forwarded-For: 1\r\n\r\n")).await;
        assert!(reply.ends_with("\r\n\r\n2\r\nok\r\n0\r\nA: 1\r\n\r\n"), "{reply}");
    });
}

#[test]
fn an_interim_reply_does_not_start_the_final_reply() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            connection.read_head().await;
            connection.send_bytes("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").await;
        })
        .await;
        let old = relay.request("GET / HTTP/1.0\r\n\r\n").await;
        assert!(old.starts_with("HTTP/1.1 502 "), "{old}");
        let new = relay.request("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert!(new.starts_with("HTTP/1.1 103 ") && new.contains("HTTP/1.1 502 "), "{new}");
    });
}

#[test]
fn timeouts_blame_the_silent_side() {
    run_on_one_thread(async {
        let limits = Limits { server_read: SHORT, server_write: SHORT, ..LONG_LIMITS };
        // The server reads nothing, so that the upload of the client blocks.
        let relay = TestRelay::with(limits, |_, connection| async move {
            std::future::pending::<()>().await;
            drop(connection);
        })
        .await;
        let mut client = relay.client().await;
        client.send_bytes("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n").await;
        let (mut read, mut write) =
            std::mem::replace(&mut client.stream, TcpStream::connect(relay.address).await.expect("connects"))
                .into_split();
        spawn_local(async move { while write.write_all(&[0; 64 << 10]).await.is_ok() {} });
        let mut reply = [0; 13];
        tokio::io::AsyncReadExt::read_exact(&mut read, &mut reply).await.expect("a reply");
        assert_eq!(&reply, b"HTTP/1.1 504 ");
        // If a client waits for 100, the server is late.
        let waiting = "PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
        let mut client = relay.client().await;
        client.send_bytes(waiting).await;
        assert!(client.read_head().await.starts_with("HTTP/1.1 504 "));
        // If a client does not send its body, the client is late.
        let limits = Limits { client_read: SHORT, client_write: SHORT, ..LONG_LIMITS };
        let relay = TestRelay::with(limits, |_, mut connection| async move {
            connection.read_to_end().await;
        })
        .await;
        let late = relay.request("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n").await;
        assert!(late.starts_with("HTTP/1.1 408 "), "{late}");
        assert!(relay.proxy().failures.borrow().is_empty());
    });
}

#[test]
fn idle_connections_time_out() {
    run_on_one_thread(async {
        let limits = Limits { head: Duration::from_millis(200), keepalive: SHORT, ..LONG_LIMITS };
        let relay = TestRelay::with(limits, |_, connection| echo(connection)).await;
        let mut client = relay.client().await;
        client.send_bytes("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.read_head().await;
        client.read_head().await;
        assert_eq!(client.read_to_end().await, "", "idle");
        // Empty lines do not extend the deadline of a head.
        let client = relay.client().await;
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

/// Deadlines must expire on a thread that is never idle.
#[test]
fn deadlines_expire_on_a_busy_thread() {
    run_on_one_thread(async {
        let busy = Rc::new(Cell::new(true));
        let going = busy.clone();
        spawn_local(async move {
            while going.get() {
                tokio::task::yield_now().await;
            }
        });
        let relay =
            TestRelay::with(Limits { head: SHORT, ..LONG_LIMITS }, |_, connection| echo(connection)).await;
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = relay.client().await;
            client.send_bytes("GET / HTTP/1.1\r\nHo").await;
            clients.push(client);
        }
        for mut client in clients {
            assert!(client.read_to_end().await.starts_with("HTTP/1.1 408 "));
        }
        busy.set(false);
    });
}

#[test]
fn half_close_is_accepted_if_allowed() {
    run_on_one_thread(async {
        for half_close in [true, false] {
            let relay =
                TestRelay::with(Limits { half_close, ..LONG_LIMITS }, |_, mut connection| async move {
                    connection.read_head().await;
                    // The proxy has received the end of the client by then, or receives it before this reply.
                    connection.send_bytes(OK).await;
                    connection.read_to_end().await;
                })
                .await;
            let mut client = relay.client().await;
            client.send_bytes("GET /later HTTP/1.1\r\nHost: h\r\n\r\n").await;
            client.stream.shutdown().await.expect("ends");
            if half_close {
                relay.proxy().decides.notify_one();
                assert!(client.read_to_end().await.ends_with("\r\n\r\nok"));
            } else {
                assert_eq!(relay.reports(1).await[0].status, None);
            }
        }
    });
}

/// If a socket is closed with unread bytes, the kernel resets the connection, and the client loses unread
/// data.
#[test]
fn a_client_that_still_sends_can_read_the_last_reply() {
    run_on_one_thread(async {
        const SIZE: usize = 4 << 20;
        let relay = TestRelay::new(|_, mut connection| async move {
            connection.read_head().await;
            connection.send_bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
            connection.send_bytes(vec![b'y'; SIZE]).await;
        })
        .await;
        relay.worker.retire();
        let mut client = relay.client().await;
        client.send_bytes("GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(6_000)).await;
        client.read_head().await;
        while client.read.len() < SIZE {
            assert!(client.read_more().await, "{} bytes came", client.read.len());
        }
    });
}

#[test]
fn a_connect_error_is_reported() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = closed.local_addr().expect("bound");
        drop(closed);
        let unreachable = relay.with_server(address).await;
        let reply = unreachable.request("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert!(reply.starts_with("HTTP/1.1 502 "), "{reply}");
        assert_eq!(unreachable.proxy().failures.borrow()[0], (Stage::Connect, ErrorKind::ConnectionRefused));
    });
}
