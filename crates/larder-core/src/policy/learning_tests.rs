//! Tests that learned values are not an input: a dispatcher that learns nothing replays a recorded run.

use super::UtilBy;
use super::hacc::{HaccSettings, SignalWeight};
use super::lard_cost::{CostSettings, MissCost};
use super::thresholds::{HighRule, LowRule, ThresholdSettings, TrainingSettings};
use super::{PolicyKind, PolicySettings};
use crate::class::ServiceClass;
use crate::dispatch::{Admission, Arrival, CacheResult, Dispatcher, ReplyFeedback, Request, Settings};
use crate::id::{NodeId, TargetId};
use crate::nodes::{LoadReport, NodeSpec, NodeState, Signal, Weight, mix};
use crate::record::{ChangeRecord, DecisionRecord, RecordSink};
use crate::sync::Mutex;
use crate::time::Time;
use alloc::sync::Arc;
use core::time::Duration;

/// A recorded event, in order.
#[derive(Clone, Debug)]
enum Frame {
    Decision(DecisionRecord),
    Change(ChangeRecord),
}

#[derive(Clone, Debug, Default)]
struct FrameCollector(Arc<Mutex<Vec<Frame>>>);

impl RecordSink for FrameCollector {
    fn record_decision(&self, decided: DecisionRecord) -> bool {
        self.0.lock().push(Frame::Decision(decided));
        true
    }

    fn record_change(&self, changed: ChangeRecord) -> bool {
        self.0.lock().push(Frame::Change(changed));
        true
    }
}

/// Returns settings for every policy that learns or uses reports, with all of their features enabled.
fn runs() -> Vec<Settings> {
    let base = Settings {
        admission: Admission::Fixed(95),
        t_low: 4,
        t_high: 9,
        replication_decay: Duration::from_millis(900),
        targets_max: 512,
        shards: 4,
        report_age_max: Duration::from_secs(3),
        t_gat: Duration::from_secs(1),
        thresholds: ThresholdSettings {
            low: LowRule::Learned(TrainingSettings {
                length: Duration::from_secs(2),
                ..TrainingSettings::default()
            }),
            high: HighRule::ByDelay { delay: Duration::from_millis(4), service: None },
        },
        policies: PolicySettings {
            cost: CostSettings { idle: 4, overload: 20, miss: MissCost::Measured { default: 9 } },
            hacc: HaccSettings {
                weights: HaccSettings::weigh(&[
                    SignalWeight { signal: Signal::Disk, permille: 600, full: 1000 },
                    SignalWeight { signal: Signal::Queue, permille: 400, full: 8 },
                ])
                .expect("two fit"),
                hot_share_permille: 30,
                cooldown: Duration::from_millis(400),
                ..HaccSettings::STATIC_FILES
            },
            ..PolicySettings::default()
        },
        ..Settings::default()
    };
    let mut by_connections = Settings { policy: PolicyKind::LardUtil, ..base.clone() };
    by_connections.policies.lard_util.by = UtilBy::Connections;
    let of = |policy| Settings { policy, ..base.clone() };
    vec![
        of(PolicyKind::Lard),
        of(PolicyKind::LardR),
        of(PolicyKind::LardCost),
        of(PolicyKind::Hacc),
        of(PolicyKind::LardUtil),
        by_connections,
        of(PolicyKind::CapLoad),
        of(PolicyKind::Prequal),
        of(PolicyKind::Lmetric),
    ]
}

fn nodes() -> Vec<NodeSpec> {
    let weight = |i: u64| Weight::from_milli([1_000, 2_000, 500][i as usize % 3]).expect("in range");
    (0..6).map(|i| NodeSpec { weight: weight(i), ..NodeSpec::named(format!("n{i}")) }).collect()
}

