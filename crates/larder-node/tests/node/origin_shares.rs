//! One client's share of an origin's slots.

use super::client::Client;
use super::stub::{Stub, StubReply, StubRequest, gate};
use super::*;
use larder_node::{ClientNoCache, OriginConfig};
use tokio::sync::Semaphore;

const STORABLE: &str = "Cache-Control: max-age=600\r\n";
const ADVERSARY: [u8; 4] = [127, 0, 0, 2];

/// Slots of the origin, and slots of one client.
const SLOTS: usize = 40;
const SHARE: usize = 4;

/// Sets the limits. Requests beyond the share wait longer than any test.
fn set_limits(origin: &mut OriginConfig) {
    origin.requests_max = SLOTS;
    origin.queue_max = SLOTS;
    origin.queue_timeout = HOUR;
    origin.request_body_timeout = HOUR;
}

/// Starts an origin with a large reply. It delays its replies to `/held...` and to `no-cache` until the gate
/// opens.
async fn start_origin() -> (Stub, Arc<Semaphore>) {
    let held = gate();
    let hold = Arc::clone(&held);
    let stub = Stub::start(move |request: &StubRequest| {
        let path = request.line.split(' ').nth(1).unwrap_or_default();
        match path {
            _ if path.starts_with("/held") || request.header("cache-control") == "no-cache" => {
                StubReply::new(200, STORABLE, "x").gate_head(&hold)
            }
            _ if path.starts_with("/large") => {
                StubReply::new(200, "Cache-Control: no-store\r\n", vec![0; 16 << 20])
            }
            _ => StubReply::new(200, STORABLE, "x"),
        }
    })
    .await;
    (stub, held)
}

/// A kind of request by which a client may try to take all slots. The number makes each request different.
type RequestKind = (&'static str, fn(usize) -> String);

const REQUEST_KINDS: [RequestKind; 5] = [
    ("slow bodies", |n| format!("POST /upload{n} HTTP/1.1\r\nHost: n\r\nContent-Length: 1000\r\n\r\nx")),
    ("no-cache", |_| "GET /stored HTTP/1.1\r\nHost: n\r\nCache-Control: no-cache\r\n\r\n".to_owned()),
    ("ranges", |_| "GET /held HTTP/1.1\r\nHost: n\r\nRange: bytes=0-0\r\n\r\n".to_owned()),
    ("slow reading", |n| format!("GET /large{n} HTTP/1.1\r\nHost: n\r\n\r\n")),
    ("many URLs", |n| format!("GET /held{n} HTTP/1.1\r\nHost: n\r\n\r\n")),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_holds_at_most_its_share_whatever_it_asks_for() {
    for (kind, request) in REQUEST_KINDS {
        let (stub, held) = start_origin().await;
        let node = stub.node(|origin, _| set_limits(origin)).await;
        assert_eq!(node.client().await.get("/stored").await.status, 200);
        let mut adversary = Vec::new();
        for n in 0..3 * SHARE {
            let mut client = Client::connect_from(ADVERSARY, node.address).await;
            client.send(request(n).as_bytes()).await;
            adversary.push(client);
        }
        let share = SHARE as u64;
        // One share is at the origin, one share waits, and the rest is refused.
        let is_settled = |stats: &NodeStats| {
            let origin = &stats.origin;
            origin.origin_requests == share
                && origin.origin_waiting == share
                && origin.origin_client_share == share
        };
        node.wait_until(is_settled).await;
        for n in 0..3 {
            let reply = node.client().await.get(&format!("/free{n}")).await;
            assert_eq!((reply.status, &*reply.body), (200, &b"x"[..]), "{kind}: {}", reply.cache_status());
        }
        node.wait_until(is_settled).await;
        // All slots are released.
        drop(adversary);
        held.add_permits(3 * SHARE);
        node.wait_until(|stats| (stats.origin.origin_requests, stats.origin.origin_waiting) == (0, 0)).await;
    }
}

/// A fetch fills the cache after its client has left, and counts for that client until it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_its_fetches_keeps_their_slots() {
    let (stub, held) = start_origin().await;
    let node = stub
        .node(|origin, _| {
            set_limits(origin);
            origin.queue_max = 0;
        })
        .await;
    for n in 0..SHARE {
        let mut client = Client::connect_from(ADVERSARY, node.address).await;
        client.send(format!("GET /held{n} HTTP/1.1\r\nHost: n\r\n\r\n").as_bytes()).await;
        stub.wait_for_requests(n + 1).await;
    }
    node.wait_until(|stats| stats.connections == 0).await;
    let mut client = Client::connect_from(ADVERSARY, node.address).await;
    let reply = client.get("/more").await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, "1"));
    assert_eq!(reply.cache_status(), "n; fwd=uri-miss; fwd-status=429; detail=client-share");
    assert_eq!(node.client().await.get("/more").await.status, 200);
    held.add_permits(SHARE);
    node.wait_until(|stats| stats.origin.origin_requests == 0).await;
    assert_eq!(client.get("/again").await.status, 200);
}

/// A request that waits for its client's share leads no other client's request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_another_clients_share() {
    let (stub, held) = start_origin().await;
    let node = stub.node(|origin, _| set_limits(origin)).await;
    let mut adversary = Vec::new();
    for n in 0..SHARE {
        let mut client = Client::connect_from(ADVERSARY, node.address).await;
        client.send(format!("GET /held{n} HTTP/1.1\r\nHost: n\r\n\r\n").as_bytes()).await;
        adversary.push(client);
    }
    stub.wait_for_requests(SHARE).await;
    let mut waits = Client::connect_from(ADVERSARY, node.address).await;
    waits.send(b"GET /popular HTTP/1.1\r\nHost: n\r\n\r\n").await;
    node.wait_until(|stats| stats.origin.origin_waiting == 1).await;
    assert_eq!(node.client().await.get("/popular").await.status, 200);
    assert_eq!(node.node.stats().origin.origin_waiting, 1);
    held.add_permits(SHARE);
    // The request gets its turn after the other client's reply was stored, so the origin is not asked again.
    assert_eq!(waits.read_reply(false).await.status, 200);
    assert_eq!(stub.requests().iter().filter(|request| request.line.contains("/popular")).count(), 1);
}

#[tokio::test]
async fn a_clients_no_cache_reaches_the_origin_only_where_it_is_honoured() {
    const FIELDS: [&str; 5] = [
        "Cache-Control: no-cache\r\n",
        "Cache-Control: max-age=0\r\n",
        "Cache-Control: min-fresh=1000000\r\n",
        "Cache-Control: no-store\r\n",
        "Pragma: no-cache\r\n",
    ];
    for (setting, expected_requests) in
        [(ClientNoCache::Honour, 1 + FIELDS.len()), (ClientNoCache::Ignore, 1)]
    {
        // The reply has some age, so `max-age=0` refuses it.
        let stub =
            Stub::start(|_| StubReply::new(200, "Cache-Control: max-age=600\r\nAge: 10\r\n", "x")).await;
        let node = stub.node(|origin, _| origin.client_no_cache = setting).await;
        let mut client = node.client().await;
        assert_eq!(client.get("/a").await.status, 200);
        for fields in FIELDS {
            assert_eq!(client.get_with("/a", fields).await.status, 200);
        }
        assert_eq!(stub.requests().len(), expected_requests, "{setting:?}");
    }
}
