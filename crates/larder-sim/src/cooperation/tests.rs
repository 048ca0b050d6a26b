use larder_core::nodes::mix;
use larder_core::peers::SharingSettings;
use larder_trace::synth::{Recipe, generate};

use super::*;
use crate::press::{self, Network, Press, PressVariant};
use crate::workload::Item;
use core::time::Duration;
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, TargetId};
use std::sync::Arc;

fn workload(targets: u32, requests: u64) -> Workload {
    Workload::from_trace(&generate(&Recipe::zipf(targets, requests, 0.8), 3, 1.0).expect("possible"))
}

/// A cluster whose nodes always cooperate.
fn always(server: ServerKind, nodes: u16, memory: Bytes) -> CooperativeCluster {
    let mut cluster = CooperativeCluster::new(server, nodes, memory);
    cluster.protocol.sharing =
        SharingSettings { on_permille: 0, off_permille: 0, off_windows: 1, window: 1_000 };
    cluster
}

fn run(workload: &Workload, cluster: &CooperativeCluster) -> CooperationOutcome {
    cooperate(workload, cluster).expect("a good cluster")
}

#[test]
fn the_seed_alone_determines_the_outcome() {
    let workload = workload(500, 6_000);
    let cluster = CooperativeCluster::new(ServerKind::Press, 4, Bytes(workload.bytes() / 10));
    let outcome = run(&workload, &cluster);
    assert_eq!(outcome, run(&workload, &cluster));
    assert_ne!(outcome, run(&workload, &CooperativeCluster { seed: 2, ..cluster }));
}

#[test]
fn every_request_ends_with_every_server() {
    let workload = workload(500, 6_000);
    for server in ServerKind::ALL {
        for network in [Network::Fast, Network::Slow] {
            for nodes in [1, 2, 5] {
                let cluster = CooperativeCluster {
                    costs: CooperationCosts::for_network(network),
                    ..CooperativeCluster::new(server, nodes, Bytes(workload.bytes() / 10))
                };
                let outcome = run(&workload, &cluster);
                assert_eq!(outcome.requests_all, 6_000, "{server:?}");
                assert!(outcome.requests > 3_000 && outcome.throughput > 0.0, "{server:?} {outcome:?}");
                assert!(outcome.busy.most <= 1.0 && outcome.busy.cpu > 0.0);
                let alone = nodes == 1 || server.is_local();
                assert_eq!(alone, outcome.forwarded_share == 0.0, "{server:?} {nodes}");
                let tells = !alone || server == ServerKind::Dispatcher;
                // Nodes with a routing table speak while there is none.
                let speaks_now = !matches!(server, ServerKind::Ward | ServerKind::Part);
                assert!(!speaks_now || tells == (outcome.messages > 0.0), "{server:?} {nodes}");
            }
        }
    }
}

/// All files are in memory at some node. The processor time of a request equals that of the analytic model.
#[test]
fn request_costs_match_the_analytic_model() {
    let size = 16 * 1_024;
    for (server, of) in [
        (ServerKind::Press, press::Server::Portable),
        (ServerKind::Distributed, press::Server::NonPortable),
        (ServerKind::Trad, press::Server::Trad),
    ] {
        for network in [Network::Fast, Network::Slow] {
            let items = (0..400).map(|id| Item::file(TargetId(id * 77), size)).collect();
            let requests = (0..24_000_u64).map(|at| (mix(at) % 400) as u32).collect();
            let workload = Workload { items, requests, times: Vec::new() };
            let costs = CooperationCosts {
                handoff_s: 0.0,
                ..CooperationCosts::for_network(network).without_message_costs()
            };
            let mut cluster =
                CooperativeCluster { costs, connections: 2, ..always(server, 4, Bytes::mib(10)) };
            // Nodes are never overloaded, so nothing is replicated.
            cluster.protocol.overload = 1_000;
            cluster.protocol.load_step = 1_000;
            let outcome = run(&workload, &cluster);
            let q = outcome.forwarded_share;
            assert!(server == ServerKind::Trad || (0.5..0.9).contains(&q), "{server:?} {q}");
            let (parse, forward) = (1.0 / 9_000.0, costs.forward_s);
            let relay = match network {
                Network::Fast => 0.000_01 + 16.0 / 80_000.0,
                Network::Slow => 0.000_1 + 16.0 / 11_500.0,
            };
            let relays = if of == press::Server::Portable { 2.0 * relay } else { 0.0 };
            let cpu = parse + 0.000_1 + 16.0 / 11_500.0 + q * (parse + 2.0 * forward + relays);
            let model = Press { network, reading: PressVariant::M1, ..Press::default() };
            assert_eq!(model.reading, Press::default().reading);
            let measured = outcome.busy.cpu * 4.0 / outcome.throughput;
            assert!((measured / cpu - 1.0).abs() < 0.01, "{server:?} {network:?}: {measured} {cpu}");
        }
    }
}

