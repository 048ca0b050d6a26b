//! Nodes among peers: two nodes in this process.

use super::replies::assert_metrics_are_listed;
use super::stub::{Framing, Stub, StubReply};
use super::{HOUR, TestNode, pattern, write_file};
use larder_core::Bytes;
use larder_core::peers::{PressSettings, SharingSettings};
use larder_node::{CooperateConfig, CooperatePolicy};
use larder_peers::{ClusterSecrets, PeersConfig, Seed};
use larder_testkit::eventually_async;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// Lets a node join the peers at `seeds`. Returns the address at which it listens for peers.
async fn join(running: &TestNode, name: &str, seeds: &[SocketAddr], sharing: SharingSettings) -> SocketAddr {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    fs::write(&key, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listen = SocketAddr::new(listen.ip(), larder_testkit::free_port());
    let mut network = PeersConfig::new(name.parse().unwrap(), listen, ClusterSecrets::load(&key).unwrap());
    network.seeds = seeds.iter().map(|seed| seed.to_string().parse::<Seed>().unwrap()).collect();
    let press = PressSettings { memory: Bytes(20_000), sharing, ..PressSettings::default() };
    let config = CooperateConfig {
        network,
        policy: CooperatePolicy::Press(press),
        head_timeout: Duration::from_secs(5),
        peer_handoff: None,
    };
    running.node.join_peers(config).await.unwrap();
    listen
}

async fn wait_until(event: &str, wanted: impl Fn() -> bool) {
    eventually_async(event, || wanted().then_some(())).await;
}

/// Makes two nodes peers, `a` and `b`, and waits until they know each other.
pub(crate) async fn join_both(a: &TestNode, b: &TestNode) {
    let address = join(a, "a", &[], ALWAYS).await;
    join(b, "b", &[address], ALWAYS).await;
    wait_until("they know each other", || {
        [a, b].iter().all(|node| {
            let view = node.node.peers().unwrap();
            view.members.first().is_some_and(|member| member.known && member.load.is_some())
        })
    })
    .await;
}

const ALWAYS: SharingSettings =
    SharingSettings { on_permille: 0, off_permille: 0, off_windows: 1, window: 100 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_a_peer_is_not_sent_to_the_client() {
    let node = async |name: &'static str| {
        let fill = |root: &Path| write_file(&root.join("x"), pattern(1_000), HOUR);
        TestNode::with_directory(fill, |config| config.name = name.to_owned()).await
    };
    let (a, b) = (node("a").await, node("b").await);
    join_both(&a, &b).await;
    assert_eq!(a.client().await.get("/x").await.status, 200);
    wait_until("b knows what a has", || b.node.peers().unwrap().targets_known == 1).await;
    assert_eq!(b.client().await.get("/x").await.cache_status(), "a; hit");
    // The node shuts down, and its network does not know yet.
    let watch = std::sync::Arc::downgrade(&a.node);
    drop(a);
    wait_until("it ends", || watch.strong_count() == 0).await;
    let reply = b.client().await.get("/x").await;
    assert_eq!((reply.status, &reply.body), (200, &pattern(1_000)));
    assert_eq!(reply.header("larder-refused"), "");
    let view = b.node.peers().unwrap();
    assert_eq!((view.decisions["peer"], view.decisions["unanswered"]), (2, 1), "{view:?}");
    assert_eq!(b.client().await.get("/x").await.cache_status(), "b; hit");
    // Every number is exported once.
    let text = b.node.metrics_text();
    assert_metrics_are_listed(&text);
    let numbers = serde_json::to_value(view.network).unwrap();
    let names = numbers.as_object().unwrap().keys().filter(|name| !name.starts_with("requests_"));
    for name in names.map(String::as_str).chain(["forwarded", "taken", "requests_unsent", "requests_lost"]) {
        let name = format!("larder_node_peers_{name}");
        let line = |line: &&str| line.strip_prefix(&name).is_some_and(|rest| rest.starts_with(['{', '_']));
        assert!(text.lines().any(|text| line(&text)), "{name} in\n{text}");
    }
    assert!(text.contains("larder_node_peers_decisions_total{node=\"b\",why=\"unanswered\"} 1"), "{text}");
    assert!(text.contains("larder_node_requests_total") && text.matches("# EOF").count() == 1, "{text}");
    assert!(b.node.leave_peers().await);
}

/// A node serves an origin's replies for its peers, whatever they say about the origin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_origin_cannot_impersonate_a_peer() {
    let head = "Cache-Control: max-age=1000\r\nlarder-refused: 1\r\n";
    let stub =
        Stub::start(move |_: &super::stub::StubRequest| StubReply::new(200, head, pattern(1_000))).await;
    let node = async |name: &'static str| stub.node(|_, config| config.name = name.to_owned()).await;
    let (a, b) = (node("a").await, node("b").await);
    join_both(&a, &b).await;
    assert_eq!(a.client().await.get("/x").await.status, 200);
    wait_until("b knows what a has", || b.node.peers().unwrap().targets_known == 1).await;
    for _ in 0..2 {
        let reply = b.client().await.get("/x").await;
        assert_eq!((reply.status, reply.cache_status()), (200, "a; hit; ttl=1000"));
    }
    let view = b.node.peers().unwrap();
    assert_eq!((view.decisions["peer"], view.decisions["unanswered"]), (2, 0), "{view:?}");
}

