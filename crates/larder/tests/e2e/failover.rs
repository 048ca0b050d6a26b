//! A node is killed under load: no GET fails, its targets move, and it is used again after its return.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::http::{Client, get};
use crate::process::{Process, until};

const TARGETS: u64 = 300;
const CLIENTS: u64 = 8;

/// What one client has seen: replies by node, and failures in words.
type Seen = (BTreeMap<String, u64>, Vec<String>);

fn load(switch: &Process, stop: &Arc<AtomicBool>, done: &Arc<AtomicU64>) -> Vec<JoinHandle<Seen>> {
    (0..CLIENTS)
        .map(|client| {
            let (address, stop, done) = (switch.address, Arc::clone(stop), Arc::clone(done));
            thread::spawn(move || {
                let (mut nodes, mut failures) = Seen::default();
                let mut connection = Client::connect(address).unwrap();
                for i in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let target = format!("/t{}", (i * 7 + client * 37) % TARGETS);
                    match connection.ask("GET", &target, "") {
                        Ok(reply) if reply.status == 200 && reply.body.len() == 1_000 => {
                            *nodes.entry(reply.node_and_hit().0).or_default() += 1;
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
            })
        })
        .collect()
}

fn state(switch: &Process, name: &str) -> String {
    let nodes = get(switch.admin.unwrap(), "/nodes").json();
    let row = nodes.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
    row["state"].as_str().unwrap().to_owned()
}

#[test]
fn killing_a_node_under_load_fails_no_get() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("manifest.tsv");
    let mut text = String::new();
    for i in 0..TARGETS {
        writeln!(text, "1000\t/t{i}").unwrap();
    }
    std::fs::write(&manifest, text).unwrap();
    let mut nodes: Vec<Process> =
        ["a", "b", "c"].map(|name| Process::model_node(name, "127.0.0.1:0", &manifest)).into();
    let members: Vec<String> = nodes
        .iter()
        .zip(["a", "b", "c"])
        .map(|(node, name)| format!("--node={name}={}", node.address))
        .collect();
    let mut words = vec!["switch", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    words.extend(members.iter().map(String::as_str));
    let switch = Process::start(&words);

    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients = load(&switch, &stop, &done);
    let more = |count: u64| {
        let from = done.load(Ordering::Relaxed);
        until("requests are answered", || (done.load(Ordering::Relaxed) >= from + count).then_some(()));
    };
    more(1_000);
    let address = nodes[1].address.to_string();
    nodes[1].kill();
    until("the switch notices", || (state(&switch, "b") == "down").then_some(()));
    more(1_000);
    let moved = until("the targets have moved", || {
        let explained = get(switch.admin.unwrap(), "/explain?target=test/t1");
        (explained.status == 200).then(|| get(switch.address, "/t1").node_and_hit().0)
    });
    assert_ne!(moved, "b");

    nodes[1] = Process::model_node("b", &address, &manifest);
    until("the switch takes it back", || (state(&switch, "b") == "up").then_some(()));
    // A target never asked before goes to the least loaded node; the newcomer gets some of them.
    more(500);
    let back = until("the node is used again", || {
        let used = (0..TARGETS).any(|i| {
            get(switch.address, &format!("/t{i}?new"))
                .header("cache-status")
                .is_some_and(|status| status.starts_with('b'))
        });
        used.then_some(true)
    });
    assert!(back);
    stop.store(true, Ordering::Relaxed);
    let mut replies = BTreeMap::<String, u64>::new();
    for client in clients {
        let (nodes, failures) = client.join().unwrap();
        assert!(failures.is_empty(), "{failures:?}");
        for (node, count) in nodes {
            *replies.entry(node).or_default() += count;
        }
    }
    assert_eq!(replies.len(), 3, "all three nodes served: {replies:?}");
}
