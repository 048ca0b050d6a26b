//! A node that hands connections over, and peers that answer, are silent, go and come back.

use super::*;

type Node = Handing<u32, &'static str, ()>;
type Out = Vec<Output<u32, &'static str>>;

const OWNER: Owner = [7; 32];
const SERVICE: u16 = 0;

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn answer(waits: &'static str, heard: Heard) -> Output<u32, &'static str> {
    Output::Answer { waits, heard }
}

/// Its channel comes up, by its `session`th connection, and there is a way to it.
fn up(node: &mut Node, slot: Slot, session: u64) {
    let epoch = node.up(slot, session, true, &[SERVICE]).expect("a peer");
    node.linked(slot, epoch);
}

/// A node with one peer, which takes connections.
fn node() -> (Node, Slot) {
    let mut node = Node::new(at(0), HandingSettings::default(), []);
    let slot = node.joined(OWNER).expect("room");
    up(&mut node, slot, 1);
    (node, slot)
}

fn begin(node: &mut Node, slot: Slot, key: u32, waits: &'static str) -> u64 {
    let place = node.place(at(0), slot, SERVICE).expect("it takes connections");
    let id = node.begin(place, key, waits);
    node.frozen(key, key + 70, key + 90);
    node.hold(key, ());
    id
}

fn names(node: &mut Node, slot: Slot, connections: &[u32], out: &mut Out) {
    let connections = connections.iter().map(|key| (*key, key + 70)).collect();
    node.hear(at(0), slot, FromPeer::Has { connections, last: true }, out);
}

#[test]
fn a_connection_is_away_from_its_move_to_its_end() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let id = begin(&mut node, slot, 1, "one");
    assert!(node.on_the_way(1) && node.counted() == [1]);
    node.rests(1);
    assert_eq!(node.counted(), [1], "it is on its way");
    node.hear(at(5), slot, FromPeer::Restored(vec![id]), out);
    assert_eq!(*out, [answer("one", Heard::Restored)]);
    out.clear();
    node.rests(1);
    assert!(node.counted().is_empty() && node.away() == 1);
    node.hear(at(9), slot, FromPeer::Closed(vec![(1, 70), (1, 71)]), out);
    assert_eq!((&out[..], node.away(), node.soon()), (&[Output::Ended(1)][..], 0, None));
}

#[test]
fn what_a_peer_refuses_goes_on_here_and_a_full_one_is_offered_none_for_a_while() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let id = begin(&mut node, slot, 1, "one");
    let refused = FromPeer::Refused { id, full: true, why: "full".to_owned() };
    node.hear(at(0), slot, refused, out);
    assert_eq!(*out, [answer("one", Heard::Refused("full".to_owned()))]);
    node.stays(id, 1);
    assert_eq!((node.away(), node.on_the_way(1)), (0, false));
    assert_eq!((node.place(at(999), slot, SERVICE), node.is_ready(at(1_000), slot)), (None, true));
    node.hear(at(0), slot, FromPeer::Ending, out);
    assert!(out[1] == Output::Noted(slot) && !node.is_ready(at(1_000), slot));
}

#[test]
fn a_peer_that_comes_back_soon_says_what_it_has() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    for (key, waits) in [(1, "one"), (2, "two")] {
        begin(&mut node, slot, key, waits);
    }
    let before = node.place(at(0), slot, SERVICE).expect("a place");
    node.down(at(0), slot, out);
    assert_eq!((node.session(before), node.due()), (None, at(2_000)));
    up(&mut node, slot, 2);
    assert_eq!((node.session(before), node.due()), (None, Time::MAX), "not by another connection");
    begin(&mut node, slot, 3, "three");
    node.tick(at(5_000), out);
    assert!(out.is_empty());
    names(&mut node, slot, &[1], out);
    assert_eq!(out[0], answer("one", Heard::Restored));
    assert!(matches!(out[1], Output::Answer { waits: "two", heard: Heard::Refused(_) }));
    assert_eq!(out[2..], [Output::Ended(2)]);
    assert!(node.on_the_way(3), "it was sent after the list was asked for");
}

