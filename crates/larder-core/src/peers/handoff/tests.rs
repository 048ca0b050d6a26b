//! Tests with a node that hands off connections, and peers that answer, are silent, leave and return.

use super::*;

type Node = PeerHandoffMachine<u32, &'static str, ()>;
type Out = Vec<HandoffOutput<u32, &'static str>>;

const OWNER: PeerKey = [7; 32];
const SERVICE: u16 = 0;

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn answer(waiter: &'static str, outcome: PeerMoveOutcome) -> HandoffOutput<u32, &'static str> {
    HandoffOutput::Answer { waiter, outcome }
}

/// Brings the channel of a peer up with this session, and marks the peer as reachable.
fn channel_up(node: &mut Node, slot: PeerSlot, session: u64) {
    let epoch = node.channel_up(slot, session, true, &[SERVICE]).expect("a peer");
    node.mark_reachable(slot, epoch);
}

/// Returns a node with one peer that takes connections.
fn node() -> (Node, PeerSlot) {
    let mut node = Node::new(at(0), PeerHandoffSettings::default(), []);
    let slot = node.add_peer(OWNER).expect("room");
    channel_up(&mut node, slot, 1);
    (node, slot)
}

fn begin_move(node: &mut Node, slot: PeerSlot, key: u32, waiter: &'static str) -> u64 {
    let destination = node.destination(at(0), slot, SERVICE).expect("it takes connections");
    let id = node.begin_move(destination, key, waiter);
    node.record_frozen(key, key + 70, key + 90);
    node.attach_load(key, ());
    id
}

fn list(node: &mut Node, slot: PeerSlot, connections: &[u32], out: &mut Out) {
    let connections = connections.iter().map(|key| (*key, key + 70)).collect();
    node.receive(at(0), slot, PeerEvent::Inventory { connections, last: true }, out);
}

#[test]
fn a_connection_is_handed_off_from_its_move_to_its_end() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let id = begin_move(&mut node, slot, 1, "one");
    assert!(node.is_moving(1) && node.counted_connections() == [1]);
    node.mark_idle(1);
    assert_eq!(node.counted_connections(), [1], "it is on its way");
    node.receive(at(5), slot, PeerEvent::Restored(vec![id]), out);
    assert_eq!(*out, [answer("one", PeerMoveOutcome::Restored)]);
    out.clear();
    node.mark_idle(1);
    assert!(node.counted_connections().is_empty() && node.handed_off_count() == 1);
    node.receive(at(9), slot, PeerEvent::Closed(vec![(1, 70), (1, 71)]), out);
    assert_eq!(
        (&out[..], node.handed_off_count(), node.next_action()),
        (&[HandoffOutput::Ended(1)][..], 0, None)
    );
}

#[test]
fn a_refused_connection_stays_and_a_full_peer_gets_none_for_a_while() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let id = begin_move(&mut node, slot, 1, "one");
    let refused = PeerEvent::Refused { id, full: true, reason: "full".to_owned() };
    node.receive(at(0), slot, refused, out);
    assert_eq!(*out, [answer("one", PeerMoveOutcome::Refused("full".to_owned()))]);
    node.keep_local(id, 1);
    assert_eq!((node.handed_off_count(), node.is_moving(1)), (0, false));
    assert_eq!((node.destination(at(999), slot, SERVICE), node.is_ready(at(1_000), slot)), (None, true));
    node.receive(at(0), slot, PeerEvent::Ending, out);
    assert!(out[1] == HandoffOutput::AcknowledgeEnd(slot) && !node.is_ready(at(1_000), slot));
}

#[test]
fn a_peer_that_returns_soon_lists_its_connections() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    for (key, waiter) in [(1, "one"), (2, "two")] {
        begin_move(&mut node, slot, key, waiter);
    }
    let before = node.destination(at(0), slot, SERVICE).expect("a place");
    node.channel_down(at(0), slot, out);
    assert_eq!((node.session(before), node.due()), (None, at(2_000)));
    channel_up(&mut node, slot, 2);
    assert_eq!((node.session(before), node.due()), (None, Time::MAX), "not by another connection");
    begin_move(&mut node, slot, 3, "three");
    node.tick(at(5_000), out);
    assert!(out.is_empty());
    list(&mut node, slot, &[1], out);
    assert_eq!(out[0], answer("one", PeerMoveOutcome::Restored));
    assert!(matches!(out[1], HandoffOutput::Answer { waiter: "two", outcome: PeerMoveOutcome::Refused(_) }));
    assert_eq!(out[2..], [HandoffOutput::Ended(2)]);
    assert!(node.is_moving(3), "it was sent after the list was asked for");
}

