//! The access log: one line for each request, however its connection arrived and however the request ends.

use super::client::Client;
use super::cooperate::join_both;
use super::handoffs::restored_connection;
use super::stub::{Framing, Stub, StubReply, gate};
use super::*;
use larder_edge::access::{AccessFormat, AccessLogConfig, LineFormat};
use larder_node::ACCESS_FIELDS;
use std::path::PathBuf;

const FORMAT: &str = "{method} {target} {version} {status} {body_bytes} {cache} {fwd} {detail} {error}";

/// A file for log lines of one format.
struct LogDirectory {
    folder: tempfile::TempDir,
    format: AccessFormat,
}

impl LogDirectory {
    fn new(format: &str) -> Self {
        let format = AccessFormat::Custom(LineFormat::parse(format, &ACCESS_FIELDS).unwrap());
        Self { folder: tempfile::tempdir().unwrap(), format }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn config(&self, name: &str) -> Option<AccessLogConfig> {
        Some(AccessLogConfig { format: self.format.clone(), ..AccessLogConfig::file(self.file(name)) })
    }

    /// Stops a node, and returns all its lines.
    async fn lines_at_end(&self, mut node: TestNode, name: &str) -> Vec<String> {
        node.shut_down();
        node.wait_for_end().await;
        self.lines(name)
    }

    fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.file(name)).unwrap().lines().map(str::to_owned).collect()
    }

    /// Waits until a node has written `count` lines, and returns them.
    async fn wait_until(&self, name: &str, count: usize) -> Vec<String> {
        eventually_async("the lines are written", || {
            Some(self.lines(name)).filter(|lines| lines.len() >= count)
        })
        .await
    }
}

#[tokio::test]
async fn each_request_is_logged_in_one_line() {
    let log = LogDirectory::new(FORMAT);
    let fill = |root: &Path| write_file(&root.join("a.txt"), pattern(3_000), HOUR);
    let node = TestNode::with_directory(fill, |config| config.access_log = log.config("log")).await;
    let mut client = node.client().await;
    client.get("/a.txt?x=1").await;
    let etag = client.get("/a.txt").await.header("etag").to_owned();
    client.request("HEAD", "/a.txt", "").await;
    client.get_with("/a.txt", &format!("If-None-Match: {etag}\r\n")).await;
    client.get_with("/a.txt", "Range: bytes=0-9\r\n").await;
    client.get("/none").await;
    client.request("POST", "/a.txt", "Content-Length: 0\r\n").await;
    assert_eq!(client.get("/.larder/health").await.status, 200);
    assert_eq!(client.get_with("/.larder/load", "Via: 1.1 x\r\n").await.status, 404);
    drop(client);
    assert_eq!(
        log.lines_at_end(node, "log").await,
        [
            "GET /a.txt?x=1 HTTP/1.1 200 3000 miss uri-miss - -",
            "GET /a.txt HTTP/1.1 200 3000 hit - - -",
            "HEAD /a.txt HTTP/1.1 200 0 hit - - -",
            "GET /a.txt HTTP/1.1 304 0 hit - - -",
            "GET /a.txt HTTP/1.1 206 10 hit - - -",
            "GET /none HTTP/1.1 404 10 miss uri-miss not-found -",
            "POST /a.txt HTTP/1.1 405 0 - - method -",
            "GET /.larder/load HTTP/1.1 404 10 - - denied -",
        ]
    );
}

#[tokio::test]
async fn a_trusted_relay_names_the_client() {
    let log = LogDirectory::new(
        "{client} {node} {host} {user_agent} {referer} {header:x-user} {reply:content-type}",
    );
    let fill = |root: &Path| write_file(&root.join("a.txt"), "x", HOUR);
    let node = TestNode::with_directory(fill, |config| {
        config.access_log = log.config("log");
        config.entry.trusted_relays.0.push("127.0.0.2".parse().unwrap());
    })
    .await;
    let named = "X-Forwarded-For: 192.0.2.1, 192.0.2.2\r\nX-User: a b\r\nUser-Agent: curl\r\nReferer: /r\r\n";
    for (source, fields) in [([127, 0, 0, 2], named), ([127, 0, 0, 3], named), ([127, 0, 0, 2], "")] {
        Client::connect_from(source, node.address).await.get_with("/a.txt", fields).await;
    }

    let lines = log.lines_at_end(node, "log").await;
    let (first, second) = (lines[0].clone(), lines[1].clone());
    let kind = first.rsplit(' ').next().unwrap();
    assert!(kind.starts_with("text/plain"), "{kind}");
    assert_eq!(first, format!("192.0.2.2 n n curl /r a\\x20b {kind}"));
    assert_eq!(second, format!("127.0.0.3 n n curl /r a\\x20b {kind}"));
    assert_eq!(lines[2..], [format!("127.0.0.2 n n - - - {kind}")]);
}

#[tokio::test]
async fn handed_off_connections_are_logged_as_others() {
    let log = LogDirectory::new("{client} {target} {status}");
    let fill = |root: &Path| write_file(&root.join("file"), pattern(3_000), HOUR);
    let node = TestNode::with_directory(fill, |config| config.access_log = log.config("log")).await;
    let (mut client, restored) = restored_connection(b"GET /file HTTP/1.1\r\nHost: n\r\n\r\n", b"").await;
    node.handoffs.send(restored).await.unwrap();
    assert_eq!(client.read_reply(false).await.body, pattern(3_000));
    assert_eq!(client.get("/none").await.status, 404);
    drop(client);
    assert_eq!(log.lines_at_end(node, "log").await, ["127.0.0.1 /file 200", "127.0.0.1 /none 404"]);
}