/// A peer creates the partial reply, and the node that the client asked passes it on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_a_peer_serves_has_no_digest_of_the_whole() {
    let head = "Cache-Control: max-age=1000\r\nx-amz-checksum-crc32: AA==\r\nRepr-Digest: sha-256=:AA==:\r\n";
    let stub =
        Stub::start(move |_: &super::stub::StubRequest| StubReply::new(200, head, pattern(1_000))).await;
    let node = async |name: &'static str| stub.node(|_, config| config.name = name.to_owned()).await;
    let (a, b) = (node("a").await, node("b").await);
    join_both(&a, &b).await;
    assert_eq!(a.client().await.get("/x").await.header("x-amz-checksum-crc32"), "AA==");
    wait_until("b knows what a has", || b.node.peers().unwrap().targets_known == 1).await;
    let part = b.client().await.get_with("/x", "Range: bytes=10-19\r\n").await;
    assert_eq!((part.status, &part.body[..]), (206, &pattern(1_000)[10..20]));
    assert_eq!(part.cache_status(), "a; hit; ttl=1000");
    assert_eq!((part.header("x-amz-checksum-crc32"), part.header("repr-digest")), ("", "sha-256=:AA==:"));
}

/// A missing slot at the origin is the serving node's own fault. The node that asked it then asks the origin
/// itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peers_refusal_of_an_origin_slot_is_not_a_reply() {
    let held = super::stub::gate();
    let hold = std::sync::Arc::clone(&held);
    let stub = Stub::start(move |request: &super::stub::StubRequest| match &*request.line {
        "GET /held HTTP/1.1" => StubReply::new(200, "Cache-Control: no-store\r\n", "late").gate_head(&hold),
        // The reply is stored and validated at each use.
        _ => StubReply::new(200, "Cache-Control: no-cache\r\nETag: \"1\"\r\n", pattern(1_000)),
    })
    .await;
    let node = async |name: &'static str| {
        stub.node(|origin, config| {
            origin.requests_max = 1;
            config.name = name.to_owned();
        })
        .await
    };
    let (a, b) = (node("a").await, node("b").await);
    join_both(&a, &b).await;
    assert_eq!(a.client().await.get("/x").await.status, 200);
    wait_until("b knows what a has", || b.node.peers().unwrap().targets_known == 1).await;
    let mut holder = a.client().await;
    holder.send(b"GET /held HTTP/1.1\r\nHost: n\r\n\r\n").await;
    stub.wait_for_requests(2).await;
    assert_eq!(a.client().await.get("/x").await.status, 503, "it has no place left");
    let reply = b.client().await.get("/x").await;
    assert_eq!((reply.status, &reply.body), (200, &pattern(1_000)), "{}", reply.cache_status());
    let view = b.node.peers().unwrap();
    assert_eq!((view.decisions["peer"], view.decisions["unanswered"]), (1, 1), "{view:?}");
    held.add_permits(1);
}

/// The policy uses the size after the whole body, whether the length was known before or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_without_a_length_updates_the_policy() {
    let answer = |_: &super::stub::StubRequest| {
        StubReply::new(200, "Cache-Control: max-age=1000\r\n", pattern(1_000)).with_framing(Framing::Chunked)
    };
    let stub = Stub::start(answer).await;
    let node = stub.node(|_, config| config.cache.bytes = Bytes(20_000)).await;
    let sharing = SharingSettings { on_permille: 500, off_permille: 400, off_windows: 1, window: 50 };
    join(&node, "n", &[], sharing).await;
    let mut client = node.client().await;
    for target in 0..49 {
        assert_eq!(client.get(&format!("/{target}")).await.body, pattern(1_000));
    }
    // HEAD takes nothing from memory.
    for target in 0..10 {
        assert_eq!(client.request("HEAD", &format!("/other{target}"), "").await.status, 200);
    }
    assert!(!node.node.peers().unwrap().sharing);
    assert_eq!(client.get("/last").await.status, 200);
    wait_until("it takes part", || node.node.peers().unwrap().sharing).await;
    assert!(node.node.leave_peers().await);
}

/// A target that does not exist is announced as being read only until its absence is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_object_is_withdrawn_at_once() {
    let node = async |name: &'static str| {
        let fill = |root: &Path| write_file(&root.join("x"), pattern(1_000), HOUR);
        TestNode::with_directory(fill, |config| config.name = name.to_owned()).await
    };
    let (a, b) = (node("a").await, node("b").await);
    join_both(&a, &b).await;
    let mut client = a.client().await;
    for target in 0..20 {
        assert_eq!(client.get(&format!("/none{target}")).await.status, 404);
        assert_eq!(a.node.peers().unwrap().targets_held, 0);
    }
    assert_eq!(client.get("/x").await.status, 200);
    wait_until("b knows what a has, and nothing else", || b.node.peers().unwrap().targets_known == 1).await;
    assert_eq!(a.node.peers().unwrap().decisions["first"], 21);
}

/// A preloaded target has the id that requests use, at this node and at the peer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_are_informed_of_preloaded_targets() {
    let node = async |name: &'static str, loaded: larder_node::Preload| {
        TestNode::with_model("2000\t/a\n3000\t/b?x=1\n", super::fast_disk(), |config| {
            config.name = name.to_owned();
            let larder_node::StoreConfig::Model(model) = &mut config.store else { panic!("it is modelled") };
            model.preload = loaded;
        })
        .await
    };
    let (a, b) =
        (node("a", larder_node::Preload::Shared).await, node("b", larder_node::Preload::Nothing).await);
    join_both(&a, &b).await;
    wait_until("b knows what a has", || b.node.peers().unwrap().targets_known == 2).await;
    assert_eq!(a.client().await.get("/b?x=1").await.cache_status(), "a; hit");
    assert_eq!(b.client().await.get("/a").await.cache_status(), "a; hit");
    let view = |node: &TestNode| node.node.peers().unwrap().decisions;
    assert_eq!((view(&a)["here"], view(&b)["peer"]), (1, 1));
}
