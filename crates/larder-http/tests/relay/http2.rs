//! Clients of HTTP/2.

use crate::frames::{DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, RST_STREAM, fields, frame, get};
use crate::kit::{Bench, PATIENCE, Talk, echo, on_one_thread};
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

/// A client by the crate h2. The handle ends with the connection.
pub(crate) type Client = (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>);

pub(crate) async fn client(bench: &Bench) -> Client {
    let (sender, connection) = handshake(bench.http2()).await.expect("a connection");
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

/// The whole of a reply.
pub(crate) async fn whole(
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
    timeout(PATIENCE, read).await.expect("a reply in time")
}

pub(crate) async fn ask(client: &mut Client, method: &str, path: &str) -> (u16, String) {
    let (reply, _) = send(client, request(method, path), true).await;
    let (head, contents, _) = whole(reply).await.expect("a reply");
    (head.status().as_u16(), contents)
}

/// The reason for which a stream was reset.
pub(crate) fn reason<T>(reply: Result<T, h2::Error>) -> Option<Reason> {
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

/// Answers with a body that has no end.
pub(crate) async fn flood(mut talk: Talk) {
    use tokio::io::AsyncWriteExt;
    talk.head().await;
    talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    let chunk = [b"4000\r\n".to_vec(), vec![b'x'; 0x4000], b"\r\n".to_vec()].concat();
    while talk.stream.write_all(&chunk).await.is_ok() {}
}

#[test]
fn a_request_reaches_a_server_of_http1_and_its_reply_the_client() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut client = client(&bench).await;
        let mut asked = request("GET", "/a?b");
        for (name, value) in
            [("cookie", "a=1"), ("te", "trailers"), ("x", "y"), ("cookie", "b=2"), ("cookie", "c=3")]
        {
            asked.headers_mut().append(name, value.parse().expect("a value"));
        }
        let (reply, _) = send(&mut client, asked, true).await;
        let (head, seen, _) = whole(reply).await.expect("a reply");
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
        let reports = bench.reports(2).await;
        assert!(reports.iter().all(|report| report.complete && report.fault.is_none()), "{reports:?}");
    });
}

#[test]
fn bodies_go_both_ways_by_the_windows_of_both_sides() {
    on_one_thread(async {
        const SIZE: usize = 4 << 20;
        for length in [Some(SIZE), None] {
            let bench = Bench::new(move |_, mut talk| async move {
                let head = talk.head().await;
                assert_eq!(
                    head.contains("transfer-encoding: chunked")
                        || head.contains("Transfer-Encoding: chunked"),
                    length.is_none(),
                    "{head}"
                );
                let mut left = SIZE;
                while left > 0 {
                    left = left.saturating_sub(talk.read.iter().filter(|byte| **byte == b'x').count());
                    talk.read.clear();
                    if left > 0 {
                        assert!(talk.more().await);
                    }
                }
                talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
                talk.say(vec![b'y'; SIZE]).await;
                talk.rest().await;
            })
            .await;
            let mut client = client(&bench).await;
            let mut asked = request("PUT", "/");
            if let Some(length) = length {
                asked.headers_mut().insert("content-length", length.into());
            }
            let (reply, mut body) = send(&mut client, asked, false).await;
            upload(&mut body, vec![b'x'; SIZE].into()).await;
            let (_, contents, _) = whole(reply).await.expect("a reply");
            assert!(contents.len() == SIZE && contents.bytes().all(|byte| byte == b'y'));
            assert_eq!(bench.reports(1).await[0].body_bytes, SIZE as u64);
        }
    });
}

