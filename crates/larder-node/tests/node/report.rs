//! Reports for switches: the load counters, and the events of the cache.

use super::stub::{Stub, StubReply};
use super::*;
use larder_edge::AddressRanges;
use larder_node::{DeviceSource, LoadCounters, OriginConfig, ProcessorModel};
use larder_testkit::eventually_asked;
use serde_json::Value;
use tokio::io::AsyncBufReadExt;

async fn get_load(running: &TestNode) -> Value {
    let reply = running.client().await.get("/.larder/load").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, "application/json"));
    assert_eq!(reply.header("cache-control"), "no-store");
    serde_json::from_slice(&reply.body).unwrap()
}

/// The lines of an event stream. A piece of the body consists of whole lines, so chunk sizes are on lines of
/// their own.
struct EventLines(client::Client);

impl EventLines {
    async fn open(running: &TestNode) -> Self {
        let mut client = running.client().await;
        client.send(b"GET /.larder/events HTTP/1.1\r\nHost: n\r\n\r\n").await;
        Self(client)
    }

    /// Returns the next line that is not a heartbeat; `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        let reading = async {
            loop {
                let mut line = String::new();
                if self.0.stream.read_line(&mut line).await.unwrap() == 0 {
                    return None;
                }
                if line.starts_with('{') && !line.starts_with("{\"beat\"") {
                    return Some(serde_json::from_str(&line).unwrap());
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("a line comes")
    }

    async fn next_event(&mut self) -> (String, String) {
        let line = self.next().await.expect("the stream goes on");
        let kind = ["snapshot", "held", "live", "stored", "evicted", "cut"].into_iter();
        let kind = kind.filter(|kind| line.get(kind).is_some()).collect::<String>();
        let what = line[&kind].as_str().unwrap_or_default().to_owned();
        (kind, what)
    }
}

fn event(kind: &str, id: u64) -> (String, String) {
    (kind.to_owned(), format!("{id:016x}"))
}

async fn get_with_id(running: &TestNode, path: &str, id: u64) {
    let reply = running.client().await.get_with(path, &format!("larder-target: {id:016x}\r\n")).await;
    assert_eq!(reply.status, 200, "{path}");
}

#[tokio::test]
async fn the_load_is_that_of_the_models_if_configured() {
    let files = tempfile::tempdir().unwrap();
    let manifest = files.path().join("manifest");
    fs::write(&manifest, "4096\t/a\n4096\t/b\n").unwrap();
    let processor = Some(ProcessorModel::default());
    let store = StoreConfig::Model(ModelConfig { processor, ..ModelConfig::new(manifest) });
    let running = TestNode::start(NodeConfig::new("n", store), files).await;
    let before = get_load(&running).await;
    for path in ["/a", "/b", "/a"] {
        assert_eq!(running.client().await.get(path).await.status, 200);
    }
    running.wait_until(|stats| stats.in_flight == 0).await;
    let grown_in =
        |after: &Value, field: &str| after[field].as_u64().unwrap() - before[field].as_u64().unwrap();
    // The modelled disk counts a read when its time is over.
    let after = eventually_asked("both reads are counted", async || {
        let after = get_load(&running).await;
        (grown_in(&after, "uptime_us") > 2 * 28_410 && after["active"] == 0).then_some(after)
    })
    .await;
    let grown = |field: &str| grown_in(&after, field);
    assert_eq!((&after["cpu_from"], &after["disk_from"]), (&"model".into(), &"model".into()));
    assert_eq!(
        (grown("disk_busy_us"), grown("disk_bytes")),
        (2 * 28_410, 8_192),
        "two reads of the model's time"
    );
    assert!(grown("cpu_busy_us") > 0 && grown("uptime_us") > 2 * 28_410);
    // A poll does not count as work of the node.
    assert_eq!((grown("requests"), &after["active"]), (3, &0.into()));
    assert!(grown("service_us") >= 2 * 28_410, "{after}");
    assert_eq!(after["run"], before["run"]);
    assert_eq!((&after["app"]["hits"], &after["app"]["misses"]), (&1.into(), &2.into()));
}

#[tokio::test]
async fn the_load_of_a_real_node_is_that_of_the_machine() {
    let running = TestNode::with_directory(|root| write_file(&root.join("a"), "a", HOUR), |_| {}).await;
    let counters: LoadCounters = running.node.load_counters();
    assert_eq!(counters.cpu_from, DeviceSource::Machine);
    assert_eq!(Some(counters.cpu_busy_us), counters.machine_cpu_us);
    assert!(counters.process_cpu_us.is_some_and(|us| us > 0));
    assert!(counters.memory_used < counters.memory_max);
    assert!(counters.page_faults.is_some());
}

#[tokio::test]
async fn reports_refuse_relayed_requests_and_other_methods() {
    let running = TestNode::with_model("1\t/a\n", fast_disk(), |_| {}).await;
    for path in ["/.larder/load", "/.larder/events"] {
        for field in ["Via: 1.1 larder\r\n", "X-Forwarded-For: 192.0.2.1\r\n", "Forwarded: for=x\r\n"] {
            let reply = running.client().await.get_with(path, field).await;
            assert_eq!((reply.status, reply.cache_status()), (404, "n; detail=denied"), "{path} {field}");
        }
        let reply = running.client().await.request("POST", path, "").await;
        assert_eq!((reply.status, reply.header("allow")), (405, "GET"), "{path}");
    }
    let running = TestNode::with_model("1\t/a\n", fast_disk(), |config| {
        config.report.load_path = None;
        config.report.events_path = None;
    })
    .await;
    for path in ["/.larder/load", "/.larder/events"] {
        assert_eq!(running.client().await.get(path).await.status, 404, "{path}");
    }
}

const OWN_PATHS: [&str; 4] = ["/.larder/load", "/.larder/events", "/.larder/stats", "/.larder/health"];

const PURGE_PATH: &str = "/.larder/purge";

fn all_paths(config: &mut NodeConfig) {
    config.stats_path = Some("/.larder/stats".to_owned());
}

#[tokio::test]
async fn own_paths_are_not_for_addresses_that_are_not_listed() {
    let listed = |list: &[&str]| {
        let ranges = list.iter().map(|range| range.parse().unwrap());
        AddressRanges(ranges.collect())
    };
    let unlisted = TestNode::with_model("1\t/a\n", fast_disk(), |config| {
        all_paths(config);
        config.report.from = listed(&["192.0.2.0/24"]);
    })
    .await;
    for path in &OWN_PATHS[..3] {
        let reply = unlisted.client().await.get(path).await;
        assert_eq!((reply.status, reply.cache_status()), (404, "n; detail=denied"), "{path}");
    }
    assert_eq!(unlisted.client().await.get("/.larder/health").await.status, 200);
    assert_eq!(unlisted.node.stats().own_paths_denied, 3);
    assert_eq!(unlisted.node.stats().requests, 0);
    let relay = TestNode::with_model("1\t/a\n", fast_disk(), |config| {
        all_paths(config);
        config.report.from = listed(&[]);
        config.entry.trusted_relays = listed(&["127.0.0.1"]);
    })
    .await;
    for path in [OWN_PATHS[0], OWN_PATHS[2], OWN_PATHS[3]] {
        assert_eq!(relay.client().await.get(path).await.status, 200, "{path}");
    }
}

/// The connection's peer is the client, and its address may be a listed one.
#[tokio::test]
async fn own_paths_are_not_for_clients_of_handed_over_connections() {
    for by_socket in [false, true] {
        let files = tempfile::tempdir().unwrap();
        let stub = Stub::start(|_| StubReply::new(200, "", "the origin's")).await;
        let url = format!("http://{}", stub.address).parse().unwrap();
        let mut config = NodeConfig::new("n", StoreConfig::Origin(Box::new(OriginConfig::new(url))));
        all_paths(&mut config);
        let services = |address| if by_socket { Vec::new() } else { vec![address] };
        let handoffs = |address| IncomingHandoffs { services: services(address), ..IncomingHandoffs::none() };
        let running = TestNode::start_with_handoffs(config, files, handoffs).await;
        for path in OWN_PATHS.into_iter().chain([PURGE_PATH]) {
            let reply = if by_socket {
                let request = format!("GET {path} HTTP/1.1\r\nHost: n\r\n\r\n");
                let (mut client, restored) =
                    super::handoffs::restored_connection(request.as_bytes(), b"").await;
                running.handoffs.send(restored).await.unwrap();
                client.read_reply(false).await
            } else {
                running.client().await.get(path).await
            };
            assert_eq!((reply.status, reply.cache_status()), (404, "n; detail=denied"), "{path} {by_socket}");
        }
        assert!(stub.requests().is_empty(), "the paths are not the origin's");
        assert_eq!(running.node.stats().own_paths_denied, 5);
    }
}

#[tokio::test]
async fn a_subscriber_gets_the_cached_targets_and_then_the_changes() {
    // The memory has room for two of the three targets.
    let manifest = "1000\t/a\n1000\t/b\n1000\t/c\n1000\t/d\n";
    let running =
        TestNode::with_model(manifest, fast_disk(), |config| config.cache.bytes = Bytes(2_100)).await;
    get_with_id(&running, "/b", 0xb).await;
    get_with_id(&running, "/a", 0xa).await;
    let mut lines = EventLines::open(&running).await;
    let first = lines.next().await.unwrap();
    assert_eq!((&first["snapshot"]["node"], &first["snapshot"]["targets"]), (&"n".into(), &2.into()));
    assert_eq!(lines.next_event().await, event("held", 0xb), "the one stored first comes first");
    assert_eq!(lines.next_event().await, event("held", 0xa));
    assert_eq!(lines.next_event().await.0, "live");
    get_with_id(&running, "/c", 0xc).await;
    let gone = lines.next_event().await;
    assert!(gone == event("evicted", 0xa) || gone == event("evicted", 0xb), "{gone:?}");
    assert_eq!(lines.next_event().await, event("stored", 0xc));
    // The object has no id, so it is left out. The targets that are evicted for it are reported.
    assert_eq!(running.client().await.get("/d").await.status, 200);
    assert_eq!(lines.next_event().await.0, "evicted");
    let active = get_load(&running).await["active"].as_u64();
    assert_eq!(active, Some(0), "a subscriber is no request for contents");
}

/// A client that connects directly could falsify the switches' knowledge.
#[tokio::test]
async fn on_handed_off_connections_only_a_front_end_sets_the_target_id() {
    let running = TestNode::with_model("1000\t/a\n", fast_disk(), |_| {}).await;
    let request = format!("GET /a HTTP/1.1\r\nHost: n\r\nLarder-Target: {:016x}\r\n\r\n", 0xa);
    let (mut client, restored) = super::handoffs::restored_connection(request.as_bytes(), b"").await;
    running.handoffs.send(restored).await.unwrap();
    assert_eq!(client.read_reply(false).await.status, 200);
    running.wait_until(|stats| stats.cache_objects == 1).await;
    let mut lines = EventLines::open(&running).await;
    assert_eq!(
        (lines.next_event().await.0, lines.next_event().await.0),
        ("snapshot".to_owned(), "live".to_owned())
    );
}

#[tokio::test]
async fn an_object_in_chunks_is_cached_while_any_chunk_is() {
    let manifest = "200000\t/long\n60000\t/a\n60000\t/b\n60000\t/c\n";
    let running = TestNode::with_model(manifest, fast_disk(), |config| {
        set_small_chunks(config);
        config.cache.bytes = Bytes(210_000);
    })
    .await;
    let mut lines = EventLines::open(&running).await;
    assert_eq!(
        (lines.next_event().await.0, lines.next_event().await.0),
        ("snapshot".to_owned(), "live".to_owned())
    );
    get_with_id(&running, "/long", 1).await;
    assert_eq!(lines.next_event().await, event("stored", 1), "once, not for each of its chunks");
    for (path, id) in [("/a", 2), ("/b", 3), ("/c", 4)] {
        get_with_id(&running, path, id).await;
    }
    let mut seen = Vec::new();
    while seen.len() < 3 || !seen.contains(&event("stored", 4)) {
        seen.push(lines.next_event().await);
    }
    let evictions = seen.iter().filter(|line| **line == event("evicted", 1)).count();
    assert!(evictions <= 1, "{seen:?}");
}

#[tokio::test]
async fn subscribers_are_bounded_and_end_with_the_node() {
    let mut running = TestNode::with_model("1\t/a\n", fast_disk(), |config| {
        config.report.subscribers_max = 1;
        config.report.heartbeat = Duration::from_millis(100);
    })
    .await;
    let mut lines = EventLines::open(&running).await;
    assert_eq!(lines.next_event().await.0, "snapshot");
    let refused = running.client().await.get("/.larder/events").await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, "1"));
    assert_eq!(refused.cache_status(), "n; detail=subscribers-full");
    assert_eq!(lines.next_event().await.0, "live");
    let mut beat = String::new();
    while !beat.starts_with("{\"beat\":2") {
        beat.clear();
        assert_ne!(lines.0.stream.read_line(&mut beat).await.unwrap(), 0, "the stream goes on");
    }
    running.shut_down();
    assert_eq!(lines.next_event().await, ("cut".to_owned(), "shutdown".to_owned()));
    assert_eq!(lines.next().await, None);
    drop(lines);
    assert_eq!(running.wait_for_end().await.aborted, 0, "a stream does not hold the shutdown up");
}

#[tokio::test]
async fn a_subscriber_that_leaves_makes_room() {
    let running = TestNode::with_model("1\t/a\n2\t/b\n", fast_disk(), |config| {
        config.report.subscribers_max = 1;
    })
    .await;
    let lines = EventLines::open(&running).await;
    running.wait_until(|stats| stats.in_flight == 1).await;
    drop(lines);
    running.wait_until(|stats| stats.connections == 0).await;
    let mut lines = EventLines::open(&running).await;
    assert_eq!(lines.next_event().await.0, "snapshot");
    assert_eq!(running.node.stats().aborted, 0, "leaving is how a stream ends");
}
