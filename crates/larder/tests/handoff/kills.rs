//! Deaths of processes and hosts under load.

use larder_testkit::take_time;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larder_kernel::netns::{INTERFACE, TopologySpec};
use larder_kernel::plane::{AttachMode, Plane, PlaneConfig, PlaneStop};
use rustix::process::Signal;

use crate::client::{self, Behaviour, ClientSettings, Fault, Plan, Tally};
use crate::cluster::{Cluster, Server, Spec};
use crate::content::Content;
use crate::counters::counter;
use crate::plans::mixed;

const LARGE: u64 = 10_000_000;
pub const SETUP: ClientSettings =
    ClientSettings { threads: 12, first_port: 20_000, stall: Duration::from_secs(10) };
const COOKIE: &str = "mechanism = \"cookie\"\nlocality_lost_max = 1.0";
/// With this rest a reply of 10 MB takes three seconds.
const REST: Duration = Duration::from_millis(20);

/// Returns `count` slow downloads of 10 MB.
pub fn downloads(cluster: &Cluster, count: usize) -> Vec<Plan> {
    let large = cluster.content.targets.iter().filter(|target| target.bytes == LARGE).cycle();
    let servers = cluster.service().into_iter().cycle();
    let plan = |(target, server): (&crate::content::Target, _)| Plan {
        behaviour: Behaviour::Slow { rest: REST },
        server,
        same_port: false,
        targets: vec![target.clone()],
    };
    large.zip(servers).take(count).map(plan).collect()
}

pub fn small(cluster: &Cluster, seed: u64, count: usize) -> Vec<Plan> {
    let targets: Vec<_> = cluster.content.targets.iter().filter(|t| t.bytes < LARGE).cloned().collect();
    mixed(seed, count, &cluster.service(), &targets)
}

pub fn content() -> Content {
    Content::new(&[1, 1_000, 10_000, 100_000, LARGE], 3)
}

/// Runs all plans concurrently at the client, and an action meanwhile.
pub fn run_during<T>(
    cluster: &mut Cluster,
    plans: &[Plan],
    happens: impl FnOnce(&mut Cluster) -> T,
) -> (Tally, T) {
    let (plans, setup) = (plans.to_vec(), ClientSettings { threads: plans.len().max(1), ..SETUP });
    let load = cluster.topology.client().namespace.thread(move || client::run(&plans, setup)).unwrap();
    take_time(Duration::from_millis(500));
    let happened = happens(cluster);
    let tally = load.join();
    println!("{tally}");
    (tally, happened)
}

/// Returns the number of retransmission time-outs of the servers. Losses by bursts are resent without a
/// time-out.
fn timeouts(cluster: &Cluster) -> u64 {
    let of =
        |name: &str| cluster.topology.nodes.iter().map(|node| counter(&node.namespace, name)).sum::<u64>();
    println!("{} segments sent again, {} time-outs", of("TcpRetransSegs"), of("TcpExtTCPTimeouts"));
    of("TcpExtTCPTimeouts")
}

/// Checks that most of twelve downloads did not stall.
fn assert_few_stalls(cluster: &Cluster, before: u64, tally: &Tally) {
    let waited = timeouts(cluster) - before;
    assert!(waited < 12, "{waited} time-outs");
    let [_, _, pause] = tally.quantiles(1.0);
    assert!(pause < Duration::from_secs(1), "a pause of {pause:?}");
}

/// Checks that new connections are handed over, and that no load remains.
fn check_handovers_work(cluster: &Cluster, seed: u64) {
    let before = cluster.metric("larder_switch_deliveries_total", &["cookie"]);
    let plans = small(cluster, seed, 200);
    let tally = cluster.topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    println!("{tally}");
    tally.assert_faultless();
    let handed = cluster.await_metric("larder_switch_deliveries_total", &["cookie"], before + 101) - before;
    assert!(handed > 100, "{handed} handed over\n{}", cluster.logs());
    cluster.await_idle();
}

/// The switch is killed during downloads of 10 MB and new connections. The programs continue, the next start
/// takes over, and no client notices.
#[test]
fn a_killed_switch_is_not_missed() {
    let spec = Spec { handoff: COOKIE, ..Spec::default() };
    let Some(mut cluster) = Cluster::new(&spec, content()) else { return };
    let before = timeouts(&cluster);
    let plans = downloads(&cluster, 12);
    let fresh = plans[0].clone();
    let (tally, late) = run_during(&mut cluster, &plans, |cluster| {
        cluster.switch.as_mut().unwrap().kill();
        // These wait for a decision.
        let held = vec![fresh; 4];
        let setup = ClientSettings { threads: 4, first_port: 21_000, ..SETUP };
        let late = cluster.topology.client().namespace.thread(move || client::run(&held, setup)).unwrap();
        take_time(Duration::from_millis(300));
        cluster.start_switch();
        late.join()
    });
    tally.assert_faultless();
    println!("while it was dead: {late}");
    late.assert_faultless();
    assert_few_stalls(&cluster, before, &tally);
    assert!(cluster.switch.as_ref().unwrap().log().contains("adopted=true"), "{}", cluster.logs());
    check_handovers_work(&cluster, 21);
}

