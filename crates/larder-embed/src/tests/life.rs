//! Requests, nodes, explanations and snapshots.

use super::*;
use larder_core::nodes::LoadReport;
use larder_core::{CacheEvent, CacheResult, NodeSpec, NodeState, PolicyKind, Reason, Weight};
use std::collections::BTreeMap;
use std::time::Duration;

#[test]
fn target_stays_at_its_node_until_the_node_is_down() {
    let dispatcher = embedded(FOUR);
    let first = start(&dispatcher, 1, &target(7));
    assert_eq!(dispatcher.done(at(2), &first, None), Ok(()));
    let again = start(&dispatcher, 3, &target(7));
    assert_eq!((again.node, again.reason), (first.node, Reason::Local));
    let explained = dispatcher.explain(at(3), &target(7)).expect("valid facts");
    assert_eq!((&explained["known"], &explained["reason"]), (&true.into(), &"local".into()), "{explained}");
    assert_eq!(dispatcher.set_state(at(3), first.node, NodeState::Down), Ok(true));
    assert_eq!(dispatcher.set_state(at(3), first.node, NodeState::Down), Ok(false));
    assert_eq!(dispatcher.state(first.node), Ok(NodeState::Down));
    assert_ne!(start(&dispatcher, 4, &target(7)).node, first.node);
    assert_eq!(dispatcher.done(at(5), &again, None), Ok(()), "a request ends at a node that is down");
    let twice = dispatcher.done(at(6), &again, None);
    assert_eq!(twice, Err(EmbedError::NoRequest(again.node)), "and does so once");
}

#[test]
fn limit_refuses_and_nothing_waits() {
    let dispatcher = embedded("nodes = [\"a\", \"b\"]\n[admission]\nlimit = 3\n");
    let started: Vec<Decision> = (0..3).map(|id| start(&dispatcher, 0, &target(id))).collect();
    assert_eq!(dispatcher.decide(at(0), &target(9)), Ok(Outcome::Refused(Refusal::Limit)));
    assert_eq!(dispatcher.done(at(1), &started[0], None), Ok(()));
    let last = start(&dispatcher, 2, &target(9));
    let long =
        dispatcher.become_long_lived(at(3), &started[1]).expect("it is in flight").expect("it changes");
    assert_eq!(long, Decision { long_lived: true, ..started[1] });
    assert_eq!(dispatcher.become_long_lived(at(3), &long), Ok(None));
    let fourth = start(&dispatcher, 4, &target(10));
    for decision in [long, started[2], last, fourth] {
        assert_eq!(dispatcher.done(at(5), &decision, None), Ok(()));
    }
    let status = dispatcher.status(at(5));
    assert_eq!((number(&status, "outstanding"), number(&status, "admission_limit")), (0, 3), "{status}");
    assert!(status["nodes"].as_array().is_some_and(|nodes| nodes.iter().all(|node| node["load"] == 0)));
}

/// The config of a program may have been changed after it was parsed.
#[test]
fn requests_do_not_queue() {
    let mut config: EmbeddedConfig = "nodes = [\"a\"]\n[admission]\nlimit = 1\n".parse().expect("a config");
    config.settings.queue_max = 10;
    let dispatcher = Embedded::new(config).expect("the config can be used");
    start(&dispatcher, 0, &target(1));
    assert_eq!(dispatcher.decide(at(0), &target(2)), Ok(Outcome::Refused(Refusal::Limit)));
    assert_eq!((dispatcher.outstanding(), dispatcher.dispatcher().queued()), (1, 0));
}

