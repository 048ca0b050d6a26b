//! HTTP/2 clients.

use crate::frames::{DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, RST_STREAM, fields, frame, get};
use crate::kit::{ScriptedConnection, TIMEOUT, TestRelay, echo, run_on_one_thread};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest, handshake};
use h2::{Reason, SendStream};
use http::{HeaderMap, Request, Response};
use larder_http::relay::{ClientFault, Http2Fault, Refusal};
use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;

/// A client of the crate h2, and the task of its connection.
pub(crate) type Client = (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>);

pub(crate) async fn client(relay: &TestRelay) -> Client {
    let (sender, connection) = handshake(relay.http2()).await.expect("a connection");
    (sender, spawn_local(connection))
}

pub(crate) fn request(method: &str, path: &str) -> Request<()> {
    Request::builder().method(method).uri(format!("https://h{path}")).body(()).expect("a request")
}

pub(crate) async fn send(
    client: &mut Client,
    request: Request<()>,
    ends: bool,
) -> (ResponseFuture, SendStream<Bytes>) {
    poll_fn(|cx| client.0.poll_ready(cx)).await.expect("room for a request");
    client.0.send_request(request, ends).expect("sends")
}

/// Reads a complete reply.
pub(crate) async fn read_reply(
    reply: ResponseFuture,
) -> Result<(Response<()>, String, Option<HeaderMap>), h2::Error> {
    let read = async {
        let (parts, mut body) = reply.await?.into_parts();
        let mut contents = Vec::new();
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            contents.extend_from_slice(&data);
        }
        let trailers = body.trailers().await?;
        Ok((Response::from_parts(parts, ()), String::from_utf8(contents).expect("text"), trailers))
    };
    timeout(TIMEOUT, read).await.expect("a reply in time")
}

pub(crate) async fn ask(client: &mut Client, method: &str, path: &str) -> (u16, String) {
    let (reply, _) = send(client, request(method, path), true).await;
    let (head, contents, _) = read_reply(reply).await.expect("a reply");
    (head.status().as_u16(), contents)
}

/// Returns the error code with which a stream was reset.
pub(crate) fn reset_reason<T>(reply: Result<T, h2::Error>) -> Option<Reason> {
    reply.err().and_then(|error| error.reason())
}

pub(crate) async fn upload(stream: &mut SendStream<Bytes>, mut body: Bytes) {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let room = poll_fn(|cx| stream.poll_capacity(cx)).await.expect("open").expect("room");
        let piece = body.split_to(room.min(body.len()));
        stream.send_data(piece, body.is_empty()).expect("sends");
    }
}

/// Sends a reply with an endless body.
pub(crate) async fn send_endless_reply(mut connection: ScriptedConnection) {
    use tokio::io::AsyncWriteExt;
    connection.read_head().await;
    connection.send_bytes("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    let chunk = [b"4000\r\n".to_vec(), vec![b'x'; 0x4000], b"\r\n".to_vec()].concat();
    while connection.stream.write_all(&chunk).await.is_ok() {}
}

#[test]
fn an_http2_request_is_relayed_to_an_http1_server() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        let mut client = client(&relay).await;
        let mut asked = request("GET", "/a?b");
        for (name, value) in
            [("cookie", "a=1"), ("te", "trailers"), ("x", "y"), ("cookie", "b=2"), ("cookie", "c=3")]
        {
            asked.headers_mut().append(name, value.parse().expect("a value"));
        }
        let (reply, _) = send(&mut client, asked, true).await;
        let (head, seen, _) = read_reply(reply).await.expect("a reply");
        assert_eq!(
            seen,
            "GET /a?b HTTP/1.1\r\nHost: h\r\ncookie: a=1; b=2; c=3\r\nx: y\r\nVia: 1.1 one\r\n\r\n"
        );
        assert_eq!(
            (head.status().as_u16(), &head.headers()["via"]),
            (200, &"1.1 one".parse().expect("a value"))
        );
        assert_eq!(head.headers()["content-length"], seen.len().to_string());
        assert_eq!(head.headers().len(), 2, "{head:?}");
        let (status, contents) = ask(&mut client, "GET", "/own").await;
        assert_eq!((status, &*contents), (403, "no\n"));
        let reports = relay.reports(2).await;
        assert!(reports.iter().all(|report| report.complete && report.fault.is_none()), "{reports:?}");
    });
}

