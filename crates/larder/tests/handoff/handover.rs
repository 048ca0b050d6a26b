//! Equal nodes hand connections over to one another: every byte verified.

use std::time::Duration;

use crate::client::{self, Manner, Plan, Setup};
use crate::content::{Content, Target};
use crate::handover_lab::{Equals, SETUP};
use crate::plans::mixed;

const MIN: u64 = 10_000;

const HANDOFF: &str = "handoff = \"required\"\nhandoff_min = \"10KB\"\n";

fn cluster(count: usize, sizes: &[u64], each: usize) -> Option<Equals> {
    Equals::new(count, Content::new(sizes, each), HANDOFF)
}

fn plan(manner: Manner, server: std::net::SocketAddr, targets: &[Target]) -> Plan {
    Plan { manner, server, same_port: false, targets: targets.to_vec() }
}

/// Node 1 has all targets in memory, and node 0 knows that and how large they are.
fn warm(cluster: &Equals) {
    let all = &cluster.content.targets;
    let [server, _] = cluster.service(1);
    cluster.run(&[plan(Manner::KeptAlive, server, all)]).assert_faultless();
    cluster.await_known(0, all.len() as u64);
    // One connection each: the reply says how large it is.
    let [server, _] = cluster.service(0);
    let each: Vec<Plan> =
        all.iter().map(|one| plan(Manner::Plain, server, std::slice::from_ref(one))).collect();
    cluster.run(&each).assert_faultless();
    assert_eq!(cluster.handoff(0, "size-unknown"), all.len() as u64, "{}", cluster.view(0));
}

/// Each target is in one node's memory and the others know it: asked for at once, all nodes would read each themselves.
fn place(cluster: &Equals) {
    let all = &cluster.content.targets;
    let nodes = cluster.nodes.len();
    for node in 0..nodes {
        let [server, _] = cluster.service(node);
        let own: Vec<Target> = all.iter().skip(node).step_by(nodes).cloned().collect();
        cluster.run(&[plan(Manner::KeptAlive, server, &own)]).assert_faultless();
    }
    for node in 0..nodes {
        let own = all.iter().skip(node).step_by(nodes).count();
        cluster.await_known(node, (all.len() - own) as u64);
    }
}

/// The client of node 0 is answered by node 1, on the same connection, over IPv4 and IPv6; later requests too.
#[test]
fn a_connection_goes_to_the_node_that_has_its_target() {
    let Some(cluster) = cluster(2, &[1_000, 100_000], 2) else { return };
    warm(&cluster);
    let all = &cluster.content.targets;
    let (small, large): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|target| target.bytes < MIN);
    for server in cluster.service(0) {
        let before = [cluster.handoff(0, "moved"), cluster.handoff(1, "taken"), cluster.handoff(0, "small")];
        // Relayed, handed over, then all served at node 1, whose own they are.
        let targets = [&small[..], &large[..], &small[..], &large[..]].concat();
        cluster.run(&[plan(Manner::KeptAlive, server, &targets)]).assert_faultless();
        cluster.until("it is handed over", |cluster| cluster.handoff(0, "moved") == before[0] + 1);
        assert_eq!(cluster.handoff(1, "taken"), before[1] + 1);
        assert_eq!(cluster.handoff(0, "small"), before[2] + small.len() as u64, "what is small is relayed");
        // The server closes.
        cluster.run(&[plan(Manner::Plain, server, &large[..1])]).assert_faultless();
        cluster.run(&[plan(Manner::Pipelined, server, &targets)]).assert_faultless();
        cluster.run(&[plan(Manner::HalfClosing, server, &large[..1])]).assert_faultless();
        // What is told late of these must not be counted among the next.
        cluster.until("all are handed over", |cluster| {
            let moved = cluster.handoff(0, "moved") - before[0];
            moved >= 3 && moved == cluster.handoff(1, "taken") - before[1]
        });
    }
    cluster.until("what has ended is not counted", |cluster| cluster.handoff(0, "connections") == 0);
    assert_eq!(cluster.sum("failed"), 0, "{}", cluster.logs());
    // Nothing of node 1 counts as forwarded here any more.
    cluster.until("loads come back", |cluster| {
        (0..2).all(|node| {
            let view = cluster.view(node);
            view["load"] == 0 && view["members"][0]["load"] == 0
        })
    });
}

