//! Purges: the named entries are removed, and do not return.

use super::cooperate::join_both;
use super::stub::{Stub, StubReply, StubRequest, gate};
use super::*;
use larder_edge::{Purge, Tokens};
use larder_node::HostHeader;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Semaphore;

const TOKEN: &str = "0123456789abcdef";

/// Purges like the admin interface does. Returns the number of removed entries.
async fn purge(node: &TestNode, kind: &str, text: &str) -> u64 {
    let (node, purge) = (Arc::clone(&node.node), Purge::new(kind, text).unwrap());
    tokio::task::spawn_blocking(move || node.purge(&purge).removed).await.unwrap()
}

fn path_of(request: &StubRequest) -> String {
    request.line.split(' ').nth(1).unwrap().to_owned()
}

/// Starts an origin that numbers its replies, with these fields. The replies with numbers in `held` end only
/// when the gate opens.
async fn start_counting_origin(fields: &'static str, held: &'static [usize], gate: Arc<Semaphore>) -> Stub {
    let count = AtomicUsize::new(0);
    Stub::start(move |request| {
        let number = count.fetch_add(1, Relaxed) + 1;
        let answer = StubReply::new(200, fields, format!("{number} {}", path_of(request)));
        if held.contains(&number) { answer.gate_end(&gate) } else { answer }
    })
    .await
}

async fn get_body(node: &TestNode, path: &str, fields: &str) -> String {
    String::from_utf8(node.client().await.get_with(path, fields).await.body).unwrap()
}

