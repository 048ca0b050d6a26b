//! Later requests of handed-off connections, with a simulated switch.

use super::client::{Client, Reply};
use super::{PATIENCE, TestNode, fast_disk};
use larder_handoff::agent::HolderResolver;
use larder_handoff::channel::holders::{Holder, HolderReply, RequestSummary};
use larder_node::{DiskModel, IncomingHandoffs, LateralConfig, ModelConfig, NodeConfig, StoreConfig};
use larder_testkit::{eventually_async, free_port, take_time_async};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A disk that takes 28 s for a small file: busy for longer than any test takes.
fn stuck_disk() -> DiskModel {
    DiskModel { speed: 0.001, ..DiskModel::default() }
}

/// Makes any disk count as busy. Reads under way would have to last until the request comes, and must end soon for the
/// reply to be read.
fn always_busy(lateral: &mut LateralConfig) {
    lateral.costs.disk_low = 0;
}

const MANIFEST: &str = "10\t/1\n10\t/2\n10\t/3\n10\t/4\n10\t/5\n30000\t/wanted\n10\t/other\n";

/// Two nodes. The connections of the first node count as handed off.
struct Pair {
    here: TestNode,
    there: TestNode,
    /// The questions that the switch received.
    lookups: Arc<Mutex<Vec<RequestSummary>>>,
}

impl Pair {
    /// Starts both nodes. `answer` is the switch's answer, given the other node's address; `None` sends no
    /// answer.
    async fn new(
        disk: DiskModel,
        answer: impl Fn(SocketAddr) -> Option<HolderReply> + Send + 'static,
        set: impl FnOnce(&mut LateralConfig),
    ) -> Self {
        let there =
            TestNode::with_model(MANIFEST, fast_disk(), |config| config.name = "there".to_owned()).await;
        let (resolver, mut queries) = HolderResolver::new();
        let (lookups, address) = (Arc::new(Mutex::new(Vec::new())), there.address);
        let recorded = Arc::clone(&lookups);
        tokio::spawn(async move {
            while let Some(query) = queries.recv().await {
                recorded.lock().unwrap().push(query.request);
                match answer(address) {
                    // The node may have given up waiting.
                    Some(holder_reply) => drop(query.answer.send(holder_reply)),
                    None => take_time_async(Duration::from_millis(20)).await,
                }
            }
        });
        let mut lateral = LateralConfig::new(resolver);
        // The test must not depend on the machine's load.
        lateral.wait = PATIENCE;
        set(&mut lateral);
        let files = tempfile::tempdir().unwrap();
        let manifest = files.path().join("manifest");
        std::fs::write(&manifest, MANIFEST).unwrap();
        let store = StoreConfig::Model(ModelConfig { disk, ..ModelConfig::new(manifest) });
        let mut config = NodeConfig::new("here", store);
        config.health_path = Some("/health".to_owned());
        let handoffs = |address| IncomingHandoffs {
            services: vec![address],
            lateral: Some(lateral),
            ..IncomingHandoffs::none()
        };
        let here = TestNode::start_with_handoffs(config, files, handoffs).await;
        Self { here, there, lookups }
    }

    /// Gives the first node's disk five reads, by the first requests of new connections.
    async fn start_reads(&self) -> Vec<Client> {
        let mut clients = Vec::new();
        for path in 1..=5 {
            let mut client = self.here.client().await;
            client.send(format!("GET /{path} HTTP/1.1\r\nHost: n\r\n\r\n").as_bytes()).await;
            clients.push(client);
        }
        self.here.wait_until(|stats| stats.store_reading == 5).await;
        clients
    }

    /// Opens a connection that has had its first request.
    async fn used_connection(&self) -> Client {
        let mut client = self.here.client().await;
        // The health path is refused on a handed-off connection, and takes nothing from the disk.
        assert_eq!(client.get("/health").await.status, 404);
        client
    }

    fn lookups(&self) -> usize {
        self.lookups.lock().unwrap().len()
    }

    /// Returns the counts of later requests at the first node: served, fetched, unknown, failed.
    fn later_counts(&self) -> [u64; 4] {
        let stats = self.here.node.stats();
        [stats.later_served, stats.later_fetched, stats.later_unknown, stats.later_failed]
    }

    async fn assert_same(&self, path: &str, reply: &Reply) {
        let expected = self.there.client().await.get(path).await;
        assert!(reply.status == 200 && reply.body == expected.body && !reply.body.is_empty());
        assert_eq!(reply.header("etag"), expected.header("etag"));
    }
}

fn holder_reply(here: bool, holder: Option<SocketAddr>) -> Option<HolderReply> {
    let holders = holder.map(|address| Holder { node: 3, address, load: 1 }).into_iter().collect();
    Some(HolderReply { id: 0, target: Some(0xABCD), is_holder: here, load: 1, holders })
}