#[test]
fn joint_memories_hold_more_than_one() {
    let workload = workload(1_000, 40_000);
    let memory = Bytes(workload.bytes() / 6);
    let [trad, press, distributed, dispatcher] =
        [ServerKind::Trad, ServerKind::Press, ServerKind::Distributed, ServerKind::Dispatcher]
            .map(|server| run(&workload, &CooperativeCluster::new(server, 8, memory)));
    for outcome in [&press, &distributed, &dispatcher] {
        assert!(outcome.hit_rate > trad.hit_rate + 0.1, "{} {}", outcome.hit_rate, trad.hit_rate);
        assert!(outcome.throughput > 1.5 * trad.throughput);
        assert!(outcome.disk_reads < 0.5 * trad.disk_reads);
        assert!((0.4..0.9).contains(&outcome.forwarded_share), "{}", outcome.forwarded_share);
    }
    assert!(press.sharing > 0.99 && press.load_broadcasts > 0.01 && press.state_bytes > 1_000.0);
    assert_eq!((trad.sharing, trad.messages), (0.0, 0.0));
    assert_eq!(trad.hit_rate, trad.hit_rate_local);
    // A portable server moves replies between nodes, other servers only requests.
    assert!(press.relayed_bytes > 5.0 * distributed.relayed_bytes);
    assert!(dispatcher.busy.dispatcher > 0.0 && press.busy.dispatcher == 0.0);
}

#[test]
fn nodes_with_enough_memory_do_not_cooperate() {
    // The measured part has no first uses, and the warm-up has few: 50 targets.
    let items: Vec<Item> = (0..50).map(|id| Item::file(TargetId(id), 5_000)).collect();
    let requests = (0..60_000_u64).map(|at| (mix(at) % 50) as u32).collect();
    let workload = Workload { items, requests, times: Vec::new() };
    let mut cluster = CooperativeCluster::new(ServerKind::Press, 4, Bytes::mib(1));
    cluster.protocol.sharing.window = 5_000;
    let outcome = run(&workload, &cluster);
    assert_eq!((outcome.sharing, outcome.messages, outcome.hit_rate), (0.0, 0.0, 1.0));
    assert_eq!(outcome.reason_share("alone"), 1.0);
}

#[test]
fn large_files_are_served_at_the_initial_node() {
    let items = vec![Item::file(TargetId(1), 200 * 1_024), Item::file(TargetId(2), 1_000)];
    let requests = (0..4_000).map(|at| u32::from(at % 4 != 0)).collect();
    let workload = Workload { items, requests, times: Vec::new() };
    for server in [ServerKind::Press, ServerKind::Distributed, ServerKind::Dispatcher] {
        let outcome = run(&workload, &always(server, 4, Bytes::mib(10)));
        assert!((outcome.reason_share("large") - 0.25).abs() < 0.03, "{server:?} {outcome:?}");
        assert!((outcome.disk_reads - 0.25).abs() < 0.03, "{server:?}: each is read");
    }
    let trad = run(&workload, &always(ServerKind::Trad, 4, Bytes::mib(10)));
    assert_eq!((trad.reason_share("alone"), trad.disk_reads), (1.0, 0.0), "it has no rule for large files");
}

#[test]
fn a_relayed_request_may_count_at_its_initial_node_only() {
    let workload = workload(500, 20_000);
    let both = always(ServerKind::Press, 4, Bytes(workload.bytes()));
    let initial = CooperativeCluster { relayed_load: RelayedLoad::Initial, ..both.clone() };
    let (both, initial) = (run(&workload, &both), run(&workload, &initial));
    assert!(initial.load_broadcasts < 0.8 * both.load_broadcasts, "{both:?} {initial:?}");
}

#[test]
fn requests_during_a_read_share_it() {
    let workload =
        Workload { items: vec![Item::file(TargetId(1), 1_000)], requests: vec![0; 100], times: Vec::new() };
    let cluster = CooperativeCluster {
        connections: 50,
        warmup: Some(0),
        ..CooperativeCluster::new(ServerKind::Trad, 1, Bytes::mib(1))
    };
    let outcome = run(&workload, &cluster);
    assert!((outcome.disk_reads * outcome.requests as f64 - 1.0).abs() < 1e-6, "{outcome:?}");
    assert!(outcome.hit_rate < 0.6, "those who waited missed");
}

