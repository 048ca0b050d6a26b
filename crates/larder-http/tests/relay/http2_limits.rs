//! Limits on HTTP/2 clients, and the ends of their connections.

use crate::frames::{
    DATA, END_STREAM, Frames, GOAWAY, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, get,
};
use crate::kit::{LONG, LONG_LIMITS, SHORT, TIMEOUT, TestRelay, echo, run_on_one_thread};
use bytes::Bytes;
use h2::{Reason, RecvStream};
use larder_http::http2::Flood;
use larder_http::relay::{ClientFault, Http2Fault, Limits, StreamMemory};
use std::rc::Rc;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::http2::{ask, client, read_reply, request, reset_reason, send, send_endless_reply};

/// Starts a proxy with memory for only one request of each connection. Returns it with the signal that makes
/// its server reply.
async fn without_memory(limits: Limits) -> (TestRelay, Rc<Notify>) {
    let answers = Rc::new(Notify::new());
    let signal = answers.clone();
    let relay = TestRelay::with_memory(limits, StreamMemory::new(0), move |_, mut connection| {
        let signal = signal.clone();
        async move {
            connection.read_head().await;
            signal.notified().await;
            connection.send_bytes("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        }
    });
    (relay.await, answers)
}

#[test]
fn requests_wait_for_memory() {
    run_on_one_thread(async {
        let (relay, answers) = without_memory(LONG_LIMITS).await;
        let mut client = client(&relay).await;
        let (first, _) = send(&mut client, request("GET", "/"), true).await;
        let (abandoned, _) = send(&mut client, request("GET", "/own"), true).await;
        let (last, _) = send(&mut client, request("GET", "/own"), true).await;
        drop(abandoned);
        let mut other = self::client(&relay).await;
        assert_eq!(ask(&mut other, "GET", "/own").await.0, 403, "each connection has one request");
        answers.notify_one();
        assert_eq!(read_reply(last).await.expect("a reply").0.status(), 403);
        assert_eq!(read_reply(first).await.expect("a reply").1, "ok");
        let statuses: Vec<_> = relay.reports(3).await.iter().map(|report| report.status).collect();
        assert_eq!(statuses, [Some(403), Some(200), Some(403)], "of the other client, the first, the last");
        assert!(relay.proxy().faults.borrow().is_empty());
    });
}

#[test]
fn requests_without_memory_are_refused_if_the_client_stalls() {
    run_on_one_thread(async {
        let (relay, answers) = without_memory(Limits { client_write: SHORT, ..LONG_LIMITS }).await;
        let mut client = client(&relay).await;
        let (first, _) = send(&mut client, request("GET", "/"), true).await;
        let (refused, _) = send(&mut client, request("GET", "/"), true).await;
        assert_eq!(reset_reason(read_reply(refused).await), Some(Reason::REFUSED_STREAM));
        assert_eq!(relay.fault().await, Http2Fault::StreamsFull);
        answers.notify_one();
        assert_eq!(read_reply(first).await.expect("a reply").1, "ok");
        assert_eq!(ask(&mut client, "GET", "/own").await.0, 403, "there is room again");
    });
}

#[test]
fn a_stalled_reply_is_reset() {
    run_on_one_thread(async {
        let limits = Limits { client_write: SHORT, ..LONG_LIMITS };
        let relay = TestRelay::with(limits, |_, connection| send_endless_reply(connection)).await;
        let mut client = client(&relay).await;
        let (reply, _) = send(&mut client, request("GET", "/"), true).await;
        let mut body: RecvStream =
            timeout(TIMEOUT, reply).await.expect("in time").expect("a head").into_body();
        let report = relay.reports(1).await[0];
        assert_eq!((report.fault, report.complete), (Some(ClientFault::Stalled), false));
        let error = loop {
            match body.data().await.expect("no end") {
                Ok(data) => body.flow_control().release_capacity(data.len()).expect("releases"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
        assert_eq!(ask(&mut client, "GET", "/own").await.0, 403, "the connection goes on");
    });
}

/// A client that reads each piece late, but in time, gets the complete reply.
#[test]
fn a_slow_client_gets_its_reply() {
    run_on_one_thread(async {
        const SIZE: usize = 1 << 20;
        let limits = Limits { client_write: 8 * SHORT, ..LONG_LIMITS };
        let relay = TestRelay::with(limits, |_, mut connection| async move {
            connection.read_head().await;
            connection.send_bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
            connection.send_bytes(vec![b'y'; SIZE]).await;
            connection.read_to_end().await;
        })
        .await;
        let mut client = client(&relay).await;
        let (reply, _) = send(&mut client, request("GET", "/"), true).await;
        let mut body = timeout(TIMEOUT, reply).await.expect("in time").expect("a head").into_body();
        let (mut received, mut pace) = (0, tokio::time::interval(SHORT / 5));
        while let Some(data) = body.data().await {
            received += data.as_ref().expect("data").len();
            body.flow_control().release_capacity(data.expect("data").len()).expect("releases");
            pace.tick().await;
        }
        assert_eq!(received, SIZE);
    });
}

#[test]
fn a_blocked_socket_closes_the_connection() {
    run_on_one_thread(async {
        let limits = Limits { client_write: SHORT, ..LONG_LIMITS };
        let relay = TestRelay::with(limits, |_, connection| send_endless_reply(connection)).await;
        let mut frames = Frames::connect(&relay).await;
        // The client opens its flow-control windows, and reads nothing.
        let window = frame(8, 0, 0, &(1_u32 << 30).to_be_bytes());
        let settings = frame(4, 0, 0, &[&[0, 4][..], &(1_u32 << 30).to_be_bytes()].concat());
        frames.send(&[settings, window, get(1, &[], END_STREAM)].concat()).await;
        let report = relay.reports(1).await[0];
        assert_eq!((report.status, report.fault), (Some(200), Some(ClientFault::Gone)));
    });
}

#[test]
fn frame_floods_close_the_connection() {
    run_on_one_thread(async {
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        let mut frames = Frames::connect(&relay).await;
        frames.send(&frame(PING, 0, 0, &[0; 8]).repeat(1_200)).await;
        assert_eq!(relay.fault().await, Http2Fault::Flood(Flood::Control));
        // Requests that were accepted.
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        let mut frames = Frames::connect(&relay).await;
        let reset = |stream| frame(RST_STREAM, 0, stream, &u32::from(Reason::CANCEL).to_be_bytes());
        for number in 0..10_000 {
            let stream = 2 * number + 1;
            frames.send(&get(stream, &[], END_STREAM)).await;
            if frames.try_reply(stream).await.is_none() {
                break;
            }
            frames.send(&reset(stream)).await;
        }
        assert_eq!(relay.fault().await, Http2Fault::Flood(Flood::Resets));
        // Requests that were not accepted. The h2 crate counts these.
        let relay = TestRelay::new(|_, connection| echo(connection)).await;
        let mut frames = Frames::connect(&relay).await;
        let pairs = (0..100).flat_map(|number| {
            let stream = 2 * number + 1;
            [get(stream, &[], END_STREAM), reset(stream)].concat()
        });
        frames.send(&pairs.collect::<Vec<_>>()).await;
        assert_eq!(relay.fault().await, Http2Fault::OtherFlood);
        assert!(relay.proxy().reports.borrow().is_empty());
    });
}

#[test]
fn a_draining_worker_sends_goaway_and_serves_pending_requests() {
    run_on_one_thread(async {
        let asked = Rc::new(Notify::new());
        let tell = asked.clone();
        let relay = TestRelay::new(move |_, mut connection| {
            let asked = tell.clone();
            async move {
                connection.read_head().await;
                asked.notify_one();
                connection.read_until("end").await;
                connection.send_bytes("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                connection.read_to_end().await;
            }
        })
        .await;
        let idle = client(&relay).await;
        let mut busy = client(&relay).await;
        let mut asking = request("PUT", "/");
        asking.headers_mut().insert("content-length", 3.into());
        let (reply, mut body) = send(&mut busy, asking, false).await;
        asked.notified().await;
        relay.worker.drain();
        timeout(TIMEOUT, idle.1).await.expect("in time").expect("no panic").expect("a farewell");
        body.send_data(Bytes::from_static(b"end"), true).expect("sends");
        assert_eq!(read_reply(reply).await.expect("a reply").1, "ok");
        timeout(TIMEOUT, busy.1).await.expect("in time").expect("no panic").expect("a farewell");
    });
}

#[test]
fn a_retiring_worker_sends_goaway_and_serves_pending_requests() {
    run_on_one_thread(async {
        let (relay, answers) = without_memory(LONG_LIMITS).await;
        let mut busy = client(&relay).await;
        let idle = client(&relay).await;
        let (reply, _) = send(&mut busy, request("GET", "/"), true).await;
        // The request has arrived when another request of its connection was answered.
        let (waiting, _) = send(&mut busy, request("GET", "/own"), true).await;
        let mut other = client(&relay).await;
        assert_eq!(ask(&mut other, "GET", "/own").await.0, 403);
        relay.worker.retire();
        timeout(TIMEOUT, idle.1).await.expect("in time").expect("no panic").expect("a farewell");
        answers.notify_one();
        assert_eq!(read_reply(reply).await.expect("a reply").1, "ok");
        assert_eq!(read_reply(waiting).await.expect("a reply").0.status(), 403);
        timeout(TIMEOUT, busy.1).await.expect("in time").expect("no panic").expect("a farewell");
    });
}

/// h2 accepts data up to the flow-control window, even if the socket is blocked.
#[test]
fn a_reply_is_pending_until_it_is_written() {
    run_on_one_thread(async {
        const REQUESTS: u32 = 20;
        let relay =
            TestRelay::with_memory(LONG_LIMITS, StreamMemory::new(0), |_, mut connection| async move {
                let reply =
                    ["HTTP/1.1 200 OK\r\nContent-Length: 32768\r\n\r\n", &"x".repeat(32 << 10)].concat();
                while connection.try_read_head().await.is_some() {
                    connection.send_bytes(&reply).await;
                }
            })
            .await;
        let mut reader = Frames::connect(&relay).await;
        reader.send(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])).await;
        reader.send(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0])).await;
        for number in 0..REQUESTS {
            reader.send(&get(2 * number + 1, &[], END_STREAM)).await;
        }
        // The socket and the buffer before it have room for four replies.
        relay.reports(2).await;
        let mut other = client(&relay).await;
        for _ in 0..100 {
            assert_eq!(ask(&mut other, "GET", "/own").await.0, 403);
        }
        let ended = relay.proxy().reports.borrow().iter().filter(|report| report.status == Some(200)).count();
        assert!(ended <= 4, "{ended} replies of which the client has read nothing have ended");
        let mut ends = 0;
        while ends < REQUESTS {
            let frame = reader.next().await.expect("goes on");
            ends += u32::from(frame.kind == DATA && frame.flags & END_STREAM != 0);
        }
    });
}

#[test]
fn a_fault_of_the_proxy_loses_one_request() {
    run_on_one_thread(async {
        let (relay, answers) = without_memory(LONG_LIMITS).await;
        let mut client = client(&relay).await;
        let (lost, _) = send(&mut client, request("GET", "/panic"), true).await;
        assert_eq!(reset_reason(read_reply(lost).await), Some(Reason::INTERNAL_ERROR));
        assert_eq!(relay.fault().await, Http2Fault::Panicked);
        // The memory of the request was released. Otherwise this request would wait.
        let (reply, _) = send(&mut client, request("GET", "/"), true).await;
        answers.notify_one();
        assert_eq!(read_reply(reply).await.expect("a reply").1, "ok");
    });
}

#[test]
fn an_idle_connection_is_sent_goaway() {
    run_on_one_thread(async {
        let limits = Limits { keepalive: SHORT, ..LONG_LIMITS };
        let relay = TestRelay::with(limits, |_, connection| echo(connection)).await;
        let mut client = client(&relay).await;
        assert_eq!(ask(&mut client, "GET", "/").await.0, 200);
        timeout(TIMEOUT, client.1).await.expect("in time").expect("no panic").expect("a farewell");
        // A client that ignores GOAWAY is disconnected after `Limits::head`.
        let limits = Limits { keepalive: SHORT, head: SHORT, ..LONG_LIMITS };
        let relay = TestRelay::with(limits, |_, connection| echo(connection)).await;
        let frames = Frames::connect(&relay).await.read_to_end().await;
        assert!(frames.iter().any(|frame| frame.kind == GOAWAY), "{frames:?}");
        // A client that never sends the preface is disconnected after `Limits::head`.
        let relay =
            TestRelay::with(Limits { head: SHORT, keepalive: LONG, ..LONG_LIMITS }, |_, connection| {
                echo(connection)
            })
            .await;
        let mut silent = relay.http2();
        let mut read = Vec::new();
        let ended = tokio::io::AsyncReadExt::read_to_end(&mut silent, &mut read);
        timeout(TIMEOUT, ended).await.expect("in time").expect("reads");
    });
}