#[tokio::test]
async fn a_busy_node_fetches_from_the_peer_with_the_object_and_stores_nothing() {
    let pair =
        Pair::new(stuck_disk(), |there| holder_reply(false, Some(there)), |lateral| lateral.age = PATIENCE)
            .await;
    let warm = pair.there.client().await.get("/wanted").await;
    assert_eq!(warm.status, 200);
    let mut client = pair.used_connection().await;
    let _busy = pair.start_reads().await;
    for _ in 0..3 {
        let reply = client.get("/wanted").await;
        // The first of two members: caches nearer to the contents come first.
        assert_eq!((reply.cache_status(), reply.header("via")), ("there; hit", "1.1 here"));
        pair.assert_same("/wanted", &reply).await;
    }
    let part = client.get_with("/wanted", "Range: bytes=5-9\r\n").await;
    assert_eq!((part.status, &part.body[..]), (206, &warm.body[5..10]));
    assert_eq!(
        (pair.later_counts(), pair.lookups()),
        ([0, 4, 0, 0], 1),
        "asked once, for the answer holds for a while"
    );
    let lookup = pair.lookups.lock().unwrap()[0].clone();
    assert_eq!((&*lookup.method, &*lookup.host, &*lookup.target), ("GET", "n", "/wanted"));
    // The other node serves the fetch like any request, and does not count it as a later request.
    assert_eq!(pair.there.node.stats().later_served, 0);
}

#[tokio::test]
async fn a_node_with_an_idle_disk_serves_and_stores_without_a_lookup() {
    let pair = Pair::new(fast_disk(), |there| holder_reply(false, Some(there)), |_| {}).await;
    let mut client = pair.used_connection().await;
    assert_eq!(client.get("/wanted").await.cache_status(), "here; fwd=uri-miss; stored");
    assert_eq!(client.get("/wanted").await.cache_status(), "here; hit");
    assert_eq!((pair.later_counts(), pair.lookups()), ([2, 0, 0, 0], 0));
}

#[tokio::test]
async fn first_requests_heads_bodies_and_lateral_requests_are_served_locally() {
    let pair = Pair::new(fast_disk(), |there| holder_reply(false, Some(there)), always_busy).await;
    let mut client = pair.used_connection().await;
    assert_eq!(client.request("HEAD", "/wanted", "").await.header("content-length"), "30000");
    client.send(b"GET /other HTTP/1.1\r\nHost: n\r\nLarder-Lateral: 1\r\n\r\n").await;
    let mut bodied = pair.used_connection().await;
    bodied.send(b"GET /wanted HTTP/1.1\r\nHost: n\r\nContent-Length: 1\r\n\r\nx").await;
    let mut first = pair.here.client().await;
    first.send(b"GET /wanted HTTP/1.1\r\nHost: n\r\n\r\n").await;
    for client in [&mut client, &mut bodied, &mut first] {
        assert_eq!(client.read_reply(false).await.status, 200);
    }
    assert_eq!((pair.later_counts(), pair.lookups()), ([3, 0, 0, 0], 0));
}

#[tokio::test]
async fn objects_mapped_to_the_node_are_stored_even_with_a_busy_disk() {
    let pair = Pair::new(fast_disk(), |_| holder_reply(true, None), always_busy).await;
    let mut client = pair.used_connection().await;
    assert_eq!(client.get("/wanted").await.cache_status(), "here; fwd=uri-miss; stored");
    assert_eq!((pair.later_counts(), pair.lookups()), ([1, 0, 0, 0], 1));
}

#[tokio::test]
async fn without_an_answer_of_the_front_end_the_node_serves_itself() {
    for silent in [false, true] {
        let answer = move |_| if silent { None } else { holder_reply(false, None) };
        let pair = Pair::new(fast_disk(), answer, |lateral| {
            always_busy(lateral);
            if silent {
                lateral.wait = Duration::from_millis(2);
            }
        })
        .await;
        let mut client = pair.used_connection().await;
        let reply = client.get("/wanted").await;
        assert_eq!(reply.cache_status(), "here; fwd=uri-miss", "read and not kept: the disk is busy");
        pair.assert_same("/wanted", &reply).await;
        assert_eq!(pair.later_counts(), [0, 0, 1, 0], "silent: {silent}");
        // A silent front-end may receive the question after the node has given up.
        eventually_async("the question arrives", || (pair.lookups() == 1).then_some(())).await;
    }
}

#[tokio::test]
async fn an_unreachable_or_failing_peer_is_skipped() {
    let gone = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let other = TestNode::with_model("1\t/x\n", fast_disk(), |_| {}).await;
    for address in [gone, other.address] {
        let pair = Pair::new(fast_disk(), move |_| holder_reply(false, Some(address)), always_busy).await;
        let mut client = pair.used_connection().await;
        pair.assert_same("/wanted", &client.get("/wanted").await).await;
        assert_eq!(pair.later_counts(), [0, 0, 0, 1]);
    }
    assert_eq!(other.node.stats().client_errors, 1, "404");
}