/// Serves for some seconds: requests, their results, reports, failures. Returns the number of requests by reason.
fn serve(dispatcher: &Dispatcher) -> alloc::collections::BTreeMap<super::Reason, usize> {
    let (mut held, mut started) = (Vec::new(), Vec::new());
    let mut reasons = alloc::collections::BTreeMap::new();
    for i in 0..30_000_u64 {
        let (now, lot) = (Time::from_micros(i * 400), mix(i));
        let document = if lot.is_multiple_of(3) { lot >> 8 & 1 } else { (lot >> 8) % 400 };
        let request = Request::new(TargetId(mix(document)))
            .with_class(ServiceClass::ALL[(lot >> 40) as usize % ServiceClass::COUNT]);
        if let Arrival::Start(choice) = dispatcher.arrive(now, request) {
            *reasons.entry(choice.reason).or_default() += 1;
            held.push((choice.node, request));
        }
        while held.len() > 10 + (i / 300 % 100) as usize {
            let (node, request) = held.swap_remove((lot >> 20) as usize % held.len());
            let found = Some(if lot >> 50 & 3 == 0 { CacheResult::Miss } else { CacheResult::Hit });
            let elapsed = Duration::from_micros(if found == Some(CacheResult::Miss) { 9_000 } else { 800 });
            dispatcher.observe_reply(
                now,
                &request,
                node,
                &ReplyFeedback { elapsed, first_byte: None, found },
            );
            dispatcher.finish(now, node, &mut started);
            let begun = started.drain(..).filter_map(|started| started.outcome.ok());
            held.extend(begun.map(|choice| (choice.node, request)));
        }
        let node = NodeId((i / 80 % 6) as u16);
        if i.is_multiple_of(80) {
            let load = dispatcher.nodes().load(node);
            let busy = (lot >> 30) as u16 % 300 + if load > 6 { 700 } else { 100 };
            let report = LoadReport {
                cpu_permille: Some(busy),
                disk_permille: Some((lot >> 33) as u16 % 1_000),
                queue: (!lot.is_multiple_of(5)).then_some(load),
                processes: Some(load),
                ..LoadReport::default()
            };
            dispatcher.report(now, node, report);
        }
        if i % 4_000 == 3_999 {
            let state = if i % 8_000 == 3_999 { NodeState::Down } else { NodeState::Up };
            dispatcher.set_state(now, NodeId(2), state, &mut started);
            started.clear();
        }
    }
    reasons
}

#[test]
fn learned_values_are_replayed() {
    for settings in runs() {
        let collector = FrameCollector::default();
        let policy = settings.policy;
        let live =
            Dispatcher::with_record_sink(settings.clone(), Vec::new(), &nodes(), Box::new(collector.clone()))
                .expect("the settings are in range");
        let reasons = serve(&live);
        let expected_reason = match policy {
            PolicyKind::Lard | PolicyKind::LardUtil => super::Reason::Migrate,
            PolicyKind::CapLoad => super::Reason::Turn,
            PolicyKind::Prequal => super::Reason::Quickest,
            _ => super::Reason::Replicate,
        };
        assert!(reasons.contains_key(&expected_reason), "{policy} has nothing to tell: {reasons:?}");
        let player = Dispatcher::new(settings, &nodes()).expect("the settings are in range");
        let frames = core::mem::take(&mut *collector.0.lock());
        assert!(frames.len() > 20_000, "{policy}: {}", frames.len());
        for (at, frame) in frames.into_iter().enumerate() {
            match frame {
                Frame::Decision(DecisionRecord { at: now, cause, request, read_log, outcome, .. }) => {
                    let made = player.replay_decision(now, cause, &request, read_log);
                    assert_eq!(made.map(|(outcome, _)| outcome), Ok(outcome), "{policy} at {at}");
                }
                Frame::Change(ChangeRecord { at: now, change, read_log, node, .. }) => {
                    let made = player.replay_change(now, &change, read_log);
                    assert_eq!(made.map(|(node, _)| node), Ok(node), "{policy} at {at}");
                }
            }
        }
    }
}
