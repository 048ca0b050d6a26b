//! Tests that records decode to what was encoded, and that damaged bytes are refused.

use super::*;
use crate::class::ServiceClass;
use crate::dispatch::{
    Admission, Arrival, CacheEvent, Cause, Change, Decision, ExcludedNodes, Refusal, Request,
    RequestAffinity, RouteSpec, Settings,
};
use crate::id::{NodeId, RouteId, TargetId, Ticket};
use crate::nodes::{GroupId, Groups, LoadReport, NodeSpec, NodeState, PeerSwitchState, Weight};
use crate::policy::table::{Place, RouteTable};
use crate::policy::{LearnedState, PolicyKind, Reason};
use crate::read_log::{ReadKind, ReadLogEntry, RouteSequence, Sequence};
use crate::time::Time;
use crate::unit::Bytes;
use alloc::sync::Arc;
use core::time::Duration;
use proptest::prelude::*;

fn body(frame: &[u8]) -> &[u8] {
    let skip = frame.iter().position(|byte| byte & 0x80 == 0).expect("a length") + 1;
    &frame[skip..]
}

fn entry() -> impl Strategy<Value = ReadLogEntry> {
    let sequence = prop_oneof![
        Just(Sequence::Turn),
        Just(Sequence::Lots),
        Just(Sequence::Joiners),
        any::<u16>().prop_map(Sequence::Shard),
        any::<u16>().prop_map(Sequence::Own),
    ];
    prop_oneof![
        (0..ReadKind::ALL.len(), any::<u64>())
            .prop_map(|(at, value)| ReadLogEntry::Read(ReadKind::ALL[at], value)),
        (0..3_u16, sequence, any::<u64>()).prop_map(|(route, sequence, at)| ReadLogEntry::Visit(
            RouteSequence { route: RouteId(route), sequence },
            at
        )),
    ]
}

prop_compose! {
    fn request()(
        target: u64,
        class in 0..ServiceClass::COUNT,
        affinity: (u8, u16),
        route: u16,
        lasting: bool,
        nodes in prop::collection::vec(0_u16..u16::MAX, 0..12),
    ) -> Request {
        let exclude = nodes.iter().fold(ExcludedNodes::NONE, |exclude, node| exclude.with(NodeId(*node)));
        let node = NodeId(affinity.1);
        let affinity = match affinity.0 % 4 {
            0 => RequestAffinity::None,
            1 => RequestAffinity::Origin(node),
            2 => RequestAffinity::Sticky(node),
            _ => RequestAffinity::Expired(node),
        };
        let (target, class, route) = (TargetId(target), ServiceClass::ALL[class], RouteId(route));
        Request { target, exclude, affinity, class, route, lasting }
    }
}

prop_compose! {
    fn any_decided()(
        numbers: [u64; 4],
        node: u16,
        which in (0..4_u8, 0..3_u8),
        request in request(),
        read_log in prop::collection::vec(entry(), 0..40),
        reason in 0..Reason::ALL.len(),
        refusal in 0..Refusal::ALL.len(),
    ) -> DecisionRecord {
        let [generation, at, ticket, deadline] = numbers;
        let (node, ticket) = (NodeId(node), Ticket(ticket));
        DecisionRecord {
            generation,
            at: Time::from_nanos(at),
            cause: match which.0 {
                0 => Cause::Arrive,
                1 => Cause::Retry(node),
                2 => Cause::Reuse(node),
                _ => Cause::Admit(ticket, Time::from_nanos(deadline)),
            },
            request,
            read_log,
            outcome: match which.1 {
                0 => Arrival::Start(Decision { node, reason: Reason::ALL[reason] }),
                1 => Arrival::Wait(ticket),
                _ => Arrival::Refused(Refusal::ALL[refusal]),
            },
        }
    }
}

fn changes() -> Vec<Change> {
    let places =
        [(TargetId(9), Place::Core), (TargetId(u64::MAX), Place::Node(2)), (TargetId(0), Place::Node(0))];
    let table = RouteTable::new(3, places).expect("in range");
    let (node, target) = (NodeId(300), TargetId(u64::MAX));
    let spec = NodeSpec {
        cache: Bytes::mib(64),
        groups: Groups::from_bits(u64::MAX),
        backup: true,
        ..NodeSpec::named("a node with blanks\nand lines")
    };
    let report = LoadReport {
        cpu_permille: Some(1),
        processes: Some(u32::MAX),
        app: [None, Some(0), None, Some(7)],
        ..LoadReport::default()
    };
    let mut sets = LearnedState::default();
    sets.push((target, Time::from_secs(9), true), [node, NodeId(2)].into_iter());
    sets.push((TargetId(0), Time::ZERO, false), [NodeId(1)].into_iter());
    vec![
        Change::Join(spec),
        Change::State(node, NodeState::Up),
        Change::State(node, NodeState::Draining),
        Change::State(node, NodeState::Down),
        Change::State(node, NodeState::Removed),
        Change::Reweigh(node, Weight::from_milli(2500).expect("in range")),
        Change::Backup(node, true),
        Change::LongLived(node, 70_000),
        Change::Report(node, report),
        Change::Cache(node, target, CacheEvent::Stored),
        Change::Cache(node, target, CacheEvent::Evicted),
        Change::Cache(node, target, CacheEvent::Gone),
        Change::Table(RouteId(3), Arc::new(table)),
        Change::PeerSwitches(Arc::new(PeerSwitchState {
            switches: 2,
            requests: vec![0, 700, 3],
            equal_within: 4,
            clock_offset: Duration::from_millis(70),
            admitted: Vec::new(),
        })),
        Change::Sets(RouteId(1), Arc::new(sets)),
    ]
}

