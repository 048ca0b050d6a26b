//! Key rotation in a running cluster. Nodes rotate their secret, and a node closes the channel of a switch
//! whose key is removed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use larder_handoff::channel::Timing;
use larder_handoff::channel::client::{ChannelEvent, EventKind, NodeAddress, NodeChannel};
use larder_handoff::channel::identity::Identity;
use larder_handoff::channel::message::{CookieKeys, Hello};
use larder_kernel::CookieKey;
use larder_testkit::eventually;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::http::{metrics, post};
use crate::peers::{PeerCluster, free_port};
use crate::process::{LARDER, Process};

/// Creates a secret and returns the text of its file.
fn secret(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    assert!(Command::new(LARDER).args(["keys", "new"]).arg(&path).status().unwrap().success());
    fs::read_to_string(path).unwrap()
}

/// Writes the cluster's secrets and reloads the nodes one after the other.
fn rotate(cluster: &PeerCluster, secrets: &str) {
    let (file, next) = (cluster.folder.path().join("cluster.key"), cluster.folder.path().join("next"));
    fs::write(&next, secrets).unwrap();
    fs::set_permissions(&next, PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(next, file).unwrap();
    for node in 0..3 {
        let reply = post(cluster.node(node).admin.unwrap(), "/reload");
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    }
}

fn network(cluster: &PeerCluster, node: usize, counter: &str) -> u64 {
    cluster.view(node)["network"][counter].as_u64().unwrap()
}

#[test]
fn three_nodes_rotate_their_secret_without_losing_a_member_or_a_request() {
    let cluster = PeerCluster::start(20, "");
    let old = fs::read_to_string(cluster.folder.path().join("cluster.key")).unwrap();
    let new = secret(cluster.folder.path(), "new.key");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|node| {
                let (cluster, over) = (&cluster, &over);
                scope.spawn(move || {
                    let mut asked = 0;
                    while !over.load(Relaxed) {
                        let reply = cluster.get(node, &format!("/{}", asked % 20));
                        assert_eq!(reply.status, 200, "request {asked} at node {node}");
                        asked += 1;
                    }
                    asked
                })
            })
            .collect();
        rotate(&cluster, &format!("{old}{new}"));
        rotate(&cluster, &format!("{new}{old}"));
        eventually("no connection uses the old secret", || {
            (0..3).all(|node| network(&cluster, node, "links_other_secret") == 0).then_some(())
        });
        rotate(&cluster, &new);
        cluster.await_members(&[0, 1, 2]);
        over.store(true, Relaxed);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
    });
    for node in 0..3 {
        for counter in ["members_left", "links_revoked", "requests_lost", "datagrams_forged"] {
            assert_eq!(network(&cluster, node, counter), 0, "{counter} of node {node}");
        }
    }
    let metrics = |node: usize| metrics(cluster.node(node).admin.unwrap());
    assert!(metrics(0).contains("larder_node_peers_links_other_secret{node=\"a\"} 0"), "{}", metrics(0));
    // The next reload can close only links that are established.
    eventually("the links of the new secret are up", || {
        (network(&cluster, 0, "control_links") == 4).then_some(())
    });
    // A node that has only the old secret is no longer in the cluster. Its links are closed at once.
    fs::write(cluster.folder.path().join("cluster.key"), &old).unwrap();
    assert_eq!(post(cluster.node(0).admin.unwrap(), "/reload").status, 200);
    eventually("the links of the removed secret have ended", || {
        let [up, revoked] = ["control_links", "links_revoked"].map(|counter| network(&cluster, 0, counter));
        (up == 0 && revoked >= 4).then_some(())
    });
    // An invalid secret changes nothing.
    fs::write(cluster.folder.path().join("cluster.key"), "none\n").unwrap();
    let refused = post(cluster.node(1).admin.unwrap(), "/reload");
    assert_eq!(refused.status, 409);
    assert!(String::from_utf8_lossy(&refused.body).contains("node.peers.secret"));
}

/// Waits until the channel is up, or down.
async fn await_state(events: &mut mpsc::Receiver<ChannelEvent>, up: bool) {
    let wait = async {
        loop {
            match events.recv().await.expect("an event").kind {
                EventKind::Up(_) if up => return,
                EventKind::Down(_) if !up => return,
                _ => {}
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), wait).await.expect("in time");
}

#[test]
fn a_reload_that_removes_a_switchs_key_ends_its_channel() {
    let folder = tempfile::tempdir().unwrap();
    let (config, key) = (folder.path().join("node.toml"), folder.path().join("node.key"));
    secret(folder.path(), "node.key");
    let switches = [(); 2].map(|()| Identity::generate().unwrap());
    let (control, clients) = (free_port(), free_port());
    let write = |keys: &[&Identity]| {
        let keys: Vec<String> = keys.iter().map(|key| format!("\"{}\"", key.public())).collect();
        // Without privileges the node loads no programs into this host's kernel. The control channel exists
        // all the same.
        let text = format!(
            "[node]\nlisten = \"127.0.0.1:{clients}\"\nroot = {:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [node.handoff]\nlisten = \"127.0.0.1:{control}\"\nidentity = {key:?}\nswitches = [{}]\n\
             interface = \"lo\"\nservices = [\"127.0.0.1:{clients}\"]\n",
            folder.path(),
            keys.join(", ")
        );
        fs::write(&config, text).unwrap();
    };
    write(&[&switches[0], &switches[1]]);
    let node = Process::start_without_rights(&["node", "--config", config.to_str().unwrap()]);
    let admin = node.admin.unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let node_key = Identity::load(&key).unwrap().public();
        let join = |which: usize| {
            let (sink, events) = mpsc::channel(64);
            let peer = NodeAddress {
                node: 0,
                name: "a".into(),
                address: ([127, 0, 0, 1], control).into(),
                key: node_key,
            };
            let keys = CookieKeys::new([CookieKey([1; 2]); 2], 0);
            let hello = Hello { name: "s".to_owned(), tag: 0, keys, services: Vec::new(), tunnel: None };
            (NodeChannel::start(peer, switches[which].clone(), hello, Timing::default(), sink), events)
        };
        let ((_removed, mut removed), (_kept, mut kept)) = (join(0), join(1));
        await_state(&mut removed, true).await;
        await_state(&mut kept, true).await;
        write(&[&switches[1]]);
        let reply: Value = post(admin, "/reload").json();
        assert_eq!(reply["last"]["outcome"], "done", "{reply}");
        await_state(&mut removed, false).await;
        let metrics = metrics(admin);
        assert!(metrics.contains("larder_agent_channels_revoked_total 1\n"), "{metrics}");
        // The other switch keeps its channel.
        while let Ok(event) = kept.try_recv() {
            assert!(!matches!(event.kind, EventKind::Down(_)), "{event:?}");
        }
        write(&[&switches[0], &switches[1]]);
        assert_eq!(post(admin, "/reload").status, 200);
        await_state(&mut removed, true).await;
    });
}
