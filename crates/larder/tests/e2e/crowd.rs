//! Clients that send requests continuously while the cluster changes. Every GET must be answered completely.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::http::Client;
use crate::process::until;

/// Targets `/t0` to `/t299` exist.
pub const TARGETS: u64 = 300;
const BYTES: usize = 1_000;
const CLIENTS: u64 = 8;

/// Writes a manifest of the crowd's targets to a folder.
pub fn manifest(folder: &Path) -> PathBuf {
    let path = folder.join("manifest.tsv");
    let text = (0..TARGETS).fold(String::new(), |mut text, i| {
        let _ = writeln!(text, "{BYTES}\t/t{i}");
        text
    });
    std::fs::write(&path, text).unwrap();
    path
}

/// Results of one client: replies by node, and descriptions of failures.
type ClientResult = (BTreeMap<String, u64>, Vec<String>);

pub struct Crowd {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    clients: Vec<JoinHandle<ClientResult>>,
}

impl Crowd {
    pub fn start(address: SocketAddr) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |number: u64| {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            thread::spawn(move || run_client(address, number, &stop, &done))
        };
        let clients = (0..CLIENTS).map(client).collect();
        Self { stop, done, clients }
    }

    /// Waits for this number of further replies.
    pub fn more(&self, count: u64) {
        let from = self.done.load(Ordering::Relaxed);
        until("requests are answered", || (self.done.load(Ordering::Relaxed) >= from + count).then_some(()));
    }

    /// Stops the clients and returns the replies by node. Fails if a request failed.
    pub fn end(self) -> BTreeMap<String, u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut replies = BTreeMap::<String, u64>::new();
        for client in self.clients {
            let (nodes, failures) = client.join().unwrap();
            assert!(failures.is_empty(), "{failures:?}");
            for (node, count) in nodes {
                *replies.entry(node).or_default() += count;
            }
        }
        replies
    }
}

fn run_client(address: SocketAddr, number: u64, stop: &AtomicBool, done: &AtomicU64) -> ClientResult {
    let (mut nodes, mut failures) = ClientResult::default();
    let mut connection = Client::connect(address).unwrap();
    for i in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let target = format!("/t{}", (i * 7 + number * 37) % TARGETS);
        match connection.ask("GET", &target, "") {
            Ok(reply) if reply.status == 200 && reply.body.len() == BYTES => {
                *nodes.entry(reply.node_and_hit().0).or_default() += 1;
                // The client does not reuse a connection that the server announced to close.
                if reply.header("connection") == Some("close") {
                    connection = Client::connect(address).unwrap();
                }
            }
            Ok(reply) => failures.push(format!("{target}: {}", reply.head)),
            Err(error) => {
                failures.push(format!("{target}: {error}"));
                connection = Client::connect(address).unwrap();
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    (nodes, failures)
}
