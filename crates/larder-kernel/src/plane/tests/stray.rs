//! Data that belong to nothing: who is told, who is not, and how often at most.

use super::packet::{ACK, FIN, Packet, RST, read};
use super::{Bench, Fate, KEYS, all_on, everywhere};
use crate::CookieKey;
use crate::abi::RawFlowKey;
use crate::plane::{FlowTo, ServiceSpec, now_ns};
use libbpf_rs::{MapCore, MapFlags};
use zerocopy::IntoBytes;

const FORMER: CookieKey = CookieKey([0x55, 0x66]);
const PER_TENTH: usize = 100;

fn resets() -> ServiceSpec {
    ServiceSpec { resets: true, ..all_on() }
}

#[track_caller]
fn is_reset(fate: Fate, packet: &Packet) {
    let (reply, _) = read(&fate.sent());
    assert_eq!((reply.flags, reply.seq, reply.from), (RST, packet.ack, packet.to));
}

/// Lets the segment have come first `ago_ms` before.
fn came(bench: &Bench, packet: &Packet, ago_ms: u64) {
    let strays = bench.plane.programs.map("strays").expect("the map");
    let key = RawFlowKey::from(crate::FlowKey::new(packet.from, 5));
    let since = now_ns() - ago_ms * 1_000_000;
    let value = [since.as_bytes(), packet.seq.as_bytes(), &[0; 4]].concat();
    strays.update(key.as_bytes(), &value, MapFlags::ANY).expect("set");
}

/// A client that has connected and asks for the first time when its cookie is believed no more.
#[test]
fn first_data_with_an_old_cookie_are_reset_at_once() {
    everywhere(all_on(), |bench| {
        let late = bench.packet().opened(FORMER, 0).payload(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(bench.run(&late.frame()), Fate::Dropped, "a cookie that never was ours");
        bench.plane.set_expired(&[CookieKey([7, 8]), FORMER]).expect("set");
        is_reset(bench.run(&late.frame()), &late);
        let fin = late.clone().payload(b"").flags(FIN | ACK);
        is_reset(bench.run(&fin.frame()), &fin);
        assert_eq!((bench.counter("expired"), bench.counter("reset")), (2, 2));
        // What asks for nothing, and what answers nothing.
        for packet in [late.clone().payload(b""), late.clone().flags(RST | ACK), late.clone().flags(0)] {
            assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
        }
        // Not the first segment: it may have overtaken the first.
        let second = bench.packet().opened(FORMER, 5).payload(b"x");
        assert_eq!(bench.run(&second.frame()), Fate::Dropped);
        assert!(bench.plane.flow(bench.key()).is_none() && bench.told().is_empty());
    });
}

#[test]
fn what_comes_again_and_again_is_reset() {
    everywhere(resets(), |bench| {
        let stray = bench.packet().opened(KEYS[0], 1000).payload(b"more");
        assert_eq!(bench.run(&stray.frame()), Fate::Dropped, "it may have overtaken the first");
        assert_eq!(bench.run(&stray.frame()), Fate::Dropped, "a probe");
        came(bench, &stray, 2_500);
        assert_eq!(bench.run(&stray.frame()), Fate::Dropped);
        came(bench, &stray, 3_500);
        is_reset(bench.run(&stray.frame()), &stray);
        // Of another connection on these addresses, or one of long ago.
        let other = bench.packet().opened(KEYS[0], 2000).payload(b"more");
        assert_eq!(bench.run(&other.frame()), Fate::Dropped);
        came(bench, &other, 61_000);
        assert_eq!(bench.run(&other.frame()), Fate::Dropped);
        assert_eq!(bench.counter("expired"), 0);
    });
}

#[test]
fn nobody_is_reset_whose_connection_may_be_somewhere() {
    // Within the time of grace.
    everywhere(all_on(), |bench| {
        let stray = bench.packet().opened(KEYS[0], 1000).payload(b"more");
        came(bench, &stray, 5_000);
        assert_eq!(bench.run(&stray.frame()), Fate::Dropped);
    });
    everywhere(resets(), |bench| {
        // A node's tag.
        let tagged = bench.packet().opened(KEYS[0], 1000).tsecr(9 << 24 | 5).payload(b"more");
        came(bench, &tagged, 5_000);
        super::packet::is_forwarded(&bench.run(&tagged.frame()).sent(), &tagged);
        // A known connection.
        let known = bench.packet().opened(KEYS[0], 1000).payload(b"more");
        came(bench, &known, 5_000);
        bench.plane.put_flow(bench.key(), FlowTo::Node(7)).expect("a flow");
        super::packet::is_forwarded(&bench.run(&known.frame()).sent(), &known);
    });
}

/// A flood of forged packets is not answered one by one.
#[test]
fn answers_are_limited() {
    everywhere(all_on(), |bench| {
        bench.plane.set_expired(&[FORMER]).expect("set");
        let frame = bench.packet().begun(FORMER, 5, Some(super::clock_now())).payload(b"x").frame();
        let started = std::time::Instant::now();
        let answered = (0..2000).filter(|_| bench.run(&frame) != Fate::Dropped).count();
        // One processor's share for each tenth of a second that has passed, on each processor that this may have run on.
        let tenths = usize::try_from(started.elapsed().as_millis() / 100).expect("few") + 1;
        let processors = std::thread::available_parallelism().expect("known").get();
        assert!(answered >= PER_TENTH && answered <= PER_TENTH * (tenths + 1) * processors, "{answered}");
        assert_eq!(bench.counter("reset_limited"), 2000 - answered as u64);
    });
}
