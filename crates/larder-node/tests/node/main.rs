//! The node over real sockets on loopback.
//!
//! No test asserts that something is fast: where a test waits, it waits for a state, and only a hang fails it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failing helper fails its test")]

mod access_log;
mod at_once;
mod client;
mod cooperate;
mod dynamic;
mod files;
mod handed;
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
mod preload;
mod purge;
mod replies;
mod report;
mod sharing;
mod signature;
mod stub;

use larder_core::Bytes;
use larder_handoff::agent::RestoredConnection;
use larder_node::{DiskModel, Drained, Handed, Node, NodeConfig, NodeError, NodeStats, StoreConfig};
use larder_testkit::eventually_async;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A node that serves on a free port of loopback until it is stopped or dropped.
struct Running {
    node: Arc<Node>,
    address: SocketAddr,
    /// Takes connections that a front-end has handed over.
    hand: mpsc::Sender<RestoredConnection>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<Drained, NodeError>>,
    /// Holds the store's files.
    _files: tempfile::TempDir,
}

impl Running {
    async fn start(config: NodeConfig, files: tempfile::TempDir) -> Self {
        Self::start_handed(config, files, |_| Handed::none()).await
    }

    /// `handed` says how connections to the node's address are handed over. The node has one thread unless the test says otherwise: a
    /// request that a test sees counted has come to its next wait before another one is served.
    async fn start_handed(
        mut config: NodeConfig,
        files: tempfile::TempDir,
        handed: impl FnOnce(SocketAddr) -> Handed,
    ) -> Self {
        config.threads = config.threads.max(1);
        let node = Node::new(config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (hand, restored) = mpsc::channel(16);
        let handed = Handed { restored, ..handed(address) };
        let task = tokio::spawn(Arc::clone(&node).serve_with(listener, handed, async move {
            let _ = stopped.await;
        }));
        Self { node, address, hand, stop: Some(stop), task, _files: files }
    }

    /// A node before a directory that `fill` fills, after `set` has changed its configuration.
    async fn directory(fill: impl FnOnce(&Path), set: impl FnOnce(&mut NodeConfig)) -> Self {
        let files = tempfile::tempdir().unwrap();
        let root = files.path().join("root");
        fs::create_dir(&root).unwrap();
        fill(&root);
        let mut config = NodeConfig::new("n", StoreConfig::Directory { root, bypass_page_cache: false });
        set(&mut config);
        Self::start(config, files).await
    }

    /// A node before a modelled store with the targets of `manifest`.
    async fn model(manifest: &str, disk: DiskModel, set: impl FnOnce(&mut NodeConfig)) -> Self {
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("manifest");
        fs::write(&path, manifest).unwrap();
        let mut config = NodeConfig::new(
            "n",
            StoreConfig::Model {
                manifest: path,
                disk,
                processor: None,
                preload: larder_node::Preload::Nothing,
            },
        );
        set(&mut config);
        Self::start(config, files).await
    }

    fn root(&self) -> std::path::PathBuf {
        self._files.path().join("root")
    }

    async fn client(&self) -> client::Client {
        client::Client::connect(self.address).await
    }

    /// Waits until the counts are as wanted.
    async fn until(&self, wanted: impl Fn(&NodeStats) -> bool) -> NodeStats {
        let event = std::fmt::from_fn(|f| write!(f, "the wanted counts, not {:?}", self.node.stats()));
        eventually_async(event, || Some(self.node.stats()).filter(&wanted)).await
    }

    fn shut_down(&mut self) {
        drop(self.stop.take());
    }

    async fn ended(self) -> Drained {
        tokio::time::timeout(PATIENCE, self.task).await.expect("serving ends").unwrap().unwrap()
    }
}

/// A disk that takes next to no time.
fn quick() -> DiskModel {
    DiskModel { speed: 100_000.0, ..DiskModel::default() }
}

/// Writes a file and dates its last change back, so that the node takes its validators as settled.
fn settled(path: &Path, contents: impl AsRef<[u8]>, age: Duration) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

const HOUR: Duration = Duration::from_secs(3_600);

/// Contents that show where they come from.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn small_chunks(config: &mut NodeConfig) {
    config.cache.chunk = Bytes::kib(64);
}
