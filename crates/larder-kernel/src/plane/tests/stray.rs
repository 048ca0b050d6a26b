//! Data of no connection: which clients are reset, and how often at most.

use super::packet::{ACK, FIN, Packet, RST, read};
use super::{Bench, Fate, KEYS, for_each_setup, full_service};
use crate::CookieKey;
use crate::abi::RawFlowKey;
use crate::plane::{FlowDestination, ServiceSpec, now_ns};
use libbpf_rs::{MapCore, MapFlags};
use zerocopy::IntoBytes;

const FORMER: CookieKey = CookieKey([0x55, 0x66]);
const PER_TENTH: usize = 100;

fn resets() -> ServiceSpec {
    ServiceSpec { resets: true, ..full_service() }
}

#[track_caller]
fn is_reset(fate: Fate, packet: &Packet) {
    let (reply, _) = read(&fate.sent());
    assert_eq!((reply.flags, reply.seq, reply.from), (RST, packet.ack, packet.to));
}

/// Sets the first arrival of the segment to `ago_ms` earlier.
fn send_stray(bench: &Bench, packet: &Packet, ago_ms: u64) {
    let strays = bench.plane.programs.map("strays").expect("the map");
    let key = RawFlowKey::from(crate::FlowKey::new(packet.from, 5));
    let since = now_ns() - ago_ms * 1_000_000;
    let value = [since.as_bytes(), packet.seq.as_bytes(), &[0; 4]].concat();
    strays.update(key.as_bytes(), &value, MapFlags::ANY).expect("set");
}

/// A client that connects, and sends its first request after its cookie has expired.
#[test]
fn first_data_with_an_old_cookie_is_reset_at_once() {
    for_each_setup(full_service(), |bench| {
        let late = bench.packet().opened(FORMER, 0).payload(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(bench.run(&late.frame()), Fate::Dropped, "a cookie that never was ours");
        bench.plane.set_expired(&[CookieKey([7, 8]), FORMER]).expect("set");
        is_reset(bench.run(&late.frame()), &late);
        let fin = late.clone().payload(b"").flags(FIN | ACK);
        is_reset(bench.run(&fin.frame()), &fin);
        assert_eq!((bench.counter("expired"), bench.counter("reset")), (2, 2));
        // Packets without a request, and packets that acknowledge nothing.
        for packet in [late.clone().payload(b""), late.clone().flags(RST | ACK), late.clone().flags(0)] {
            assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
        }
        // Not the first segment: it may have overtaken the first.
        let second = bench.packet().opened(FORMER, 5).payload(b"x");
        assert_eq!(bench.run(&second.frame()), Fate::Dropped);
        assert!(bench.plane.flow(bench.key()).is_none() && bench.events().is_empty());
    });
}

#[test]
fn repeated_stray_is_reset() {
    for_each_setup(resets(), |bench| {
        let stray = bench.packet().opened(KEYS[0], 1000).payload(b"more");
        assert_eq!(bench.run(&stray.frame()), Fate::Dropped, "it may have overtaken the first");
        assert_eq!(bench.run(&stray.frame()), Fate::Dropped, "a probe");
        send_stray(bench, &stray, 2_500);
        assert_eq!(bench.run(&stray.frame()), Fate::Dropped);
        send_stray(bench, &stray, 3_500);
        is_reset(bench.run(&stray.frame()), &stray);
        // A segment of another connection on these addresses, or of a long time ago.
        let other = bench.packet().opened(KEYS[0], 2000).payload(b"more");
        assert_eq!(bench.run(&other.frame()), Fate::Dropped);
        send_stray(bench, &other, 61_000);
        assert_eq!(bench.run(&other.frame()), Fate::Dropped);
        assert_eq!(bench.counter("expired"), 0);
    });
}

#[test]
fn connection_that_may_exist_elsewhere_is_not_reset() {
    // During the grace period.
    for_each_setup(full_service(), |bench| {
        let stray = bench.packet().opened(KEYS[0], 1000).payload(b"more");
        send_stray(bench, &stray, 5_000);
        assert_eq!(bench.run(&stray.frame()), Fate::Dropped);
    });
    for_each_setup(resets(), |bench| {
        // With a node's tag.
        let tagged = bench.packet().opened(KEYS[0], 1000).tsecr(9 << 24 | 5).payload(b"more");
        send_stray(bench, &tagged, 5_000);
        super::packet::is_forwarded(&bench.run(&tagged.frame()).sent(), &tagged);
        // Of a known connection.
        let known = bench.packet().opened(KEYS[0], 1000).payload(b"more");
        send_stray(bench, &known, 5_000);
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        super::packet::is_forwarded(&bench.run(&known.frame()).sent(), &known);
    });
}

/// A flood of forged packets is not answered one by one.
#[test]
fn resets_are_rate_limited() {
    for_each_setup(full_service(), |bench| {
        bench.plane.set_expired(&[FORMER]).expect("set");
        let frame = bench.packet().with_cookie(FORMER, 5, Some(super::clock_now())).payload(b"x").frame();
        let started = std::time::Instant::now();
        let parse_syn_ack = (0..2000).filter(|_| bench.run(&frame) != Fate::Dropped).count();
        // One processor's share for each tenth of a second that has passed, on each processor that this may have run
        // on.
        let tenths = usize::try_from(started.elapsed().as_millis() / 100).expect("few") + 1;
        let processors = std::thread::available_parallelism().expect("known").get();
        assert!(
            parse_syn_ack >= PER_TENTH && parse_syn_ack <= PER_TENTH * (tenths + 1) * processors,
            "{parse_syn_ack}"
        );
        assert_eq!(bench.counter("reset_limited"), 2000 - parse_syn_ack as u64);
    });
}
