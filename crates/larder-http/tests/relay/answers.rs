//! Answers of the proxy: contents that come in pieces, the body of the request, interim replies, and connections that go elsewhere.

use crate::kit::{Bench, PATIENT, SHORT, Talk, on_one_thread};
use bytes::Bytes;
use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{
    Answer, BodyFault, ClientFault, ClientHandle, Contents, Limits, Next, Report, RequestBody, Then,
};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

/// Contents whose pieces a test sends.
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

/// The ways of the test's proxy to answer by itself, by target.
pub(crate) async fn decide(handle: &ClientHandle, head: &RequestHead) -> Option<Next<SocketAddr>> {
    let mut answer = Answer::new(200);
    match head.target() {
        b"/echo" => answer.body = all(handle.body()).await.map_or_else(|_| "broken".into(), Contents::from),
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
            answer.then = Then::Leaves;
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

/// Contents without an end.
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

async fn bench() -> Bench {
    // No request goes to a server.
    answering(Bench::new(|_, _: Talk| async {}).await)
}

fn answering(bench: Bench) -> Bench {
    bench.proxy().answers.set(true);
    bench
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
}

#[test]
fn contents_come_in_pieces() {
    on_one_thread(async {
        let bench = bench().await;
        for (target, end) in [
            (
                "/pieces",
                "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            ),
            ("/known", "Content-Length: 5\r\nConnection: close\r\n\r\nabcde"),
        ] {
            let got = bench.ask(get(target)).await;
            assert!(got.ends_with(end), "{target}: {got}");
        }
        let old = bench.ask("GET /pieces HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        assert!(
            old.ends_with("Connection: close\r\n\r\nabcde"),
            "the end of the connection is that of the body: {old}"
        );
        let whole = Report { status: Some(200), body_bytes: 5, complete: true, fault: None };
        assert_eq!(bench.reports(3).await, [whole; 3]);
    });
}

#[test]
fn replies_to_head_state_a_length() {
    on_one_thread(async {
        let bench = bench().await;
        for (target, length) in [("/known", 5), ("/stated", 7)] {
            let got = bench.ask(get(target).replace("GET", "HEAD")).await;
            assert!(
                got.ends_with(&format!("Content-Length: {length}\r\nConnection: close\r\n\r\n")),
                "{got}"
            );
        }
    });
}

#[test]
fn a_reply_to_head_states_no_length_that_nobody_knows() {
    on_one_thread(async {
        let bench = bench().await;
        for target in ["/pieces", "/empty"] {
            let got = bench.ask(get(target).replace("GET", "HEAD")).await;
            assert!(got.starts_with("HTTP/1.1 200 ") && !got.contains("Content-Length"), "{target}: {got}");
        }
    });
}

#[test]
fn contents_of_another_length_than_stated_end_the_connection() {
    on_one_thread(async {
        let bench = bench().await;
        for (target, contents) in [("/short", "abcde"), ("/excess", "abc")] {
            let mut client = bench.client().await;
            client
                .say(format!(
                    "GET {target} HTTP/1.1\r\nHost: h\r\n\r\nGET /known HTTP/1.1\r\nHost: h\r\n\r\n"
                ))
                .await;
            let got = client.rest().await;
            assert!(got.ends_with(&format!("\r\n\r\n{contents}")), "{target}: {got}");
        }
        assert!(bench.reports(2).await.iter().all(|report| !report.complete));
    });
}

#[test]
fn contents_that_break_off_are_not_taken_for_whole() {
    on_one_thread(async {
        let bench = bench().await;
        let got = bench.ask(get("/broken")).await;
        assert!(got.ends_with("3\r\nabc\r\n2\r\nde"), "{got}");
        let broken = Report { status: Some(200), body_bytes: 5, complete: false, fault: None };
        assert_eq!(bench.reports(1).await, [broken]);
    });
}

#[test]
fn the_proxy_reads_the_body_of_a_request() {
    on_one_thread(async {
        let bench = bench().await;
        let mut client = bench.client().await;
        client.say("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc").await;
        client.say("def").await;
        assert!(client.head().await.contains("Content-Length: 6\r\n"));
        assert_eq!(client.until("abcdef").await, "abcdef");
        client.say("POST /through HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab").await;
        client.head().await;
        client.until("2\r\nab").await;
        client.say("c\r\n0\r\n\r\n").await;
        client.until("0\r\n\r\n").await;
        // The reply had begun before the body ended.
        assert_eq!(client.rest().await, "");
        let reports = bench.reports(2).await;
        assert_eq!(reports.iter().map(|report| report.body_bytes).collect::<Vec<_>>(), [6, 3]);
    });
}

#[test]
fn a_client_is_asked_for_the_body_that_the_proxy_reads() {
    on_one_thread(async {
        let bench = bench().await;
        let expecting = |target| {
            format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        };
        let mut client = bench.client().await;
        client.say(expecting("/echo")).await;
        assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
        client.say("abc").await;
        client.head().await;
        assert_eq!(client.until("abc").await, "abc");
        client.say(expecting("/unread")).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("Connection: close"), "{head}");
    });
}

#[test]
fn a_body_that_has_come_and_is_not_read_is_skipped() {
    on_one_thread(async {
        let bench = bench().await;
        let mut client = bench.client().await;
        for body in
            ["Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"]
        {
            client.say(format!("POST /unread HTTP/1.1\r\nHost: h\r\n{body}")).await;
            let head = client.head().await;
            assert!(!head.contains("Connection: close"), "{head}");
        }
        client.say("POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc").await;
        assert!(client.head().await.contains("Connection: close"), "its end may never come");
    });
}

#[test]
fn an_answer_goes_on_where_a_client_may_end_its_side_in_the_middle_of_the_body() {
    on_one_thread(async {
        for half_close in [true, false] {
            let bench = answering(Bench::with(Limits { half_close, ..PATIENT }, |_, _: Talk| async {}).await);
            let mut client = bench.client().await;
            client
                .say("POST /through HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc")
                .await;
            client.until("3\r\nabc").await;
            client.stream.shutdown().await.expect("shuts");
            let report = bench.reports(1).await[0];
            // The contents are the body's, and break off with it.
            let fault = if half_close { None } else { Some(ClientFault::Gone) };
            assert_eq!((report.complete, report.fault), (false, fault));
        }
    });
}

#[test]
fn a_body_that_is_none_of_http_is_a_fault() {
    on_one_thread(async {
        let bench = bench().await;
        let got = bench.ask("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nx").await;
        assert!(got.contains("Connection: close") && got.ends_with("broken"), "{got}");
    });
}

#[test]
fn interim_replies_come_before_the_final_one() {
    on_one_thread(async {
        let bench = bench().await;
        let got = bench.ask(get("/interim")).await;
        let statuses: Vec<&str> = got.matches("HTTP/1.1 1").chain(got.matches("HTTP/1.1 2")).collect();
        assert_eq!(statuses.len(), 3, "{got}");
        assert!(got.starts_with("HTTP/1.1 102 ") && got.ends_with("done"), "{got}");
        let many = bench.ask(get("/many")).await;
        assert_eq!(many.matches("HTTP/1.1 103").count(), 32, "further ones are dropped");
        let large = bench.ask(get("/large-hints")).await;
        assert_eq!(large.matches("HTTP/1.1 103").count(), 6, "64 KiB are sent");
        let old = bench.ask("GET /interim HTTP/1.0\r\n\r\n").await;
        assert!(!old.contains(" 103 "), "{old}");
    });
}

#[test]
fn a_connection_goes_on_elsewhere() {
    on_one_thread(async {
        let bench = bench().await;
        let mut client = bench.client().await;
        client.say("GET /switch HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: new\r\n\r\n").await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("Upgrade: new\r\n"), "{head}");
        client.say("early").await;
        assert_eq!(client.until("early").await, "early", "the test's own protocol is an echo");
        let mut leaves = bench.client().await;
        leaves.say("GET /leave HTTP/1.1\r\nHost: h\r\n\r\nrest").await;
        assert_eq!(leaves.until("rest").await, "rest");
        let reports = bench.reports(2).await;
        assert_eq!((reports[0].status, reports[1].status), (Some(101), None));
    });
}

#[test]
fn a_client_that_takes_nothing_is_cut_off() {
    on_one_thread(async {
        let limits = Limits { client_write: SHORT, ..PATIENT };
        let bench = answering(Bench::with(limits, |_, _: Talk| async {}).await);
        let mut client = bench.client().await;
        client.say(get("/endless")).await;
        let report = bench.reports(1).await[0];
        assert_eq!((report.complete, report.fault), (false, Some(ClientFault::Stalled)));
        let mut gone = bench.client().await;
        gone.say(get("/endless")).await;
        gone.head().await;
        drop(gone);
        assert_eq!(bench.reports(2).await[1].fault, Some(ClientFault::Gone));
    });
}