#[test]
fn impossible_clusters_are_named() {
    let workload = workload(10, 100);
    let cluster = CooperativeCluster::new(ServerKind::Press, 2, Bytes::mib(1));
    let error = |cluster: CooperativeCluster| cooperate(&workload, &cluster).unwrap_err().to_string();
    assert!(error(CooperativeCluster { nodes: 0, ..cluster.clone() }).contains("nodes"));
    assert!(error(CooperativeCluster { connections: 0, ..cluster.clone() }).contains("connections"));
    let costs = CooperationCosts { parse_s: f64::NAN, ..CooperationCosts::default() };
    assert!(error(CooperativeCluster { costs, ..cluster.clone() }).contains("parse_s"));
    let mut stale = cluster;
    stale.protocol.stale_after = stale.protocol.heartbeat;
    assert!(error(stale).contains("stale_after"));
}

/// A workload of files of 14.5 KB, requested at random. All of them fit into each memory.
fn in_memory(files: u64, requests: u64) -> Workload {
    let items = (0..files).map(|id| Item::file(TargetId(id * 77), 14_848)).collect();
    let requests = (0..requests).map(|at| (mix(at) % files) as u32).collect();
    Workload { items, requests, times: Vec::new() }
}

fn ward(server: ServerKind, nodes: u16) -> CooperativeCluster {
    let costs = CooperationCosts::ward01(Network::Fast, 276.0);
    CooperativeCluster {
        costs,
        spread: RequestSpread::Dealt,
        ..CooperativeCluster::new(server, nodes, Bytes::mib(64))
    }
}

#[test]
fn the_ward_papers_server_is_one_resource() {
    let outcome = run(&in_memory(100, 30_000), &ward(ServerKind::Rr, 4));
    assert!((outcome.throughput / 4_000.0 - 1.0).abs() < 0.01, "1 ms each: {}", outcome.throughput);
    assert_eq!((outcome.hit_rate, outcome.busy.disk, outcome.forwarded_share), (1.0, 0.0, 0.0));
    // Two thirds of the requests arrive at another than the serving one of three nodes, and are handed off.
    let mut part = ward(ServerKind::Part, 3);
    part.ward.settings.first_requests = 1_000;
    let outcome = run(&in_memory(100, 30_000), &part);
    let expected = 3_000.0 / (1.0 + 0.276 * outcome.forwarded_share);
    assert!((outcome.forwarded_share - 2.0 / 3.0).abs() < 0.05, "{}", outcome.forwarded_share);
    assert!((outcome.throughput / expected - 1.0).abs() < 0.05, "{} {expected}", outcome.throughput);
}

#[test]
fn card_batches_grow_with_the_decision_time() {
    let workload = workload(300, 30_000);
    let of = |latency_s: f64| {
        let mut cluster = ward(ServerKind::Card, 8);
        cluster.costs.latency_s = latency_s;
        run(&workload, &cluster)
    };
    let (near, far) = (of(7e-6), of(5e-3));
    for outcome in [&near, &far] {
        assert_eq!(outcome.reason_share("here") + outcome.reason_share("peer"), 1.0, "{outcome:?}");
        assert!((0.7..0.95).contains(&outcome.asks), "the dispatcher asks nobody: {}", outcome.asks);
        assert!(outcome.busy.dispatcher > outcome.busy.talk);
        assert!(outcome.state_bytes_most > outcome.state_bytes);
    }
    assert!(near.answer.mean_s < 0.001 && (0.01..0.021).contains(&far.answer.mean_s), "{:?}", far.answer);
    assert!(far.batch > 1.5 * near.batch && far.messages < near.messages, "{} {}", far.batch, near.batch);
}

#[test]
fn requests_without_an_answer_are_served_at_the_initial_node() {
    let mut cluster = ward(ServerKind::Card, 4);
    cluster.costs.messages_first = false;
    let outcome = run(&in_memory(300, 30_000), &cluster);
    assert!(outcome.reason_share("silent") > 0.05, "40 ms of requests stand before a message: {outcome:?}");
    assert_eq!(outcome.requests_all, 30_000);
}

