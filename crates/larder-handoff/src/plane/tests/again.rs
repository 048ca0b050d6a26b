//! Addresses that come again, where this host's stack answers SYNs.

use super::packet::{MSS, Packet, RST};
use super::{Bench, Fate, all_on, everywhere};
use crate::plane::{FlowTo, ServiceSpec};

/// What the client had sent last on the connection before.
const LAST: u32 = 0x7000_0000;

fn stack_answers() -> ServiceSpec {
    ServiceSpec { cookie: false, grace: false, ..all_on() }
}

/// The packet that follows a SYN with this number, once the SYN has come by.
fn follows(bench: &Bench, isn: u32) -> Packet {
    let mut syn = bench.packet().syn(&[&MSS]);
    syn.seq = isn;
    assert_eq!(bench.run(&syn.frame()), Fate::Passed);
    let mut ack = bench.packet().payload(b"GET ");
    (ack.seq, ack.ack) = (isn.wrapping_add(1), 0x5000_0000);
    ack
}

fn is_known(bench: &Bench) -> bool {
    bench.plane.flow(bench.key()).is_some()
}

/// A connection goes to a node, and its client has sent something since.
fn spoken(bench: &Bench) {
    bench.plane.put_flow_seen(bench.key(), FlowTo::Node(7), LAST, 0).expect("a flow");
}

/// Nothing was ever seen of it, so that there are no numbers to compare with.
#[test]
fn what_is_lost_gives_way_to_any_number() {
    everywhere(stack_answers(), |bench| {
        for isn in [0, 1, LAST, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0] {
            bench.plane.put_flow(bench.key(), FlowTo::Reset).expect("a flow");
            let next = follows(bench, isn);
            assert_eq!(bench.run(&next.frame()), Fate::Passed, "{isn:#x}");
            assert!(!is_known(bench), "{isn:#x}");
        }
        assert_eq!(bench.counter("reused"), 6);
    });
}

/// Copies of a connection's own first packets may be late: their numbers lie shortly before the last one.
#[test]
fn a_live_one_gives_way_to_what_cannot_be_its_own() {
    everywhere(stack_answers(), |bench| {
        for (isn, own) in [
            (LAST.wrapping_sub(2), true),
            (LAST.wrapping_sub(1 << 20), true),
            (LAST, false),
            (LAST.wrapping_add(1 << 30), false),
            (LAST.wrapping_sub(1 << 25), false),
            (LAST.wrapping_add(1 << 31), false),
        ] {
            spoken(bench);
            let next = follows(bench, isn);
            let fate = bench.run(&next.frame());
            assert_eq!((is_known(bench), matches!(fate, Fate::Passed)), (own, !own), "{isn:#x}");
            bench.plane.remove_flow(bench.key()).expect("removed");
        }
    });
}

/// Before the client has sent anything more, what is its own is not known.
#[test]
fn one_that_nothing_is_known_of_stays() {
    everywhere(stack_answers(), |bench| {
        for isn in [1, LAST, 0x9000_0000] {
            bench.plane.put_flow(bench.key(), FlowTo::Node(7)).expect("a flow");
            let next = follows(bench, isn);
            super::packet::is_forwarded(&bench.run(&next.frame()).sent(), &next);
            assert!(is_known(bench));
            bench.plane.remove_flow(bench.key()).expect("removed");
        }
    });
}

/// A handshake here that the client has given up must not keep its next SYN from being answered: the RST that says so is for the
/// stack, and says nothing of the connection that a node has.
#[test]
fn a_reset_of_a_handshake_is_for_the_stack() {
    everywhere(stack_answers(), |bench| {
        let reset = |seq| {
            let mut packet = bench.packet().flags(RST);
            packet.seq = seq;
            packet
        };
        spoken(bench);
        let own = reset(LAST);
        super::packet::is_forwarded(&bench.run(&own.frame()).sent(), &own);
        bench.plane.remove_flow(bench.key()).expect("removed");

        spoken(bench);
        let next = follows(bench, 0x1000_0000);
        assert_eq!(bench.run(&reset(next.seq).frame()), Fate::Passed);
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!(flow.flags & crate::abi::flow_flag::CLIENT_RST, 0);
        super::packet::is_forwarded(&bench.run(&own.frame()).sent(), &own);
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_ne!(flow.flags & crate::abi::flow_flag::CLIENT_RST, 0, "its own all the same");

        bench.plane.put_flow(bench.key(), FlowTo::Reset).expect("a flow");
        assert_eq!(bench.run(&reset(LAST).frame()), Fate::Passed, "what is lost has no use for it");
    });
}
