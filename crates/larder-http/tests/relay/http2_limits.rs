//! Limits on clients of HTTP/2, and the ends of their connections.

use crate::frames::{
    DATA, END_STREAM, Frames, GOAWAY, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, get,
};
use crate::kit::{Bench, LONG, PATIENCE, PATIENT, SHORT, echo, on_one_thread};
use bytes::Bytes;
use h2::{Reason, RecvStream};
use larder_http::http2::Flood;
use larder_http::relay::{ClientFault, Http2Fault, Limits, StreamMemory};
use std::rc::Rc;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::http2::{ask, client, flood, reason, request, send, whole};

/// A proxy without memory for more than one request of each connection, and the signal on which its server answers.
async fn without_memory(limits: Limits) -> (Bench, Rc<Notify>) {
    let answers = Rc::new(Notify::new());
    let signal = answers.clone();
    let bench = Bench::with_memory(limits, StreamMemory::new(0), move |_, mut talk| {
        let signal = signal.clone();
        async move {
            talk.head().await;
            signal.notified().await;
            talk.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        }
    });
    (bench.await, answers)
}

#[test]
fn requests_beyond_the_memory_wait() {
    on_one_thread(async {
        let (bench, answers) = without_memory(PATIENT).await;
        let mut client = client(&bench).await;
        let (first, _) = send(&mut client, request("GET", "/"), true).await;
        let (abandoned, _) = send(&mut client, request("GET", "/own"), true).await;
        let (last, _) = send(&mut client, request("GET", "/own"), true).await;
        drop(abandoned);
        let mut other = self::client(&bench).await;
        assert_eq!(ask(&mut other, "GET", "/own").await.0, 403, "each connection has one request");
        answers.notify_one();
        assert_eq!(whole(last).await.expect("a reply").0.status(), 403);
        assert_eq!(whole(first).await.expect("a reply").1, "ok");
        let statuses: Vec<_> = bench.reports(3).await.iter().map(|report| report.status).collect();
        assert_eq!(statuses, [Some(403), Some(200), Some(403)], "of the other client, the first, the last");
        assert!(bench.proxy().faults.borrow().is_empty());
    });
}

#[test]
fn requests_beyond_the_memory_are_refused_if_the_client_takes_nothing() {
    on_one_thread(async {
        let (bench, answers) = without_memory(Limits { client_write: SHORT, ..PATIENT }).await;
        let mut client = client(&bench).await;
        let (first, _) = send(&mut client, request("GET", "/"), true).await;
        let (refused, _) = send(&mut client, request("GET", "/"), true).await;
        assert_eq!(reason(whole(refused).await), Some(Reason::REFUSED_STREAM));
        assert_eq!(bench.fault().await, Http2Fault::StreamsFull);
        answers.notify_one();
        assert_eq!(whole(first).await.expect("a reply").1, "ok");
        assert_eq!(ask(&mut client, "GET", "/own").await.0, 403, "there is room again");
    });
}

