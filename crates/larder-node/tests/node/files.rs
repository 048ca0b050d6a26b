//! Files of a directory: which ones are served, and in which version.

use super::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::os::unix::fs::symlink;

#[tokio::test]
async fn nothing_outside_the_root_is_served() {
    let fill = |root: &Path| {
        let outside = root.parent().unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        fs::create_dir(root.join("sub")).unwrap();
        fs::write(root.join("sub/in"), "in").unwrap();
        fs::write(root.join(".hidden"), "secret").unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink(outside.join("secret"), root.join("absolute")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("/proc/self/root/etc/passwd", root.join("magic")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    };
    let running = TestNode::with_directory(fill, |_| {}).await;
    let long = format!("/{}", "x".repeat(300));
    for (path, status) in [
        ("/../secret", 400),
        ("/sub/../../secret", 400),
        ("/%2e%2e/secret", 400),
        ("/%2E%2E%2Fsecret", 400),
        ("/sub/..%2f..%2fsecret", 400),
        ("/sub/in%00", 400),
        ("/%", 400),
        ("/out", 404),
        ("/absolute", 404),
        ("/up/secret", 404),
        ("/magic", 404),
        ("/loop", 404),
        ("/pipe", 404),
        ("/.hidden", 404),
        ("/%2ehidden", 404),
        ("//etc/passwd", 404),
        ("/sub/in/", 404),
        ("/none", 404),
        (&long, 404),
        ("/sub/in", 200),
        ("//sub//in", 200),
        ("/sub/%69n", 200),
        ("http://n/sub/in", 200),
    ] {
        let reply = running.client().await.get(path).await;
        assert_eq!(reply.status, status, "{path}");
        assert!(!String::from_utf8_lossy(&reply.body).contains("secret"), "{path}");
        assert!(reply.cache_status().starts_with("n; "), "{path}");
    }
    // Only OPTIONS may use the asterisk, and a host other than that of the header is refused. Both are refused
    // before there is a target to look up.
    for path in ["*", "http://elsewhere.example/sub/in"] {
        assert_eq!(running.client().await.get(path).await.status, 400, "{path}");
    }
    // All spellings of one name share one copy.
    assert_eq!(running.node.stats().cache_objects, 1);
}

#[tokio::test]
async fn a_directory_answers_with_its_index() {
    let fill = |root: &Path| {
        write_file(&root.join("index.html"), "top", HOUR);
        write_file(&root.join("sub/index.html"), "sub", HOUR);
        fs::create_dir(root.join("bare")).unwrap();
    };
    let running = TestNode::with_directory(fill, |_| {}).await;
    let mut client = running.client().await;
    assert_eq!(client.get("/").await.body, b"top");
    assert_eq!(client.get("/sub/").await.body, b"sub");
    let redirect = client.get("/sub").await;
    assert_eq!((redirect.status, redirect.header("location")), (301, "/sub/"));
    assert_eq!(client.get("//sub").await.header("location"), "/sub/");
    assert_eq!(client.get("/bare/").await.status, 404);
    assert_eq!(client.get("/sub/").await.header("content-type"), "text/html; charset=utf-8");
}

#[tokio::test]
async fn a_changed_file_is_noticed() {
    let fill = |root: &Path| write_file(&root.join("a"), "old", HOUR);
    let running = TestNode::with_directory(fill, |config| config.revalidate = Duration::ZERO).await;
    let path = running.root().join("a");
    let mut client = running.client().await;
    assert_eq!(client.get("/a").await.body, b"old");
    assert_eq!(client.get("/a").await.cache_status(), "n; hit");
    write_file(&path, "new", HOUR / 2);
    let reply = client.get("/a").await;
    assert_eq!((reply.body.as_slice(), reply.cache_status()), (&b"new"[..], "n; fwd=stale; stored"));
    fs::remove_file(&path).unwrap();
    assert_eq!(client.get("/a").await.status, 404);
    assert_eq!(running.node.stats().cache_objects, 0);
}

#[tokio::test]
async fn a_file_is_not_checked_before_its_period_ends() {
    let fill = |root: &Path| write_file(&root.join("a"), "old", HOUR);
    let running = TestNode::with_directory(fill, |config| config.revalidate = HOUR).await;
    let mut client = running.client().await;
    client.get("/a").await;
    write_file(&running.root().join("a"), "new", HOUR / 2);
    assert_eq!(client.get("/a").await.body, b"old");
}

#[tokio::test]
async fn a_recently_changed_file_gets_a_weak_tag_and_no_conditional_ranges() {
    let fill = |root: &Path| write_file(&root.join("a"), "0123456789", Duration::ZERO);
    // A time in the future counts as recent, like one just now, and does so for the length of the test.
    let running = TestNode::with_directory(fill, |_| {}).await;
    let file = fs::File::options().write(true).open(running.root().join("a")).unwrap();
    file.set_modified(SystemTime::now() + HOUR).unwrap();
    let mut client = running.client().await;
    let etag = client.get("/a").await.header("etag").to_owned();
    assert!(etag.starts_with("W/"), "{etag}");
    let reply = client.get_with("/a", &format!("Range: bytes=0-1\r\nIf-Range: {etag}\r\n")).await;
    assert_eq!(reply.status, 200);
    let reply = client.get_with("/a", &format!("If-None-Match: {etag}\r\n")).await;
    assert_eq!(reply.status, 304);
}

#[tokio::test]
async fn a_file_that_changes_during_a_reply_aborts_it_and_recovers() {
    let fill = |root: &Path| write_file(&root.join("big"), pattern(64 << 20), HOUR);
    let set = |config: &mut NodeConfig| {
        set_small_chunks(config);
        config.revalidate = Duration::ZERO;
        // No part of the old version may come from memory.
        config.cache.bytes = Bytes(0);
    };
    let running = TestNode::with_directory(fill, set).await;
    let mut client = running.client().await;
    client.send(b"GET /big HTTP/1.1\r\nHost: n\r\n\r\n").await;
    running.wait_until(|stats| stats.bytes_out > 0).await;
    write_file(&running.root().join("big"), "short", HOUR / 2);
    let reply = client.read_reply(false).await;
    assert_eq!((reply.status, reply.truncated), (200, true));
    assert_eq!(reply.body, pattern(64 << 20)[..reply.body.len()]);
    assert_eq!(running.client().await.get("/big").await.body, b"short");
    running.wait_until(|stats| stats.aborted == 1 && stats.in_flight == 0).await;
}

#[tokio::test]
async fn direct_reads_give_the_same_files() {
    let files = tempfile::tempdir().unwrap();
    let root = files.path().join("root");
    let lens = [0, 1, 4_095, 4_096, 4_097, 65_536, 65_537, 300_001];
    for len in lens {
        write_file(&root.join(len.to_string()), pattern(len), HOUR);
    }
    let mut config = NodeConfig::new("n", StoreConfig::Directory { root, bypass_page_cache: true });
    set_small_chunks(&mut config);
    let running = TestNode::start(config, files).await;
    let said = running.node.start_facts().store;
    assert!(said.ends_with(" reads=O_DIRECT"), "{said}");
    let mut client = running.client().await;
    for _ in 0..2 {
        for len in lens {
            assert_eq!(client.get(&format!("/{len}")).await.body, pattern(len), "{len}");
        }
    }
    let stats = running.node.stats();
    assert_eq!((stats.hits, stats.misses), (8, 8));
}
