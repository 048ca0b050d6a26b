//! The shared state as several processes use it.

use super::*;
use crate::zone::tests::{config, die, in_child, servers, zone};
use larder_core::NodeState;
use larder_embed::Refusal;

fn shared(zone: Zone, config: &Arc<PolicyConfig>, names: &[&str]) -> Shared {
    let shared = Shared::new(zone, "tier", config, servers(names));
    shared.join().expect("a worker");
    shared
}

fn start(shared: &Shared, key: &str) -> InFlight {
    let (now, target) = (crate::now(), TargetId::of(key.as_bytes()));
    let (outcome, epoch) = shared.decide(now, (target, false), (0, &[])).expect("a state").expect("a worker");
    Shared::in_flight(now, outcome, epoch).expect("a server")
}

fn end(shared: &Shared, request: &InFlight) {
    shared.done(crate::now(), request, (None, Verdict::Unknown)).expect("a state");
}

fn loads(shared: &Shared) -> Vec<u64> {
    let status = shared.status(crate::now()).expect("a state");
    let nodes = status["nodes"].as_array().expect("nodes").clone();
    nodes.iter().map(|node| node["load"].as_u64().expect("a load")).collect()
}

#[test]
fn the_requests_of_a_dead_worker_are_released() {
    let config = Arc::new(config(&["memory=8m"]));
    let zone = zone(&config.plan);
    let first = shared(zone, &config, &["a", "b"]);
    let own = start(&first, "own");
    let status = in_child(|| {
        let worker = shared(zone, &config, &["a", "b"]);
        for turn in 0..5 {
            start(&worker, &format!("/{turn}"));
        }
        die();
    });
    assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
    assert_eq!(loads(&first).iter().sum::<u64>(), 6);
    // The worker that nginx starts in its place.
    let next = shared(zone, &config, &["a", "b"]);
    assert_eq!(loads(&next).iter().sum::<u64>(), 1);
    end(&first, &own);
    assert_eq!(loads(&next).iter().sum::<u64>(), 0);
}

/// nginx starts no worker in place of one that was ending.
#[test]
fn the_requests_of_a_dead_worker_are_released_when_another_leaves() {
    let config = Arc::new(config(&["memory=8m"]));
    let zone = zone(&config.plan);
    let [first, second] = [(); 2].map(|()| shared(zone, &config, &["a", "b"]));
    in_child(|| {
        start(&shared(zone, &config, &["a", "b"]), "/1");
        die();
    });
    assert_eq!(loads(&first).iter().sum::<u64>(), 1);
    second.leave().expect("a state");
    assert_eq!(loads(&first).iter().sum::<u64>(), 0);
}

#[test]
fn the_requests_of_a_worker_that_leaves_are_released() {
    let config = Arc::new(config(&["memory=8m"]));
    let zone = zone(&config.plan);
    let [first, second] = [(); 2].map(|()| shared(zone, &config, &["a"]));
    start(&first, "/1");
    first.leave().expect("a state");
    assert_eq!(loads(&second), [0]);
    assert!(
        first.decide(crate::now(), (TargetId(1), false), (0, &[])).expect("a state").is_none(),
        "it is no worker"
    );
}

#[test]
fn all_workers_decide_alike() {
    let config = Arc::new(config(&["memory=8m", "policy=lard"]));
    let zone = zone(&config.plan);
    let first = shared(zone, &config, &["a", "b", "c"]);
    let place = |worker: &Shared| -> Vec<u32> {
        let one = |target: u32| {
            let request = start(worker, &format!("/{target}"));
            end(worker, &request);
            request.started.decision.node.get()
        };
        (0..200).map(one).collect()
    };
    let placed = place(&first);
    let status = in_child(|| assert_eq!(place(&shared(zone, &config, &["a", "b", "c"])), placed));
    assert_eq!(status, 0);
}