/// The switch is killed, and its next start has handoff disabled. Remains in the kernel no longer answer
/// clients, whose connections are relayed.
#[test]
fn a_switch_may_come_back_without_handoff() {
    let spec = Spec { handoff: COOKIE, ..Spec::default() };
    let Some(mut cluster) = Cluster::new(&spec, content()) else { return };
    let config = std::fs::read_to_string(cluster.path("switch0.toml")).unwrap();
    for mechanism in ["relay", "splice"] {
        check_handovers_work(&cluster, 41);
        cluster.switch.as_mut().unwrap().kill();
        let without = config.replace("mechanism = \"cookie\"", &format!("mechanism = \"{mechanism}\""));
        assert_ne!(without, config);
        std::fs::write(cluster.path("switch0.toml"), without).unwrap();
        cluster.start_switch_alone();
        let mut plans = small(&cluster, 42, 60);
        // A switch that only relays takes a half-closed connection for a closed one.
        plans.retain(|plan| !matches!(plan.behaviour, Behaviour::HalfClosing));
        let tally = cluster.topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
        println!("{mechanism}: {tally}");
        tally.assert_faultless();
        assert!(
            cluster.switch.as_ref().unwrap().log().contains("removed after a switch was killed"),
            "{}",
            cluster.logs()
        );
        assert!(cluster.switch.as_mut().unwrap().stop(), "{}", cluster.logs());
        std::fs::write(cluster.path("switch0.toml"), &config).unwrap();
        cluster.start_switch();
    }
    check_handovers_work(&cluster, 43);
}

/// Connections wait for admission when the switch is killed. Their clients' retransmissions reach the next
/// process.
#[test]
fn queued_connections_of_a_killed_switch_are_not_lost() {
    let handoff = format!("{COOKIE}\nheader_wait = \"1s\"");
    let switch = "admission = { limit = 2, queue_max = 100, queue_timeout = \"20s\" }";
    let Some(mut cluster) = Cluster::new(&Spec { handoff: &handoff, switch, ..Spec::default() }, content())
    else {
        return;
    };
    let plans = downloads(&cluster, 6);
    let (tally, held) = run_during(&mut cluster, &plans, |cluster| {
        let held = cluster.metric("larder_switch_handoff_connections", &["held"]);
        cluster.switch.as_mut().unwrap().kill();
        cluster.start_switch();
        held
    });
    assert!(held >= 4, "{held} held");
    tally.assert_faultless();
    check_handovers_work(&cluster, 32);
}

/// The switch is terminated during downloads of 10 MB. The connections continue without it, and with the next
/// process, whose config differs.
#[test]
fn a_stopped_switch_leaves_connections_going() {
    let spec = Spec { handoff: COOKIE, switch: "timeouts.drain = \"200ms\"", ..Spec::default() };
    let Some(mut cluster) = Cluster::new(&spec, content()) else { return };
    let before = timeouts(&cluster);
    let plans = downloads(&cluster, 12);
    let (tally, ()) = run_during(&mut cluster, &plans, |cluster| {
        assert!(cluster.switch.as_mut().unwrap().stop(), "{}", cluster.logs());
        // The next config has the addresses in another order, and another size of the table.
        let [v4, v6] = cluster.service().map(|address| format!("\"{address}\""));
        let config = std::fs::read_to_string(cluster.path("switch0.toml")).unwrap();
        let turned = config.replace(&format!("[{v4}, {v6}]"), &format!("[{v6}, {v4}]"));
        assert_ne!(turned, config);
        let sized = turned.replace("[switch.handoff]", "[switch.handoff]\nflows_max = 100_000");
        std::fs::write(cluster.path("switch0.toml"), sized).unwrap();
        cluster.start_switch();
    });
    tally.assert_faultless();
    let by_tag = cluster.metric("larder_switch_plane_total", &["by_tag"]);
    assert!(by_tag >= 12, "{by_tag} known by their tags\n{}", cluster.logs());
    assert_few_stalls(&cluster, before, &tally);
    assert!(cluster.switch.as_ref().unwrap().log().contains("adopted=true"), "{}", cluster.logs());
    check_handovers_work(&cluster, 22);
    // Without connections nothing remains in the kernel.
    cluster.await_idle();
    assert!(cluster.switch.as_mut().unwrap().stop(), "{}", cluster.logs());
    let left = ["/sys/fs/bpf/larder", "/run/larder/bpf"]
        .map(|root| std::path::Path::new(root).join(cluster.plane()));
    assert!(left.iter().all(|path| !path.exists()), "{left:?}");
    cluster.start_switch();
    check_handovers_work(&cluster, 23);
}

