//! Clients that ask on and on, while something happens to the cluster: every GET has to be answered whole.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::http::Client;
use crate::process::until;

/// `/t0` to one below this are there.
pub const TARGETS: u64 = 300;
const BYTES: usize = 1_000;
const CLIENTS: u64 = 8;

/// A manifest of the crowd's targets, in this folder.
pub fn manifest(folder: &Path) -> PathBuf {
    let path = folder.join("manifest.tsv");
    let text = (0..TARGETS).fold(String::new(), |mut text, i| {
        let _ = writeln!(text, "{BYTES}\t/t{i}");
        text
    });
    std::fs::write(&path, text).unwrap();
    path
}

/// What one client has seen: replies by node, and failures in words.
type Seen = (BTreeMap<String, u64>, Vec<String>);

pub struct Crowd {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Seen>>,
}

impl Crowd {
    pub fn start(address: SocketAddr) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |number: u64| {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            thread::spawn(move || ask_on(address, number, &stop, &done))
        };
        let clients = (0..CLIENTS).map(client).collect();
        Self { stop, done, clients }
    }

    /// Waits for so many more replies.
    pub fn more(&self, count: u64) {
        let from = self.done.load(Ordering::Relaxed);
        until("requests are answered", || (self.done.load(Ordering::Relaxed) >= from + count).then_some(()));
    }

    /// Ends, if nothing has failed; replies by node.
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

fn ask_on(address: SocketAddr, number: u64, stop: &AtomicBool, done: &AtomicU64) -> Seen {
    let (mut nodes, mut failures) = Seen::default();
    let mut connection = Client::connect(address).unwrap();
    for i in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let target = format!("/t{}", (i * 7 + number * 37) % TARGETS);
        match connection.ask("GET", &target, "") {
            Ok(reply) if reply.status == 200 && reply.body.len() == BYTES => {
                *nodes.entry(reply.node_and_hit().0).or_default() += 1;
                // Who is told that a connection ends does not ask on it again.
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