#[test]
fn trailers_and_interim_replies_reach_the_client() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").await;
            talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;e\r\nok\r\n0\r\nT: 1\r\nHost: x\r\n\r\n")
                .await;
            talk.rest().await;
        })
        .await;
        let mut client = client(&bench).await;
        let (mut reply, _) = send(&mut client, request("GET", "/"), true).await;
        let early = poll_fn(|cx| reply.poll_informational(cx)).await.expect("a hint").expect("a head");
        assert_eq!(
            (early.status().as_u16(), &early.headers()["link"]),
            (103, &"</a>".parse().expect("a value"))
        );
        let (head, contents, trailers) = whole(reply).await.expect("a reply");
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
fn replies_without_contents_end_with_their_head() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            while let Some(head) = talk.next_head().await {
                let reply = match head.split(' ').nth(1) {
                    Some("/204") => "204 No Content\r\n\r\n",
                    Some("/304") => "304 Not Modified\r\nContent-Length: 9\r\n\r\n",
                    _ => "200 OK\r\nContent-Length: 9\r\n\r\n",
                };
                talk.say(format!("HTTP/1.1 {reply}")).await;
            }
        })
        .await;
        let mut client = client(&bench).await;
        for (method, path, status, length) in
            [("HEAD", "/", 200, Some("9")), ("GET", "/204", 204, None), ("GET", "/304", 304, Some("9"))]
        {
            let (reply, _) = send(&mut client, request(method, path), true).await;
            let (parts, body) =
                timeout(PATIENCE, reply).await.expect("in time").expect("a reply").into_parts();
            let stated = parts.headers.get("content-length").map(|length| length.to_str().expect("digits"));
            assert_eq!((parts.status.as_u16(), stated, body.is_end_stream()), (status, length, true));
        }
    });
}

#[test]
fn malformed_requests_are_refused() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| async move { panic!("a server was asked: {:?}", talk.read) }).await;
        let head = |list: &[(&str, &str)]| {
            let pseudo = [(":method", "GET"), (":scheme", "https")];
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields(&[&pseudo, list].concat()))
        };
        let (host, path) = ((":authority", "h"), (":path", "/"));
        let heads = [
            // RFC 9113 section 8.3.1.
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
            // Sections 8.2.1 and 8.2.2.
            head(&[host, path, ("X", "y")]),
            head(&[host, path, ("x y", "z")]),
            head(&[host, path, ("x", "a\rb")]),
            head(&[host, path, ("connection", "x")]),
            head(&[host, path, ("transfer-encoding", "chunked")]),
            head(&[host, path, ("upgrade", "x")]),
            head(&[host, path, ("te", "gzip")]),
            // Section 8.1.1.
            head(&[host, path, ("content-length", "1")]),
            head(&[host, path, ("content-length", "x")]),
            head(&[host, path, ("content-length", "0"), ("content-length", "0")]),
        ];
        for (number, head) in heads.into_iter().enumerate() {
            let mut frames = Frames::connect(&bench).await;
            frames.send(&head).await;
            let reply = frames.reply(1).await;
            let is_refused = match reply.kind {
                // 400 in HPACK.
                HEADERS => reply.payload[0] == 0x8c,
                GOAWAY => reply.payload[4..] == u32::from(Reason::PROTOCOL_ERROR).to_be_bytes(),
                _ => reply.payload == u32::from(Reason::PROTOCOL_ERROR).to_be_bytes(),
            };
            assert!(is_refused, "{number}: {reply:?}");
        }
        let mut frames = Frames::connect(&bench).await;
        let connect = fields(&[(":method", "CONNECT"), (":authority", "h:1")]);
        frames.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &connect)).await;
        assert_eq!(frames.reply(1).await.kind, HEADERS);
        assert_eq!(bench.proxy().refusals.borrow().last(), Some(&Refusal::Connect));
        assert!(bench.proxy().reports.borrow().is_empty());
    });
}

#[test]
fn a_connection_with_many_malformed_requests_ends() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut frames = Frames::connect(&bench).await;
        for number in 0..40 {
            frames.send(&get(2 * number + 1, &[("host", "other")], END_STREAM)).await;
        }
        assert_eq!(bench.fault().await, Http2Fault::Malformed);
        let last = frames.rest().await.pop().expect("a frame");
        assert_eq!(
            (last.kind, &last.payload[4..8]),
            (GOAWAY, &u32::from(Reason::ENHANCE_YOUR_CALM).to_be_bytes()[..])
        );
    });
}

/// A length of zero does not say that nothing comes (RFC 9113 section 8.1.1).
#[test]
fn a_body_behind_a_length_of_zero_is_malformed() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            let head = talk.head().await;
            assert!(
                head.contains("Transfer-Encoding: chunked") && !head.contains("content-length"),
                "{head}"
            );
            assert_eq!(talk.rest().await, "");
        })
        .await;
        let mut frames = Frames::connect(&bench).await;
        frames.send(&get(1, &[("content-length", "0")], 0)).await;
        frames.send(&frame(DATA, END_STREAM, 1, b"abc")).await;
        let reply = frames.reply(1).await;
        assert_eq!(
            (reply.kind, reply.payload),
            (RST_STREAM, u32::from(Reason::PROTOCOL_ERROR).to_be_bytes().to_vec())
        );
        assert_eq!(bench.reports(1).await[0].fault, Some(ClientFault::Gone));
    });
}