/// The switch is killed during downloads of 10 MB, and its next config lists the nodes in another order.
/// Connections stay with their nodes.
#[test]
fn nodes_may_be_named_in_another_order() {
    let spec = Spec { handoff: COOKIE, ..Spec::default() };
    let Some(mut cluster) = Cluster::new(&spec, content()) else { return };
    let plans = downloads(&cluster, 12);
    let (tally, ()) = run_during(&mut cluster, &plans, |cluster| {
        cluster.switch.as_mut().unwrap().kill();
        let config = std::fs::read_to_string(cluster.path("switch0.toml")).unwrap();
        let (head, rest) = config.split_once("nodes = [").unwrap();
        let (first, others) = rest.split_once(" }, ").unwrap();
        let (others, rest) = others.split_once("]\n").unwrap();
        let turned = format!("{head}nodes = [{others}{first} }}, ]\n{rest}");
        std::fs::write(cluster.path("switch0.toml"), turned).unwrap();
        cluster.start_switch();
    });
    tally.assert_faultless();
    let log = cluster.switch.as_ref().unwrap().log();
    assert!(
        log.contains("connections follow their nodes") && log.contains("adopted=true"),
        "{}",
        cluster.logs()
    );
    check_handovers_work(&cluster, 44);
}

/// The connection table is lost during downloads of 10 MB. The clients' timestamps identify the nodes.
#[test]
fn tags_replace_a_lost_table() {
    let spec = Spec { handoff: COOKIE, ..Spec::default() };
    let Some(mut cluster) = Cluster::new(&spec, content()) else { return };
    let before = timeouts(&cluster);
    let plans = downloads(&cluster, 12);
    let (tally, lost) = run_during(&mut cluster, &plans, |cluster| {
        cluster.switch.as_mut().unwrap().kill();
        let config = PlaneConfig {
            name: cluster.plane().to_owned(),
            interface: INTERFACE.to_owned(),
            attach: AttachMode::Auto,
            flows_max: 262_144,
            targets_max: 65_536,
            ring_bytes: 4 << 20,
            hold_packets: 64,
            key_life: larder_kernel::plane::KEY_LIFE,
        };
        let wipe = || {
            let plane = Plane::start(&config).unwrap();
            assert!(plane.adopted());
            let mut keys = Vec::new();
            plane.each_flow(|key, _| keys.push(key)).unwrap();
            keys.iter().for_each(|key| plane.remove_flow(*key).unwrap());
            plane.stop(PlaneStop::KeepPrograms).unwrap();
            keys.len()
        };
        let lost = cluster.topology.front().namespace.run(wipe).unwrap();
        cluster.start_switch();
        lost
    });
    tally.assert_faultless();
    assert!(lost >= 12, "{lost} connections were in the table");
    assert!(cluster.metric("larder_switch_plane_total", &["by_tag"]) >= 12, "{}", cluster.admin("/metrics"));
    assert_few_stalls(&cluster, before, &tally);
    check_handovers_work(&cluster, 24);
}

/// Routers move clients to another front-end and back under load. It knows the nodes by their tags and
/// accepts the other's cookies.
#[test]
fn another_front_end_continues_connections() {
    let topology =
        TopologySpec { nodes: 3, fronts: 2, port_range: (30_000, 60_999), ..TopologySpec::default() };
    let Some(mut cluster) = Cluster::new(&Spec { topology, handoff: COOKIE, ..Spec::default() }, content())
    else {
        return;
    };
    let plans = downloads(&cluster, 12);
    let others: Vec<Plan> = small(&cluster, 25, 96)
        .into_iter()
        .filter(|plan| {
            matches!(plan.behaviour, Behaviour::Plain | Behaviour::Pipelined | Behaviour::HeadOnly)
        })
        // A port that the client's kernel has not yet released is not the front-ends' concern.
        .map(|plan| Plan { same_port: false, ..plan })
        .collect();
    let go = std::sync::Arc::new(AtomicBool::new(true));
    let (tally, short) = run_during(&mut cluster, &plans, |cluster| {
        let (still, setup) =
            (std::sync::Arc::clone(&go), ClientSettings { threads: 6, first_port: 21_000, ..SETUP });
        let namespace = &cluster.topology.client().namespace;
        let short = namespace.thread(move || client::run_while(&others, setup, &still)).unwrap();
        for turn in [1, 0, 1, 0] {
            take_time(Duration::from_millis(400));
            cluster.topology.point_clients_at(&cluster.topology.fronts[turn]).unwrap();
        }
        take_time(Duration::from_millis(400));
        go.store(false, Ordering::Relaxed);
        short.join()
    });
    println!("meanwhile: {short}");
    cluster.assert_faultless(&tally);
    cluster.assert_faultless(&short);
    assert!(short.right > 100, "{short}");
    check_handovers_work(&cluster, 26);
}