#[tokio::test]
async fn lines_name_the_origin_and_the_reason_of_an_aborted_reply() {
    let (hold, end) = (gate(), gate());
    let (held, ending) = (Arc::clone(&hold), Arc::clone(&end));
    let stub = Stub::start(move |request| match request.line.split(' ').nth(1).unwrap() {
        "/kept" => StubReply::new(200, "Cache-Control: max-age=60\r\n", "kept"),
        "/cut" => {
            StubReply::new(200, "Cache-Control: no-store\r\n", pattern(100_000)).with_framing(Framing::Cut)
        }
        "/held" => StubReply::new(200, "Cache-Control: no-store\r\n", "x").gate_head(&held),
        "/half" => StubReply::new(200, "Cache-Control: no-store\r\n", pattern(100_000)).gate_end(&ending),
        _ => StubReply::new(500, "Cache-Control: no-store\r\n", ""),
    })
    .await;
    let log = LogDirectory::new("{target} {status} {cache} {fwd} {detail} {origin} {error}");
    let node = stub.node(|_, config| config.access_log = log.config("log")).await;
    let mut client = node.client().await;
    for _ in 0..2 {
        assert_eq!(client.get("/kept").await.body, b"kept");
    }
    assert_eq!(client.get("/other").await.status, 500);
    assert!(client.get("/cut").await.truncated);
    let origin = stub.address;
    let expected = [
        format!("/kept 200 miss uri-miss - {origin} -"),
        "/kept 200 hit - - - -".to_owned(),
        format!("/other 500 miss uri-miss no-store {origin} -"),
        format!("/cut 200 miss uri-miss no-store {origin} origin-broke"),
    ];
    assert_eq!(log.wait_until("log", 4).await, expected);
    // One client leaves before the reply, and one leaves within the body.
    for (path, lines) in [("/held", 4), ("/half", 5)] {
        let mut leaving = node.client().await;
        leaving.send(format!("GET {path} HTTP/1.1\r\nHost: n\r\n\r\n").as_bytes()).await;
        stub.wait_for_requests(lines).await;
        if path == "/half" {
            node.wait_until(|stats| stats.bytes_out >= 100_000).await;
        }
        drop(leaving);
        log.wait_until("log", lines + 1).await;
    }
    hold.add_permits(1);
    end.add_permits(1);
    let lines = log.lines_at_end(node, "log").await;
    let left = ["/held 499 - - - - client_gone".to_owned()];
    let half = [format!("/half 200 miss uri-miss no-store {origin} client_gone")];
    assert_eq!(lines[4..], [left, half].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_request_is_logged_by_the_node_of_its_client() {
    let log = LogDirectory::new("{node} {target} {status} {body_bytes} {fwd} {detail} {origin}");
    let node = async |name: &'static str| {
        let fill = |root: &Path| write_file(&root.join("x"), pattern(1_000), HOUR);
        TestNode::with_directory(fill, |config| {
            config.name = name.to_owned();
            config.access_log = log.config(name);
        })
        .await
    };
    let (a, b) = (node("a").await, node("b").await);
    join_both(&a, &b).await;
    assert_eq!(a.client().await.get("/x").await.status, 200);
    eventually_async("b knows what a has", || (b.node.peers().unwrap().targets_known == 1).then_some(()))
        .await;
    assert_eq!(b.client().await.get("/x").await.cache_status(), "a; hit");
    assert!(b.node.leave_peers().await && a.node.leave_peers().await);
    assert_eq!(log.lines_at_end(a, "a").await, ["a /x 200 1000 uri-miss - -"]);
    assert_eq!(log.lines_at_end(b, "b").await, ["b /x 200 1000 uri-miss lateral a"]);
}

#[tokio::test]
async fn the_log_can_be_replaced_while_the_node_runs() {
    let log = LogDirectory::new("{target}");
    let fill = |root: &Path| write_file(&root.join("a"), "x", HOUR);
    let mut known = None;
    let node = TestNode::with_directory(fill, |config| {
        config.access_log = log.config("one");
        known = Some(config.clone());
    })
    .await;
    let mut config = known.unwrap();
    let mut client = node.client().await;
    client.get("/a?1").await;
    node.wait_until(|stats| stats.in_flight == 0).await;
    config.access_log = log.config("two");
    node.node.change(&config, None).unwrap();
    assert_eq!(log.lines("one"), ["/a?1"], "all of it is written by then");
    client.get("/a?2").await;
    config.access_log = log.config("none/such");
    let error = node.node.change(&config, None).unwrap_err();
    assert!(matches!(error, NodeError::AccessLog(_)), "{error}");
    client.get("/a?3").await;
    node.wait_until(|stats| stats.in_flight == 0).await;
    config.access_log = None;
    node.node.change(&config, None).unwrap();
    client.get("/a?4").await;
    node.wait_until(|stats| stats.in_flight == 0).await;
    config.access_log = Some(AccessLogConfig::file("/dev/full"));
    node.node.change(&config, None).unwrap();
    client.get("/a?5").await;
    node.wait_until(|stats| stats.access_log_dropped == 1).await;
    assert!(node.node.metrics_text().contains("larder_node_access_log_dropped_total"));
    assert_eq!(log.lines("two"), ["/a?2", "/a?3"]);
}
