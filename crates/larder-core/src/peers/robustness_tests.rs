//! Property tests of the peers' state machines with extreme messages. Nothing overflows and no node panics, whatever
//! numbers the messages contain and in whatever order they arrive.

use super::*;
use crate::census::{CensusPeriod, TargetCount};
use crate::policy::table::Place;
use crate::unit::Bytes;
use crate::{TargetId, Time};
use alloc::sync::Arc;
use core::time::Duration;
use proptest::prelude::*;

const ME: NodeId = NodeId(0);
const PEERS: [(NodeId, &str); 2] = [(NodeId(1), "a"), (NodeId(2), "c")];

/// Numbers at which sums and differences overflow. 1 is the epoch of this node and the first number of every
/// sequence.
fn number() -> impl Strategy<Value = u64> {
    let edges = vec![0, 1, 1, 1, 2, 3, 4, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX - 1, u64::MAX];
    prop::sample::select(edges)
}

fn small() -> impl Strategy<Value = u32> {
    number().prop_map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

fn target() -> impl Strategy<Value = TargetId> {
    number().prop_map(TargetId)
}

fn some<T: core::fmt::Debug>(one: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    prop::collection::vec(one, 0..5)
}

fn press() -> impl Strategy<Value = PressMessage> {
    let change = (target(), any::<bool>()).prop_map(|(target, cached)| CacheChange { target, cached });
    let list = (number(), number(), prop::option::of(target()), any::<bool>(), some(target()));
    prop_oneof![
        (number(), small(), any::<bool>(), number())
            .prop_map(|(epoch, load, sharing, changes)| PressMessage::Load { epoch, load, sharing, changes }),
        (number(), number(), some(change)).prop_map(|(epoch, first, items)| PressMessage::Changes {
            epoch,
            first,
            items
        }),
        (number(), number()).prop_map(|(epoch, after)| PressMessage::ChangesRequest { epoch, after }),
        (number(), prop::option::of(target()))
            .prop_map(|(epoch, after)| PressMessage::ListRequest { epoch, after }),
        list.prop_map(|(epoch, changes, after, last, targets)| PressMessage::List {
            epoch,
            changes,
            after,
            last,
            targets
        }),
    ]
}

fn card() -> impl Strategy<Value = CardMessage> {
    let names = [NameKey::of("a"), NameKey::of("b"), NameKey::of("c"), NameKey::REQUESTER, NameKey(u64::MAX)];
    let instance = (prop::sample::select(names.to_vec()), number())
        .prop_map(|(node, incarnation)| NodeInstance { node, incarnation });
    let ended =
        some((number(), small()).prop_map(|(incarnation, count)| EndedRequests { incarnation, count }));
    let numbers = (number(), number(), number(), number(), number());
    prop_oneof![
        (numbers, ended, some(target())).prop_map(
            |((epoch, account, number, acknowledged, group), ended, targets)| {
                CardMessage::Batch(Batch { epoch, account, number, acknowledged, group, ended, targets })
            }
        ),
        (number(), some(instance)).prop_map(|(number, instances)| CardMessage::Answers { number, instances }),
        number().prop_map(|number| CardMessage::Unknown { number }),
    ]
}

fn ward() -> impl Strategy<Value = WardMessage> {
    let maker = prop::sample::select(vec!["a", "b", "c"]);
    let id = (number(), maker, number()).prop_map(|(number, maker, epoch)| TableId {
        number,
        maker: Arc::from(maker),
        epoch,
    });
    let id = id.boxed();
    let place = prop_oneof![Just(Place::Core), (0..3_u16).prop_map(Place::Node)];
    let owners = some(prop::sample::select(vec![NameKey::of("a"), NameKey::of("b"), NameKey(u64::MAX)]));
    let table = (id.clone(), small(), small(), owners, some((target(), place)));
    let count = (target(), number(), number()).prop_map(|(target, requests, size)| Count {
        target,
        requests,
        size: Bytes(size),
    });
    let counts = (number(), number(), small(), small(), number(), some(count));
    prop_oneof![
        prop::option::of(id.clone()).prop_map(|id| WardMessage::Newest { id }),
        (id, small()).prop_map(|(id, from)| WardMessage::TableRequest { id, from }),
        table.prop_map(|(id, from, total, owners, rows)| WardMessage::Table {
            id,
            from,
            total,
            owners,
            rows
        }),
        (number(), number(), small()).prop_map(|(round, snapshot, from)| WardMessage::CountsRequest {
            round,
            snapshot,
            from
        }),
        counts.prop_map(|(round, snapshot, from, total, memory, rows)| WardMessage::Counts {
            round,
            snapshot,
            from,
            total,
            memory: Bytes(memory),
            rows,
        }),
        Just(WardMessage::FirstTableRequest),
    ]
}

/// Sequence of messages: the sender, the message and the delay after the previous one in milliseconds.
fn conversation<M: core::fmt::Debug>(
    message: impl Strategy<Value = M>,
) -> impl Strategy<Value = Vec<(bool, M, u64)>> {
    let wait = prop::sample::select(vec![0, 1, 60, 600, 20_000]);
    prop::collection::vec((any::<bool>(), message, wait), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn press_accepts_any_messages(messages in conversation(press())) {
        let sharing = SharingSettings { on_permille: 0, off_permille: 0, off_windows: 1, window: 1_000 };
        let settings = PressSettings { overload: 1, sharing, log_max: 64, ..PressSettings::default() };
        let (mut node, mut now, mut out) = (Press::new(ME, 1, settings), Time::from_millis(1), Vec::new());
        PEERS.into_iter().for_each(|(peer, _)| node.add_peer(now, peer, &mut out));
        for (turn, (who, message, wait)) in messages.into_iter().enumerate() {
            node.receive(now, PEERS[usize::from(who)].0, message, &mut out);
            for target in [0, 1, 3, u64::MAX].map(TargetId) {
                let decision = node.decide(now, target, None);
                node.begin_connection(now, &mut out);
                node.begin_read(now, decision, target, &mut out);
                prop_assert!(node.servers(target).len() <= 3);
            }
            node.set_cached(now, TargetId(turn as u64 % 5), turn % 2 == 0, &mut out);
            now += Duration::from_millis(wait);
            node.tick(now, &mut out);
        }
        for PressOutput { message, .. } in out {
            prop_assert_eq!(PressMessage::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn card_accepts_any_messages(name in prop::sample::select(vec!["0", "b"]), messages in conversation(card())) {
        let mut node = Card::new(ME, name, 1, CardSettings::default()).expect("defaults are in range");
        let (mut now, mut out) = (Time::from_millis(1), Vec::new());
        PEERS.into_iter().for_each(|(peer, name)| node.add_node(now, peer, name, &mut out));
        for (turn, (who, message, wait)) in messages.into_iter().enumerate() {
            node.receive(now, PEERS[usize::from(who)].0, message, &mut out);
            node.ask(now, turn as u64, TargetId(turn as u64 % 5), &mut out);
            now += Duration::from_millis(wait);
            node.tick(now, &mut out);
            for output in core::mem::take(&mut out) {
                match output {
                    CardOutput::Send { message, .. } => {
                        prop_assert_eq!(CardMessage::decode(&message.encode()), Ok(message));
                    }
                    CardOutput::Placement(placed) if turn % 3 > 0 => {
                        placed.claim.into_iter().for_each(|claim| node.end_request(now, claim));
                    }
                    CardOutput::Placement(_) => {}
                }
            }
            prop_assert!(PEERS.iter().all(|(peer, _)| node.dispatcher_load(*peer) <= 5 * 40));
        }
        PEERS.into_iter().for_each(|(peer, _)| node.remove_node(now, peer, &mut out));
    }

    #[test]
    fn ward_accepts_any_messages(name in prop::sample::select(vec!["0", "b"]), messages in conversation(ward())) {
        let settings = WardSettings { first_requests: 1, ..WardSettings::default() };
        let (mut node, mut now, mut out) = (Ward::new(ME, name, 1, settings), Time::from_millis(1), Vec::new());
        PEERS.into_iter().for_each(|(peer, name)| node.add_node(now, peer, name, &mut out));
        for (turn, (who, message, wait)) in messages.into_iter().enumerate() {
            node.decide(now, TargetId(turn as u64));
            node.receive(now, PEERS[usize::from(who)].0, message, &mut out);
            now += Duration::from_millis(wait);
            node.tick(now, &mut out);
            for output in core::mem::take(&mut out) {
                match output {
                    WardOutput::Send { message, .. } | WardOutput::Broadcast(message) => {
                        prop_assert_eq!(WardMessage::decode(&message.encode()), Ok(message));
                    }
                    WardOutput::TakeCensus { .. } => {
                        let row = TargetCount { target: TargetId(1), requests: u64::MAX, bytes: Bytes(1), size: Bytes(1) };
                        node.receive_census(now, CensusPeriod { rows: vec![row], ..CensusPeriod::default() }, &mut out);
                    }
                    WardOutput::Analyse(input) => node.record_analysis_failure(now, input.round),
                }
            }
            prop_assert!(node.status().owners.0 <= 4);
        }
    }
}
