//! Answers of the proxy: content in pieces, request bodies, interim replies, and connections that the proxy
//! takes over.

use crate::kit::{LONG_LIMITS, SHORT, ScriptedConnection, TestRelay, run_on_one_thread};
use bytes::Bytes;
use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{
    AfterAnswer, Answer, BodyFault, ClientFault, ClientHandle, Contents, Limits, Next, Report, RequestBody,
};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

/// Content whose pieces a test sends.
struct Pieces {
    pieces: mpsc::UnboundedReceiver<Result<Bytes, BodyFault>>,
    length: Option<u64>,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BodyFault>>> {
        self.pieces.poll_recv(cx).map(|piece| Some(piece?.map(http_body::Frame::data)))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.length.map_or_else(Default::default, http_body::SizeHint::with_exact)
    }
}

/// Returns the answer of the test proxy for a target; `None` if the request is relayed.
pub(crate) async fn decide(handle: &ClientHandle, head: &RequestHead) -> Option<Next<SocketAddr>> {
    let mut answer = Answer::new(200);
    match head.target() {
        b"/echo" => answer.body = all(handle.body()).await.map_or_else(|_| "broken".into(), Contents::from),
        b"/returned" => {
            // The kit chooses the server after it was notified.
            handle.return_body(all(handle.body()).await.ok()?);
            return None;
        }
        b"/unread" => drop(handle.body()),
        b"/empty" => {}
        b"/through" => answer.body = Contents::stream(handle.body()),
        b"/interim" => {
            for (interim, status) in
                handle.interim().iter().flat_map(|interim| [(interim, 102), (interim, 103)])
            {
                interim.send(ReplyHead::with_status(status));
            }
            answer.body = "done".into();
        }
        b"/large-hints" => {
            let interim = handle.interim()?;
            for _ in 0..32 {
                let mut hint = ReplyHead::with_status(103);
                hint.fields.append(b"Link", &[b'x'; 10_000]).ok()?;
                interim.send(hint);
            }
        }
        b"/many" => {
            let interim = handle.interim()?;
            (0..1_000).for_each(|_| interim.send(ReplyHead::with_status(103)));
        }
        b"/switch" => {
            let protocols = handle.protocols()?.to_vec();
            answer = Answer::new(101);
            answer.head.fields.append(b"Connection", b"upgrade").ok()?;
            answer.head.fields.append(b"Upgrade", &protocols).ok()?;
            answer.then = AfterAnswer::Detach;
        }
        b"/leave" => return Some(Next::Leave),
        b"/stated" => {
            answer.head.fields.append(b"Content-Length", b"7").ok()?;
            answer.body = "1234567".into();
        }
        b"/pieces" | b"/known" | b"/broken" | b"/short" | b"/excess" => {
            let (send, pieces) = mpsc::unbounded_channel();
            let all: VecDeque<_> = [&b"abc"[..], b"", b"de"].into();
            all.into_iter().for_each(|piece| drop(send.send(Ok(Bytes::from_static(piece)))));
            if head.target() == b"/broken" {
                let _ = send.send(Err(BodyFault::Gone));
            }
            let length = match head.target() {
                b"/known" => Some(5),
                b"/short" => Some(9),
                b"/excess" => Some(4),
                _ => None,
            };
            answer.body = Contents::stream(Pieces { pieces, length });
        }
        b"/endless" => answer.body = Contents::stream(Endless),
        _ => return None,
    }
    Some(Next::Answer(answer))
}

/// Content without an end.
struct Endless;

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BodyFault>>> {
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(&[b'x'; 64 << 10])))))
    }
}

async fn all(mut body: RequestBody) -> Result<Vec<u8>, BodyFault> {
    let mut contents = Vec::new();
    while let Some(frame) = poll_fn(|cx| http_body::Body::poll_frame(Pin::new(&mut body), cx)).await {
        contents.extend(frame?.into_data().unwrap_or_default());
    }
    Ok(contents)
}

async fn relay() -> TestRelay {
    // No request is relayed to a server.
    answering(TestRelay::new(|_, _: ScriptedConnection| async {}).await)
}

fn answering(relay: TestRelay) -> TestRelay {
    relay.proxy().answers.set(true);
    relay
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
}

