//! Nodes without a front-end that use a dispatcher node (CARD) or a routing table (WARD).

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http;
use crate::peers::{NAMES, PeerCluster, body, status};
use crate::process::until;

/// Waits until exactly these nodes know each other.
fn await_members(cluster: &PeerCluster, nodes: &[usize]) {
    until("all know one another", || {
        let knows = |node: &usize| {
            let view = cluster.view(*node);
            let members = view["members"].as_array().unwrap();
            let others: BTreeSet<&str> =
                members.iter().map(|member| member["name"].as_str().unwrap()).collect();
            let wanted = nodes.iter().filter(|other| *other != node).map(|other| NAMES[*other]).collect();
            others == wanted
        };
        nodes.iter().all(knows).then_some(())
    });
}

fn decisions(view: &Value, reason: &str) -> u64 {
    view["decisions"][reason].as_u64().unwrap()
}

/// Returns the node that served the request: the first one that the reply names.
fn server(reply: &http::Reply) -> String {
    status(reply).split(';').next().unwrap().to_owned()
}

fn addresses(cluster: &PeerCluster, nodes: &[usize]) -> Vec<SocketAddr> {
    nodes.iter().map(|node| cluster.node(*node).address).collect()
}

/// Sends requests to these nodes while `act` runs and for a period after it, and returns the number of
/// replies. Every reply must be complete.
fn under_load(addresses: &[SocketAddr], files: usize, after: Duration, act: impl FnOnce()) -> usize {
    let (is_over, replies) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for (client, address) in addresses.iter().cycle().take(2 * addresses.len()).enumerate() {
            let (is_over, replies) = (&is_over, &replies);
            scope.spawn(move || {
                let mut file = client * 31;
                while !is_over.load(Ordering::Relaxed) {
                    file = (file + 1) % files;
                    let reply = http::get(*address, &format!("/{file}"));
                    assert_eq!((reply.status, &reply.body), (200, &body(file)));
                    replies.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        act();
        larder_testkit::take_time(after);
        is_over.store(true, Ordering::Relaxed);
    });
    replies.into_inner()
}

#[test]
fn a_dispatcher_makes_one_memory_of_all_nodes() {
    // Each node holds 2 MB of the 6 MB.
    let cluster = PeerCluster::start_as(5_000, "cache.kind = \"lru\"", "policy = \"card\"");
    await_members(&cluster, &[0, 1, 2]);
    let mut hits = 0;
    for round in 0..2 {
        for file in 0..5_000 {
            let reply = cluster.get((file + round) % 3, &format!("/{file}"));
            assert_eq!((reply.status, &reply.body), (200, &body(file)));
            hits += usize::from(round > 0 && status(&reply).contains("; hit"));
        }
    }
    let views: Vec<Value> = (0..3).map(|node| cluster.view(node)).collect();
    assert!(hits > 4_000, "{hits} of 5,000: {views:#?}");
    let held: Vec<u64> = views.iter().map(|view| view["targets_held"].as_u64().unwrap()).collect();
    assert!(held.iter().all(|held| *held > 1_000) && held.iter().sum::<u64>() < 6_500, "{held:?}");
    for view in &views {
        assert_eq!((&view["policy"], &view["dispatcher"]), (&"card".into(), &"a".into()));
        assert!(decisions(view, "peer") > 1_500 && decisions(view, "here") > 500, "{view:#}");
    }
    // The dispatcher counts no load for completed requests.
    until("no load is left at the dispatcher", || {
        let view = cluster.view(0);
        let loads = view["members"].as_array().unwrap().iter().map(|member| member["load"].as_u64());
        loads.eq([Some(0), Some(0)]).then_some(())
    });
}

#[test]
fn the_death_of_the_dispatcher_costs_no_request() {
    let mut cluster = PeerCluster::start_as(300, "", "policy = \"card\"");
    await_members(&cluster, &[0, 1, 2]);
    (0..300).for_each(|file| assert_eq!(cluster.get(file % 3, &format!("/{file}")).status, 200));
    let mut a = cluster.nodes[0].take().unwrap();
    let survivors = addresses(&cluster, &[1, 2]);
    let replies = under_load(&survivors, 300, Duration::from_millis(500), || {
        a.kill();
        await_members(&cluster, &[1, 2]);
    });
    assert!(replies > 100, "{replies}");
    let before: Vec<Value> = [1, 2].map(|node| cluster.view(node)).to_vec();
    assert!(before.iter().all(|view| view["dispatcher"] == "b"), "{before:#?}");
    assert!(before.iter().any(|view| decisions(view, "silent") > 0), "it was missed: {before:#?}");
    // Its successor decides for both nodes, and each file is served by one of them.
    let mut late = 0;
    for file in 0..100 {
        until("the dispatcher decides in time", || {
            // A busy machine may delay a decision or a reply, and the node serves the request itself.
            let missed = || {
                let view = cluster.view(2);
                ["silent", "full", "gone"].map(|reason| decisions(&view, reason))
            };
            let before = missed();
            let servers = [1, 2].map(|node| server(&cluster.get(node, &format!("/{file}"))));
            let in_time = missed() == before;
            assert!(!in_time || servers[0] == servers[1], "/{file}: {servers:?}");
            late += usize::from(!in_time);
            in_time.then_some(())
        });
    }
    assert!(late < 50, "{late} decisions were late");
    let after = cluster.view(2);
    let placed = |view: &Value| decisions(view, "peer") + decisions(view, "here");
    assert!(placed(&after) >= placed(&before[1]) + 100, "{after:#}");
}

const TABLES: &str = "policy = \"ward\"\n\
    ward = { first_requests = 400, settle = \"300ms\", memory = \"100kB\", forward_us = 50.0, refresh = \"15m\" }";

/// Requests ten files often at each node, and the rest of 150 seldom.
fn warm(cluster: &PeerCluster, nodes: &[usize]) {
    for round in 0..20 {
        for file in (0..10).chain((10..150).filter(|file| file % 10 == round % 10)) {
            for node in nodes {
                assert_eq!(cluster.get(*node, &format!("/{file}")).status, 200);
            }
        }
    }
}

/// Waits until these nodes have the same table, with at least this number.
fn await_table(cluster: &PeerCluster, nodes: &[usize], number: u64) -> Value {
    until("all have the table", || {
        let tables: Vec<Value> = nodes.iter().map(|node| cluster.view(*node)["table"].clone()).collect();
        let same =
            |table: &Value| table["number"] == tables[0]["number"] && table["maker"] == tables[0]["maker"];
        let is_new = tables[0]["number"].as_u64() >= Some(number);
        (is_new && tables.iter().all(same)).then(|| tables[0].clone())
    })
}

#[test]
fn a_table_is_made_from_traffic_and_all_nodes_use_it() {
    let mut cluster = PeerCluster::start_as(300, "", TABLES);
    await_members(&cluster, &[0, 1, 2]);
    assert!(cluster.view(0)["table"].is_null());
    let early: BTreeSet<String> = (0..3).map(|node| server(&cluster.get(node, "/299"))).collect();
    assert_eq!(early.len(), 1, "one node for a target, before there is a table too: {early:?}");
    warm(&cluster, &[0, 1, 2]);
    let table = await_table(&cluster, &[0, 1, 2], 1);
    assert_eq!((&table["maker"], &table["owners"]), (&"a".into(), &3.into()));
    assert!(table["core_targets"].as_u64() >= Some(10), "{table:#}");
    assert!(table["partition_targets"].as_u64() > Some(100), "{table:#}");
    for file in 0..10 {
        let servers = [0, 1, 2].map(|node| server(&cluster.get(node, &format!("/{file}"))));
        assert_eq!(servers, NAMES, "the core is served where it is asked for");
    }
    let mut owners = BTreeSet::new();
    for file in 10..150 {
        let servers: BTreeSet<String> =
            (0..3).map(|node| server(&cluster.get(node, &format!("/{file}")))).collect();
        assert_eq!(servers.len(), 1, "/{file}: {servers:?}");
        owners.extend(servers);
    }
    assert_eq!(owners.len(), 3);
    let view = cluster.view(1);
    assert!(decisions(&view, "core") >= 10 && decisions(&view, "owner") > 50, "{view:#}");
    assert!(decisions(&view, "own") > 20 && decisions(&view, "early") > 0, "{view:#}");

    // One node dies that is both an owner and the table maker.
    let mut a = cluster.nodes[0].take().unwrap();
    let replies = under_load(&addresses(&cluster, &[1, 2]), 150, Duration::ZERO, || {
        a.kill();
        await_members(&cluster, &[1, 2]);
        let table = await_table(&cluster, &[1, 2], table["number"].as_u64().unwrap() + 1);
        assert_eq!((&table["maker"], &table["owners"]), (&"b".into(), &2.into()));
    });
    assert!(replies > 100, "{replies}");
    let views = [1, 2].map(|node| cluster.view(node));
    assert!(views.iter().any(|view| decisions(view, "heir") > 0), "{views:#?}");
    for file in 10..150 {
        let servers = [1, 2].map(|node| server(&cluster.get(node, &format!("/{file}"))));
        assert_eq!(servers[0], servers[1]);
    }
}

/// Returns a table file with these rows.
fn routes(rows: &[String]) -> String {
    let core = rows.iter().filter(|row| row.starts_with("core")).count();
    let (count, owned) = (rows.len(), rows.len() - core);
    format!(
        "larder-routes 1\n{{\"nodes\":3,\"names\":[\"a\",\"b\",\"c\"],\"memory_per_node_bytes\":1,\
         \"costs\":{{\"forward_us\":1.0,\"disk_us_per_byte\":1.0,\"origin\":\"x\"}},\"log\":\"-\",\
         \"log_first_ns\":null,\"log_last_ns\":null,\"log_requests\":9,\"core_targets\":{core},\
         \"core_bytes\":1,\"partition_targets\":{owned},\"local_share\":1.0}}\n{}\nend {count}\n",
        rows.join("\n")
    )
}

#[test]
fn a_table_from_a_log_is_used_until_its_file_changes() {
    let file = tempfile::tempdir().unwrap();
    let path = file.path().join("www.routes");
    let rows =
        |shift: usize| (0..100).map(|file| format!("{} /{file}", (file + shift) % 3)).collect::<Vec<_>>();
    fs::write(&path, routes(&[&["core /200".to_owned()], &rows(0)[..]].concat())).unwrap();
    let peers = format!(
        "policy = \"ward\"\nward = {{ table = \"{}\", refresh = \"off\", unnamed = \"here\" }}",
        path.display()
    );
    let cluster = PeerCluster::start_as(300, "", &peers);
    await_members(&cluster, &[0, 1, 2]);
    let table = await_table(&cluster, &[0, 1, 2], 1);
    assert_eq!((&table["core_targets"], &table["partition_targets"]), (&1.into(), &100.into()));
    for (node, name) in NAMES.into_iter().enumerate() {
        for file in 0..100 {
            assert_eq!(server(&cluster.get(node, &format!("/{file}"))), NAMES[file % 3], "/{file}");
        }
        assert_eq!(server(&cluster.get(node, "/200")), name, "the core");
        assert_eq!(server(&cluster.get(node, "/250")), name, "it is not in the table");
    }
    assert_eq!(decisions(&cluster.view(1), "rest"), 1);
    // An unusable file is ignored.
    fs::write(&path, "larder-routes 1\nnothing").unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1_500) {
        assert_eq!(server(&cluster.get(1, "/3")), "a");
    }
    fs::write(&path, routes(&rows(1))).unwrap();
    let number = table["number"].as_u64().unwrap() + 1;
    until("the new table is gone by", || {
        let table = await_table(&cluster, &[0, 1, 2], number);
        (table["core_targets"] == 0).then_some(())
    });
    for node in 0..3 {
        assert_eq!(server(&cluster.get(node, "/3")), "b");
    }
}
