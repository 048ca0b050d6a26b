//! Programs of a modelled store: which program answers, its cost, and refused requests.

use super::*;
use larder_node::{ProcessorModel, ProgramConfig};
use std::time::Instant;

const MS: Duration = Duration::from_millis(1);

async fn modelled(set: impl FnOnce(&mut ModelConfig)) -> TestNode {
    TestNode::with_model("2000\t/a\n", fast_disk(), |config| {
        let StoreConfig::Model(model) = &mut config.store else { panic!("it is modelled") };
        model.processor = Some(ProcessorModel::default());
        let light = ProgramConfig { cpu: MS, ..ProgramConfig::new("light", "/cgi/light*") };
        let view =
            ProgramConfig { cpu: 5 * MS, reads: 2, ..ProgramConfig::new("view", "/*.nsf/*?OpenView*") };
        model.programs = vec![light, ProgramConfig { reply: Bytes::kib(6), ..view }];
        set(model);
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
    assert_eq!(view.body.len(), 6 << 10);
    let again = client.get("/db.nsf/v?OpenView&Start=1").await;
    assert_eq!(again.body, view.body, "a target is always the same");
    assert_eq!(client.get("/a").await.cache_status(), "n; fwd=uri-miss; stored");
    assert_eq!(client.get("/db.nsf/v?OpenDocument").await.status, 404);
    let stats = running.wait_until(|stats| stats.in_flight == 0).await;
    assert_eq!((stats.dynamic, stats.hits, stats.misses, stats.requests), (3, 0, 2, 5));
    // 1 ms, and twice 5 ms. Two views read twice each, and /a was read once.
    assert!(stats.usage.cpu_busy_us >= 11_000, "{:?}", stats.usage);
    assert_eq!((stats.usage.disk_reads, stats.usage.disk_bytes), (5, 4 * 8_192 + 2_000));
}

#[tokio::test]
async fn head_takes_the_same_work_and_other_methods_are_refused() {
    let running = modelled(|_| {}).await;
    let mut client = running.client().await;
    let head = client.request("HEAD", "/cgi/light", "").await;
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, "4096", 0));
    assert!(running.node.stats().usage.cpu_busy_us >= 1_000);
    client.send(b"POST /db.nsf/v?OpenView HTTP/1.1\r\nHost: n\r\nContent-Length: 3\r\n\r\na=b").await;
    let post = client.read_reply(false).await;
    assert_eq!((post.status, post.header("allow")), (405, "GET, HEAD"));
}

#[tokio::test]
async fn jobs_take_turns_and_cancelled_ones_leave_the_queue() {
    let running = modelled(|model| {
        model.turn = Some(5 * MS);
        model.programs[0].cpu = Duration::from_secs(60);
    })
    .await;
    let mut first = running.client().await;
    first.send(b"GET /cgi/light HTTP/1.1\r\nHost: n\r\n\r\n").await;
    running.wait_until(|stats| stats.usage.cpu_queue == 1).await;
    let start = Instant::now();
    assert_eq!(running.client().await.get("/a").await.status, 200);
    assert!(start.elapsed() < Duration::from_secs(60), "jobs take turns");
    drop(first);
    running.wait_until(|stats| stats.usage.cpu_queue == 0 && stats.in_flight == 0).await;
}
