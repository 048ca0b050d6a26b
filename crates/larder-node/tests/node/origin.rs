//! A node in front of an origin: which replies are stored, for which clients, and which requests reach the
//! origin.

use super::stub::{Framing, Stub, StubReply};
use super::*;
use larder_node::{HostHeader, OriginConfig};

const STORABLE: &str = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\n";
/// Header of a reply that became stale just now, after one minute.
const STALE: &str = "Cache-Control: max-age=60\r\nAge: 60\r\nETag: \"v1\"\r\n";

#[tokio::test]
async fn a_fresh_reply_is_stored_with_its_age_and_fields() {
    let stub = Stub::start(|request| {
        StubReply::new(
            200,
            &format!("{STORABLE}Age: 5\r\nX-Line: {}\r\nConnection: X-Hop\r\nX-Hop: 1\r\n", request.line),
            "body",
        )
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    let first = client
        .get_with(
            "/a?b=c",
            "X-Own: 1\r\nConnection: X-Own\r\nlarder-target: 00000000000000ff\r\nlarder-requests: 7\r\n",
        )
        .await;
    assert_eq!((first.status, &first.body[..], first.header("age")), (200, &b"body"[..], "5"));
    assert_eq!(first.cache_status(), "n; fwd=uri-miss; fwd-status=200; stored");
    assert_eq!((first.header("x-line"), first.header("via")), ("GET /a?b=c HTTP/1.1", "1.1 n"));
    assert_eq!((first.header("x-hop"), first.header("content-length")), ("", "4"));
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let second = client.get("/a?b=c").await;
    assert_eq!((second.status, &second.body[..]), (200, &b"body"[..]));
    assert!(second.cache_status().starts_with("n; hit; ttl=5"), "{}", second.cache_status());
    let requests = stub.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!((requests[0].header("host"), requests[0].header("via")), ("n", "1.1 n"));
    for name in ["x-own", "larder-target", "larder-requests"] {
        assert_eq!(requests[0].header(name), "", "{name}");
    }
    let stats = node.node.stats();
    assert_eq!((stats.hits, stats.misses, stats.store, stats.store_reads), (1, 1, "origin", 1));
    assert!(stats.cache_bytes > 512 && stats.cache_bytes < 2_500, "{}", stats.cache_bytes);
}

#[tokio::test]
async fn an_uncacheable_reply_is_forwarded_each_time_with_its_reason() {
    for (fields, request, detail) in [
        ("Cache-Control: no-store\r\n", "", "no-store"),
        ("Cache-Control: private, max-age=60\r\n", "", "private"),
        ("Cache-Control: max-age=60\r\nSet-Cookie: a=b\r\n", "", "set-cookie"),
        ("Cache-Control: max-age=60\r\n", "Authorization: Basic x\r\n", "authorization"),
        ("Cache-Control: max-age=60\r\nVary: *\r\n", "", "vary-all"),
        ("", "", "no-lifetime"),
    ] {
        let stub = Stub::start(move |_| StubReply::new(200, fields, "x")).await;
        let node = stub.node(|_, _| {}).await;
        let mut client = node.client().await;
        let first = client.get_with("/", request).await;
        assert_eq!((first.status, &first.body[..]), (200, &b"x"[..]), "{fields}");
        assert_eq!(first.cache_status(), format!("n; fwd=uri-miss; fwd-status=200; detail={detail}"));
        let again = client.get_with("/", request).await;
        assert_eq!(again.cache_status(), format!("n; fwd=uri-miss; fwd-status=200; detail={detail}"));
        assert_eq!((stub.requests().len(), node.node.stats().cache_objects), (2, 0), "{fields}");
    }
}

#[tokio::test]
async fn variants_are_stored_side_by_side() {
    let stub = Stub::start(|request| {
        let language = request.header("accept-language").to_owned();
        StubReply::new(200, &format!("{STORABLE}Vary: Accept-Language\r\n"), language)
    })
    .await;
    let node = stub.node(|origin, _| origin.variants_max = 2).await;
    let mut client = node.client().await;
    for (language, status) in [
        ("de", "n; fwd=uri-miss; fwd-status=200; stored"),
        ("en", "n; fwd=vary-miss; fwd-status=200; stored"),
        ("de", "n; hit"),
        ("en", "n; hit"),
        ("fr", "n; fwd=vary-miss; fwd-status=200; stored"),
        ("de", "n; fwd=vary-miss; fwd-status=200; stored"),
    ] {
        let reply = client.get_with("/", &format!("Accept-Language: {language}\r\n")).await;
        assert_eq!(reply.body, language.as_bytes());
        assert!(reply.cache_status().starts_with(status), "{language}: {}", reply.cache_status());
        node.wait_until(|stats| stats.cache_objects == 1 && stats.store_reading == 0).await;
    }
}

#[tokio::test]
async fn a_stale_reply_is_validated_and_refreshed() {
    let stub = Stub::start(|request| match request.header("if-none-match") {
        "\"v1\"" => StubReply::new(304, "Cache-Control: max-age=90\r\nETag: \"v1\"\r\nX-New: 1\r\n", ""),
        _ => StubReply::new(200, &format!("{STALE}X-Old: 1\r\n"), "body"),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    assert_eq!(client.get("/").await.body, b"body");
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let renewed = client.get("/").await;
    assert_eq!((renewed.status, &renewed.body[..]), (200, &b"body"[..]));
    assert_eq!(renewed.cache_status(), "n; fwd=stale; fwd-status=304; stored");
    assert_eq!((renewed.header("x-old"), renewed.header("x-new"), renewed.header("age")), ("1", "1", "0"));
    assert!(client.get("/").await.cache_status().starts_with("n; hit; ttl="));
    assert_eq!(stub.requests().len(), 2);
    let request = client.get_with("/", "Cache-Control: no-cache\r\n").await;
    assert_eq!(request.cache_status(), "n; fwd=request; fwd-status=304; stored");
}

#[tokio::test]
async fn preconditions_and_ranges_are_served_from_the_stored_reply() {
    let stub = Stub::start(|_| StubReply::new(200, STORABLE, "0123456789")).await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    let miss = client.get_with("/", "If-None-Match: \"v1\"\r\n").await;
    assert_eq!((miss.status, miss.header("etag")), (304, "\"v1\""), "asked in full, answered in short");
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let part = client.get_with("/", "Range: bytes=2-4\r\n").await;
    assert_eq!(
        (part.status, &part.body[..], part.header("content-range")),
        (206, &b"234"[..], "bytes 2-4/10")
    );
    let other = client.get_with("/", "Range: bytes=2-4\r\nIf-Range: \"v0\"\r\n").await;
    assert_eq!((other.status, other.body.len()), (200, 10));
    assert_eq!(client.get_with("/", "Range: bytes=10-\r\n").await.status, 416);
    assert_eq!(client.get_with("/", "If-Match: \"v0\"\r\n").await.status, 412);
    let head = client.request("HEAD", "/", "").await;
    assert_eq!((head.status, head.header("content-length")), (200, "10"));
    let requests = stub.requests();
    assert_eq!((requests.len(), requests[0].header("if-none-match")), (1, ""));
    let range = client.get_with("/other", "Range: bytes=2-4\r\n").await;
    assert_eq!(range.cache_status(), "n; fwd=uri-miss; fwd-status=200; detail=range");
    assert_eq!(stub.requests()[1].header("range"), "bytes=2-4");
    assert_eq!(
        client.request("HEAD", "/other", "").await.cache_status(),
        "n; fwd=uri-miss; fwd-status=200; detail=head"
    );
}

/// An origin may close a kept connection at any time, even just when a request arrives. A POST must not be sent
/// twice.
#[tokio::test]
async fn idle_connections_closed_by_the_origin_fail_no_request() {
    let stub = Stub::start(|request| match request.earlier {
        0 => StubReply::new(200, "Cache-Control: no-store\r\n", request.body.clone()),
        _ => StubReply::new(200, "", "").with_framing(Framing::Silent),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    let sent = |method: &str| {
        let requests = stub.requests().into_iter().filter(|request| request.line.starts_with(method));
        requests.map(|request| (request.earlier, request.header("connection").to_owned())).collect::<Vec<_>>()
    };
    for (method, body) in
        [("GET", ""), ("PUT", ""), ("DELETE", ""), ("OPTIONS", ""), ("POST", ""), ("PUT", "body")]
    {
        let before = sent(method).len();
        // A connection is pooled only after a moment, so several requests are sent.
        for request in 0..20 {
            let fields = format!("Host: n\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            for line in [
                format!("GET /{request} HTTP/1.1\r\nHost: n\r\n\r\n"),
                format!("{method} /x HTTP/1.1\r\n{fields}"),
            ] {
                client.send(line.as_bytes()).await;
                assert_eq!(client.read_reply(false).await.status, 200, "{line}");
            }
        }
        let sent = &sent(method)[before..];
        let is_repeatable = body.is_empty() && method != "POST";
        assert_eq!(sent.iter().any(|(earlier, _)| *earlier > 0), is_repeatable, "{method} {body}: {sent:?}");
        let closes = |(earlier, connection): &(usize, String)| *earlier == 0 && connection == "close";
        assert!(is_repeatable || (sent.len() == 20 && sent.iter().all(closes)), "{method} {body}: {sent:?}");
        // A second attempt uses a connection of its own, which the origin closes first.
        let attempts = sent.windows(2).filter(|pair| pair[0].0 > 0);
        assert!(attempts.into_iter().all(|pair| closes(&pair[1])), "{method}: {sent:?}");
    }
}

#[tokio::test]
async fn an_unsafe_method_is_forwarded_and_invalidates_the_stored_reply() {
    let stub = Stub::start(|request| match request.line.starts_with("GET") {
        true => StubReply::new(200, STORABLE, "x"),
        false if request.body == b"bad" => StubReply::new(400, "", ""),
        false => StubReply::new(201, "Location: /b\r\n", request.body.clone()),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    for path in ["/a", "/b", "/c"] {
        client.get(path).await;
    }
    node.wait_until(|stats| stats.cache_objects == 3).await;
    client.send(b"POST /a HTTP/1.1\r\nHost: n\r\nContent-Length: 3\r\n\r\nbad").await;
    assert_eq!(client.read_reply(false).await.status, 400);
    assert_eq!(node.node.stats().cache_objects, 3, "nothing was changed");
    client.send(b"POST /a HTTP/1.1\r\nHost: n\r\nContent-Length: 4\r\n\r\ngood").await;
    let posted = client.read_reply(false).await;
    assert_eq!((posted.status, &posted.body[..]), (201, &b"good"[..]));
    assert_eq!(posted.cache_status(), "n; fwd=method; fwd-status=201; detail=method");
    assert_eq!(node.node.stats().cache_objects, 1, "/c remains");
}

#[tokio::test]
async fn a_failing_origin_is_named_and_stale_replies_are_served() {
    let stub =
        Stub::start(|request| match (request.line.contains("/kept"), request.header("if-none-match")) {
            (true, "") => {
                StubReply::new(200, &STALE.replace("max-age=60", "max-age=60, stale-if-error=600"), "old")
            }
            _ => StubReply::new(503, "", "down"),
        })
        .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    let down = client.get("/x").await;
    assert_eq!((down.status, &down.body[..]), (503, &b"down"[..]), "the origin's own words");
    assert_eq!(client.get("/kept").await.body, b"old");
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let stale = client.get("/kept").await;
    assert_eq!((stale.status, &stale.body[..]), (200, &b"old"[..]));
    assert_eq!(stale.cache_status(), "n; fwd=stale; fwd-status=503; detail=stale-if-error");
    drop(stub);
    // The tasks of the origin end one after another. At first a kept connection may answer or break; then its
    // socket is closed.
    let gone = async {
        while client.get("/y").await.cache_status()
            != "n; fwd=uri-miss; fwd-status=502; detail=origin-connect"
        {}
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the origin goes");
    assert_eq!(client.get("/kept").await.cache_status(), "n; fwd=stale; detail=stale-if-error");
}

#[tokio::test]
async fn a_silent_origin_ends_with_a_timeout() {
    let gate = stub::gate();
    let held = Arc::clone(&gate);
    let stub = Stub::start(move |_| StubReply::new(200, "", "").gate_head(&held)).await;
    let node = stub
        .node(|origin, _| {
            origin.head_timeout = Duration::from_millis(50);
            origin.connect_timeout = Duration::from_millis(50);
        })
        .await;
    let reply = node.client().await.get("/").await;
    assert_eq!(
        (reply.status, reply.cache_status()),
        (504, "n; fwd=uri-miss; fwd-status=504; detail=origin-timeout")
    );
}

#[tokio::test]
async fn negative_replies_are_stored_if_configured() {
    let stub = Stub::start(|_| StubReply::new(404, "", "none")).await;
    let node = stub.node(|origin, _| origin.negative = Duration::from_secs(9)).await;
    let mut client = node.client().await;
    assert_eq!(client.get("/").await.status, 404);
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let kept = client.get("/").await;
    assert_eq!((kept.status, &kept.body[..]), (404, &b"none"[..]));
    assert!(kept.cache_status().starts_with("n; hit; ttl="));
}

#[tokio::test]
async fn hosts_are_separate_unless_the_origins_own_is_sent() {
    for (host, objects, seen) in [(HostHeader::Client, 2, "one"), (HostHeader::Origin, 1, "127.0.0.1")] {
        let stub = Stub::start(|_| StubReply::new(200, STORABLE, "x")).await;
        let node = stub.node(|origin, _| origin.host = host).await;
        let mut client = node.client().await;
        for name in ["one", "TWO"] {
            client.send(format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes()).await;
            assert_eq!(client.read_reply(false).await.status, 200);
            node.wait_until(|stats| stats.store_reading == 0 && stats.cache_objects > 0).await;
        }
        assert_eq!(node.node.stats().cache_objects, objects);
        assert!(stub.requests()[0].header("host").starts_with(seen));
    }
}

#[tokio::test]
async fn only_if_cached_never_reaches_the_origin() {
    let stub = Stub::start(|_| StubReply::new(200, STORABLE, "x")).await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    let wanted = "Cache-Control: only-if-cached\r\n";
    assert_eq!(client.get_with("/", wanted).await.status, 504);
    assert!(stub.requests().is_empty());
    client.get("/").await;
    node.wait_until(|stats| stats.cache_objects == 1).await;
    assert_eq!(client.get_with("/", wanted).await.status, 200);
}

#[tokio::test]
async fn a_chunked_reply_is_stored_with_its_length() {
    let stub =
        Stub::start(|_| StubReply::new(200, STORABLE, "0123456789").with_framing(Framing::Chunked)).await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    let first = client.get("/").await;
    assert_eq!((&first.body[..], first.truncated), (&b"0123456789"[..], false));
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let second = client.get("/").await;
    assert_eq!((&second.body[..], second.header("content-length")), (&b"0123456789"[..], "10"));
}

#[tokio::test]
async fn a_reply_is_stored_again_once_the_origin_allows_it() {
    let times = std::sync::atomic::AtomicUsize::new(0);
    let stub = Stub::start(move |request| match times.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => StubReply::new(200, "Cache-Control: no-store\r\n", "secret"),
        _ if !request.header("if-none-match").is_empty() => StubReply::new(304, "", ""),
        _ => StubReply::new(200, STORABLE, "open"),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    assert_eq!(client.get("/").await.body, b"secret");
    let conditional = client.get_with("/", "If-None-Match: \"v1\"\r\n").await;
    assert_eq!(conditional.cache_status(), "n; fwd=uri-miss; fwd-status=304; detail=conditional");
    assert_eq!(client.get("/").await.cache_status(), "n; fwd=uri-miss; fwd-status=200; stored");
    node.wait_until(|stats| stats.cache_objects == 1).await;
    assert_eq!(client.get("/").await.body, b"open");
    assert_eq!(stub.requests().len(), 3);
}

const DIGESTS: [(&str, &str); 7] = [
    ("content-digest", "sha-256=:AA==:"),
    ("content-md5", "AA=="),
    ("digest", "sha-256=AA=="),
    ("x-amz-checksum-crc32", "AA=="),
    ("x-amz-checksum-crc64nvme", "AA=="),
    ("x-amz-checksum-type", "FULL_OBJECT"),
    ("repr-digest", "sha-256=:AA==:"),
];

/// Digests of the whole would make a client take a part for corrupt. The digest of the representation applies
/// to a part too.
#[tokio::test]
async fn ranges_of_a_stored_reply_have_no_digests_of_the_whole() {
    let digests: String = DIGESTS.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let stub = Stub::start(move |request| match request.header("range") {
        "" => StubReply::new(200, &format!("{STORABLE}{digests}"), "0123456789"),
        _ => StubReply::new(206, &format!("{STORABLE}{digests}Content-Range: bytes 2-4/10\r\n"), "234"),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    let all = DIGESTS.map(|(_, value)| value);
    let of = |reply: &super::client::Reply| DIGESTS.map(|(name, _)| reply.header(name).to_owned());
    let passed = client.get_with("/", "Range: bytes=2-4\r\n").await;
    assert_eq!((passed.status, of(&passed)), (206, all.map(str::to_owned)), "the origin's own part");
    assert_eq!(of(&client.get("/").await), all);
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let part = client.get_with("/", "Range: bytes=2-4\r\n").await;
    assert_eq!((part.status, &part.body[..]), (206, &b"234"[..]));
    assert_eq!(of(&part), ["", "", "", "", "", "", "sha-256=:AA==:"]);
    assert_eq!(of(&client.get("/").await), all);
    assert_eq!(of(&client.request("HEAD", "/", "Range: bytes=2-4\r\n").await), all);
    assert_eq!(stub.requests().len(), 2);
}

/// Ranges that arrive before the whole is stored are passed on. The whole is fetched once for all of them.
#[tokio::test]
async fn ranges_that_miss_start_one_fetch_of_the_whole() {
    let held = super::stub::gate();
    let hold = Arc::clone(&held);
    let stub = Stub::start(move |request| match request.header("range") {
        "" => StubReply::new(200, STORABLE, "0123456789").gate_end(&hold),
        "bytes=0-0" => StubReply::new(206, &format!("{STORABLE}Content-Range: bytes 0-0/10\r\n"), "0"),
        _ => StubReply::new(206, &format!("{STORABLE}Content-Range: bytes 2-4/10\r\n"), "234"),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    for range in ["bytes=2-4", "bytes=0-0", "bytes=2-4"] {
        let part = client.get_with("/x", &format!("Range: {range}\r\nIf-Match: \"v1\"\r\n")).await;
        assert_eq!(
            (part.status, part.cache_status()),
            (206, "n; fwd=uri-miss; fwd-status=206; detail=range")
        );
    }
    stub.wait_for_requests(4).await;
    let whole: Vec<_> =
        stub.requests().into_iter().filter(|request| request.header("range").is_empty()).collect();
    assert_eq!((whole.len(), whole[0].header("if-match")), (1, ""));
    held.add_permits(1);
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let part = client.get_with("/x", "Range: bytes=2-4\r\n").await;
    assert_eq!((part.status, &part.body[..]), (206, &b"234"[..]));
    assert!(part.cache_status().starts_with("n; hit"), "{}", part.cache_status());
    assert_eq!(stub.requests().len(), 4);
}

#[tokio::test]
async fn a_range_that_misses_fetches_nothing_that_would_not_be_stored() {
    let stub = Stub::start(|request| match request.header("range") {
        "" => StubReply::new(200, "Cache-Control: no-store\r\n", "0123456789"),
        _ if request.line.contains("long") => {
            StubReply::new(206, "Content-Range: bytes 2-4/1000000\r\n", "234")
        }
        _ if request.line.contains("unknown") => StubReply::new(206, "Content-Range: bytes 2-4/*\r\n", "234"),
        _ => StubReply::new(206, "Content-Range: bytes 2-4/10\r\n", "234"),
    })
    .await;
    let whole =
        |stub: &Stub| stub.requests().iter().filter(|request| request.header("range").is_empty()).count();
    let node = stub.node(|_, config| config.cache.bytes = Bytes(100_000)).await;
    let mut client = node.client().await;
    for target in ["/long", "/unknown"] {
        assert_eq!(client.get_with(target, "Range: bytes=2-4\r\n").await.status, 206);
    }
    assert_eq!(client.get_with("/x", "Range: bytes=2-4\r\nCache-Control: no-store\r\n").await.status, 206);
    // Once the whole was requested, the node remembers for a minute that its reply may not be stored.
    assert_eq!(client.get_with("/x", "Range: bytes=2-4\r\n").await.status, 206);
    node.wait_until(|stats| stats.store_reading == 0 && stats.store_reads == 5).await;
    for _ in 0..3 {
        assert_eq!(client.get_with("/x", "Range: bytes=2-4\r\n").await.status, 206);
    }
    node.wait_until(|stats| stats.store_reading == 0).await;
    assert_eq!(whole(&stub), 1);
    let off = stub.node(|origin, _| origin.range_fill = false).await;
    assert_eq!(off.client().await.get_with("/x", "Range: bytes=2-4\r\n").await.status, 206);
    off.wait_until(|stats| stats.store_reading == 0).await;
    assert_eq!(whole(&stub), 1);
}

/// An origin that states a small length in its reply to a range, and then sends without end.
#[tokio::test]
async fn a_whole_that_has_no_end_is_broken_off() {
    use tokio::io::{AsyncWriteExt, BufReader};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (ended, end) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut ended = Some(ended);
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = BufReader::new(stream);
            let Ok(head) = larder_testkit::http::read_head_async(&mut stream).await else { continue };
            let part = "HTTP/1.1 206 X\r\nContent-Range: bytes 0-0/10\r\nContent-Length: 1\r\nConnection: close\r\n\r\n0";
            let whole = format!("HTTP/1.1 200 X\r\n{STORABLE}Transfer-Encoding: chunked\r\n\r\n");
            if head.to_lowercase().contains("range:") {
                stream.write_all(part.as_bytes()).await.unwrap();
                continue;
            }
            stream.write_all(whole.as_bytes()).await.unwrap();
            let chunk = [&b"1000\r\n"[..], &[b'x'; 4096], b"\r\n"].concat();
            let mut sent = 0;
            while stream.write_all(&chunk).await.is_ok() {
                sent += 4096_u64;
            }
            let _ = ended.take().map(|ended| ended.send(sent));
        }
    });
    let mut config = NodeConfig::new("n", StoreConfig::Origin(Box::new(OriginConfig::new(url))));
    config.cache.bytes = Bytes(100_000);
    let node = TestNode::start(config, tempfile::tempdir().unwrap()).await;
    assert_eq!(node.client().await.get_with("/x", "Range: bytes=0-0\r\n").await.status, 206);
    tokio::time::timeout(PATIENCE, end).await.expect("the node breaks it off").unwrap();
    assert_eq!(node.wait_until(|stats| stats.store_reading == 0).await.cache_objects, 0);
}

/// A range in progress while the whole arrives does not cause another fetch.
#[tokio::test]
async fn a_late_range_does_not_fetch_a_body_that_is_stored_meanwhile() {
    let held = super::stub::gate();
    let hold = Arc::clone(&held);
    let stub = Stub::start(move |request| match request.header("range") {
        "" => StubReply::new(200, STORABLE, "0123456789"),
        _ => {
            StubReply::new(206, &format!("{STORABLE}Content-Range: bytes 2-4/10\r\n"), "234").gate_head(&hold)
        }
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let (mut late, mut other) = (node.client().await, node.client().await);
    late.send(b"GET /x HTTP/1.1\r\nHost: n\r\nRange: bytes=2-4\r\n\r\n").await;
    stub.wait_for_requests(1).await;
    assert_eq!(other.get("/x").await.status, 200);
    node.wait_until(|stats| stats.cache_objects == 1).await;
    held.add_permits(1);
    assert_eq!(late.read_reply(false).await.status, 206);
    node.wait_until(|stats| stats.store_reading == 0).await;
    assert_eq!(stub.requests().len(), 2);
}