#[test]
fn a_reply_of_which_the_client_takes_nothing_is_reset() {
    on_one_thread(async {
        let limits = Limits { client_write: SHORT, ..PATIENT };
        let bench = Bench::with(limits, |_, talk| flood(talk)).await;
        let mut client = client(&bench).await;
        let (reply, _) = send(&mut client, request("GET", "/"), true).await;
        let mut body: RecvStream =
            timeout(PATIENCE, reply).await.expect("in time").expect("a head").into_body();
        let report = bench.reports(1).await[0];
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

/// A client that takes each piece late, but in time, gets all of its reply.
#[test]
fn a_slow_client_gets_its_reply() {
    on_one_thread(async {
        const SIZE: usize = 1 << 20;
        let limits = Limits { client_write: 8 * SHORT, ..PATIENT };
        let bench = Bench::with(limits, |_, mut talk| async move {
            talk.head().await;
            talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
            talk.say(vec![b'y'; SIZE]).await;
            talk.rest().await;
        })
        .await;
        let mut client = client(&bench).await;
        let (reply, _) = send(&mut client, request("GET", "/"), true).await;
        let mut body = timeout(PATIENCE, reply).await.expect("in time").expect("a head").into_body();
        let (mut came, mut pace) = (0, tokio::time::interval(SHORT / 5));
        while let Some(data) = body.data().await {
            came += data.as_ref().expect("data").len();
            body.flow_control().release_capacity(data.expect("data").len()).expect("releases");
            pace.tick().await;
        }
        assert_eq!(came, SIZE);
    });
}

#[test]
fn a_socket_that_takes_nothing_ends_the_connection() {
    on_one_thread(async {
        let limits = Limits { client_write: SHORT, ..PATIENT };
        let bench = Bench::with(limits, |_, talk| flood(talk)).await;
        let mut frames = Frames::connect(&bench).await;
        // The client lets the proxy send, and reads nothing.
        let window = frame(8, 0, 0, &(1_u32 << 30).to_be_bytes());
        let settings = frame(4, 0, 0, &[&[0, 4][..], &(1_u32 << 30).to_be_bytes()].concat());
        frames.send(&[settings, window, get(1, &[], END_STREAM)].concat()).await;
        let report = bench.reports(1).await[0];
        assert_eq!((report.status, report.fault), (Some(200), Some(ClientFault::Gone)));
    });
}

#[test]
fn floods_of_frames_end_the_connection() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut frames = Frames::connect(&bench).await;
        frames.send(&frame(PING, 0, 0, &[0; 8]).repeat(1_200)).await;
        assert_eq!(bench.fault().await, Http2Fault::Flood(Flood::Control));
        // Requests that were accepted.
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut frames = Frames::connect(&bench).await;
        let reset = |stream| frame(RST_STREAM, 0, stream, &u32::from(Reason::CANCEL).to_be_bytes());
        for number in 0..10_000 {
            let stream = 2 * number + 1;
            frames.send(&get(stream, &[], END_STREAM)).await;
            if frames.try_reply(stream).await.is_none() {
                break;
            }
            frames.send(&reset(stream)).await;
        }
        assert_eq!(bench.fault().await, Http2Fault::Flood(Flood::Resets));
        // Requests that were not, which h2 counts itself.
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut frames = Frames::connect(&bench).await;
        let pairs = (0..100).flat_map(|number| {
            let stream = 2 * number + 1;
            [get(stream, &[], END_STREAM), reset(stream)].concat()
        });
        frames.send(&pairs.collect::<Vec<_>>()).await;
        assert_eq!(bench.fault().await, Http2Fault::OtherFlood);
        assert!(bench.proxy().reports.borrow().is_empty());
    });
}

#[test]
fn a_proxy_that_drains_says_so_and_serves_what_is_under_way() {
    on_one_thread(async {
        let asked = Rc::new(Notify::new());
        let tell = asked.clone();
        let bench = Bench::new(move |_, mut talk| {
            let asked = tell.clone();
            async move {
                talk.head().await;
                asked.notify_one();
                talk.until("end").await;
                talk.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                talk.rest().await;
            }
        })
        .await;
        let idle = client(&bench).await;
        let mut busy = client(&bench).await;
        let mut asking = request("PUT", "/");
        asking.headers_mut().insert("content-length", 3.into());
        let (reply, mut body) = send(&mut busy, asking, false).await;
        asked.notified().await;
        bench.worker.drain();
        timeout(PATIENCE, idle.1).await.expect("in time").expect("no panic").expect("a farewell");
        body.send_data(Bytes::from_static(b"end"), true).expect("sends");
        assert_eq!(whole(reply).await.expect("a reply").1, "ok");
        timeout(PATIENCE, busy.1).await.expect("in time").expect("no panic").expect("a farewell");
    });
}

