//! Plain hits, which are answered immediately, get the same replies as by the full path.

use super::*;
use larder_edge::access::AccessLogConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Requests that are answered immediately, and requests that differ from them in one point.
const REQUESTS: &[&str] = &[
    "GET /a.txt HTTP/1.1\r\nHost: n\r\n",
    "GET /a.txt?x=1&y HTTP/1.1\r\nHost: n\r\nAccept: */*\r\nCookie: a=b\r\nX-Forwarded-For: 10.0.0.1\r\n",
    "GET /sub/ HTTP/1.1\r\nHost: n\r\n",
    "GET /sub/index.html HTTP/1.1\r\nHost: n\r\n",
    "GET //a.txt HTTP/1.1\r\nHost: n\r\n",
    "GET /%61.txt HTTP/1.1\r\nHost: n\r\n",
    "GET http://n/a.txt HTTP/1.1\r\nHost: n\r\n",
    "GET /a.txt HTTP/1.0\r\n",
    "HEAD /a.txt HTTP/1.1\r\nHost: n\r\n",
    "POST /a.txt HTTP/1.1\r\nHost: n\r\nContent-Length: 0\r\n",
    "GET /a.txt HTTP/1.1\r\nHost: n\r\nRange: bytes=0-1\r\n",
    "GET /a.txt HTTP/1.1\r\nHost: n\r\nIf-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n",
    "GET /a.txt HTTP/1.1\r\nHost: n\r\nIf-None-Match: *\r\n",
    "GET /a.txt HTTP/1.1\r\nHost: n\r\nX_a: 1\r\n",
    "GET /a.txt HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
    "GET /a.txt HTTP/1.1\r\nHost: n\r\nConnection: x-a\r\nX-A: 1\r\n",
    "GET /.hidden HTTP/1.1\r\nHost: n\r\n",
    "GET /sub/../a.txt HTTP/1.1\r\nHost: n\r\n",
    "GET /none HTTP/1.1\r\nHost: n\r\n",
    "GET /empty HTTP/1.1\r\nHost: n\r\n",
    "GET /long HTTP/1.1\r\nHost: n\r\n",
    "GET /.larder/health HTTP/1.1\r\nHost: n\r\n",
];

fn fill_root(root: &Path) {
    for (name, contents) in
        [("a.txt", &b"abc"[..]), ("sub/index.html", b"<p>"), (".hidden", b"x"), ("empty", b"")]
    {
        write_file(&root.join(name), contents, HOUR);
    }
    write_file(&root.join("long"), pattern(100_000), HOUR);
}

/// Returns the status line, the fields sorted by name, and the contents. `Date` is left out, and so are the
/// times in tags.
async fn send_request(address: SocketAddr, request: &str) -> (String, Vec<String>, Vec<u8>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{request}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut reply = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut reply)).await.expect("the node closes").unwrap();
    let head = larder_testkit::http::take_head(&mut reply).expect("a head").to_lowercase();
    let mut lines = head.trim_end().lines().map(str::to_owned);
    let status = lines.next().unwrap();
    let varies =
        |line: &String| ["date:", "etag:", "last-modified:"].iter().any(|name| line.starts_with(name));
    let mut fields: Vec<String> =
        lines.map(|line| if varies(&line) { line[..5].to_owned() } else { line }).collect();
    fields.sort();
    (status, fields, reply)
}

#[tokio::test]
async fn plain_hits_get_the_same_replies_as_other_requests() {
    let plain = TestNode::with_directory(fill_root, set_small_chunks).await;
    let log = tempfile::tempdir().unwrap();
    let full = TestNode::with_directory(fill_root, |config| {
        set_small_chunks(config);
        // Requests that are logged take the full path.
        config.access_log = Some(AccessLogConfig::file(log.path().join("log")));
    })
    .await;
    for request in REQUESTS {
        for time in ["the first time", "the second time"] {
            let (one, other) =
                (send_request(plain.address, request).await, send_request(full.address, request).await);
            assert_eq!(one, other, "{request} {time}");
        }
    }
    let counts = |stats: NodeStats| {
        (
            stats.requests,
            stats.hits,
            stats.misses,
            stats.bytes_out,
            stats.client_errors,
            stats.header_fields_dropped,
        )
    };
    plain.wait_until(|stats| stats.in_flight == 0).await;
    full.wait_until(|stats| stats.in_flight == 0).await;
    let (one, other) = (counts(plain.node.stats()), counts(full.node.stats()));
    assert_eq!(one, other);
    assert!(one.1 > 10, "{} hits", one.1);
}

#[tokio::test]
async fn a_changed_file_is_checked_again() {
    let node = TestNode::with_directory(fill_root, |config| config.revalidate = Duration::ZERO).await;
    let mut client = node.client().await;
    for contents in [&b"abc"[..], b"other", b"the last"] {
        write_file(&node.root().join("a.txt"), contents, HOUR - Duration::from_secs(contents.len() as u64));
        assert_eq!(client.get("/a.txt").await.body, contents);
    }
}

#[tokio::test]
async fn a_reload_applies_to_requests_on_open_connections() {
    let mut known = None;
    let node = TestNode::with_directory(fill_root, |config| known = Some(config.clone())).await;
    let mut config = known.unwrap();
    let mut client = node.client().await;
    for _ in 0..2 {
        assert_eq!(client.get("/a.txt").await.body, b"abc");
    }
    config.health_path = Some("/a.txt".to_owned());
    node.node.change(&config, None).unwrap();
    assert_eq!(client.get("/a.txt").await.body, b"ok\n");
}

#[tokio::test]
async fn threads_share_the_memory() {
    let node = TestNode::with_directory(fill_root, |config| config.threads = 4).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let mut client = node.client().await;
        tasks.spawn(async move {
            for _ in 0..50 {
                assert_eq!(client.get("/a.txt").await.body, b"abc");
                assert_eq!(client.get("/long").await.body, pattern(100_000));
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    let stats = node.wait_until(|stats| stats.in_flight == 0).await;
    assert_eq!((stats.requests, stats.store_reads), (1_600, 2), "{stats:?}");
}