#[test]
fn a_client_that_resets_its_stream_frees_the_server() {
    on_one_thread(async {
        let (asked, freed) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
        let (tell_asked, tell_freed) = (asked.clone(), freed.clone());
        let bench = Bench::new(move |_, mut talk| {
            let (asked, freed) = (tell_asked.clone(), tell_freed.clone());
            async move {
                talk.head().await;
                asked.notify_one();
                talk.rest().await;
                freed.notify_one();
            }
        })
        .await;
        let mut client = client(&bench).await;
        let (reply, mut stream) = send(&mut client, request("GET", "/"), true).await;
        asked.notified().await;
        stream.send_reset(Reason::CANCEL);
        timeout(PATIENCE, freed.notified()).await.expect("the server is left");
        drop(reply);
        let report = bench.reports(1).await[0];
        assert_eq!((report.status, report.fault), (None, Some(ClientFault::Gone)));
        // A decision under way ends too, and so does all when the connection ends.
        let (_, mut stream) = send(&mut client, request("GET", "/later"), true).await;
        stream.send_reset(Reason::CANCEL);
        let _under_way = send(&mut client, request("GET", "/"), true).await;
        asked.notified().await;
        client.1.abort();
        assert_eq!(bench.reports(3).await[2].fault, Some(ClientFault::Gone));
    });
}

#[test]
fn a_reply_that_breaks_off_resets_its_stream() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
        })
        .await;
        let mut client = client(&bench).await;
        let (reply, _) = send(&mut client, request("GET", "/"), true).await;
        assert_eq!(reason(whole(reply).await), Some(Reason::INTERNAL_ERROR));
        let report = bench.reports(1).await[0];
        assert_eq!((report.status, report.complete), (Some(200), false));
        assert_eq!(ask(&mut client, "GET", "/own").await.0, 403, "the connection goes on");
    });
}

#[test]
fn an_upload_that_is_answered_early_is_told_to_stop() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say("HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\n\r\nmuch").await;
            talk.rest().await;
        })
        .await;
        let mut client = client(&bench).await;
        for (first, status) in [("abc", 413), ("refused", 413)] {
            let (reply, mut body) = send(&mut client, request("PUT", "/"), false).await;
            upload(&mut body, Bytes::from(first)).await;
            let (head, ..) = whole(reply).await.expect("a reply");
            assert_eq!(head.status().as_u16(), status);
        }
        let (reply, mut body) = send(&mut client, request("PUT", "/"), false).await;
        body.send_data(Bytes::from_static(b"refused"), false).expect("sends");
        assert_eq!(whole(reply).await.expect("a reply").0.status().as_u16(), 413);
        let reset = poll_fn(|cx| body.poll_reset(cx)).await;
        assert_eq!(reset.expect("a reset"), Reason::NO_ERROR);
    });
}

#[test]
fn many_requests_are_served_at_the_same_time() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        bench.proxy().shares.set(true);
        let mut clients = Vec::new();
        for _ in 0..20 {
            clients.push(client(&bench).await);
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
                let contents = whole(reply).await.expect("a reply").1;
                assert!(contents.starts_with(&format!("GET {path} ")), "{contents}");
            }
        }
        assert!(bench.reports(800).await.iter().all(|report| report.complete));
    });
}

/// gRPC asks for trailers, and a server may insist on that.
#[test]
fn servers_of_http2_learn_that_the_client_takes_trailers() {
    on_one_thread(async {
        let asked = Rc::new(Cell::new(0));
        let count = asked.clone();
        let bench = Bench::new(move |_, talk| {
            let count = count.clone();
            async move {
                let mut connection = h2::server::handshake(talk.stream).await.expect("a connection");
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
        bench.proxy().is_http2.set(true);
        let mut client = client(&bench).await;
        let mut grpc = request("POST", "/grpc");
        grpc.headers_mut().insert("te", "trailers".parse().expect("a value"));
        for asking in [grpc, request("GET", "/")] {
            let (reply, _) = send(&mut client, asking, true).await;
            let (_, contents, trailers) = whole(reply).await.expect("a reply");
            assert_eq!(
                (&*contents, trailers.expect("trailers")["grpc-status"].as_bytes()),
                ("ok", &b"0"[..])
            );
        }
        assert_eq!(asked.get(), 2);
    });
}
