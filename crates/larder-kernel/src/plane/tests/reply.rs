//! SYN-ACKs and RSTs.

use super::packet::{ACK, CLIENT_MAC, FIN, ISN, MSS, Packet, RST, SACK, SYN, TIMESTAMPS, WSCALE, be16, read};
use super::{Bench, Fate, KEYS, OUR_MAC, for_each_setup, full_service};
use crate::plane::{FlowDestination, ServiceSpec};
use crate::{Cookie, CookieKey, SynAckCookie, SynOptions};

/// The options of a SYN-ACK, read back; each at most once.
#[derive(Debug, Default, PartialEq, Eq)]
struct SynAck {
    mss: Option<u16>,
    sack: bool,
    tsecr: Option<u32>,
    tsval: u32,
    wscale: Option<u8>,
}

fn parse_syn_ack(mut options: &[u8]) -> SynAck {
    let mut all = SynAck::default();
    while let [kind, rest @ ..] = options {
        if *kind == 1 {
            options = rest;
            continue;
        }
        let (option, after) = options.split_at(usize::from(rest[0]));
        match (kind, option.len()) {
            (2, 4) => assert_eq!(all.mss.replace(be16(&option[2..])), None),
            (3, 3) => assert_eq!(all.wscale.replace(option[2]), None),
            (4, 2) => all.sack = true,
            (8, 10) => {
                let word = |at: usize| u32::from_be_bytes(option[at..at + 4].try_into().expect("4 bytes"));
                all.tsval = word(2);
                assert_eq!(all.tsecr.replace(word(6)), None);
            }
            other => unreachable!("an option that nobody offered: {other:?}"),
        }
        options = after;
    }
    all
}

/// Properties of the SYN that the numbers of its SYN-ACK prove.
fn check_cookie(reply: &Packet, key: CookieKey) -> Option<SynOptions> {
    let got = parse_syn_ack(&reply.options);
    let answer = SynAckCookie { cookie: Cookie(reply.seq), echo: got.tsecr.map(|_| got.tsval) };
    answer.check(key, (reply.to, reply.from), ISN)
}

/// Every set of options, in this order, padded.
#[test]
fn syn_is_answered_with_a_cookie() {
    for_each_setup(full_service(), |bench| {
        for set in 0..16_u8 {
            let has = |bit: u8| set >> bit & 1 == 1;
            let all: [&[u8]; 4] = [&MSS, &SACK, &TIMESTAMPS, &WSCALE];
            let options: Vec<&[u8]> =
                (0..4).filter(|&bit| has(bit)).map(|bit| all[usize::from(bit)]).collect();
            let syn = bench.packet().syn(&options);
            let frame = syn.frame();
            let answer = bench.run(&frame).sent();
            assert!(answer.len() <= frame.len(), "the answer is longer than the SYN");
            let (reply, macs) = read(&answer);
            assert_eq!(macs, [CLIENT_MAC, OUR_MAC]);
            assert_eq!((reply.from, reply.to, reply.flags), (syn.to, syn.from, SYN | ACK));
            assert_eq!((reply.ack, reply.payload.len()), (ISN.wrapping_add(1), 0));
            let got = parse_syn_ack(&reply.options);
            assert!(got.tsval >> 23 == 0, "the top bits are for tags");
            let want = SynAck {
                // Offered if the client's padding has room for it.
                mss: got.mss.filter(|_| !has(0)).or(has(0).then_some(1400)),
                sack: has(1),
                tsecr: has(2).then_some(0x1122_3344),
                tsval: got.tsval,
                wscale: has(3).then_some(7),
            };
            assert_eq!(got, want);
            let kept = check_cookie(&reply, KEYS[0]).expect("a cookie of ours");
            let mss = match (has(0), bench.v6) {
                (true, false) => 1460,
                (true, true) => 1440,
                (false, _) => 536,
            };
            let wscale = has(3).then_some(9);
            assert_eq!(kept, SynOptions { mss, sack: has(1), timestamps: has(2), wscale });
        }
        assert_eq!((bench.counter("syn"), bench.counter("syn_ack")), (16, 16));
        assert!(bench.plane.flow(bench.key()).is_none(), "a SYN leaves nothing behind");
    });
}

#[test]
fn padding_of_short_frames_is_kept() {
    for_each_setup(full_service(), |bench| {
        let mut frame = bench.packet().syn(&[]).frame();
        let padded = frame.len().max(60);
        frame.resize(padded, 0);
        let answer = bench.run(&frame).sent();
        assert_eq!(answer.len(), padded);
        read(&answer);
    });
}

#[test]
fn syn_data_is_not_acknowledged() {
    for_each_setup(full_service(), |bench| {
        let syn = bench.packet().syn(&[&MSS, &WSCALE]).payload(&[0x55; 999]);
        let (reply, _) = read(&bench.run(&syn.frame()).sent());
        assert_eq!((reply.ack, reply.options.len()), (ISN.wrapping_add(1), 8));
    });
}