#[test]
fn bodies_respect_the_flow_control_of_both_sides() {
    run_on_one_thread(async {
        const SIZE: usize = 4 << 20;
        for length in [Some(SIZE), None] {
            let relay = TestRelay::new(move |_, mut connection| async move {
                let head = connection.read_head().await;
                assert_eq!(
                    head.contains("transfer-encoding: chunked")
                        || head.contains("Transfer-Encoding: chunked"),
                    length.is_none(),
                    "{head}"
                );
                let mut left = SIZE;
                while left > 0 {
                    left = left.saturating_sub(connection.read.iter().filter(|byte| **byte == b'x').count());
                    connection.read.clear();
                    if left > 0 {
                        assert!(connection.read_more().await);
                    }
                }
                connection.send_bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
                connection.send_bytes(vec![b'y'; SIZE]).await;
                connection.read_to_end().await;
            })
            .await;
            let mut client = client(&relay).await;
            let mut asked = request("PUT", "/");
            if let Some(length) = length {
                asked.headers_mut().insert("content-length", length.into());
            }
            let (reply, mut body) = send(&mut client, asked, false).await;
            upload(&mut body, vec![b'x'; SIZE].into()).await;
            let (_, contents, _) = read_reply(reply).await.expect("a reply");
            assert!(contents.len() == SIZE && contents.bytes().all(|byte| byte == b'y'));
            assert_eq!(relay.reports(1).await[0].body_bytes, SIZE as u64);
        }
    });
}

#[test]
fn trailers_and_interim_replies_reach_the_client() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            connection.read_head().await;
            connection.send_bytes("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").await;
            connection.send_bytes("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;e\r\nok\r\n0\r\nT: 1\r\nHost: x\r\n\r\n")
                .await;
            connection.read_to_end().await;
        })
        .await;
        let mut client = client(&relay).await;
        let (mut reply, _) = send(&mut client, request("GET", "/"), true).await;
        let early = poll_fn(|cx| reply.poll_informational(cx)).await.expect("a hint").expect("a head");
        assert_eq!(
            (early.status().as_u16(), &early.headers()["link"]),
            (103, &"</a>".parse().expect("a value"))
        );
        let (head, contents, trailers) = read_reply(reply).await.expect("a reply");
        assert!(!head.headers().contains_key("transfer-encoding"));
        assert_eq!(
            (&*contents, trailers),
            (
                "ok",
                Some([("t".parse().expect("a name"), "1".parse().expect("a value"))].into_iter().collect())
            )
        );
    });
}

#[test]
fn replies_without_content_end_with_their_head() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            while let Some(head) = connection.try_read_head().await {
                let reply = match head.split(' ').nth(1) {
                    Some("/204") => "204 No Content\r\n\r\n",
                    Some("/304") => "304 Not Modified\r\nContent-Length: 9\r\n\r\n",
                    _ => "200 OK\r\nContent-Length: 9\r\n\r\n",
                };
                connection.send_bytes(format!("HTTP/1.1 {reply}")).await;
            }
        })
        .await;
        let mut client = client(&relay).await;
        for (method, path, status, length) in
            [("HEAD", "/", 200, Some("9")), ("GET", "/204", 204, None), ("GET", "/304", 304, Some("9"))]
        {
            let (reply, _) = send(&mut client, request(method, path), true).await;
            let (parts, body) =
                timeout(TIMEOUT, reply).await.expect("in time").expect("a reply").into_parts();
            let stated = parts.headers.get("content-length").map(|length| length.to_str().expect("digits"));
            assert_eq!((parts.status.as_u16(), stated, body.is_end_stream()), (status, length, true));
        }
    });
}