#[test]
fn load_accounting_decides_when_a_handoff_stops_counting() {
    let workload = in_memory(300, 60_000);
    let imbalance = |accounting| {
        let cluster = CooperativeCluster { accounting, ..ward(ServerKind::Card, 8) };
        run(&workload, &cluster).imbalance
    };
    let (moved, served) = (imbalance(LoadAccounting::UntilMoved), imbalance(LoadAccounting::UntilServed));
    assert!(served < moved, "{served} {moved}");
}

#[test]
fn one_node_computes_the_table_for_all_nodes() {
    let workload = workload(1_000, 60_000);
    let mut cluster = ward(ServerKind::Ward, 6);
    cluster.memory = Bytes(workload.bytes() / 12);
    cluster.ward.settings.first_requests = 2_000;
    let outcome = run(&workload, &cluster);
    let TableStats { made, targets, core_targets, everywhere, spread_s } = outcome.tables;
    assert_eq!((made, everywhere), (1, 1));
    assert!(
        targets > core_targets && core_targets > 5 && spread_s > 0.0 && spread_s < 0.1,
        "{:?}",
        outcome.tables
    );
    // A row is 8 bytes and its owner's number. All nodes but the maker fetch it.
    assert!((outcome.table_bytes / targets as f64 - 9.0 * 5.0 / 6.0).abs() < 0.5, "{}", outcome.table_bytes);
    assert!(outcome.count_bytes > 0.0 && outcome.reason_share("early") == 0.0);
    assert!(outcome.reason_share("core") > 0.1 && outcome.reason_share("owner") > 0.05, "{outcome:?}");
    // With a periodic refresh, half of each count is carried over.
    cluster.ward.settings.refresh = Some(Duration::from_secs(2));
    assert!(run(&workload, &cluster).tables.made > 2);
}

fn preset(after: usize, table: RouteTable) -> PresetTable {
    PresetTable { after, table: Arc::new(table) }
}

#[test]
fn a_preset_table_reaches_all_nodes() {
    let workload = in_memory(4, 8_000);
    let places =
        [(0, larder_core::policy::table::Place::Core), (1, larder_core::policy::table::Place::Node(2))];
    let rows = places.map(|(item, place)| (workload.items[item].id, place));
    let mut cluster = ward(ServerKind::Ward, 3);
    cluster.ward.preset = Some(preset(0, RouteTable::new(3, rows).expect("a good table")));
    cluster.ward.settings.refresh = None;
    let outcome = run(&workload, &cluster);
    assert_eq!((outcome.tables.made, outcome.tables.targets, outcome.tables.everywhere), (1, 2, 1));
    assert!((outcome.forwarded_share - 2.0 / 3.0 / 4.0).abs() < 0.02, "{}", outcome.forwarded_share);
    assert!((outcome.reason_share("rest") - 0.5).abs() < 0.03, "served where they come");
    cluster.ward.preset = Some(preset(0, RouteTable::new(2, []).expect("a good table")));
    assert!(cooperate(&workload, &cluster).is_err_and(|error| error.to_string().contains("ward")));
}

#[test]
fn relaying_brings_replies_back_through_the_initial_node() {
    let workload = in_memory(300, 30_000);
    let of = |forwarding| {
        let mut card = CooperativeCluster::new(ServerKind::Card, 4, Bytes::mib(8));
        card.costs.messages_first = true;
        run(&workload, &CooperativeCluster { forwarding, accounting: LoadAccounting::UntilServed, ..card })
    };
    let (handoff, relay) = (of(ForwardingMode::Handoff), of(ForwardingMode::Relay));
    let cpu = |outcome: &CooperationOutcome| outcome.busy.cpu / outcome.throughput;
    assert!(relay.relayed_bytes > 10.0 * handoff.relayed_bytes, "{relay:?}");
    assert!(cpu(&relay) > 1.05 * cpu(&handoff), "{relay:?} {handoff:?}");
}

#[test]
fn a_slow_switch_limits_the_throughput() {
    let workload = in_memory(300, 30_000);
    let of = |switch_s: f64| {
        let mut cluster = ward(ServerKind::Switch, 8);
        cluster.costs.switch_s = switch_s;
        run(&workload, &cluster)
    };
    let (free, dear) = (of(0.0), of(3e-4));
    assert!(free.throughput > 6_000.0 && (dear.throughput / 3_333.0 - 1.0).abs() < 0.02, "{dear:?}");
    assert!(dear.busy.dispatcher > 0.99 && free.busy.dispatcher == 0.0);
}
