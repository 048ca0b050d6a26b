//! Forged cookies: how many are accepted, and how much work they cause.

use super::packet::{ACK, MSS, Packet, TIMESTAMPS, read};
use super::{AttachMode, Bench, Fate, KEYS, PROOF_MASK, clock_now, for_each_setup, full_service, may_load};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// The best that an attacker can do: he sees the clock in answers to his own SYNs.
fn forged(bench: &Bench, random: &mut Random) -> Packet {
    let (numbers, proof) = (random.next(), random.next());
    let mut packet = bench.packet().with_cookie(KEYS[0], numbers as u32, Some(clock_now()));
    let low = packet.ack.wrapping_sub(1) & 0xff;
    packet.ack = ((proof as u32) << 8 | low).wrapping_add(1);
    packet.tsecr((clock_now() & 0x7ff) << 12 | ((proof >> 32) as u32 & 0xfff))
}

/// If b bits are compared, 2 in 2^b forged first segments are accepted: measured with 6, 8 and 10 bits, in both halves
/// of the proof. With all 36 bits it is 2^-35, which at 1.5 million per second is one in six hours.
#[test]
fn forged_cookies_are_accepted_as_often_as_calculated() {
    const TRIES: u32 = 20_000;
    if !may_load() {
        return;
    }
    let seed = std::env::var("LARDER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    eprintln!("LARDER_SEED={seed}");
    for half in [3_u32, 4, 5] {
        let some = (1_u64 << half) - 1;
        PROOF_MASK.set(some | some << 24);
        let bench = Bench::new(AttachMode::Native, false, full_service());
        PROOF_MASK.set(u64::MAX);
        let mut random = Random(seed);
        for _ in 0..TRIES {
            assert_eq!(bench.run(&forged(&bench, &mut random).frame()), Fate::Dropped);
        }
        let believed = bench.counter("handshake_ack");
        let expected = f64::from(TRIES) * 2.0 / f64::from(1_u32 << (2 * half));
        eprintln!("{} bits compared: {believed} of {TRIES} believed, {expected:.1} expected", 2 * half);
        // Each is checked with two keys. The variance of a count of rare events equals its mean.
        let off = (believed as f64 - expected).abs();
        assert!(off < 5.0 * expected.sqrt(), "{believed} believed, {expected} expected");
        assert_eq!(bench.counter("bad_cookie"), u64::from(TRIES) - believed);
    }
    let per_hour = 1.5e6 * 3600.0 / 2_f64.powi(35);
    // Without timestamps: as many as are checked.
    let plain_per_hour = 600.0 * 3600.0 / 2_f64.powi(23);
    eprintln!(
        "with all 36 bits, at 1.5 M/s: {per_hour:.3} an hour; without timestamps {plain_per_hour:.3} an hour"
    );
    assert!(per_hour + plain_per_hour < 0.5);
}

/// Whether the packet is the last one of a handshake.
fn is_accepted(bench: &Bench, packet: &Packet) -> bool {
    let before = bench.counter("handshake_ack");
    assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
    bench.counter("handshake_ack") > before
}

#[test]
fn echo_must_be_recent_and_valid() {
    for_each_setup(full_service(), |bench| {
        let aged = |age: u32| bench.packet().with_cookie(KEYS[0], 5, Some(clock_now().wrapping_sub(age)));
        // A quarter of the clock's range, the life of a cookie: 512 units of a second.
        for (age, good) in
            [(0, true), (500, true), (525, false), (1_024, false), (1_500, false), (2_047, true)]
        {
            assert_eq!(is_accepted(bench, &aged(age)), good, "{age}");
        }
        let good = aged(1);
        let echo = u32::from_be_bytes(good.options[8..12].try_into().expect("4 bytes"));
        for bit in 0..31 {
            assert!(!is_accepted(bench, &good.clone().tsecr(echo ^ 1 << bit)), "bit {bit}");
        }
        let mut without = good.clone();
        without.options.clear();
        assert!(!is_accepted(bench, &without), "a cookie that claims timestamps");
        let plain = bench.packet().opened(KEYS[0], 0);
        assert!(is_accepted(bench, &plain));
        assert!(!is_accepted(bench, &plain.clone().tsecr(echo)), "a cookie that denies them");
        assert!(!is_accepted(bench, &plain.tsecr(3 << 24)), "or with a tag");
        assert!(is_accepted(bench, &good));
        // The switch accepts its own cookies.
        let (reply, _) = read(&bench.run(&bench.packet().syn(&[&MSS, &TIMESTAMPS]).frame()).sent());
        let at = reply.options.windows(2).position(|two| two == [8, 10]).expect("timestamps");
        let echo = u32::from_be_bytes(reply.options[at + 2..at + 6].try_into().expect("4 bytes"));
        let mut ack = bench.packet().tsecr(echo);
        (ack.seq, ack.ack) = (reply.ack, reply.seq.wrapping_add(1));
        assert!(is_accepted(bench, &ack));
    });
}

/// 24 bits are few: cookies without timestamps are checked until a limit of bad ones per second. Clients that connect
/// then are left to the stack.
#[test]
fn cookies_without_timestamps_are_rate_limited() {
    for_each_setup(full_service(), |bench| {
        let good = bench.packet().opened(KEYS[0], 0);
        let mut bad = good.clone();
        bad.ack ^= 1 << 20;
        let plain_syn = bench.packet().syn(&[&MSS]).frame();
        read(&bench.run(&plain_syn).sent());
        assert!(is_accepted(bench, &good));
        bench.run_often(&bad.frame(), 600);
        let limited = bench.counter("plain_limited");
        assert!((1..=100).contains(&limited), "500 of 600 are checked: {limited} were not");
        assert_eq!(bench.counter("bad_cookie"), 600 - limited);
        assert_eq!(bench.run(&plain_syn), Fate::Passed, "its cookie could not be checked");
        // Other clients are not affected.
        read(&bench.run(&bench.packet().syn(&[&MSS, &TIMESTAMPS]).frame()).sent());
        assert!(is_accepted(bench, &bench.packet().with_cookie(KEYS[0], 5, Some(clock_now()))));
        // Valid ones are checked again in the next second.
        larder_testkit::eventually("checks come back", || is_accepted(bench, &good).then_some(()));
    });
}

/// The work after a bad cookie is limited per processor. A valid cookie after it is still accepted.
#[test]
fn cost_of_bad_cookies() {
    for_each_setup(full_service(), |bench| {
        let good = bench.packet().with_cookie(KEYS[0], 5, Some(clock_now()));
        let mut bad = good.clone().flags(ACK).payload(b"GET ");
        bad.ack ^= 1 << 20;
        bench.run_often(&bad.frame(), 100_000);
        assert_eq!(bench.counter("bad_cookie"), 100_000);
        let limited = bench.counter("cookie_limited");
        assert!(limited > 0 && limited <= 90_000, "{limited}");
        assert!(is_accepted(bench, &good));
    });
}