#[test]
fn failed_request_goes_to_another_node() {
    let dispatcher = embedded("nodes = [\"a\", \"b\"]\n");
    let failed = start(&dispatcher, 0, &target(1));
    let retry = |facts: &RequestFacts<'_>, failed: &Decision| {
        dispatcher.retry(at(1), facts, failed, Duration::from_nanos(500))
    };
    let Ok(Outcome::Start(moved)) = retry(&target(1), &failed) else { panic!("another node is left") };
    assert_ne!(moved.node, failed.node);
    let tried = [failed.node];
    let second = RequestFacts { exclude: &tried, ..target(1) };
    assert_eq!(retry(&second, &moved), Ok(Outcome::Refused(Refusal::NoNode)));
    assert_eq!(retry(&second, &moved), Err(EmbedError::NoRequest(moved.node)), "the request has ended");
    assert_eq!(dispatcher.outstanding(), 0);
}

#[test]
fn stale_ids_are_noticed() {
    let dispatcher = embedded("");
    let add = |name: &str| dispatcher.add(at(0), NodeSpec::named(name));
    assert_eq!(dispatcher.decide(at(0), &target(1)), Ok(Outcome::Refused(Refusal::NoNode)));
    let old = add("a").expect("it joins");
    assert!(matches!(add("a"), Err(EmbedError::Join(_))));
    assert_eq!(dispatcher.find("a"), Ok(old));
    let flying = start(&dispatcher, 0, &target(1));
    assert_eq!(dispatcher.set_state(at(0), old, NodeState::Removed), Ok(true));
    let removed = EmbedError::RemovedNode(old);
    assert_eq!(dispatcher.set_state(at(0), old, NodeState::Up), Err(removed.clone()));
    assert_eq!(dispatcher.state(old), Err(removed.clone()));
    assert_eq!(dispatcher.find("a"), Err(EmbedError::UnknownName("a".to_owned())));
    assert_eq!(dispatcher.done(at(1), &flying, None), Ok(()));
    let new = add("b").expect("it takes the slot");
    assert_eq!((new.slot(), new == old), (old.slot(), false));
    let again = start(&dispatcher, 2, &target(1));
    assert_eq!(again.node, new);
    let ended = dispatcher.done(at(3), &flying, None);
    assert_eq!(ended, Err(removed.clone()), "the former node is another one");
    assert_eq!(dispatcher.set_state(at(3), old, NodeState::Down), Err(removed));
    // A hint may be stale, because nodes leave at any time.
    let sticky = start(&dispatcher, 4, &RequestFacts { sticky: Some(old), ..target(1) });
    assert_eq!(sticky.node, new);
    let never = NodeHandle::from_raw(0x7FFF_0000).expect("not 0");
    let unknown = dispatcher.decide(at(5), &RequestFacts { sticky: Some(never), ..target(1) });
    assert_eq!(unknown, Err(EmbedError::UnknownNode(never)));
}

#[test]
fn feedback_is_counted_and_learned() {
    let dispatcher = embedded(&format!("policy = \"peak-ewma\"\n{FOUR}"));
    let good = Feedback {
        elapsed: Duration::from_millis(5),
        first_byte: Some(Duration::from_millis(1)),
        bytes: 700,
        status: 200,
        cache: Some(CacheResult::Hit),
        failed: false,
    };
    let results = [
        good,
        Feedback { cache: Some(CacheResult::Miss), ..good },
        Feedback { failed: true, ..good },
        Feedback { status: 500, ..good },
    ];
    for (id, feedback) in (1..).zip(results) {
        let decision = start(&dispatcher, id, &target(id));
        assert_eq!(dispatcher.done(at(id + 5_000_000), &decision, Some(&feedback)), Ok(()));
    }
    let status = dispatcher.status(at(0));
    let nodes = status["nodes"].as_array().expect("a list");
    let sum = |field: &str| nodes.iter().map(|node| number(node, field)).sum::<u64>();
    let sums = ["replies", "failures", "bytes", "hits", "misses"].map(sum);
    assert_eq!(sums, [3, 1, 2_100, 1, 1], "{status}");
}