#[test]
fn after_a_crash_the_state_comes_from_the_snapshot() {
    let config = Arc::new(config(&["memory=8m", "policy=lard"]));
    let zone = zone(&config.plan);
    let worker = shared(zone, &config, &["a", "b"]);
    let placed: Vec<_> = (0..50).map(|target| start(&worker, &format!("/{target}"))).collect();
    // The first end of a request takes a snapshot.
    placed.iter().for_each(|request| end(&worker, request));
    let held = start(&worker, "/0");
    let status = in_child(|| {
        let mut locked = zone.lock().expect("a lock");
        let _ = locked.change(|_| die());
    });
    assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
    for (target, before) in placed.iter().enumerate() {
        let request = start(&worker, &format!("/{target}"));
        assert_eq!(request.started.decision.node, before.started.decision.node, "target {target}");
        end(&worker, &request);
    }
    // A request of the state before does not count in this one.
    end(&worker, &held);
    assert_eq!(loads(&worker), [0, 0]);
}

#[test]
fn a_reload_changes_members_and_policy_and_keeps_the_targets() {
    let config_of = |policy: &str| Arc::new(config(&["memory=8m", policy]));
    let before = config_of("policy=lard");
    let zone = zone(&before.plan);
    let worker = shared(zone, &before, &["a", "b"]);
    let placed: Vec<_> = (0..50).map(|target| start(&worker, &format!("/{target}"))).collect();
    placed.iter().for_each(|request| end(&worker, request));
    let held = start(&worker, "/0");

    // The same policy, another server.
    let second = shared(zone, &before, &["a", "b", "c"]);
    assert_eq!(loads(&second).len(), 3);
    end(&worker, &held);
    for (target, first) in placed.iter().enumerate() {
        let request = start(&second, &format!("/{target}"));
        assert_eq!(request.started.decision.node, first.started.decision.node);
        end(&second, &request);
    }
    // Another policy, and a server less. Ids of nodes are new.
    let third = shared(zone, &config_of("policy=lard-r"), &["b", "c"]);
    let (_, nodes) = third.nodes(["b", "c"].into_iter()).expect("a state");
    let (_, old) = (0, placed.iter().enumerate());
    let b_before = 1;
    for (target, first) in old.filter(|(_, first)| first.started.decision.node.slot() == b_before) {
        let request = start(&third, &format!("/{target}"));
        assert_eq!(Some(request.started.decision.node), nodes[0], "{target}: {first:?}");
        end(&third, &request);
    }
    assert_eq!(third.status(crate::now()).expect("a state")["policy"], "lard-r");
}

#[test]
fn a_failing_server_takes_no_requests_until_one_of_them_succeeds() {
    let config = Arc::new(config(&["memory=8m", "policy=lard"]));
    let worker = shared(zone(&config.plan), &config, &["a", "b"]);
    let second = Duration::from_secs(1);
    let failed = start(&worker, "/1");
    let node = failed.started.decision.node;
    let mut now = crate::now();
    let decide = |now: Time, key: &str| {
        let (outcome, epoch) = worker
            .decide(now, (TargetId::of(key.as_bytes()), false), (0, &[]))
            .expect("a state")
            .expect("a worker");
        Shared::in_flight(now, outcome, epoch)
    };
    let end =
        |now: Time, request: &InFlight, verdict| worker.done(now, request, (None, verdict)).expect("a state");
    let state = |now: Time| {
        let status = worker.status(now).expect("a state");
        let nodes = status["nodes"].as_array().expect("nodes").clone();
        nodes.iter().find(|row| row["id"] == node.get()).expect("the node")["state"].clone()
    };
    end(now, &failed, Verdict::Failed(second));
    assert_eq!(state(now), NodeState::Down.to_string());
    for target in 0..20 {
        let request = decide(now, &format!("/{target}")).expect("the other server");
        assert_ne!(request.started.decision.node, node);
        end(now, &request, Verdict::Healthy);
    }
    // After the time, one request tries it. It fails, and the time begins again.
    for verdict in [Verdict::Failed(second), Verdict::Healthy] {
        now += second;
        let probe = (0..100)
            .filter_map(|target| decide(now, &format!("/new/{target}/{verdict:?}")))
            .find(|request| request.started.decision.node == node)
            .expect("a request tries it");
        assert_eq!(state(now), NodeState::Down.to_string());
        end(now, &probe, verdict);
    }
    assert_eq!(state(now), NodeState::Up.to_string());
}