/// Options with a wrong length end the list; nothing after them counts.
#[test]
fn invalid_options_are_ignored() {
    for_each_setup(full_service(), |bench| {
        for lie in [[3, 0], [3, 1], [8, 60], [2, 3]] {
            let syn = bench.packet().syn(&[&MSS, &lie, &WSCALE]);
            let (reply, _) = read(&bench.run(&syn.frame()).sent());
            assert_eq!(parse_syn_ack(&reply.options).mss, Some(1400));
        }
        let nothing_but_padding = bench.packet().syn(&[&[1; 40]]);
        let (reply, _) = read(&bench.run(&nothing_but_padding.frame()).sent());
        assert_eq!(parse_syn_ack(&reply.options).wscale, None);
    });
}

#[test]
fn both_keys_are_accepted_and_the_current_one_makes_cookies() {
    for_each_setup(full_service(), |bench| {
        bench.plane.set_keys(&KEYS, 1).expect("keys");
        let syn = bench.packet().syn(&[&MSS]);
        let (reply, _) = read(&bench.run(&syn.frame()).sent());
        assert!(check_cookie(&reply, KEYS[1]).is_some());
        for key in KEYS {
            let ack = bench.packet().opened(key, 0);
            assert_eq!(bench.run(&ack.frame()), Fate::Dropped);
        }
        assert_eq!((bench.counter("handshake_ack"), bench.counter("bad_cookie")), (2, 0));
    });
}

#[test]
fn syn_goes_to_the_stack_without_cookies() {
    let closed = ServiceSpec { closed: true, ..full_service() };
    let repair = ServiceSpec { cookie: false, ..full_service() };
    for spec in [closed, repair] {
        for_each_setup(spec, |bench| {
            assert_eq!(bench.run(&bench.packet().syn(&[&MSS]).frame()), Fate::Passed);
        });
    }
}

#[test]
fn client_of_a_dead_node_is_reset() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Reset).expect("a flow");
        let packet = bench.packet().opened(KEYS[1], 5000).tsecr(77).payload(b"more");
        let frame = packet.frame();
        let answer = bench.run(&frame).sent();
        assert!(answer.len() <= frame.len());
        let (reply, macs) = read(&answer);
        assert_eq!(macs, [CLIENT_MAC, OUR_MAC]);
        assert_eq!((reply.flags, reply.seq, reply.ack), (RST, packet.ack, 0));
        assert_eq!((reply.from, reply.to), (packet.to, packet.from));
        assert!(reply.options.is_empty() && reply.payload.is_empty());
        for flags in [RST, RST | ACK, FIN] {
            assert_eq!(bench.run(&packet.clone().flags(flags).frame()), Fate::Dropped, "{flags}");
        }
        assert_eq!(bench.counter("reset"), 1);
    });
}

/// If the packet's checksum is partial, the reply's is partial too.
#[test]
fn incomplete_checksum_stays_incomplete() {
    for_each_setup(full_service(), |bench| {
        if bench.plane.attached() == super::AttachMode::Native {
            return;
        }
        let mut frame = bench.packet().syn(&[&MSS]).frame();
        let at = if bench.v6 { 54 } else { 34 };
        let partial = |frame: &[u8]| {
            let addresses = if bench.v6 { &frame[22..54] } else { &frame[26..34] };
            !crate::frame::checksum(&[addresses, &[0, 6, 0, (frame.len() - at) as u8]])
        };
        let waits = partial(&frame).to_be_bytes();
        frame[at + 16..at + 18].copy_from_slice(&waits);
        let answer = bench.run(&frame).sent();
        assert_eq!(be16(&answer[at + 16..]), partial(&answer));
    });
}

/// A forged SYN does not disturb an open connection.
#[test]
fn syn_does_not_end_a_connection() {
    for_each_setup(full_service(), |bench: &Bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        let before = bench.packet().opened(KEYS[0], 100).payload(b"x");
        bench.run(&before.frame()).sent();
        let mut syn = bench.packet().syn(&[&MSS]);
        syn.seq = 12345;
        read(&bench.run(&syn.frame()).sent());
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((flow.state, flow.syn_seq), (2, 12345));
        let after = bench.packet().opened(KEYS[0], 101).payload(b"y");
        super::packet::is_forwarded(&bench.run(&after.frame()).sent(), &after);
        assert!(bench.events().is_empty());
    });
}

/// With arbitrary options, the reply is complete, no longer than the SYN, and carries a valid cookie. Prints the
/// failing bytes.
#[test]
fn arbitrary_option_bytes_are_handled() {
    for_each_setup(full_service(), |bench| {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for _ in 0..2000 {
            let length = next() as usize % 11 * 4;
            // Mostly valid kinds and lengths.
            let mut byte = |_| match next() % 4 {
                0 => next() as u8,
                1 => [0, 1, 2, 3, 4, 8][next() as usize % 6],
                _ => [2, 3, 4, 10][next() as usize % 4],
            };
            let options: Vec<u8> = (0..length).map(&mut byte).collect();
            let syn = bench.packet().syn(&[&options]);
            let answer = bench.run(&syn.frame()).sent();
            assert!(answer.len() <= syn.frame().len(), "{options:?}");
            let (reply, _) = read(&answer);
            parse_syn_ack(&reply.options);
            let kept = check_cookie(&reply, KEYS[0]);
            assert!(kept.is_some_and(|kept| kept.wscale.is_none_or(|scale| scale <= 14)), "{options:?}");
        }
        assert_eq!(bench.counter("malformed"), 0);
    });
}