#[test]
fn what_is_on_its_way_to_a_peer_that_is_not_heard_of_is_lost_and_ends_where_it_is() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let id = begin(&mut node, slot, 1, "one");
    node.down(at(0), slot, out);
    node.tick(at(1_999), out);
    assert!(out.is_empty());
    node.tick(at(2_000), out);
    assert_eq!(*out, [answer("one", Heard::Nothing)]);
    assert_eq!(node.away(), 0);
    up(&mut node, slot, 2);
    names(&mut node, slot, &[1], out);
    // What is named is looked for in the plane, which does not answer with resets yet.
    assert_eq!(node.soon(), Some(Soon::StillHas { slot, key: 1 }));
    node.told(id);
    assert_eq!((node.soon(), node.soon()), (Some(Soon::StillHas { slot, key: 1 }), None));
    assert_eq!(node.doubt_over(id), None);
}

#[test]
fn clients_of_a_node_that_is_gone_are_told_but_not_those_of_one_that_has_said_so() {
    for said in [false, true] {
        let ((mut node, slot), out) = (node(), &mut Out::new());
        let first = begin(&mut node, slot, 1, "one");
        node.hear(at(0), slot, FromPeer::Restored(vec![first]), out);
        begin(&mut node, slot, 2, "two");
        out.clear();
        node.left(at(100), slot, said, out);
        assert!(out.is_empty(), "its channel is up");
        node.down(at(200), slot, out);
        assert_eq!(out[0], Output::Part(slot));
        assert_eq!(out.last(), Some(&answer("two", Heard::Nothing)), "the socket is still here");
        let reset = Some(Soon::Reset { key: 1, first_ack: Some(91) });
        assert_eq!(node.soon(), reset.filter(|_| !said));
        out.clear();
        node.sweep(at(60_200), |_| false, out);
        assert_eq!((node.soon(), out.len()), (None, 0));
        node.sweep(at(60_201), |_| false, out);
        assert_eq!(node.soon(), reset.filter(|_| said));
        assert_eq!((node.away(), node.due()), (0, Time::MAX));
    }
}

#[test]
fn a_client_is_not_told_of_the_connection_that_had_its_addresses_before() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let other = node.joined([8; 32]).expect("room");
    up(&mut node, other, 1);
    let id = begin(&mut node, slot, 1, "one");
    node.hear(at(0), slot, FromPeer::Restored(vec![id]), out);
    node.left(at(0), slot, false, out);
    node.down(at(0), slot, out);
    begin(&mut node, other, 1, "again");
    assert_eq!((node.soon(), node.away()), (None, 1));
}

#[test]
fn numbers_of_peers_outlive_the_process() {
    let settings = HandingSettings { peers_max: 2, ..HandingSettings::default() };
    let mut node = Node::new(at(0), settings, [[1; 32], OWNER, [3; 32]]);
    node.adopt(1, Slot(0));
    assert_eq!(node.joined(OWNER), Some(Slot(1)));
    assert_eq!(node.joined([4; 32]), None, "connections of another go by the number");
    assert_eq!(node.joined([1; 32]), Some(Slot(0)));
    let out = &mut Out::new();
    up(&mut node, Slot(0), 1);
    names(&mut node, Slot(0), &[], out);
    let ended = Some(Soon::Unknown { key: 1 });
    assert_eq!((node.soon(), node.away()), (ended, 0), "it has ended meanwhile, or was lost");
    assert_eq!(node.joined([4; 32]), None);
    node.adopt(2, Slot(0));
    node.hear(at(0), Slot(0), FromPeer::Closed(vec![(2, 60)]), out);
    assert_eq!((node.soon(), out.len()), (Some(Soon::Unknown { key: 2 }), 0), "or one before it has");
}