proptest! {
    #[test]
    fn decisions_round_trip(decided in any_decided()) {
        let frame = Frame::Decision(decided);
        let bytes = frame.encode().expect("short enough");
        prop_assert_eq!(Frame::decode(body(&bytes)), Ok(frame));
    }

    /// Every prefix is refused, and no input makes the decoder panic.
    #[test]
    fn cut_frames_are_refused(decided in any_decided(), cut: prop::sample::Index) {
        let bytes = Frame::Decision(decided).encode().expect("short enough");
        let body = body(&bytes);
        prop_assert!(Frame::decode(&body[..cut.index(body.len())]).is_err());
    }

    #[test]
    fn foreign_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Frame::decode(&bytes);
        let _ = Header::decode(&bytes);
    }
}

#[test]
fn changes_and_ends_round_trip() {
    let changed = |change| {
        let read_log = vec![ReadLogEntry::Read(ReadKind::Load, 1 << 32)];
        Frame::Change(ChangeRecord {
            generation: 9,
            at: Time::from_secs(3),
            change,
            read_log,
            node: NodeId(7),
        })
    };
    let ends = EndReason::ALL.map(|end| Frame::End(end, 12_345));
    for frame in changes().into_iter().map(changed).chain(ends) {
        let bytes = frame.encode().expect("short enough");
        assert_eq!(Frame::decode(body(&bytes)), Ok(frame));
    }
}

#[test]
fn headers_round_trip() {
    for policy in PolicyKind::ALL {
        for admission in [Admission::Derived, Admission::Auto, Admission::Unlimited, Admission::Fixed(77)] {
            let settings = Settings {
                policy,
                admission,
                seed: 2,
                t_low: 3,
                t_high: 4,
                replication_decay: Duration::from_nanos(5),
                targets_max: 6,
                nodes_max: 7,
                queue_max: 8,
                queue_timeout: Duration::from_nanos(9),
                join_targets_per_s: 10,
                join_warm_targets: 11,
                shards: 16,
                spread_key: 12,
                ..Settings::default()
            };
            let places = [(TargetId(1), Place::Core)];
            let table = Some(Arc::new(RouteTable::new(1, places).expect("in range")));
            let group = GroupId::new(63).expect("at most 63");
            let route = RouteSpec { group, settings: Settings { table, ..settings.clone() } };
            let nodes = vec![NodeSpec::named("a"), NodeSpec::named("b c")];
            let header = Header { settings, routes: vec![route], nodes };
            let bytes = header.encode().expect("it can be recorded");
            assert_eq!((&bytes[..8], bytes[8]), (&MAGIC[..], VERSION));
            assert_eq!(Header::decode(body(&bytes[9..])), Ok(header));
        }
    }
}

#[test]
fn lines_have_seven_fields() {
    let mut text = String::new();
    let (at, target) = (Time::from_millis(2), TargetId(0xAB));
    let start = Arrival::Start(Decision { node: NodeId(3), reason: Reason::Local });
    write_decision_line(
        &mut text,
        0,
        Some((RouteSequence { route: RouteId::DEFAULT, sequence: Sequence::Shard(17) }, 204)),
        at,
        target,
        start,
    );
    write_decision_line(&mut text, 1, None, at, target, Arrival::Wait(Ticket(12)));
    write_decision_line(&mut text, 1, None, at, target, Arrival::Refused(Refusal::QueueFull));
    assert_eq!(
        text,
        "0 shard17 204 2000000 00000000000000ab 3 local\n\
         1 - - 2000000 00000000000000ab - wait:12\n\
         1 - - 2000000 00000000000000ab - queue_full\n"
    );
    for change in changes() {
        let mut line = String::new();
        write_change_line(&mut line, 5, at, &change, NodeId(7));
        assert_eq!(line.split(' ').count(), 7, "{line}");
        assert!(line.starts_with("5 - - 2000000 ") && line.ends_with('\n'));
    }
}

#[test]
fn errors_name_the_damage() {
    assert_eq!(Frame::decode(&[]), Err(WireError::Short("kind of frame")));
    assert_eq!(Frame::decode(&[7]), Err(WireError::Value { what: "kind of frame", value: 7 }));
    assert_eq!(Frame::decode(&[2, 0, 5, 0]), Err(WireError::Left(1)));
    let endless = [&[2, 0][..], &[0xFF; 12]].concat();
    assert!(matches!(Frame::decode(&endless), Err(WireError::Value { what: "number of frames", .. })));
}
