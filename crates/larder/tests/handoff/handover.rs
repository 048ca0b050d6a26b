//! Handover of connections between equal nodes, with every byte verified.

use std::time::Duration;

use crate::client::{self, Behaviour, ClientSettings, Plan};
use crate::content::{Content, Target};
use crate::handover_lab::{HandoverCluster, SETUP};
use crate::plans::mixed;

const MIN: u64 = 10_000;

const HANDOFF: &str = "handoff = \"required\"\nhandoff_min = \"10KB\"\n";

fn cluster(count: usize, sizes: &[u64], each: usize) -> Option<HandoverCluster> {
    HandoverCluster::new(count, Content::new(sizes, each), HANDOFF)
}

fn plan(behaviour: Behaviour, server: std::net::SocketAddr, targets: &[Target]) -> Plan {
    Plan { behaviour, server, same_port: false, targets: targets.to_vec() }
}

/// Fills node 1's memory with all targets. Node 0 knows that, and the sizes.
fn warm(cluster: &HandoverCluster) {
    let all = &cluster.content.targets;
    let [server, _] = cluster.service(1);
    cluster.run(&[plan(Behaviour::KeptAlive, server, all)]).assert_faultless();
    cluster.await_known(0, all.len() as u64);
    // One connection per target, because the reply tells its size.
    let [server, _] = cluster.service(0);
    let each: Vec<Plan> =
        all.iter().map(|one| plan(Behaviour::Plain, server, std::slice::from_ref(one))).collect();
    cluster.run(&each).assert_faultless();
    assert_eq!(cluster.handoff(0, "size-unknown"), all.len() as u64, "{}", cluster.view(0));
}

/// Fills one node's memory with each target. If all nodes got requests at once, each of them would read every
/// target itself.
fn place_targets(cluster: &HandoverCluster) {
    let all = &cluster.content.targets;
    let nodes = cluster.nodes.len();
    for node in 0..nodes {
        let [server, _] = cluster.service(node);
        let own: Vec<Target> = all.iter().skip(node).step_by(nodes).cloned().collect();
        cluster.run(&[plan(Behaviour::KeptAlive, server, &own)]).assert_faultless();
    }
    for node in 0..nodes {
        let own = all.iter().skip(node).step_by(nodes).count();
        cluster.await_known(node, (all.len() - own) as u64);
    }
}

/// Node 1 answers the client of node 0 on the same connection, over IPv4 and IPv6. It also answers later
/// requests.
#[test]
fn a_connection_goes_to_the_node_that_has_its_target() {
    let Some(cluster) = cluster(2, &[1_000, 100_000], 2) else { return };
    warm(&cluster);
    let all = &cluster.content.targets;
    let (small, large): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|target| target.bytes < MIN);
    for server in cluster.service(0) {
        let before = [cluster.handoff(0, "moved"), cluster.handoff(1, "taken"), cluster.handoff(0, "small")];
        // The small targets are relayed. The first large one causes the handover. Node 1 serves the rest from
        // its own memory.
        let targets = [&small[..], &large[..], &small[..], &large[..]].concat();
        cluster.run(&[plan(Behaviour::KeptAlive, server, &targets)]).assert_faultless();
        cluster.until("it is handed over", |cluster| cluster.handoff(0, "moved") == before[0] + 1);
        assert_eq!(cluster.handoff(1, "taken"), before[1] + 1);
        assert_eq!(cluster.handoff(0, "small"), before[2] + small.len() as u64, "what is small is relayed");
        // The server closes.
        cluster.run(&[plan(Behaviour::Plain, server, &large[..1])]).assert_faultless();
        cluster.run(&[plan(Behaviour::Pipelined, server, &targets)]).assert_faultless();
        cluster.run(&[plan(Behaviour::HalfClosing, server, &large[..1])]).assert_faultless();
        // Late counts of these connections must not be added to the next ones.
        cluster.until("all are handed over", |cluster| {
            let moved = cluster.handoff(0, "moved") - before[0];
            moved >= 3 && moved == cluster.handoff(1, "taken") - before[1]
        });
    }
    cluster.until("what has ended is not counted", |cluster| cluster.handoff(0, "connections") == 0);
    assert_eq!(cluster.sum("failed"), 0, "{}", cluster.logs());
    // No forwarded request counts as load any more.
    cluster.until("loads come back", |cluster| {
        (0..2).all(|node| {
            let view = cluster.view(node);
            view["load"] == 0 && view["members"][0]["load"] == 0
        })
    });
}

/// Clients of every behaviour at three nodes, with reused ports and resets.
#[test]
fn clients_of_every_behaviour_are_served_to_the_last_byte() {
    let Some(cluster) = cluster(3, &[1, 1_000, 20_000, 100_000, 1_000_000], 4) else { return };
    place_targets(&cluster);
    let targets = cluster.content.targets.clone();
    for round in 0..3 {
        let plans = mixed(round, 600, &cluster.services(), &targets);
        cluster.run(&plans).assert_faultless();
    }
    let moved = cluster.sum("moved");
    println!("{moved} handed over\n{}\n{}\n{}", cluster.view(0), cluster.view(1), cluster.view(2));
    assert!(moved > 200, "{moved} handed over\n{}", cluster.logs());
    cluster.until("what was taken was moved", |cluster| cluster.sum("taken") == cluster.sum("moved"));
    cluster.until("what has ended is not counted", |cluster| cluster.sum("connections") == 0);
}