#[test]
fn content_is_sent_in_pieces() {
    run_on_one_thread(async {
        let relay = relay().await;
        for (target, end) in [
            (
                "/pieces",
                "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            ),
            ("/known", "Content-Length: 5\r\nConnection: close\r\n\r\nabcde"),
        ] {
            let got = relay.request(get(target)).await;
            assert!(got.ends_with(end), "{target}: {got}");
        }
        let old = relay.request("GET /pieces HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        assert!(
            old.ends_with("Connection: close\r\n\r\nabcde"),
            "the end of the connection is that of the body: {old}"
        );
        let complete = Report { status: Some(200), body_bytes: 5, complete: true, fault: None };
        assert_eq!(relay.reports(3).await, [complete; 3]);
    });
}

#[test]
fn replies_to_head_declare_a_length() {
    run_on_one_thread(async {
        let relay = relay().await;
        for (target, length) in [("/known", 5), ("/stated", 7)] {
            let got = relay.request(get(target).replace("GET", "HEAD")).await;
            assert!(
                got.ends_with(&format!("Content-Length: {length}\r\nConnection: close\r\n\r\n")),
                "{got}"
            );
        }
    });
}

#[test]
fn a_reply_to_head_declares_no_unknown_length() {
    run_on_one_thread(async {
        let relay = relay().await;
        for target in ["/pieces", "/empty"] {
            let got = relay.request(get(target).replace("GET", "HEAD")).await;
            assert!(got.starts_with("HTTP/1.1 200 ") && !got.contains("Content-Length"), "{target}: {got}");
        }
    });
}

#[test]
fn content_of_a_wrong_length_closes_the_connection() {
    run_on_one_thread(async {
        let relay = relay().await;
        for (target, contents) in [("/short", "abcde"), ("/excess", "abc")] {
            let mut client = relay.client().await;
            client
                .send_bytes(format!(
                    "GET {target} HTTP/1.1\r\nHost: h\r\n\r\nGET /known HTTP/1.1\r\nHost: h\r\n\r\n"
                ))
                .await;
            let got = client.read_to_end().await;
            assert!(got.ends_with(&format!("\r\n\r\n{contents}")), "{target}: {got}");
        }
        assert!(relay.reports(2).await.iter().all(|report| !report.complete));
    });
}

#[test]
fn incomplete_content_is_detectable() {
    run_on_one_thread(async {
        let relay = relay().await;
        let got = relay.request(get("/broken")).await;
        assert!(got.ends_with("3\r\nabc\r\n2\r\nde"), "{got}");
        let broken = Report { status: Some(200), body_bytes: 5, complete: false, fault: None };
        assert_eq!(relay.reports(1).await, [broken]);
    });
}

#[test]
fn the_proxy_reads_the_request_body() {
    run_on_one_thread(async {
        let relay = relay().await;
        let mut client = relay.client().await;
        client.send_bytes("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc").await;
        client.send_bytes("def").await;
        assert!(client.read_head().await.contains("Content-Length: 6\r\n"));
        assert_eq!(client.read_until("abcdef").await, "abcdef");
        client
            .send_bytes("POST /through HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab")
            .await;
        client.read_head().await;
        client.read_until("2\r\nab").await;
        client.send_bytes("c\r\n0\r\n\r\n").await;
        client.read_until("0\r\n\r\n").await;
        // The reply has started before the end of the body.
        assert_eq!(client.read_to_end().await, "");
        let reports = relay.reports(2).await;
        assert_eq!(reports.iter().map(|report| report.body_bytes).collect::<Vec<_>>(), [6, 3]);
    });
}

/// Reads a request and its body of known length, and replies with the body.
async fn echo_body(mut connection: ScriptedConnection) {
    while let Some(head) = connection.try_read_head().await {
        assert!(!head.contains("Transfer-Encoding") && !head.contains("Expect"), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.expect("a length").parse().expect("a number");
        while connection.read.len() < length {
            assert!(connection.read_more().await, "the body ends early");
        }
        let body: Vec<u8> = connection.read.drain(..length).collect();
        connection.send_bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")).await;
        connection.send_bytes(body).await;
    }
}

#[test]
fn a_returned_body_is_sent_to_the_server() {
    run_on_one_thread(async {
        let relay = answering(TestRelay::new(|_, connection| echo_body(connection)).await);
        let mut client = relay.client().await;
        let post = |fields: &str| format!("POST /returned HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n");
        let chunked = post("Transfer-Encoding: chunked") + "3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n";
        for request in [post("Content-Length: 6") + "abcdef", chunked.clone()] {
            relay.proxy().decides.notify_one();
            client.send_bytes(request).await;
            assert!(client.read_head().await.contains("Content-Length: 6\r\n"));
            assert_eq!(client.read_until("abcdef").await, "abcdef");
        }
        // The next request may follow at once.
        relay.proxy().decides.notify_one();
        client.send_bytes(chunked + "GET /empty HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.read_until("abcdef").await;
        assert!(client.read_head().await.starts_with("HTTP/1.1 200 "));
        relay.proxy().decides.notify_one();
        client.send_bytes(post("Content-Length: 3\r\nExpect: 100-continue")).await;
        assert_eq!(client.read_head().await, "HTTP/1.1 100 Continue\r\n\r\n");
        client.send_bytes("abc").await;
        assert_eq!(client.read_until("abc").await.matches("HTTP/1.1").count(), 1);
    });
}

/// A body larger than what is usually kept for another attempt.
#[test]
fn a_returned_body_is_sent_again_after_a_failure() {
    run_on_one_thread(async {
        let body = "x".repeat(300 << 10);
        let length = body.len();
        let relay = answering(
            TestRelay::new(move |number, mut connection: ScriptedConnection| async move {
                if number > 0 {
                    return echo_body(connection).await;
                }
                while connection.read.len() < length {
                    assert!(connection.read_more().await, "the body ends early");
                }
            })
            .await,
        );
        relay.proxy().retries.set(1);
        relay.proxy().decides.notify_one();
        let mut client = relay.client().await;
        let head = format!("PUT /returned HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
        client.send_bytes(head + &body).await;
        assert!(client.read_head().await.starts_with("HTTP/1.1 200 "));
        while client.read.len() < length {
            assert!(client.read_more().await, "the reply ends early");
        }
        assert_eq!(client.read, body.as_bytes());
    });
}

#[test]
fn a_client_gets_100_when_the_proxy_reads_the_body() {
    run_on_one_thread(async {
        let relay = relay().await;
        let expecting = |target| {
            format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        };
        let mut client = relay.client().await;
        client.send_bytes(expecting("/echo")).await;
        assert_eq!(client.read_head().await, "HTTP/1.1 100 Continue\r\n\r\n");
        client.send_bytes("abc").await;
        client.read_head().await;
        assert_eq!(client.read_until("abc").await, "abc");
        client.send_bytes(expecting("/unread")).await;
        let head = client.read_head().await;
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("Connection: close"), "{head}");
    });
}

#[test]
fn an_unread_complete_body_is_skipped() {
    run_on_one_thread(async {
        let relay = relay().await;
        let mut client = relay.client().await;
        for body in
            ["Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"]
        {
            client.send_bytes(format!("POST /unread HTTP/1.1\r\nHost: h\r\n{body}")).await;
            let head = client.read_head().await;
            assert!(!head.contains("Connection: close"), "{head}");
        }
        client.send_bytes("POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc").await;
        assert!(client.read_head().await.contains("Connection: close"), "its end may never come");
    });
}

#[test]
fn half_close_during_the_body_is_no_client_fault_if_allowed() {
    run_on_one_thread(async {
        for half_close in [true, false] {
            let relay = answering(
                TestRelay::with(Limits { half_close, ..LONG_LIMITS }, |_, _: ScriptedConnection| async {})
                    .await,
            );
            let mut client = relay.client().await;
            client
                .send_bytes("POST /through HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc")
                .await;
            client.read_until("3\r\nabc").await;
            client.stream.shutdown().await.expect("shuts");
            let report = relay.reports(1).await[0];
            // The content is that of the request body, and ends early with it.
            let fault = if half_close { None } else { Some(ClientFault::Gone) };
            assert_eq!((report.complete, report.fault), (false, fault));
        }
    });
}

#[test]
fn a_malformed_body_is_a_fault() {
    run_on_one_thread(async {
        let relay = relay().await;
        let got =
            relay.request("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nx").await;
        assert!(got.contains("Connection: close") && got.ends_with("broken"), "{got}");
    });
}

#[test]
fn interim_replies_precede_the_final_reply() {
    run_on_one_thread(async {
        let relay = relay().await;
        let got = relay.request(get("/interim")).await;
        let statuses: Vec<&str> = got.matches("HTTP/1.1 1").chain(got.matches("HTTP/1.1 2")).collect();
        assert_eq!(statuses.len(), 3, "{got}");
        assert!(got.starts_with("HTTP/1.1 102 ") && got.ends_with("done"), "{got}");
        let many = relay.request(get("/many")).await;
        assert_eq!(many.matches("HTTP/1.1 103").count(), 32, "further ones are dropped");
        let large = relay.request(get("/large-hints")).await;
        assert_eq!(large.matches("HTTP/1.1 103").count(), 6, "64 KiB are sent");
        let old = relay.request("GET /interim HTTP/1.0\r\n\r\n").await;
        assert!(!old.contains(" 103 "), "{old}");
    });
}

#[test]
fn the_proxy_takes_over_a_connection() {
    run_on_one_thread(async {
        let relay = relay().await;
        let mut client = relay.client().await;
        client
            .send_bytes("GET /switch HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: new\r\n\r\n")
            .await;
        let head = client.read_head().await;
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("Upgrade: new\r\n"), "{head}");
        client.send_bytes("early").await;
        assert_eq!(client.read_until("early").await, "early", "the test's own protocol is an echo");
        let mut leaves = relay.client().await;
        leaves.send_bytes("GET /leave HTTP/1.1\r\nHost: h\r\n\r\nrest").await;
        assert_eq!(leaves.read_until("rest").await, "rest");
        let reports = relay.reports(2).await;
        assert_eq!((reports[0].status, reports[1].status), (Some(101), None));
    });
}

#[test]
fn a_stalled_client_is_disconnected() {
    run_on_one_thread(async {
        let limits = Limits { client_write: SHORT, ..LONG_LIMITS };
        let relay = answering(TestRelay::with(limits, |_, _: ScriptedConnection| async {}).await);
        let mut client = relay.client().await;
        client.send_bytes(get("/endless")).await;
        let report = relay.reports(1).await[0];
        assert_eq!((report.complete, report.fault), (false, Some(ClientFault::Stalled)));
        let mut gone = relay.client().await;
        gone.send_bytes(get("/endless")).await;
        gone.read_head().await;
        drop(gone);
        assert_eq!(relay.reports(2).await[1].fault, Some(ClientFault::Gone));
    });
}
