//! Tests that a policy that restores the learned state of another instance decides like that instance.

use super::{report, target};
use crate::dispatch::{
    Admission, Arrival, CacheEvent, CacheResult, Dispatcher, ReplyFeedback, Request, Settings,
};
use crate::id::{NodeId, RouteId, TargetId};
use crate::nodes::{NodeSpec, mix};
use crate::policy::lard_cost::{CostSettings, MissCost};
use crate::policy::thresholds::{HighRule, LowRule, ThresholdSettings, TrainingSettings};
use crate::policy::{PolicyKind, Reason};
use crate::snapshot::Snapshot;
use crate::time::Time;
use core::time::Duration;

const NODES: u16 = 5;

/// Creates a dispatcher with low thresholds, which may be learned, so that sets grow, move and shrink.
fn dispatcher(policy: PolicyKind, learns: bool) -> Dispatcher {
    let mut settings = Settings {
        policy,
        admission: Admission::Unlimited,
        t_low: 2,
        t_high: 4,
        targets_max: 64,
        shards: 2,
        replication_decay: Duration::from_secs(1),
        ..Settings::default()
    };
    if learns {
        settings.thresholds = ThresholdSettings {
            low: LowRule::Learned(TrainingSettings {
                length: Duration::from_secs(4),
                ..TrainingSettings::default()
            }),
            high: HighRule::ByDelay { delay: Duration::from_millis(4), service: None },
        };
        settings.policies.cost =
            CostSettings { idle: 2, overload: 8, miss: MissCost::Measured { default: 9 } };
    }
    let specs: Vec<NodeSpec> = (0..NODES).map(|i| NodeSpec::named(format!("n{i}"))).collect();
    Dispatcher::new(settings, &specs).expect("the settings are in range")
}

fn request(step: u64) -> Request {
    target(mix(step) % 40)
}

fn arrive(dispatcher: &Dispatcher, now: Time, step: u64) -> (NodeId, Reason) {
    match dispatcher.arrive(now, request(step)) {
        Arrival::Start(decision) => (decision.node, decision.reason),
        other => panic!("expected a start, got {other:?}"),
    }
}

/// Serves up to a dozen concurrent requests; every one is answered in the end.
fn live(dispatcher: &Dispatcher, from: u64, steps: u64) -> Vec<(NodeId, Reason)> {
    let (mut log, mut held) = (Vec::new(), alloc::collections::VecDeque::new());
    let end = |now, (step, node): (u64, NodeId)| {
        let found = [CacheResult::Hit, CacheResult::Miss][step as usize % 2];
        let elapsed = Duration::from_micros(300 + mix(step) % 9_000);
        dispatcher.observe_reply(
            now,
            &request(step),
            node,
            &ReplyFeedback { elapsed, first_byte: None, found: Some(found) },
        );
        dispatcher.finish(now, node, &mut Vec::new());
    };
    for step in from..from + steps {
        let now = Time::from_millis(step * 20);
        log.push(arrive(dispatcher, now, step));
        held.push_back((step, log[log.len() - 1].0));
        let event = [CacheEvent::Stored, CacheEvent::Evicted][usize::from(step % 3 == 0)];
        dispatcher.cache_event(now, NodeId((mix(step) % 5) as u16), TargetId(mix(step % 40)), event);
        if held.len() > 12 {
            held.pop_front().into_iter().for_each(|ended| end(now, ended));
        }
    }
    held.into_iter().for_each(|ended| end(Time::from_millis((from + steps) * 20), ended));
    log
}

#[test]
fn restored_policy_decides_like_the_original() {
    for kind in PolicyKind::ALL {
        for learns in [false, true] {
            let before = dispatcher(kind, learns);
            live(&before, 0, 900);
            let bytes = Snapshot::capture(&before, [(RouteId::DEFAULT, "default")]).encode();
            let snapshot = Snapshot::decode(&bytes).expect("it is whole");
            let after = dispatcher(kind, learns);
            let targets = snapshot.restore(&after, RouteId::DEFAULT, "default");
            assert_eq!(
                (targets, after.targets_known()),
                (before.targets_known(), before.targets_known()),
                "{kind}"
            );
            assert_eq!(
                after.thresholds_of(RouteId::DEFAULT),
                before.thresholds_of(RouteId::DEFAULT),
                "{kind}"
            );
            // The nodes are asked again.
            for i in 0..NODES {
                let now = Time::from_millis(900 * 20);
                for dispatcher in [&before, &after] {
                    assert!(dispatcher.report(now, NodeId(i), report(mix(i.into()))));
                }
            }
            let (then, now) = (live(&before, 900, 600), live(&after, 900, 600));
            let differ = then.iter().zip(&now).position(|(then, now)| then != now);
            assert_eq!(differ, None, "{kind}, learns: {learns}");
        }
    }
}
