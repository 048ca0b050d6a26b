//! A node in front of an origin: interim replies (1xx) reach only the client whose request they answer.

use super::stub::{Stub, StubReply, gate};
use super::*;

const LINK: &str = "Link: </a.css>; rel=preload\r\n";

#[tokio::test]
async fn interim_replies_come_before_the_final_one_and_are_not_stored() {
    let head = gate();
    let held = Arc::clone(&head);
    let stub = Stub::start(move |_| {
        StubReply::new(200, "Cache-Control: max-age=60\r\n", "body")
            .with_interim(102, "")
            .with_interim(103, &format!("{LINK}X-Hint: 1\r\nConnection: x-hop\r\nX-Hop: 1\r\n"))
            .gate_head(&held)
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.send(b"GET / HTTP/1.1\r\nHost: n\r\n\r\n").await;
    // The origin delays its final reply.
    assert_eq!(client.read_reply(false).await.status, 102);
    let hints = client.read_reply(false).await;
    assert_eq!((hints.status, hints.header("link")), (103, "</a.css>; rel=preload"));
    assert_eq!((hints.header("x-hint"), hints.header("x-hop")), ("1", ""));
    // A request that joins gets the final reply only.
    let mut joining = node.client().await;
    joining.send(b"GET / HTTP/1.1\r\nHost: n\r\n\r\n").await;
    node.wait_until(|stats| stats.in_flight == 2).await;
    head.add_permits(1);
    for client in [&mut client, &mut joining] {
        let reply = client.read_reply(false).await;
        assert_eq!((reply.status, &reply.body[..]), (200, &b"body"[..]));
        assert_eq!((reply.header("link"), reply.header("x-hint")), ("", ""));
    }
    node.wait_until(|stats| stats.cache_objects == 1).await;
    for _ in 0..2 {
        let cached = client.get("/").await;
        assert_eq!((cached.status, &cached.body[..], cached.header("link")), (200, &b"body"[..], ""));
        assert!(cached.cache_status().starts_with("n; hit"), "{}", cached.cache_status());
    }
    assert_eq!(stub.requests().len(), 1);
}

#[tokio::test]
async fn interim_replies_received_with_the_final_one_keep_their_order() {
    let stub = Stub::start(|request| {
        let line = request.line.clone();
        let answer = StubReply::new(200, "Cache-Control: no-store\r\n", pattern(300_000));
        (0..3).fold(answer, |answer, nth| answer.with_interim(103, &format!("X-Hint: {nth} {line}\r\n")))
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    // The requests are sent together, so the node reads the second head right after the first reply.
    let requests: String = (0..4).map(|nth| format!("GET /{nth} HTTP/1.1\r\nHost: n\r\n\r\n")).collect();
    client.send(requests.as_bytes()).await;
    for nth in 0..4 {
        for hint in 0..3 {
            let reply = client.read_reply(false).await;
            assert_eq!(reply.header("x-hint"), format!("{hint} GET /{nth} HTTP/1.1"));
        }
        let reply = client.read_reply(false).await;
        assert_eq!((reply.status, reply.header("x-hint")), (200, ""));
        assert!(reply.body == pattern(300_000), "{nth}");
    }
}

#[tokio::test]
async fn forwarded_requests_get_interim_replies_besides_the_nodes_own() {
    let stub = Stub::start(|request| {
        StubReply::new(200, "", request.body.clone()).with_interim(100, "").with_interim(103, LINK)
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    let head = "POST / HTTP/1.1\r\nHost: n\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    client.send(head.as_bytes()).await;
    // The node sent this reply: the origin has not seen the body.
    assert_eq!(client.read_reply(false).await.status, 100);
    client.send(b"abc").await;
    assert_eq!(client.read_reply(false).await.status, 103);
    let reply = client.read_reply(false).await;
    assert_eq!((reply.status, &reply.body[..]), (200, &b"abc"[..]));
    assert_eq!(client.request("HEAD", "/", "").await.status, 103);
    assert_eq!(client.read_reply(true).await.status, 200);
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_no_interim_reply() {
    let stub =
        Stub::start(|_| StubReply::new(200, "Cache-Control: no-store\r\n", "x").with_interim(103, LINK))
            .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.send(b"GET / HTTP/1.0\r\nHost: n\r\n\r\n").await;
    let reply = client.read_reply(false).await;
    assert_eq!((reply.status, &reply.body[..]), (200, &b"x"[..]));
}

#[tokio::test]
async fn interim_replies_beyond_the_limit_are_dropped() {
    let stub = Stub::start(|_| {
        let answer = StubReply::new(200, "Cache-Control: no-store\r\n", "x");
        (0..500)
            .fold(answer, |answer, _| answer.with_interim(103, &format!("X-Long: {}\r\n", "a".repeat(1_000))))
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.send(b"GET / HTTP/1.1\r\nHost: n\r\n\r\n").await;
    let mut hints = 0;
    let last = loop {
        let reply = client.read_reply(false).await;
        if reply.status != 103 {
            break reply;
        }
        hints += 1;
    };
    assert_eq!((last.status, &last.body[..]), (200, &b"x"[..]));
    assert!((1..=500).contains(&hints), "{hints}");
}
