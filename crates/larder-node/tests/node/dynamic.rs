//! Programs behind the node: which program answers, its cost, and refused requests.

use super::*;
use larder_node::{Amount, CpuConfig, DynamicConfig, DynamicDisk, HandlerConfig, ProcessorModel};
use std::time::Instant;

const MS: Duration = Duration::from_millis(1);

fn programs() -> DynamicConfig {
    let light = HandlerConfig { cpu: Amount::always(MS), ..HandlerConfig::new("light", "/cgi/light*") };
    let view = HandlerConfig {
        cpu: Amount { least: 5 * MS, most: 20 * MS },
        reads: 2,
        reply: Amount { least: Bytes::kib(1), most: Bytes::kib(8) },
        cacheable: Some(Duration::from_secs(60)),
        ..HandlerConfig::new("view", "/*.nsf/*?OpenView*")
    };
    DynamicConfig::new(vec![light, view])
}

async fn modelled(set: impl FnOnce(&mut NodeConfig)) -> TestNode {
    TestNode::with_model("2000\t/a\n", fast_disk(), |config| {
        let StoreConfig::Model { processor, .. } = &mut config.store else { panic!("it is modelled") };
        *processor = Some(ProcessorModel::default());
        config.dynamic = Some(programs());
        set(config);
    })
    .await
}

#[tokio::test]
async fn programs_answer_their_targets_and_the_store_the_rest() {
    let running = modelled(|_| {}).await;
    let mut client = running.client().await;
    let light = client.get("/cgi/light?x=1").await;
    assert_eq!(
        (light.status, light.body.len(), light.cache_status()),
        (200, 4_096, "n; fwd=bypass; detail=light")
    );
    assert_eq!(light.header("cache-control"), "no-store");
    let view = client.get("/db.nsf/v?OpenView&Start=1").await;
    assert_eq!(view.header("cache-control"), "public, max-age=60");
    assert!((1_024..=8_192).contains(&view.body.len()));
    let again = client.get("/db.nsf/v?OpenView&Start=1").await;
    assert_eq!(again.body, view.body, "a target is always the same");
    assert_eq!(client.get("/a").await.cache_status(), "n; fwd=uri-miss; stored");
    assert_eq!(client.get("/db.nsf/v?OpenDocument").await.status, 404);
    let stats = running.wait_until(|stats| stats.in_flight == 0).await;
    assert_eq!((stats.dynamic, stats.hits, stats.misses, stats.requests), (3, 0, 2, 5));
    // 1 ms, and twice at least 5 ms. Two views read twice each, and /a was read once.
    assert!(stats.usage.cpu_busy_us >= 11_000, "{:?}", stats.usage);
    assert_eq!((stats.usage.disk_reads, stats.usage.disk_bytes), (5, 4 * 8_192 + 2_000));
}

#[tokio::test]
async fn head_and_post_take_the_same_work() {
    let running = modelled(|_| {}).await;
    let mut client = running.client().await;
    let head = client.request("HEAD", "/cgi/light", "").await;
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, "4096", 0));
    client.send(b"POST /db.nsf/v?OpenView HTTP/1.1\r\nHost: n\r\nContent-Length: 3\r\n\r\na=b").await;
    let post = client.read_reply(false).await;
    assert_eq!((post.status, post.header("cache-control")), (200, "no-store"));
    assert_eq!(post.cache_status(), "n; fwd=method; detail=view");
    client
        .send(
            b"POST /cgi/light HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na=b\r\n0\r\n\r\n",
        )
        .await;
    assert_eq!(client.read_reply(false).await.status, 200);
    let delete = client.request("DELETE", "/cgi/light", "").await;
    assert_eq!((delete.status, delete.header("allow")), (405, "GET, HEAD, POST"));
    assert_eq!(client.request("POST", "/a", "Content-Length: 0\r\n").await.status, 405);
    assert!(running.node.stats().usage.cpu_busy_us >= 7_000);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let running = modelled(|config| {
        config.limits.write_timeout = 150 * MS;
        if let Some(dynamic) = &mut config.dynamic {
            dynamic.body_max = Bytes(10);
        }
    })
    .await;
    let mut client = running.client().await;
    client.send(b"POST /cgi/light HTTP/1.1\r\nHost: n\r\nContent-Length: 11\r\n\r\n01234567890").await;
    let reply = client.read_reply(false).await;
    assert_eq!(
        (reply.status, reply.cache_status()),
        (413, "n; fwd=method; fwd-status=413; detail=body-length")
    );
    let mut slow = running.client().await;
    slow.send(b"POST /cgi/light HTTP/1.1\r\nHost: n\r\nContent-Length: 9\r\n\r\n0").await;
    let reply = slow.read_reply(false).await;
    assert_eq!(
        (reply.status, reply.cache_status()),
        (408, "n; fwd=method; fwd-status=408; detail=body-timeout")
    );
}

#[tokio::test]
async fn requests_beyond_the_limit_are_refused_and_cancelled_ones_leave_the_queue() {
    let running = modelled(|config| {
        if let Some(dynamic) = &mut config.dynamic {
            dynamic.requests_max = 1;
            dynamic.turn = Some(5 * MS);
            dynamic.handlers[0].cpu = Amount::always(Duration::from_secs(60));
        }
    })
    .await;
    let mut first = running.client().await;
    first.send(b"GET /cgi/light HTTP/1.1\r\nHost: n\r\n\r\n").await;
    running.wait_until(|stats| stats.usage.cpu_queue == 1).await;
    let reply = running.client().await.get("/cgi/light").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "1"));
    assert_eq!(reply.cache_status(), "n; fwd=bypass; fwd-status=503; detail=dynamic-full");
    let start = Instant::now();
    assert_eq!(running.client().await.get("/a").await.status, 200);
    assert!(start.elapsed() < Duration::from_secs(60), "jobs take turns");
    drop(first);
    running.wait_until(|stats| stats.usage.cpu_queue == 0 && stats.in_flight == 0).await;
}

#[tokio::test]
async fn a_directory_node_works_on_real_cores_and_a_real_file() {
    let scratch = tempfile::tempdir().unwrap();
    let set = |config: &mut NodeConfig| {
        let mut dynamic = programs();
        dynamic.cpu = Some(CpuConfig::Real { processors: 1, speed: 1.0 });
        dynamic.disk =
            Some(DynamicDisk::Scratch { directory: scratch.path().to_owned(), size: Bytes::kib(256) });
        config.dynamic = Some(dynamic);
    };
    let fill = |root: &Path| write_file(&root.join("a"), "contents", HOUR);
    let running = TestNode::with_directory(fill, set).await;
    let mut client = running.client().await;
    let before = running.node.usage();
    assert_eq!(client.get("/x.nsf/v?OpenView").await.status, 200);
    assert_eq!(client.get("/a").await.body, b"contents");
    let after = running.node.usage();
    assert!(after.cpu_busy_us - before.cpu_busy_us >= 5_000, "{after:?}");
    assert_eq!((after.cpus, after.disks, after.disk_reads), (1, 1, 3));
    assert!(after.disk_busy_us > 0);
    assert!(running.node.metrics_text().contains("larder_node_cpu_busy_seconds_total"));
}

#[test]
fn programs_that_read_need_a_disk() {
    let store = StoreConfig::Directory { root: "/".into(), bypass_page_cache: false };
    let mut config = NodeConfig::new("n", store);
    config.dynamic = Some(programs());
    let error = config.check().expect_err("there is no disk to read from");
    assert_eq!(error.field, "dynamic.disk");
}
