//! Tests of the node over real sockets on loopback.
//!
//! No test asserts that something is fast. A test that waits, waits for a state, and only a hang makes it fail.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failing helper fails its test")]

mod access_log;
mod client;
mod cooperate;
mod files;
mod handoffs;
mod lateral;
mod limits;
mod origin;
mod origin_abuse;
mod origin_deadlines;
mod origin_failover;
mod origin_fields;
mod origin_interim;
mod origin_isolation;
mod origin_rfc;
mod origin_secure;
mod origin_shares;
mod origin_sharing;
mod origin_signed;
mod origin_tunnel;
mod plain_hits;
mod preload;
mod programs;
mod purge;
mod replies;
mod report;
mod sharing;
mod signature;
mod stub;

use larder_core::Bytes;
use larder_handoff::agent::RestoredConnection;
use larder_node::{
    DiskModel, DrainReport, IncomingHandoffs, ModelConfig, Node, NodeConfig, NodeError, NodeStats,
    StoreConfig,
};
use larder_testkit::eventually_async;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Longest time that a test waits for a state.
const PATIENCE: Duration = Duration::from_secs(20);

/// A node that serves on a free loopback port until it is stopped or dropped.
struct TestNode {
    node: Arc<Node>,
    address: SocketAddr,
    /// Sends connections that a switch has handed off.
    handoffs: mpsc::Sender<RestoredConnection>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<DrainReport, NodeError>>,
    /// Keeps the store's files.
    _files: tempfile::TempDir,
}

impl TestNode {
    async fn start(config: NodeConfig, files: tempfile::TempDir) -> Self {
        Self::start_with_handoffs(config, files, |_| IncomingHandoffs::none()).await
    }

    /// Starts a node. `handoffs` returns the handoffs for the node's address. The node has one thread unless the
    /// test sets another number. So a request that a test sees counted has reached its next wait before another
    /// one is served.
    async fn start_with_handoffs(
        mut config: NodeConfig,
        files: tempfile::TempDir,
        handoffs: impl FnOnce(SocketAddr) -> IncomingHandoffs,
    ) -> Self {
        config.threads = config.threads.max(1);
        let node = Node::new(config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stop_signal) = oneshot::channel::<()>();
        let (sender, restored) = mpsc::channel(16);
        let handoffs = IncomingHandoffs { restored, ..handoffs(address) };
        let task = tokio::spawn(Arc::clone(&node).serve_with(listener, handoffs, async move {
            let _ = stop_signal.await;
        }));
        Self { node, address, handoffs: sender, stop: Some(stop), task, _files: files }
    }

    /// Starts a node in front of a directory that `fill` fills. `set` changes its configuration first.
    async fn with_directory(fill: impl FnOnce(&Path), set: impl FnOnce(&mut NodeConfig)) -> Self {
        let files = tempfile::tempdir().unwrap();
        let root = files.path().join("root");
        fs::create_dir(&root).unwrap();
        fill(&root);
        let mut config = NodeConfig::new("n", StoreConfig::Directory { root, bypass_page_cache: false });
        set(&mut config);
        Self::start(config, files).await
    }

    /// Starts a node in front of a modelled store with the targets of `manifest`.
    async fn with_model(manifest: &str, disk: DiskModel, set: impl FnOnce(&mut NodeConfig)) -> Self {
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("manifest");
        fs::write(&path, manifest).unwrap();
        let store = StoreConfig::Model(ModelConfig { disk, ..ModelConfig::new(path) });
        let mut config = NodeConfig::new("n", store);
        set(&mut config);
        Self::start(config, files).await
    }

    fn root(&self) -> std::path::PathBuf {
        self._files.path().join("root")
    }

    async fn client(&self) -> client::Client {
        client::Client::connect(self.address).await
    }

    /// Waits until `wanted` accepts the counts.
    async fn wait_until(&self, wanted: impl Fn(&NodeStats) -> bool) -> NodeStats {
        let event = std::fmt::from_fn(|f| write!(f, "the wanted counts, not {:?}", self.node.stats()));
        eventually_async(event, || Some(self.node.stats()).filter(&wanted)).await
    }

    fn shut_down(&mut self) {
        drop(self.stop.take());
    }

    async fn wait_for_end(self) -> DrainReport {
        tokio::time::timeout(PATIENCE, self.task).await.expect("serving ends").unwrap().unwrap()
    }
}

/// Returns a disk that takes almost no time.
fn fast_disk() -> DiskModel {
    DiskModel { speed: 100_000.0, ..DiskModel::default() }
}

/// Writes a file and dates its last change back, so that its validators are strong.
fn write_file(path: &Path, contents: impl AsRef<[u8]>, age: Duration) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns contents that reveal their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn set_small_chunks(config: &mut NodeConfig) {
    config.cache.chunk = Bytes::kib(64);
}
