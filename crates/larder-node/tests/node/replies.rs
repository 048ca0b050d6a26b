//! Replies: methods, validators, preconditions, ranges, `Cache-Status`.

use super::*;

async fn start_node() -> TestNode {
    let fill = |root: &Path| {
        write_file(&root.join("a.txt"), "0123456789", HOUR);
        write_file(&root.join("empty.css"), "", HOUR);
        write_file(&root.join("big.bin"), pattern(300_000), HOUR);
    };
    TestNode::with_directory(fill, set_small_chunks).await
}

#[tokio::test]
async fn a_miss_is_stored_and_the_next_request_hits() {
    let running = start_node().await;
    let mut client = running.client().await;
    let first = client.get("/a.txt").await;
    assert_eq!((first.status, first.body.as_slice()), (200, &b"0123456789"[..]));
    assert_eq!(first.cache_status(), "n; fwd=uri-miss; stored");
    assert_eq!(first.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(first.header("accept-ranges"), "bytes");
    assert_eq!(first.header("x-larder-store"), "");
    let second = client.get("/a.txt?query=is-no-part-of-a-file").await;
    assert_eq!((second.status, second.body.as_slice()), (200, &b"0123456789"[..]));
    assert_eq!(second.cache_status(), "n; hit");
    let stats = running.wait_until(|stats| stats.in_flight == 0).await;
    assert_eq!((stats.requests, stats.hits, stats.misses, stats.store_reads), (2, 1, 1, 1));
    assert_eq!((stats.bytes_out, stats.cache_objects, stats.connections), (20, 1, 1));
}

#[tokio::test]
async fn head_replies_like_get_and_leaves_the_cache_unchanged() {
    let running = start_node().await;
    let mut client = running.client().await;
    let head = client.request("HEAD", "/a.txt", "").await;
    assert_eq!((head.status, head.header("content-length")), (200, "10"));
    assert_eq!(head.cache_status(), "n; fwd=uri-miss");
    assert_eq!(running.node.stats().cache_objects, 0);
    let get = client.get("/a.txt").await;
    for field in ["content-length", "content-type", "etag", "last-modified", "accept-ranges"] {
        assert_eq!(head.header(field), get.header(field), "{field}");
    }
    assert_eq!(client.request("HEAD", "/a.txt", "").await.cache_status(), "n; hit");
    assert_eq!(client.request("HEAD", "/none", "").await.status, 404);
}

#[tokio::test]
async fn other_methods_are_not_allowed() {
    let running = start_node().await;
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "MADEUP"] {
        let reply = running.client().await.request(method, "/a.txt", "").await;
        assert_eq!((reply.status, reply.header("allow")), (405, "GET, HEAD"), "{method}");
        assert_eq!(reply.cache_status(), "n; detail=method");
    }
}

#[tokio::test]
async fn preconditions_avoid_the_body_and_the_read() {
    let running = start_node().await;
    let mut client = running.client().await;
    let head = client.request("HEAD", "/a.txt", "").await;
    let (etag, date) = (head.header("etag").to_owned(), head.header("last-modified").to_owned());
    assert!(etag.starts_with('"'), "a settled file has a strong tag: {etag}");
    for warm in [false, true] {
        for fields in [format!("If-None-Match: {etag}\r\n"), format!("If-Modified-Since: {date}\r\n")] {
            let reply = client.get_with("/a.txt", &fields).await;
            assert_eq!((reply.status, reply.header("etag")), (304, etag.as_str()));
            assert_eq!(reply.cache_status(), if warm { "n; hit" } else { "n; fwd=uri-miss" });
        }
        let reply = client.get_with("/a.txt", "If-Match: \"other\"\r\n").await;
        assert_eq!(reply.status, 412);
        assert_eq!(running.node.stats().store_reads, u64::from(warm));
        let reply = client.get_with("/a.txt", "If-None-Match: \"other\"\r\n").await;
        assert_eq!((reply.status, reply.body.len()), (200, 10));
    }
}