#[test]
fn malformed_requests_are_refused() {
    run_on_one_thread(async {
        let relay =
            TestRelay::new(
                |_, connection| async move { panic!("a server was asked: {:?}", connection.read) },
            )
            .await;
        let head = |list: &[(&str, &str)]| {
            let pseudo = [(":method", "GET"), (":scheme", "https")];
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields(&[&pseudo, list].concat()))
        };
        let (host, path) = ((":authority", "h"), (":path", "/"));
        let heads = [
            // Violations of RFC 9113 section 8.3.1.
            head(&[host]),
            head(&[host, (":path", "")]),
            head(&[host, (":path", "a")]),
            head(&[host, (":path", "*")]),
            head(&[host, (":path", "http://h/")]),
            head(&[path]),
            head(&[(":authority", "user@h"), path]),
            head(&[host, path, ("host", "other")]),
            head(&[path, ("host", "h"), ("host", "h")]),
            head(&[host, path, path]),
            head(&[path, ("x", "y"), host]),
            head(&[host, path, (":x", "y")]),
            // Violations of sections 8.2.1 and 8.2.2.
            head(&[host, path, ("X", "y")]),
            head(&[host, path, ("x y", "z")]),
            head(&[host, path, ("x", "a\rb")]),
            head(&[host, path, ("connection", "x")]),
            head(&[host, path, ("transfer-encoding", "chunked")]),
            head(&[host, path, ("upgrade", "x")]),
            head(&[host, path, ("te", "gzip")]),
            // Violations of section 8.1.1.
            head(&[host, path, ("content-length", "1")]),
            head(&[host, path, ("content-length", "x")]),
            head(&[host, path, ("content-length", "0"), ("content-length", "0")]),
        ];
        for (number, head) in heads.into_iter().enumerate() {
            let mut frames = Frames::connect(&relay).await;
            frames.send(&head).await;
            let reply = frames.reply(1).await;
            let is_refused = match reply.kind {
                // The indexed field `:status: 400` in HPACK.
                HEADERS => reply.payload[0] == 0x8c,
                GOAWAY => reply.payload[4..] == u32::from(Reason::PROTOCOL_ERROR).to_be_bytes(),
                _ => reply.payload == u32::from(Reason::PROTOCOL_ERROR).to_be_bytes(),
            };
            assert!(is_refused, "{number}: {reply:?}");
        }
        let mut frames = Frames::connect(&relay).await;
        let connect = fields(&[(":method", "CONNECT"), (":authority", "h:1")]);
        frames.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &connect)).await;
        assert_eq!(frames.reply(1).await.kind, HEADERS);
        assert_eq!(relay.proxy().refusals.borrow().last(), Some(&Refusal::Connect));
        assert!(relay.proxy().reports.borrow().is_empty());
    });
}

#[test]
fn a_connection_with_many_malformed_requests_is_closed() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        let mut frames = Frames::connect(&relay).await;
        for number in 0..40 {
            frames.send(&get(2 * number + 1, &[("host", "other")], END_STREAM)).await;
        }
        assert_eq!(relay.fault().await, Http2Fault::Malformed);
        let last = frames.read_to_end().await.pop().expect("a frame");
        assert_eq!(
            (last.kind, &last.payload[4..8]),
            (GOAWAY, &u32::from(Reason::ENHANCE_YOUR_CALM).to_be_bytes()[..])
        );
    });
}

/// A DATA frame must not follow a content length of zero (RFC 9113 section 8.1.1).
#[test]
fn a_body_after_content_length_zero_is_malformed() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            let head = connection.read_head().await;
            assert!(
                head.contains("Transfer-Encoding: chunked") && !head.contains("content-length"),
                "{head}"
            );
            assert_eq!(connection.read_to_end().await, "");
        })
        .await;
        let mut frames = Frames::connect(&relay).await;
        frames.send(&get(1, &[("content-length", "0")], 0)).await;
        frames.send(&frame(DATA, END_STREAM, 1, b"abc")).await;
        let reply = frames.reply(1).await;
        assert_eq!(
            (reply.kind, reply.payload),
            (RST_STREAM, u32::from(Reason::PROTOCOL_ERROR).to_be_bytes().to_vec())
        );
        assert_eq!(relay.reports(1).await[0].fault, Some(ClientFault::Gone));
    });
}

#[test]
fn a_stream_reset_closes_the_server_connection() {
    run_on_one_thread(async {
        let (asked, freed) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
        let (tell_asked, tell_freed) = (asked.clone(), freed.clone());
        let relay = TestRelay::new(move |_, mut connection| {
            let (asked, freed) = (tell_asked.clone(), tell_freed.clone());
            async move {
                connection.read_head().await;
                asked.notify_one();
                connection.read_to_end().await;
                freed.notify_one();
            }
        })
        .await;
        let mut client = client(&relay).await;
        let (reply, mut stream) = send(&mut client, request("GET", "/"), true).await;
        asked.notified().await;
        stream.send_reset(Reason::CANCEL);
        timeout(TIMEOUT, freed.notified()).await.expect("the server is left");
        drop(reply);
        let report = relay.reports(1).await[0];
        assert_eq!((report.status, report.fault), (None, Some(ClientFault::Gone)));
        // A pending decision ends with its stream, and all requests end with their connection.
        let (_, mut stream) = send(&mut client, request("GET", "/later"), true).await;
        stream.send_reset(Reason::CANCEL);
        let _under_way = send(&mut client, request("GET", "/"), true).await;
        asked.notified().await;
        client.1.abort();
        assert_eq!(relay.reports(3).await[2].fault, Some(ClientFault::Gone));
    });
}