/// A node's host fails suddenly. Its clients are reset soon, and no other client is.
#[test]
fn a_dead_nodes_clients_are_reset() {
    let health = "health.interval = \"100ms\"\nhealth.timeout = \"100ms\"\nhealth.fall = 2";
    let spec = Spec { handoff: COOKIE, switch: health, ..Spec::default() };
    let Some(mut cluster) = Cluster::new(&spec, content()) else { return };
    let plans = downloads(&cluster, 12);
    let started = Instant::now();
    let (tally, ()) = run_during(&mut cluster, &plans, |cluster| {
        cluster.node(0).namespace.ip(&format!("link set {INTERFACE} down")).unwrap();
        let told = cluster.await_metric("larder_switch_handoff_ends_total", &["node_lost"], 1);
        println!("{told} told after {:?}", started.elapsed() - Duration::from_millis(500));
        assert!(started.elapsed() < Duration::from_millis(3_500), "{:?}", started.elapsed());
    });
    let reset = tally.faults.iter().filter(|(_, fault)| matches!(fault, Fault::Reset)).count();
    assert!(reset > 0 && tally.right > 0, "{tally}");
    assert_eq!(reset, tally.faults.len(), "{:?}", tally.faults);
    check_handovers_work(&cluster, 27);
}

/// An agent is terminated or killed during downloads from its node. The downloads continue, and new
/// connections are relayed to the node. Handovers resume when the agent is back.
#[test]
fn an_agent_may_restart() {
    for crash in [false, true] {
        let spec = Spec {
            topology: TopologySpec { nodes: 1, port_range: (30_000, 60_999), ..TopologySpec::default() },
            handoff: COOKIE,
            ..Spec::default()
        };
        let Some(mut cluster) = Cluster::new(&spec, content()) else { return };
        let plans = downloads(&cluster, 6);
        let others = small(&cluster, 28, 64);
        let (tally, relayed) = run_during(&mut cluster, &plans, |cluster| {
            let agent = cluster.agents[0].as_mut().unwrap();
            if crash {
                agent.kill();
            } else {
                assert!(agent.stop());
            }
            let before = cluster.metric("larder_switch_deliveries_total", &["relay"]);
            let short = cluster.topology.client().namespace.run(|| client::run(&others, SETUP)).unwrap();
            println!("meanwhile: {short}");
            short.assert_faultless();
            let relayed = cluster.metric("larder_switch_deliveries_total", &["relay"]) - before;
            cluster.start_agent(0, Server::Nginx);
            cluster.await_channels(0);
            relayed
        });
        tally.assert_faultless();
        assert!(relayed > 32, "{relayed} relayed (crash: {crash})\n{}", cluster.logs());
        check_handovers_work(&cluster, 29);
    }
}

/// The control channel is interrupted. Connections continue, nothing is lost, and loads are exact afterwards.
#[test]
fn a_cut_channel_loses_nothing() {
    let spec = Spec { handoff: COOKIE, ..Spec::default() };
    let Some(mut cluster) = Cluster::new(&spec, content()) else { return };
    let plans = downloads(&cluster, 12);
    let others = small(&cluster, 30, 120);
    let (tally, ()) = run_during(&mut cluster, &plans, |cluster| {
        cluster.agents.iter().flatten().for_each(|agent| agent.signal(Signal::STOP));
        for _ in 0..3 {
            let short = cluster.topology.client().namespace.run(|| client::run(&others, SETUP)).unwrap();
            short.assert_faultless();
            take_time(Duration::from_millis(900));
        }
        let nodes = cluster.admin("/nodes");
        assert!(!nodes.contains("\"channel\": \"up\""), "{nodes}");
        cluster.agents.iter().flatten().for_each(|agent| agent.signal(Signal::CONT));
        cluster.await_channels(0);
    });
    tally.assert_faultless();
    check_handovers_work(&cluster, 31);
}