/// Handover with a dispatcher and with a table.
#[test]
fn other_policies_hand_over_too() {
    let ward =
        "policy = \"ward\"\nward.first_requests = 100\nward.settle = \"100ms\"\nward.forward_us = 0.0\n";
    for (policy, lines) in [("card", "policy = \"card\"\n"), ("ward", ward)] {
        let content = Content::new(&[1_000, 20_000, 100_000], 6);
        let Some(cluster) = HandoverCluster::new(3, content, &format!("{HANDOFF}{lines}")) else { return };
        let targets = cluster.content.targets.clone();
        for round in 0..3 {
            cluster.run(&mixed(round, 600, &cluster.services(), &targets)).assert_faultless();
        }
        let view = cluster.view(0);
        assert_eq!(view["policy"], policy);
        assert_eq!(view["table"].is_object(), policy == "ward", "{view}");
        let moved = cluster.sum("moved");
        println!("{policy}: {moved} handed over\n{view}");
        assert!(moved > 200, "{policy}: {moved} handed over\n{}", cluster.logs());
        cluster.until("what was taken was moved", |cluster| cluster.sum("taken") == cluster.sum("moved"));
        cluster.until("what has ended is not counted", |cluster| cluster.sum("connections") == 0);
        // No load remains at any node or at the dispatcher.
        cluster.until("loads come back", |cluster| {
            (0..3).all(|node| {
                let view = cluster.view(node);
                let idle = |member: &serde_json::Value| member["load"].is_null() || member["load"] == 0;
                view["load"] == 0 && view["members"].as_array().is_some_and(|all| all.iter().all(idle))
            })
        });
    }
}

/// A connection that was handed over counts as the other node's load at the dispatcher until it ends,
/// although its packets pass through this node.
#[test]
fn a_dispatcher_counts_moved_connections_until_they_end() {
    let content = Content::new(&[10_000_000], 8);
    let Some(cluster) = HandoverCluster::new(2, content, &format!("{HANDOFF}policy = \"card\"\n")) else {
        return;
    };
    let targets = &cluster.content.targets;
    let [server, _] = cluster.service(0);
    let plans = |behaviour| -> Vec<Plan> {
        targets.iter().map(|target| plan(behaviour, server, std::slice::from_ref(target))).collect()
    };
    cluster.run(&plans(Behaviour::Plain)).assert_faultless();
    let slow = plans(Behaviour::Slow { rest: Duration::from_millis(20) });
    let setup = ClientSettings { threads: slow.len(), ..SETUP };
    let load = cluster.topology.client().namespace.thread(move || client::run(&slow, setup)).unwrap();
    let load_at_dispatcher = |cluster: &HandoverCluster| cluster.view(0)["members"][0]["load"].as_u64();
    let away = |cluster: &HandoverCluster| cluster.handoff(0, "moved") - cluster.handoff(0, "failed");
    cluster
        .until("all are under way", |cluster| cluster.view(0)["load"].as_u64().unwrap() + away(cluster) == 8);
    let moved = away(&cluster);
    assert!(moved > 0, "none was handed over\n{}", cluster.logs());
    assert_eq!((load_at_dispatcher(&cluster), cluster.handoff(0, "connections")), (Some(moved), moved));
    load.join().assert_faultless();
    cluster.until("what has ended counts no more", |cluster| load_at_dispatcher(cluster) == Some(0));
    // Persistent and idle: each connection has received a whole reply.
    let slow = plans(Behaviour::Resting { rest: Duration::from_secs(6) });
    let before = cluster.handoff(0, "moved");
    let load = cluster.topology.client().namespace.thread(move || client::run(&slow, setup)).unwrap();
    cluster.until("some are handed over", |cluster| cluster.handoff(0, "moved") >= before + moved);
    cluster.until("what rests counts no more", |cluster| {
        load_at_dispatcher(cluster) == Some(0) && cluster.handoff(0, "connections") >= moved
    });
    load.join().assert_faultless();
}

/// A port is reused repeatedly for connections that are handed over while bytes are in flight.
#[test]
fn a_port_is_used_again_at_once() {
    let Some(cluster) = cluster(2, &[20_000], 3) else { return };
    warm(&cluster);
    let [server, _] = cluster.service(0);
    let one = |number: usize| Plan {
        same_port: true,
        ..plan(Behaviour::Plain, server, &cluster.content.targets[number % 3..=number % 3])
    };
    let plans: Vec<Plan> = (0..400).map(one).collect();
    let tally = cluster.run(&plans);
    tally.assert_faultless();
    println!("{tally}");
    cluster.until("all are handed over", |cluster| cluster.handoff(0, "moved") >= 390);
}