#[test]
fn a_server_that_is_down_in_the_config_is_never_used() {
    let config = Arc::new(config(&["memory=8m"]));
    let mut servers = servers(&["a", "b"]);
    servers[0].down = true;
    let worker = Shared::new(zone(&config.plan), "tier", &config, servers.clone());
    worker.join().expect("a worker");
    let (_, nodes) = worker.nodes(["a", "b"].into_iter()).expect("a state");
    for target in 0..20 {
        assert_eq!(Some(start(&worker, &format!("/{target}")).started.decision.node), nodes[1]);
    }
    servers[1].down = true;
    let next = Shared::new(worker.zone(), "tier", &config, servers);
    next.join().expect("a worker");
    let (outcome, _) =
        next.decide(crate::now(), (TargetId(1), false), (0, &[])).expect("a state").expect("a worker");
    assert_eq!(outcome, Outcome::Refused(Refusal::NoNode));
}

#[test]
fn the_state_file_has_the_targets_for_the_next_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = format!("state_file={}", folder.path().join("state").display());
    let config = Arc::new(config(&["memory=8m", "policy=lard", &file]));
    let place = |worker: &Shared| -> Vec<_> {
        let one = |target: u32| {
            let request = start(worker, &format!("/{target}"));
            end(worker, &request);
            request.started.decision.node
        };
        (0..50).map(one).collect()
    };
    let worker = shared(zone(&config.plan), &config, &["a", "b"]);
    let placed = place(&worker);
    // The first end of a request has begun to write it.
    larder_testkit::eventually("the file is written", || std::fs::metadata(folder.path().join("state")).ok());
    worker.finish();
    let next = shared(zone(&config.plan), &config, &["a", "b"]);
    assert_eq!(place(&next), placed);
}

/// A policy may compute its table while it explains. Other processes then decide with that table.
#[test]
fn an_explanation_and_the_status_leave_nothing_of_their_process_in_the_state() {
    for policy in larder_core::PolicyKind::ALL {
        if larder_embed::extra_input(policy).is_some() {
            continue;
        }
        let config = Arc::new(config(&["memory=64m", &format!("policy={policy}")]));
        let zone = zone(&config.plan);
        let status = in_child(|| {
            let worker = shared(zone, &config, &["a", "b", "c"]);
            let explained = worker.explain(crate::now(), TargetId(7)).expect("a state");
            assert!(explained["node"].is_string(), "{policy}: {explained}");
            worker.status(crate::now()).expect("a state");
            worker.learned().expect("a state");
        });
        assert_eq!(status, 0, "{policy}");
        let worker = shared(zone, &config, &["a", "b", "c"]);
        for target in 0..200 {
            end(&worker, &start(&worker, &format!("/{target}")));
        }
        let changed = shared(zone, &config, &["a", "b"]);
        for target in 0..200 {
            end(&changed, &start(&changed, &format!("/{target}")));
        }
    }
}

#[test]
fn a_worker_of_an_earlier_config_changes_nothing() {
    let config = Arc::new(config(&["memory=8m"]));
    let zone = zone(&config.plan);
    let early = Shared::new(zone, "tier", &config, servers(&["a"]));
    let late = shared(zone, &config, &["a", "b"]);
    early.join().expect("a worker");
    assert_eq!(loads(&late).len(), 2);
    end(&early, &start(&early, "/1"));
    // If the state is lost, only a worker of the later config creates it again.
    zone.lock().expect("the zone").reset();
    let decided = early.decide(crate::now(), (TargetId::of(b"/1"), false), (0, &[]));
    assert!(matches!(decided, Err(ZoneError::NoState)), "{decided:?}");
    assert_eq!(loads(&late).len(), 2);
    end(&early, &start(&early, "/1"));
}