/// Clients of all manners at three nodes, ports used again at once, resets in the middle.
#[test]
fn every_manner_of_client_is_served_to_the_last_byte() {
    let Some(cluster) = cluster(3, &[1, 1_000, 20_000, 100_000, 1_000_000], 4) else { return };
    place(&cluster);
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

/// Where one node decides for all, and where a table does.
#[test]
fn the_other_policies_hand_over_too() {
    let ward =
        "policy = \"ward\"\nward.first_requests = 100\nward.settle = \"100ms\"\nward.forward_us = 0.0\n";
    for (policy, lines) in [("card", "policy = \"card\"\n"), ("ward", ward)] {
        let content = Content::new(&[1_000, 20_000, 100_000], 6);
        let Some(cluster) = Equals::new(3, content, &format!("{HANDOFF}{lines}")) else { return };
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
        // Nothing is left in a load, neither of a node nor of the dispatcher.
        cluster.until("loads come back", |cluster| {
            (0..3).all(|node| {
                let view = cluster.view(node);
                let idle = |member: &serde_json::Value| member["load"].is_null() || member["load"] == 0;
                view["load"] == 0 && view["members"].as_array().is_some_and(|all| all.iter().all(idle))
            })
        });
    }
}

/// What another node serves is that node's load at the dispatcher until it is through, though its packets alone pass here.
#[test]
fn a_dispatcher_counts_what_has_moved_until_it_ends() {
    let content = Content::new(&[10_000_000], 8);
    let Some(cluster) = Equals::new(2, content, &format!("{HANDOFF}policy = \"card\"\n")) else { return };
    let targets = &cluster.content.targets;
    let [server, _] = cluster.service(0);
    let plans = |manner| -> Vec<Plan> {
        targets.iter().map(|target| plan(manner, server, std::slice::from_ref(target))).collect()
    };
    cluster.run(&plans(Manner::Plain)).assert_faultless();
    let slow = plans(Manner::Slow { rest: Duration::from_millis(20) });
    let setup = Setup { threads: slow.len(), ..SETUP };
    let load = cluster.topology.client().namespace.thread(move || client::run(&slow, setup)).unwrap();
    let at_desk = |cluster: &Equals| cluster.view(0)["members"][0]["load"].as_u64();
    let away = |cluster: &Equals| cluster.handoff(0, "moved") - cluster.handoff(0, "failed");
    cluster
        .until("all are under way", |cluster| cluster.view(0)["load"].as_u64().unwrap() + away(cluster) == 8);
    let moved = away(&cluster);
    assert!(moved > 0, "none was handed over\n{}", cluster.logs());
    assert_eq!((at_desk(&cluster), cluster.handoff(0, "connections")), (Some(moved), moved));
    load.join().assert_faultless();
    cluster.until("what has ended counts no more", |cluster| at_desk(cluster) == Some(0));
    // Kept alive, and resting: each has had a whole reply, on one connection.
    let slow = plans(Manner::Resting { rest: Duration::from_secs(6) });
    let before = cluster.handoff(0, "moved");
    let load = cluster.topology.client().namespace.thread(move || client::run(&slow, setup)).unwrap();
    cluster.until("some are handed over", |cluster| cluster.handoff(0, "moved") >= before + moved);
    cluster.until("what rests counts no more", |cluster| {
        at_desk(cluster) == Some(0) && cluster.handoff(0, "connections") >= moved
    });
    load.join().assert_faultless();
}

/// Connections that are handed over with bytes still on their way, again and again from the same port.
#[test]
fn a_port_is_used_again_at_once() {
    let Some(cluster) = cluster(2, &[20_000], 3) else { return };
    warm(&cluster);
    let [server, _] = cluster.service(0);
    let one = |number: usize| Plan {
        same_port: true,
        ..plan(Manner::Plain, server, &cluster.content.targets[number % 3..=number % 3])
    };
    let plans: Vec<Plan> = (0..400).map(one).collect();
    let tally = cluster.run(&plans);
    tally.assert_faultless();
    println!("{tally}");
    cluster.until("all are handed over", |cluster| cluster.handoff(0, "moved") >= 390);
}