#[tokio::test]
async fn ranges_of_short_contents_are_exact() {
    let running = start_node().await;
    let mut client = running.client().await;
    let etag = client.get("/a.txt").await.header("etag").to_owned();
    for (fields, status, range, body) in [
        ("Range: bytes=2-4\r\n", 206, "bytes 2-4/10", "234"),
        ("Range: bytes=-3\r\n", 206, "bytes 7-9/10", "789"),
        ("Range: bytes=8-99\r\n", 206, "bytes 8-9/10", "89"),
        ("Range: bytes=10-\r\n", 416, "bytes */10", ""),
        ("Range: bytes=0-1,3-4\r\n", 200, "", "0123456789"),
        ("Range: rubbish\r\n", 200, "", "0123456789"),
        ("Range: bytes=0-0\r\nIf-Range: \"other\"\r\n", 200, "", "0123456789"),
    ] {
        let reply = client.get_with("/a.txt", fields).await;
        assert_eq!((reply.status, reply.header("content-range")), (status, range), "{fields}");
        assert_eq!(reply.body, body.as_bytes(), "{fields}");
        assert_eq!(reply.cache_status(), "n; hit");
    }
    let fields = format!("Range: bytes=0-0\r\nIf-Range: {etag}\r\n");
    assert_eq!(client.get_with("/a.txt", &fields).await.status, 206);
    assert_eq!(client.get_with("/empty.css", "Range: bytes=0-\r\n").await.status, 416);
    assert_eq!(client.get("/empty.css").await.header("content-length"), "0");
    let head = client.request("HEAD", "/a.txt", "Range: bytes=0-0\r\n").await;
    assert_eq!((head.status, head.header("content-length")), (200, "10"));
}

#[tokio::test]
async fn a_range_that_misses_reads_only_its_chunks() {
    let running = start_node().await;
    let mut client = running.client().await;
    let contents = pattern(300_000);
    // Bytes 70,000 to 70,009 lie in the second chunk of 65,536.
    let reply = client.get_with("/big.bin", "Range: bytes=70000-70009\r\n").await;
    assert_eq!((reply.status, reply.body.as_slice()), (206, &contents[70_000..70_010]));
    assert_eq!(reply.cache_status(), "n; fwd=uri-miss; stored");
    assert_eq!(running.node.stats().store_bytes, 65_536);
    let reply = client.get_with("/big.bin", "Range: bytes=65536-131071\r\n").await;
    assert_eq!((reply.body.as_slice(), reply.cache_status()), (&contents[65_536..131_072], "n; hit"));
    // The range spans a chunk in memory and a chunk that must be read.
    let reply = client.get_with("/big.bin", "Range: bytes=131000-131100\r\n").await;
    assert_eq!(
        (reply.body.as_slice(), reply.cache_status()),
        (&contents[131_000..=131_100], "n; fwd=partial; stored")
    );
    assert_eq!(running.node.stats().store_bytes, 2 * 65_536);
    let reply = client.get("/big.bin").await;
    assert_eq!((reply.body.as_slice(), reply.cache_status()), (&contents[..], "n; fwd=partial; stored"));
    assert_eq!(running.node.stats().store_bytes, 300_000);
    let reply = client.get("/big.bin").await;
    assert_eq!((reply.body.as_slice(), reply.cache_status()), (&contents[..], "n; hit"));
    let reply = client.get_with("/big.bin", "Range: bytes=-1\r\n").await;
    assert_eq!((reply.body.as_slice(), reply.cache_status()), (&contents[299_999..], "n; hit"));
}