#[test]
fn a_move_to_a_silent_peer_is_abandoned_and_reset() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let id = begin_move(&mut node, slot, 1, "one");
    node.channel_down(at(0), slot, out);
    node.tick(at(1_999), out);
    assert!(out.is_empty());
    node.tick(at(2_000), out);
    assert_eq!(*out, [answer("one", PeerMoveOutcome::Unknown)]);
    assert_eq!(node.handed_off_count(), 0);
    channel_up(&mut node, slot, 2);
    list(&mut node, slot, &[1], out);
    // The plane is asked first. It does not answer with resets yet.
    assert_eq!(node.next_action(), Some(DeferredAction::StillHas { slot, key: 1 }));
    node.record_client_reset(id);
    assert_eq!(
        (node.next_action(), node.next_action()),
        (Some(DeferredAction::StillHas { slot, key: 1 }), None)
    );
    assert_eq!(node.give_up_move(id), None);
}

#[test]
fn clients_of_a_lost_node_are_reset_but_not_those_of_an_announced_departure() {
    for announced in [false, true] {
        let ((mut node, slot), out) = (node(), &mut Out::new());
        let first = begin_move(&mut node, slot, 1, "one");
        node.receive(at(0), slot, PeerEvent::Restored(vec![first]), out);
        begin_move(&mut node, slot, 2, "two");
        out.clear();
        node.remove_peer(at(100), slot, announced, out);
        assert!(out.is_empty(), "its channel is up");
        node.channel_down(at(200), slot, out);
        assert_eq!(out[0], HandoffOutput::RemovePeer(slot));
        assert_eq!(out.last(), Some(&answer("two", PeerMoveOutcome::Unknown)), "the socket is still here");
        let reset = Some(DeferredAction::Reset { key: 1, first_ack: Some(91) });
        assert_eq!(node.next_action(), reset.filter(|_| !announced));
        out.clear();
        node.sweep(at(60_200), |_| false, out);
        assert_eq!((node.next_action(), out.len()), (None, 0));
        node.sweep(at(60_201), |_| false, out);
        assert_eq!(node.next_action(), reset.filter(|_| announced));
        assert_eq!((node.handed_off_count(), node.due()), (0, Time::MAX));
    }
}

#[test]
fn a_lost_connection_is_not_reset_after_its_addresses_are_reused() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let other = node.add_peer([8; 32]).expect("room");
    channel_up(&mut node, other, 1);
    let id = begin_move(&mut node, slot, 1, "one");
    node.receive(at(0), slot, PeerEvent::Restored(vec![id]), out);
    node.remove_peer(at(0), slot, false, out);
    node.channel_down(at(0), slot, out);
    begin_move(&mut node, other, 1, "again");
    assert_eq!((node.next_action(), node.handed_off_count()), (None, 1));
}

#[test]
fn peer_slots_outlive_the_process() {
    let settings = PeerHandoffSettings { peers_max: 2, ..PeerHandoffSettings::default() };
    let mut node = Node::new(at(0), settings, [[1; 32], OWNER, [3; 32]]);
    node.adopt(1, PeerSlot(0));
    assert_eq!(node.add_peer(OWNER), Some(PeerSlot(1)));
    assert_eq!(node.add_peer([4; 32]), None, "connections of another go by the number");
    assert_eq!(node.add_peer([1; 32]), Some(PeerSlot(0)));
    let out = &mut Out::new();
    channel_up(&mut node, PeerSlot(0), 1);
    list(&mut node, PeerSlot(0), &[], out);
    let ended = Some(DeferredAction::Unknown { key: 1 });
    assert_eq!(
        (node.next_action(), node.handed_off_count()),
        (ended, 0),
        "it has ended meanwhile, or was lost"
    );
    assert_eq!(node.add_peer([4; 32]), None);
    node.adopt(2, PeerSlot(0));
    node.receive(at(0), PeerSlot(0), PeerEvent::Closed(vec![(2, 60)]), out);
    assert_eq!(
        (node.next_action(), out.len()),
        (Some(DeferredAction::Unknown { key: 2 }), 0),
        "or one before it has"
    );
}