#[tokio::test]
async fn a_purge_of_a_url_removes_all_variants_and_errors() {
    let stub = Stub::start(|request| match path_of(request).as_str() {
        "/none" => StubReply::new(404, "Cache-Control: max-age=60\r\n", "none"),
        _ => StubReply::new(200, "Cache-Control: max-age=60\r\nVary: Accept-Language\r\n", "x"),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let ask = async |path: &str, fields: &str| {
        node.client().await.get_with(path, fields).await.cache_status().to_owned()
    };
    for (path, fields) in
        [("/a?b", "Accept-Language: de\r\n"), ("/a?b", "Accept-Language: en\r\n"), ("/a", ""), ("/none", "")]
    {
        ask(path, fields).await;
        assert!(ask(path, fields).await.contains("; hit"), "{path}");
    }
    assert_eq!(purge(&node, "url", "http://other/a?b").await, 0);
    assert_eq!(purge(&node, "url", "http://n/a?").await, 0);
    assert_eq!(purge(&node, "url", "https://N:443/a?b").await, 1, "one page, whatever the scheme");
    assert_eq!(purge(&node, "url", "http://n/none").await, 1);
    for (path, fields) in
        [("/a?b", "Accept-Language: de\r\n"), ("/a?b", "Accept-Language: en\r\n"), ("/none", "")]
    {
        assert!(ask(path, fields).await.contains("fwd="), "{path} {fields}");
    }
    assert!(ask("/a", "").await.contains("; hit"));
    assert_eq!(purge(&node, "prefix", "http://n/a").await, 2);
    assert_eq!(purge(&node, "prefix", "http://n").await, 1);
    let stats = node.node.stats();
    assert_eq!((stats.purges, stats.purged, stats.cache_objects, stats.cache_bytes), (6, 5, 0, 0));
}

#[tokio::test]
async fn a_purge_ignores_hosts_that_are_not_sent_to_the_origin() {
    let stub = start_counting_origin("Cache-Control: max-age=60\r\n", &[], gate()).await;
    let node = stub.node(|origin, _| origin.host = HostHeader::Origin).await;
    assert_eq!(get_body(&node, "/a", "").await, "1 /a");
    assert_eq!(purge(&node, "url", "http://any.example/a").await, 1);
    assert_eq!(get_body(&node, "/a", "").await, "2 /a");
}

#[tokio::test]
async fn a_purge_by_tag_removes_the_tagged_objects() {
    let stub = Stub::start(|request| {
        let tags = match path_of(request).as_str() {
            "/a" => "Cache-Tag: product-1, home\r\n",
            "/b" => "Surrogate-Key: product-1 product-2\r\n",
            _ => "Cache-Tag: product-10\r\n",
        };
        StubReply::new(200, &format!("Cache-Control: max-age=60\r\n{tags}"), "x")
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    for path in ["/a", "/b", "/c"] {
        let reply = node.client().await.get(path).await;
        assert_eq!(reply.status, 200);
    }
    assert_eq!(purge(&node, "tag", "product-1").await, 2);
    assert_eq!(purge(&node, "tag", "product-1").await, 0);
    assert!(node.client().await.get("/c").await.cache_status().contains("; hit"));
    assert_eq!(purge(&node, "tag", "product-10").await, 1);
}

/// A reply that arrives during a purge is passed on and not stored. Later clients do not get it.
#[tokio::test]
async fn a_transfer_during_a_purge_is_not_stored() {
    for (kind, text) in [("url", "http://n/a"), ("prefix", "http://n/"), ("tag", "t")] {
        let end = gate();
        let fields = "Cache-Control: max-age=60\r\nCache-Tag: t\r\n";
        let stub = start_counting_origin(fields, &[1], Arc::clone(&end)).await;
        let node = stub.node(|_, _| {}).await;
        let mut first = node.client().await;
        first.send(b"GET /a HTTP/1.1\r\nHost: n\r\n\r\n").await;
        // The head has arrived, so a request at this point would share the reply.
        node.wait_until(|stats| stats.bytes_out > 0).await;
        assert_eq!(purge(&node, kind, text).await, 0, "{kind}");
        assert_eq!(get_body(&node, "/a", "").await, "2 /a", "{kind}");
        end.add_permits(1);
        assert_eq!(first.read_reply(false).await.body, b"1 /a");
        node.wait_until(|stats| stats.purge_unkept == 1).await;
        assert_eq!(get_body(&node, "/a", "").await, "2 /a", "{kind}: that one is kept");
        assert_eq!(stub.requests().len(), 2);
    }
}

/// An origin may validate a purged reply. The reply is not stored for that.
#[tokio::test]
async fn a_validation_during_a_purge_is_not_stored() {
    let hold = gate();
    let held = Arc::clone(&hold);
    let stub = Stub::start(move |request| match request.header("if-none-match") {
        "" => StubReply::new(200, "Cache-Control: no-cache\r\nETag: \"a\"\r\n", "x"),
        _ => StubReply::new(304, "ETag: \"a\"\r\n", "").gate_head(&held),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    assert_eq!(get_body(&node, "/a", "").await, "x");
    let mut waiting = node.client().await;
    waiting.send(b"GET /a HTTP/1.1\r\nHost: n\r\n\r\n").await;
    stub.wait_for_requests(2).await;
    assert_eq!(purge(&node, "url", "http://n/a").await, 1);
    hold.add_permits(1);
    assert_eq!(waiting.read_reply(false).await.body, b"x");
    assert_eq!(get_body(&node, "/a", "").await, "x");
    assert_eq!(stub.requests()[2].header("if-none-match"), "", "nothing was there to be validated");
}

#[tokio::test]
async fn a_purge_removes_whole_and_chunked_files_but_not_from_the_disk() {
    let fill = |root: &Path| {
        write_file(&root.join("a b.txt"), pattern(3_000), HOUR);
        write_file(&root.join("img/long"), pattern(500_000), HOUR);
    };
    let node = TestNode::with_directory(fill, set_small_chunks).await;
    for path in ["/a%20b.txt", "/img/long"] {
        assert_eq!(node.client().await.get(path).await.status, 200);
        assert_eq!(node.client().await.get(path).await.cache_status(), "n; hit");
    }
    assert_eq!(purge(&node, "url", "http://any/a%20b.txt?x").await, 1);
    assert_eq!(purge(&node, "prefix", "http://any/img/").await, 9, "what is known of it, and eight chunks");
    assert_eq!(node.node.stats().cache_objects, 0);
    for path in ["/a%20b.txt", "/img/long"] {
        let reply = node.client().await.get(path).await;
        assert_eq!((reply.status, reply.cache_status()), (200, "n; fwd=uri-miss; stored"));
    }
    assert_eq!(purge(&node, "tag", "t").await, 0);
}

fn tokens() -> Tokens {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    fs::write(&path, TOKEN).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    Tokens::load(&path).unwrap()
}

#[tokio::test]
async fn front_ends_with_the_token_purge_by_an_own_path() {
    let fill = |root: &Path| write_file(&root.join("a"), "x", HOUR);
    let node = TestNode::with_directory(fill, |config| config.purge = Some(tokens())).await;
    let off = TestNode::with_directory(fill, |_| {}).await;
    let token = format!("Authorization: Bearer {TOKEN}\r\nContent-Length: 0\r\n");
    let named = format!("{token}Larder-Purge: url http://a/a\r\n");
    node.client().await.get("/a").await;
    for (what, node, method, fields, status) in [
        ("another token", &node, "POST", named.replace("0123", "1234"), 404),
        ("no token", &node, "POST", named.replace("Authorization", "X"), 404),
        ("relayed", &node, "POST", format!("{named}Via: 1.1 x\r\n"), 404),
        ("another method", &node, "GET", named.clone(), 405),
        ("nothing named", &node, "POST", token.clone(), 400),
        ("no purges here", &off, "POST", named.clone(), 404),
    ] {
        let reply = node.client().await.request(method, "/.larder/purge", &fields).await;
        assert_eq!(reply.status, status, "{what}");
    }
    assert_eq!(node.client().await.get("/a").await.cache_status(), "n; hit");
    let reply = node.client().await.request("POST", "/.larder/purge", &named).await;
    let text = String::from_utf8(reply.body).unwrap();
    assert_eq!((reply.status, text.as_str()), (200, "{\"removed\":1,\"removed_bytes\":512,\"looked_at\":1}"));
    assert_eq!(node.client().await.get("/a").await.cache_status(), "n; fwd=uri-miss; stored");
    let stats = node.node.stats();
    assert_eq!((stats.purges, stats.purges_denied, stats.own_paths_denied), (1, 2, 3));
    assert_eq!(off.node.stats().purges_denied, 1);
}

/// A purged node asks a peer that was not purged. The peer's copy goes to the client, and is not stored in the
/// node's memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peers_copy_does_not_undo_a_purge() {
    let count = Arc::new(AtomicUsize::new(0));
    let stub = Stub::start(move |_| {
        let number = count.fetch_add(1, Relaxed) + 1;
        StubReply::new(200, "Cache-Control: max-age=1000\r\n", format!("{number}"))
    })
    .await;
    let node = async |name: &'static str| stub.node(|_, config| config.name = name.to_owned()).await;
    let (a, b) = (node("a").await, node("b").await);
    join_both(&a, &b).await;
    assert_eq!(get_body(&b, "/x", "").await, "1");
    eventually_async("a knows what b has", || (a.node.peers().unwrap().targets_known == 1).then_some(()))
        .await;
    assert_eq!(purge(&a, "url", "http://n/x").await, 0);
    let reply = a.client().await.get("/x").await;
    assert_eq!((reply.cache_status(), &reply.body[..]), ("b; hit; ttl=1000", &b"1"[..]));
    assert_eq!(a.node.stats().cache_objects, 0, "it has passed by");
    assert_eq!(purge(&b, "url", "http://n/x").await, 1);
    for node in [&a, &b] {
        assert_eq!(get_body(node, "/x", "").await, "2", "nobody has the first one");
    }
}