#[test]
fn a_proxy_that_retires_says_so_and_serves_what_is_under_way() {
    on_one_thread(async {
        let (bench, answers) = without_memory(PATIENT).await;
        let mut busy = client(&bench).await;
        let idle = client(&bench).await;
        let (reply, _) = send(&mut busy, request("GET", "/"), true).await;
        // The request has come when another one of its connection is answered.
        let (waiting, _) = send(&mut busy, request("GET", "/own"), true).await;
        let mut other = client(&bench).await;
        assert_eq!(ask(&mut other, "GET", "/own").await.0, 403);
        bench.worker.retire();
        timeout(PATIENCE, idle.1).await.expect("in time").expect("no panic").expect("a farewell");
        answers.notify_one();
        assert_eq!(whole(reply).await.expect("a reply").1, "ok");
        assert_eq!(whole(waiting).await.expect("a reply").0.status(), 403);
        timeout(PATIENCE, busy.1).await.expect("in time").expect("no panic").expect("a farewell");
    });
}

/// h2 takes what the window allows, whether the socket has room or not.
#[test]
fn a_reply_is_under_way_until_it_is_written() {
    on_one_thread(async {
        const REQUESTS: u32 = 20;
        let bench = Bench::with_memory(PATIENT, StreamMemory::new(0), |_, mut talk| async move {
            let reply = ["HTTP/1.1 200 OK\r\nContent-Length: 32768\r\n\r\n", &"x".repeat(32 << 10)].concat();
            while talk.next_head().await.is_some() {
                talk.say(&reply).await;
            }
        })
        .await;
        let mut reader = Frames::connect(&bench).await;
        reader.send(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])).await;
        reader.send(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0])).await;
        for number in 0..REQUESTS {
            reader.send(&get(2 * number + 1, &[], END_STREAM)).await;
        }
        // The socket and the memory before it have room for four replies.
        bench.reports(2).await;
        let mut other = client(&bench).await;
        for _ in 0..100 {
            assert_eq!(ask(&mut other, "GET", "/own").await.0, 403);
        }
        let ended = bench.proxy().reports.borrow().iter().filter(|report| report.status == Some(200)).count();
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
    on_one_thread(async {
        let (bench, answers) = without_memory(PATIENT).await;
        let mut client = client(&bench).await;
        let (lost, _) = send(&mut client, request("GET", "/panic"), true).await;
        assert_eq!(reason(whole(lost).await), Some(Reason::INTERNAL_ERROR));
        assert_eq!(bench.fault().await, Http2Fault::Panicked);
        // Its memory has been given back, or this would wait.
        let (reply, _) = send(&mut client, request("GET", "/"), true).await;
        answers.notify_one();
        assert_eq!(whole(reply).await.expect("a reply").1, "ok");
    });
}

#[test]
fn a_connection_without_requests_is_told_to_end() {
    on_one_thread(async {
        let limits = Limits { keepalive: SHORT, ..PATIENT };
        let bench = Bench::with(limits, |_, talk| echo(talk)).await;
        let mut client = client(&bench).await;
        assert_eq!(ask(&mut client, "GET", "/").await.0, 200);
        timeout(PATIENCE, client.1).await.expect("in time").expect("no panic").expect("a farewell");
        // A client that does not listen has as long as a head may take.
        let limits = Limits { keepalive: SHORT, head: SHORT, ..PATIENT };
        let bench = Bench::with(limits, |_, talk| echo(talk)).await;
        let frames = Frames::connect(&bench).await.rest().await;
        assert!(frames.iter().any(|frame| frame.kind == GOAWAY), "{frames:?}");
        // One that never sends the preface has as long.
        let bench =
            Bench::with(Limits { head: SHORT, keepalive: LONG, ..PATIENT }, |_, talk| echo(talk)).await;
        let mut silent = bench.http2();
        let mut read = Vec::new();
        let ended = tokio::io::AsyncReadExt::read_to_end(&mut silent, &mut read);
        timeout(PATIENCE, ended).await.expect("in time").expect("reads");
    });
}