#[test]
fn a_peer_keeps_its_slot_with_another_key() {
    let settings = PeerHandoffSettings { peers_max: 2, ..PeerHandoffSettings::default() };
    let mut node = Node::new(at(0), settings, [OWNER, [3; 32]]);
    node.adopt(1, PeerSlot(0));
    node.change_key(OWNER, [5; 32]);
    assert_eq!(node.add_peer([5; 32]), Some(PeerSlot(0)), "its connections go by this number");
    assert_eq!(node.add_peer(OWNER), Some(PeerSlot(1)), "the key before is nobody's");
}

#[test]
fn a_used_slot_is_reassigned_only_if_no_slot_is_unused() {
    let settings = PeerHandoffSettings { peers_max: 2, ..PeerHandoffSettings::default() };
    let (mut node, out) = (Node::new(at(0), settings, []), &mut Out::new());
    assert_eq!(node.add_peer([1; 32]), Some(PeerSlot(0)));
    node.remove_peer(at(0), PeerSlot(0), false, out);
    assert_eq!(node.add_peer([2; 32]), Some(PeerSlot(1)));
    assert_eq!(node.add_peer([3; 32]), Some(PeerSlot(0)), "its owner is not there");
    assert_eq!(node.add_peer([1; 32]), None);
}

#[test]
fn connections_of_an_earlier_process_are_reset_when_their_node_stays_away() {
    let (mut node, out) = (Node::new(at(0), PeerHandoffSettings::default(), [OWNER]), &mut Out::new());
    node.adopt(1, PeerSlot(0));
    node.sweep(at(60_000), |_| false, out);
    assert_eq!(node.handed_off_count(), 1);
    node.sweep(at(60_001), |_| false, out);
    assert_eq!(*out, [HandoffOutput::Close { slot: PeerSlot(0), connections: 1 }]);
    assert_eq!(node.next_action(), Some(DeferredAction::Reset { key: 1, first_ack: None }));
}

#[test]
fn a_full_table_has_room_after_a_connection_ends() {
    let settings = PeerHandoffSettings { connections_max: 2, ..PeerHandoffSettings::default() };
    let mut node = Node::new(at(0), settings, []);
    let slot = node.add_peer(OWNER).expect("room");
    channel_up(&mut node, slot, 1);
    for key in [1, 2] {
        assert!(!node.is_full(), "{key}");
        begin_move(&mut node, slot, key, "one");
    }
    assert!(node.is_full());
    begin_move(&mut node, slot, 2, "the same addresses count once");
    assert_eq!((node.handed_off_count(), node.is_full()), (2, true));
    node.receive(at(0), slot, PeerEvent::Closed(vec![(2, 72)]), &mut Out::new());
    assert!(!node.is_full());
}

#[test]
fn connections_of_a_departed_peer_are_compared_when_it_returns() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let id = begin_move(&mut node, slot, 1, "one");
    node.receive(at(0), slot, PeerEvent::Restored(vec![id]), out);
    node.remove_peer(at(0), slot, true, out);
    node.channel_down(at(0), slot, out);
    assert_eq!((node.add_peer(OWNER), node.handed_off_count()), (Some(slot), 1));
    channel_up(&mut node, slot, 1);
    out.clear();
    list(&mut node, slot, &[], out);
    assert_eq!((&out[..], node.handed_off_count()), (&[HandoffOutput::Ended(1)][..], 0));
}

#[test]
fn a_peer_with_another_connection_on_the_addresses_does_not_have_this_one() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    begin_move(&mut node, slot, 1, "one");
    node.channel_down(at(0), slot, out);
    channel_up(&mut node, slot, 2);
    node.receive(at(0), slot, PeerEvent::Inventory { connections: vec![(1, 60)], last: true }, out);
    assert!(matches!(out[0], HandoffOutput::Answer { waiter: "one", outcome: PeerMoveOutcome::Refused(_) }));
}

#[test]
fn packets_go_to_the_last_node_of_reused_addresses() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let other = node.add_peer([8; 32]).expect("room");
    channel_up(&mut node, other, 1);
    let id = begin_move(&mut node, slot, 1, "one");
    assert_eq!(node.give_up_move(id), Some("one"));
    node.record_client_reset(id);
    list(&mut node, other, &[1], out);
    assert_eq!(node.next_action(), None);
    node.receive(at(0), slot, PeerEvent::Restored(vec![id]), out);
    assert_eq!(node.next_action(), Some(DeferredAction::StillHas { slot, key: 1 }));
}