#[test]
fn snapshot_moves_targets_to_another_dispatcher() {
    let before = embedded(FOUR);
    let node_of = |dispatcher: &Embedded, id: u64| {
        dispatcher.explain(at(0), &target(id)).expect("valid facts")["node"].to_string()
    };
    let placed: BTreeMap<u64, String> = (1..200)
        .map(|id| {
            let id = id << 32;
            let decision = start(&before, 0, &target(id));
            before.done(at(0), &decision, None).expect("it is in flight");
            (id, node_of(&before, id))
        })
        .collect();
    assert_eq!(before.targets_known(), placed.len());
    let bytes = before.save();
    let after = embedded("nodes = [\"d\", \"c\", \"b\", \"a\"]\n");
    assert_eq!(after.load(&bytes), Ok(placed.len() as u64));
    for (id, node) in placed {
        assert_eq!(node_of(&after, id), node);
    }
    for cut in [0, 4, bytes.len() / 2, bytes.len() - 1] {
        assert!(matches!(after.load(&bytes[..cut]), Err(EmbedError::Snapshot(_))), "{cut}");
    }
}

#[test]
fn signals_reach_policies_that_use_them() {
    let dispatcher = embedded(&format!("policy = \"lb-gc\"\n{FOUR}"));
    assert_eq!(dispatcher.policy(), PolicyKind::LbGc);
    let [a, b] = ["a", "b"].map(|name| dispatcher.find(name).expect("it is there"));
    assert_eq!(dispatcher.cache_event(at(0), b, TargetId(7), CacheEvent::Stored), Ok(true));
    assert_eq!(dispatcher.cache_event(at(0), a, TargetId(7), CacheEvent::Gone), Ok(true));
    assert_eq!(start(&dispatcher, 1, &target(7)).node, b);
    let load = LoadReport { cpu_permille: Some(1_000), ..LoadReport::default() };
    assert_eq!(dispatcher.report(at(1), a, load), Ok(true));
    assert_eq!(dispatcher.set_state(at(1), a, NodeState::Draining), Ok(true));
    assert_eq!(dispatcher.report(at(2), a, load), Ok(false));
    let rows = [(TargetId(7), Some(b)), (TargetId(8), None)];
    assert_eq!(dispatcher.set_table(at(3), rows), Ok(false));
    let ward = embedded(&format!("policy = \"ward\"\n{FOUR}"));
    assert_eq!(ward.set_table(at(3), rows), Ok(true));
    assert_eq!(start(&ward, 4, &target(7)).node, b);
}

#[test]
fn weight_and_backup_are_in_the_status() {
    let dispatcher = embedded("nodes = [\"a\", \"b\"]\n");
    let a = dispatcher.find("a").expect("it is there");
    let weight = Weight::from_milli(2_500).expect("in range");
    assert_eq!(dispatcher.set_weight(at(0), a, weight), Ok(true));
    assert_eq!(dispatcher.set_backup(at(0), a, true), Ok(true));
    let status = dispatcher.status(at(0));
    let nodes = status["nodes"].as_array().expect("a list");
    let node = nodes.iter().find(|node| node["name"] == "a").expect("it is listed");
    assert_eq!((&node["weight"], &node["backup"]), (&2.5.into(), &true.into()), "{status}");
    assert_eq!(number(node, "id"), u64::from(a.get()));
}

#[test]
fn threads_share_a_dispatcher() {
    let dispatcher = embedded(&format!("{FOUR}[admission]\nlimit = \"unlimited\"\n"));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let dispatcher = &dispatcher;
            scope.spawn(move || {
                for turn in 0..5_000_u64 {
                    let decision = start(dispatcher, turn, &target(turn * 7 + thread));
                    assert_eq!(dispatcher.done(at(turn), &decision, Some(&Feedback::default())), Ok(()));
                }
            });
        }
        for turn in 0..200 {
            let node = dispatcher.add(at(0), NodeSpec::named(format!("extra{turn}"))).expect("it joins");
            assert_eq!(dispatcher.set_state(at(0), node, NodeState::Removed), Ok(true));
            dispatcher.status(at(0));
        }
    });
    assert_eq!(dispatcher.outstanding(), 0);
}