#[test]
fn a_tunnel_of_a_dead_worker_is_released() {
    let config = Arc::new(config(&["memory=8m"]));
    let zone = zone(&config.plan);
    let first = shared(zone, &config, &["a"]);
    let mut own = start(&first, "/own");
    first.become_long_lived(crate::now(), &mut own).expect("a state");
    let status = in_child(|| {
        let worker = shared(zone, &config, &["a"]);
        let mut tunnel = start(&worker, "/1");
        worker.become_long_lived(crate::now(), &mut tunnel).expect("a state");
        die();
    });
    assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
    let next = shared(zone, &config, &["a"]);
    assert_eq!(loads(&next), [1]);
    end(&first, &own);
    let status = next.status(crate::now()).expect("a state");
    assert_eq!((&status["nodes"][0]["load"], &status["nodes"][0]["long_lived"]), (&json!(0), &json!(0)));
}

/// Prints the time of a decision and its end with a dispatcher that is not shared.
fn alone(config: &PolicyConfig, requests: u32, targets: u64) {
    let nodes = (0..16).map(|node| larder_core::NodeSpec::named(format!("10.0.0.{node}:80"))).collect();
    let config = larder_embed::EmbeddedConfig { settings: config.settings.clone(), nodes };
    let dispatcher = larder_embed::Embedded::new(config).expect("a dispatcher");
    let mut state = 1_u64;
    let mut run = || {
        let begun = Instant::now();
        for _ in 0..requests {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (now, target) = (crate::now(), TargetId::of(&((state >> 33) % targets).to_le_bytes()));
            let outcome =
                dispatcher.decide(now, &larder_embed::RequestFacts::new(target)).expect("a decision");
            let Outcome::Start(decision) = outcome else { panic!("{outcome:?}") };
            dispatcher.done(now, &decision, None).expect("it has started");
        }
        begun.elapsed()
    };
    run();
    println!("not shared: {:.0} ns", run().as_nanos() as f64 / f64::from(requests));
}

/// Prints the time of a decision and its end: with a dispatcher in a process, and with processes that share a state.
#[test]
#[ignore = "measures this machine"]
fn cost_of_a_decision() {
    const REQUESTS: u32 = 1_000_000;
    const TARGETS: u64 = 100_000;
    let config = Arc::new(config(&["memory=64m"]));
    let names: Vec<String> = (0..16).map(|node| format!("10.0.0.{node}:80")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let run = |worker: &Shared, requests: u32| {
        let mut state = 1_u64;
        let begun = Instant::now();
        for _ in 0..requests {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (now, target) = (crate::now(), TargetId::of(&((state >> 33) % TARGETS).to_le_bytes()));
            let decided = worker.decide(now, (target, false), (0, &[])).expect("a state").expect("a worker");
            let request = Shared::in_flight(now, decided.0, decided.1).expect("a server");
            worker.done(now, &request, (None, Verdict::Unknown)).expect("a state");
        }
        begun.elapsed()
    };
    alone(&config, REQUESTS, TARGETS);
    for processes in [1, 2, 4] {
        let zone = zone(&config.plan);
        let first = shared(zone, &config, &names);
        run(&first, REQUESTS);
        let begun = Instant::now();
        thread::scope(|scope| {
            let other =
                || in_child(|| assert!(run(&shared(zone, &config, &names), REQUESTS) > Duration::ZERO));
            let others: Vec<_> = (1..processes).map(|_| scope.spawn(other)).collect();
            run(&first, REQUESTS);
            others.into_iter().for_each(|child| assert_eq!(child.join().expect("a child"), 0));
        });
        let all = begun.elapsed();
        println!(
            "{processes} processes: {:.0} ns for each request of all, {:.2} M requests/s",
            all.as_nanos() as f64 / f64::from(REQUESTS * processes),
            f64::from(REQUESTS * processes) / all.as_secs_f64() / 1e6
        );
    }
}
