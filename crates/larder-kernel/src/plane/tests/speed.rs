//! Cost of a packet: the kernel's time of a test run, without the interface.

use super::packet::{ISN, MSS, SACK, TIMESTAMPS, WSCALE};
use super::{Bench, KEYS, clock_now, for_each_setup, full_service};
use crate::plane::FlowDestination;
use libbpf_rs::ProgramInput;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::time::{Duration, Instant};

/// Runs of one call; each rewrites the packet and decrements its hop limit.
const REPEAT: u32 = 60;

fn ns_per_packet(bench: &Bench, frame: &[u8]) -> u128 {
    let name = if bench.plane.attached() == super::AttachMode::Tc { "front_tc" } else { "front_xdp" };
    let program = bench.plane.programs.program(name).expect("a program");
    let one = || {
        let input = ProgramInput { data_in: Some(frame), repeat: REPEAT, ..Default::default() };
        program.test_run(input).expect("it runs").duration.as_nanos()
    };
    (0..40).map(|_| one()).min().unwrap_or(0)
}

#[test]
#[ignore = "measures; run it alone, with --nocapture"]
fn cost_per_packet() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        let known = bench.packet().opened(KEYS[0], 0).tsecr(1).frame();
        eprintln!("known connection: {} ns", ns_per_packet(bench, &known));
        bench.plane.remove_flow(bench.key()).expect("removed");
        let first = bench.packet().with_cookie(KEYS[0], ISN, Some(clock_now())).payload(b"PUT ");
        bench.run(&first.frame());
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        let tagged = first.payload(b"").tsecr(9 << 24 | 5).frame();
        eprintln!("known connection with the tag of its node: {} ns", ns_per_packet(bench, &tagged));
        bench.plane.remove_flow(bench.key()).expect("removed");
        eprintln!("end of handshake: {} ns", ns_per_packet(bench, &known));
        let mut forged = bench.packet().opened(KEYS[0], 0);
        forged.ack ^= 1 << 20;
        eprintln!("forged cookie: {} ns", ns_per_packet(bench, &forged.frame()));
        let mut other = bench.packet().frame();
        let last = other.len() - 18;
        other[last] ^= 0xff; // the port
        eprintln!("not ours: {} ns", ns_per_packet(bench, &other));
        let syn = bench.packet().syn(&[&MSS, &SACK, &TIMESTAMPS, &WSCALE]).frame();
        let first = (0..40).map(|_| {
            let started = std::time::Instant::now();
            bench.run(&syn);
            started.elapsed().as_nanos()
        });
        let nothing = (0..40).map(|_| {
            let started = std::time::Instant::now();
            bench.run(&other);
            started.elapsed().as_nanos()
        });
        let syn_ns = first.min().unwrap_or(0).saturating_sub(nothing.min().unwrap_or(0));
        eprintln!("SYN, over a packet that is not ours: {syn_ns} ns");
    });
}

/// Packets per second of processors that run the program at the same time, each for a second on a frame of its own.
fn packets_per_second(bench: &Bench, frames: &[Vec<u8>]) -> f64 {
    let name = if bench.plane.attached() == super::AttachMode::Tc { "front_tc" } else { "front_xdp" };
    let plane = &bench.plane;
    let one = move |cpu: usize, frame: &[u8]| {
        let program = plane.programs.program(name).expect("a program");
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        sched_setaffinity(None, &cpus).expect("a processor");
        let (until, mut ns) = (Instant::now() + Duration::from_secs(1), Vec::new());
        while Instant::now() < until {
            let input = ProgramInput { data_in: Some(frame), repeat: REPEAT, ..Default::default() };
            ns.push(program.test_run(input).expect("it runs").duration.as_nanos());
        }
        ns.sort_unstable();
        1e9 / ns[ns.len() / 2] as f64
    };
    std::thread::scope(|scope| {
        let runs: Vec<_> =
            frames.iter().enumerate().map(|(cpu, frame)| scope.spawn(move || one(cpu, frame))).collect();
        runs.into_iter().map(|run| run.join().expect("no fault")).sum()
    })
}

#[test]
#[ignore = "measures; run it alone, with --nocapture"]
fn speedup_by_a_second_cpu() {
    for_each_setup(full_service(), |bench| {
        let known: Vec<Vec<u8>> = (0..2)
            .map(|number| {
                let mut packet = bench.packet();
                packet.from.set_port(packet.from.port() + number);
                let key = crate::FlowKey::new(packet.from, bench.key().service);
                bench.plane.put_flow(key, FlowDestination::Node(7)).expect("a flow");
                packet.opened(KEYS[0], 0).tsecr(1).frame()
            })
            .collect();
        let one = packets_per_second(bench, &known[..1]);
        let two = packets_per_second(bench, &known);
        eprintln!(
            "known connections: {one:.0} packets/s on one processor, {two:.0} on two ({:.2}x)",
            two / one
        );
    });
}