#[tokio::test]
async fn contents_above_the_object_limit_are_served_and_not_stored() {
    let fill = |root: &Path| {
        write_file(&root.join("small"), pattern(1_000), HOUR);
        write_file(&root.join("middle"), pattern(2_000), HOUR);
        write_file(&root.join("large"), pattern(200_000), HOUR);
    };
    let set = |config: &mut NodeConfig| {
        set_small_chunks(config);
        config.cache.object_max = Bytes(1_500);
    };
    let running = TestNode::with_directory(fill, set).await;
    let mut client = running.client().await;
    for (path, len) in [("/middle", 2_000), ("/large", 200_000)] {
        for _ in 0..2 {
            let reply = client.get(path).await;
            assert_eq!((reply.status, reply.body), (200, pattern(len)));
        }
        assert_eq!(client.get(path).await.cache_status(), "n; fwd=uri-miss");
    }
    client.get("/small").await;
    assert_eq!(client.get("/small").await.cache_status(), "n; hit");
    assert_eq!(running.node.stats().cache_objects, 1);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let running = start_node().await;
    let mut client = running.client().await;
    let one = b"GET /a.txt HTTP/1.1\r\nHost: n\r\n\r\n";
    let two = b"GET /none HTTP/1.1\r\nHost: n\r\n\r\n";
    client.send(&[&one[..], two, one].concat()).await;
    for status in [200, 404, 200] {
        assert_eq!(client.read_reply(false).await.status, status);
    }
    running.wait_until(|stats| stats.in_flight == 0 && stats.requests == 3).await;
}

#[tokio::test]
async fn own_paths_report_on_the_node() {
    let set = |config: &mut NodeConfig| config.stats_path = Some("/.larder/stats".to_owned());
    let running = TestNode::with_model("5\t/a\n", fast_disk(), set).await;
    let mut client = running.client().await;
    assert_eq!(client.get("/.larder/health").await.status, 200);
    running.node.set_draining(true);
    assert_eq!(client.get("/.larder/health").await.status, 503);
    let reply = client.get("/a").await;
    assert_eq!((reply.status, reply.header("x-larder-store")), (200, "model"));
    let stats: serde_json::Value = serde_json::from_slice(&client.get("/.larder/stats").await.body).unwrap();
    assert_eq!(
        (&stats["name"], &stats["store"], &stats["misses"]),
        (&"n".into(), &"model".into(), &1.into())
    );
    assert!(running.node.start_facts().store.starts_with("kind=model targets="));
    let text = running.node.metrics_text();
    for line in [
        "larder_node_requests_total{node=\"n\",store=\"model\"} 1",
        "larder_node_draining{node=\"n\",store=\"model\"} 1",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

/// Asserts that each metric of a page is in the list of metrics, with its kind and help.
pub(crate) fn assert_metrics_are_listed(page: &str) {
    let listed = larder_node::metrics();
    let mut count = 0;
    for line in page.lines() {
        let Some((family, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        let metric = listed.iter().find(|metric| metric.family() == family);
        let metric = metric.unwrap_or_else(|| panic!("{family} is not in the list of metrics"));
        assert_eq!(metric.help.trim_end_matches('.'), help.trim_end_matches('.'), "{family}");
        assert!(
            page.contains(&format!("# TYPE {family} {}\n", metric.kind.name())),
            "{family}: another kind"
        );
        count += 1;
    }
    assert!(count > 20, "the page has only {count} metrics");
}

#[tokio::test]
async fn every_number_of_the_snapshot_is_exported() {
    let running = TestNode::with_model("5\t/a\n", fast_disk(), |_| {}).await;
    let stats = running.node.stats();
    let text = stats.metrics_text();
    let all = running.node.metrics_text();
    assert_metrics_are_listed(&all);
    let ends = [text.lines().next().unwrap(), "larder_node_last_reload_success{node=\"n\"} 1\n# EOF\n"];
    assert!(all.starts_with(ends[0]) && all.ends_with(ends[1]) && all.matches("# EOF").count() == 1, "{all}");
    let stats = serde_json::to_value(stats).unwrap();
    // The name and the store are labels.
    let numbers = stats.as_object().unwrap().len() - 2;
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), numbers, "{text}");
}