#[test]
fn an_incomplete_reply_resets_its_stream() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            connection.read_head().await;
            connection.send_bytes("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
        })
        .await;
        let mut client = client(&relay).await;
        let (reply, _) = send(&mut client, request("GET", "/"), true).await;
        assert_eq!(reset_reason(read_reply(reply).await), Some(Reason::INTERNAL_ERROR));
        let report = relay.reports(1).await[0];
        assert_eq!((report.status, report.complete), (Some(200), false));
        assert_eq!(ask(&mut client, "GET", "/own").await.0, 403, "the connection goes on");
    });
}

#[test]
fn an_early_answer_stops_the_upload() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, mut connection| async move {
            connection.read_head().await;
            connection.send_bytes("HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\n\r\nmuch").await;
            connection.read_to_end().await;
        })
        .await;
        let mut client = client(&relay).await;
        for (first, status) in [("abc", 413), ("refused", 413)] {
            let (reply, mut body) = send(&mut client, request("PUT", "/"), false).await;
            upload(&mut body, Bytes::from(first)).await;
            let (head, ..) = read_reply(reply).await.expect("a reply");
            assert_eq!(head.status().as_u16(), status);
        }
        let (reply, mut body) = send(&mut client, request("PUT", "/"), false).await;
        body.send_data(Bytes::from_static(b"refused"), false).expect("sends");
        assert_eq!(read_reply(reply).await.expect("a reply").0.status().as_u16(), 413);
        let reset = poll_fn(|cx| body.poll_reset(cx)).await;
        assert_eq!(reset.expect("a reset"), Reason::NO_ERROR);
    });
}

#[test]
fn requests_are_served_concurrently() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        relay.proxy().shares_connections.set(true);
        let mut clients = Vec::new();
        for _ in 0..20 {
            clients.push(client(&relay).await);
        }
        for round in 0..20 {
            let mut replies = Vec::new();
            for (number, client) in clients.iter_mut().enumerate() {
                for stream in 0..2 {
                    let path = format!("/{round}/{number}/{stream}");
                    let (reply, _) = send(client, request("GET", &path), true).await;
                    replies.push((path, reply));
                }
            }
            for (path, reply) in replies.into_iter().rev() {
                let contents = read_reply(reply).await.expect("a reply").1;
                assert!(contents.starts_with(&format!("GET {path} ")), "{contents}");
            }
        }
        assert!(relay.reports(800).await.iter().all(|report| report.complete));
    });
}

/// gRPC clients send `te: trailers`, and servers may require it.
#[test]
fn http2_servers_are_sent_te_trailers() {
    run_on_one_thread(async {
        let asked = Rc::new(Cell::new(0));
        let count = asked.clone();
        let relay = TestRelay::new(move |_, connection| {
            let count = count.clone();
            async move {
                let mut connection = h2::server::handshake(connection.stream).await.expect("a connection");
                while let Some(arrived) = connection.accept().await {
                    let (asked, mut respond) = arrived.expect("a request");
                    let te = asked.headers().get("te").map(|te| te.as_bytes().to_vec());
                    assert_eq!(te.as_deref(), (asked.uri().path() == "/grpc").then_some(&b"trailers"[..]));
                    count.set(count.get() + 1);
                    let mut reply = respond.send_response(Response::new(()), false).expect("sends");
                    reply.send_data(Bytes::from_static(b"ok"), false).expect("sends");
                    let status = [("grpc-status".parse().expect("a name"), 0.into())].into_iter().collect();
                    reply.send_trailers(status).expect("sends");
                }
            }
        })
        .await;
        relay.proxy().is_http2.set(true);
        let mut client = client(&relay).await;
        let mut grpc = request("POST", "/grpc");
        grpc.headers_mut().insert("te", "trailers".parse().expect("a value"));
        for asking in [grpc, request("GET", "/")] {
            let (reply, _) = send(&mut client, asking, true).await;
            let (_, contents, trailers) = read_reply(reply).await.expect("a reply");
            assert_eq!(
                (&*contents, trailers.expect("trailers")["grpc-status"].as_bytes()),
                ("ok", &b"0"[..])
            );
        }
        assert_eq!(asked.get(), 2);
    });
}