#[test]
fn a_peer_keeps_its_number_with_another_key() {
    let settings = HandingSettings { peers_max: 2, ..HandingSettings::default() };
    let mut node = Node::new(at(0), settings, [OWNER, [3; 32]]);
    node.adopt(1, Slot(0));
    node.renamed(OWNER, [5; 32]);
    assert_eq!(node.joined([5; 32]), Some(Slot(0)), "its connections go by this number");
    assert_eq!(node.joined(OWNER), Some(Slot(1)), "the key before is nobody's");
}

#[test]
fn a_number_is_given_to_another_only_if_there_is_none_that_is_nobodys() {
    let settings = HandingSettings { peers_max: 2, ..HandingSettings::default() };
    let (mut node, out) = (Node::new(at(0), settings, []), &mut Out::new());
    assert_eq!(node.joined([1; 32]), Some(Slot(0)));
    node.left(at(0), Slot(0), false, out);
    assert_eq!(node.joined([2; 32]), Some(Slot(1)));
    assert_eq!(node.joined([3; 32]), Some(Slot(0)), "its owner is not there");
    assert_eq!(node.joined([1; 32]), None);
}

#[test]
fn what_an_earlier_process_has_handed_over_is_given_up_with_a_node_that_nobody_hears_of() {
    let (mut node, out) = (Node::new(at(0), HandingSettings::default(), [OWNER]), &mut Out::new());
    node.adopt(1, Slot(0));
    node.sweep(at(60_000), |_| false, out);
    assert_eq!(node.away(), 1);
    node.sweep(at(60_001), |_| false, out);
    assert_eq!(*out, [Output::Close { slot: Slot(0), connections: 1 }]);
    assert_eq!(node.soon(), Some(Soon::Reset { key: 1, first_ack: None }));
}

#[test]
fn a_full_table_has_room_again_when_one_ends() {
    let settings = HandingSettings { connections_max: 2, ..HandingSettings::default() };
    let mut node = Node::new(at(0), settings, []);
    let slot = node.joined(OWNER).expect("room");
    up(&mut node, slot, 1);
    for key in [1, 2] {
        assert!(!node.is_full(), "{key}");
        begin(&mut node, slot, key, "one");
    }
    assert!(node.is_full());
    begin(&mut node, slot, 2, "the same addresses count once");
    assert_eq!((node.away(), node.is_full()), (2, true));
    node.hear(at(0), slot, FromPeer::Closed(vec![(2, 72)]), &mut Out::new());
    assert!(!node.is_full());
}

#[test]
fn what_a_node_had_before_it_went_in_good_order_is_judged_when_it_is_back() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let id = begin(&mut node, slot, 1, "one");
    node.hear(at(0), slot, FromPeer::Restored(vec![id]), out);
    node.left(at(0), slot, true, out);
    node.down(at(0), slot, out);
    assert_eq!((node.joined(OWNER), node.away()), (Some(slot), 1));
    up(&mut node, slot, 1);
    out.clear();
    names(&mut node, slot, &[], out);
    assert_eq!((&out[..], node.away()), (&[Output::Ended(1)][..], 0));
}

#[test]
fn a_peer_that_has_another_of_the_same_addresses_does_not_have_this_one() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    begin(&mut node, slot, 1, "one");
    node.down(at(0), slot, out);
    up(&mut node, slot, 2);
    node.hear(at(0), slot, FromPeer::Has { connections: vec![(1, 60)], last: true }, out);
    assert!(matches!(out[0], Output::Answer { waits: "one", heard: Heard::Refused(_) }));
}

#[test]
fn packets_go_to_the_node_that_had_the_last_connection_of_these_addresses() {
    let ((mut node, slot), out) = (node(), &mut Out::new());
    let other = node.joined([8; 32]).expect("room");
    up(&mut node, other, 1);
    let id = begin(&mut node, slot, 1, "one");
    assert_eq!(node.doubt_over(id), Some("one"));
    node.told(id);
    names(&mut node, other, &[1], out);
    assert_eq!(node.soon(), None);
    node.hear(at(0), slot, FromPeer::Restored(vec![id]), out);
    assert_eq!(node.soon(), Some(Soon::StillHas { slot, key: 1 }));
}
