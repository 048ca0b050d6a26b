//! Tests of the models of larder's own nodes. The expected times are derived by hand.

use larder_core::dispatch::Settings;
use larder_core::policy::PolicyKind;
use larder_core::{Bytes, TargetId};

use super::*;
use crate::cost::{ModelledNode, Modern, NetworkCosts, NodeCosts, RequestCost, Storage, SwitchCosts};
use crate::source::Arrivals;
use crate::workload::Item;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A model whose machine and timers take no time.
fn exact() -> ModelledNode {
    ModelledNode {
        timer_us: 0.0,
        late_us: 0.0,
        machine: RequestCost { request_us: 0.0, kib_us: 0.0 },
        ..ModelledNode::default()
    }
}

fn run(costs: Costs, clients: u32, bytes: &[u64], requests: &[u32]) -> Outcome {
    let items = (0..).zip(bytes).map(|(id, bytes)| Item::file(TargetId(id), *bytes)).collect();
    let workload = Workload { items, requests: requests.to_vec(), times: Vec::new() };
    let mut scenario = Scenario::lard98(1, Settings { policy: PolicyKind::Rr, ..Settings::default() });
    scenario.costs = costs;
    scenario.arrivals = Arrivals::Closed { clients };
    scenario.object_min = Bytes(512);
    simulate(&workload, &scenario).expect("the scenario is valid")
}

#[test]
fn a_modelled_node_reads_first_and_replies_after() {
    let outcome = run(Costs::Modelled(exact()), 1, &[8 * KIB], &[0, 0]);
    // One read takes 28,820 us, and two replies take 930 us each.
    assert_eq!(outcome.seconds, (28_820.0 + 2.0 * 930.0) / 1e6);
    assert_eq!((outcome.requests, outcome.hits, outcome.bytes_read), (2, 1, 8 * KIB));
    let outcome = run(Costs::Modelled(exact()), 3, &[8 * KIB], &[0, 0, 0]);
    assert_eq!(outcome.seconds, (28_820.0 + 3.0 * 930.0) / 1e6, "three share the read");
    assert_eq!((outcome.hits, outcome.shared, outcome.bytes_read), (0, 2, 8 * KIB));
}

#[test]
fn long_objects_come_in_chunks_one_ahead() {
    // 2.5 MiB are read in chunks of 1 MiB. The whole read takes the disk 28 ms + 640 * 410 us + 58 * 14 ms.
    let read_us = 28_000.0 + 640.0 * 410.0 + 58.0 * 14_000.0;
    let reply_us = 290.0 + 40.0 * 5_120.0;
    let outcome = run(Costs::Modelled(exact()), 1, &[5 * MIB / 2], &[0, 0]);
    // The reply's processor time begins when the first chunk has been read, while the second is being read.
    // The third is requested when the reply has begun.
    let first_us = 28_000.0 + 256.0 * 410.0 + 23.0 * 14_000.0;
    let second_us: f64 = first_us + 256.0 * 410.0 + 23.0 * 14_000.0;
    let third_us = read_us - second_us;
    let begun_us = first_us + reply_us;
    let end_us = second_us.max(begun_us) + third_us;
    assert!((outcome.seconds - (end_us + reply_us) / 1e6).abs() < 1e-9, "{} {end_us}", outcome.seconds);
    assert_eq!((outcome.hits, outcome.bytes_read), (1, 5 * MIB / 2));
}

#[test]
fn memory_holds_chunks_and_a_short_head() {
    let workload =
        Workload { items: vec![Item::file(TargetId(1), 41 * MIB)], requests: vec![0, 0], times: Vec::new() };
    let hits_and_bytes = |cache: Bytes| {
        let mut scenario = Scenario::lard98(1, Settings { policy: PolicyKind::Rr, ..Settings::default() });
        scenario.costs = Costs::Modelled(exact());
        scenario.arrivals = Arrivals::Closed { clients: 1 };
        scenario.object_min = Bytes(512);
        scenario.nodes[0].cache = cache;
        let outcome = simulate(&workload, &scenario).expect("the scenario is valid");
        (outcome.hits, outcome.bytes_read)
    };
    assert_eq!(hits_and_bytes(Bytes(41 * MIB + 512)), (1, 41 * MIB));
    // With one byte less, reading from the front evicts the chunks that are needed next.
    assert_eq!(hits_and_bytes(Bytes(41 * MIB + 511)), (0, 82 * MIB));
}

#[test]
fn late_timers_do_not_idle_the_disk() {
    let model =
        ModelledNode { timer_us: 1_000.0, late_us: 500.0, reply_us: 0.0, send_512_us: 0.0, ..exact() };
    let sizes = vec![KIB; 100];
    let requests: Vec<u32> = (0..100).collect();
    let outcome = run(Costs::Modelled(model), 1, &sizes, &requests);
    // The reads follow one another, each requested late and dated back, so the disk is never idle. The last
    // wake-up is late.
    let disk_us = 100.0 * 28_410.0;
    assert_eq!(outcome.seconds, (disk_us + 500.0) / 1e6);
    // The first wake-up is at 29.5 ms. From then on a request takes the disk's time, plus or minus the
    // rounding.
    assert!((outcome.delay.mean_s - (disk_us + 500.0) / 1e8).abs() < 1e-9);
}

#[test]
fn all_processes_share_the_machine() {
    let machine = RequestCost { request_us: 100.0, kib_us: 10.0 };
    let model = ModelledNode { machine, cores: 2, reply_us: 0.0, send_512_us: 0.0, ..exact() };
    let outcome = run(Costs::Modelled(model), 3, &[10 * KIB], &[0, 0, 0, 0, 0, 0, 0]);
    // Each request takes 200 us of a core. The first three wait for the read, which begins at 200 us and
    // takes 29,230 us (three blocks). The last of them reaches the read at 400 us. Then four requests arrive
    // at a time for two cores.
    assert_eq!(outcome.seconds, (200.0 + 29_230.0 + 2.0 * 200.0) / 1e6);
    assert!((outcome.front_busy * outcome.seconds - 7.0 * 200e-6 / 2.0).abs() < 1e-9);
}

/// A node with round times: 10 us and 1 us per KiB, and the same at the switch.
fn modern() -> Modern {
    Modern {
        node: NodeCosts { cores: 2, request_us: 10.0, kib_us: 1.0, miss_us: 5.0 },
        switch: SwitchCosts { cores: 4, request_us: 10.0, kib_us: 1.0 },
        storage: Storage { first_byte_us: 100.0, stream_mb_s: 102.4, total_mb_s: 1_024.0, reads_at_once: 2 },
        network: NetworkCosts { gbit_s: 8.192, rtt_us: 50.0 },
    }
}

#[test]
fn a_modern_request_takes_the_sum_of_its_parts() {
    let outcome = run(Costs::Modern(modern()), 1, &[100 * KIB], &[0, 0]);
    // The switch takes 110 us, the node 110, the interface 100 (8.192 Gb/s are 1,024 bytes in 1 us), the
    // round trip 50. The miss takes 5 us, 100 us to the first byte, 1,000 us for the bytes at 102.4 MB/s, and
    // the store's 100 us.
    assert_eq!(outcome.seconds, (2.0 * 370.0 + 1_205.0) / 1e6);
    assert_eq!((outcome.hits, outcome.bytes_read), (1, 100 * KIB));
}

#[test]
fn modern_reads_run_in_parallel_up_to_the_slots() {
    let sizes = [100 * KIB; 4];
    let outcome = run(Costs::Modern(modern()), 4, &sizes, &[0, 1, 2, 3]);
    // The switch has four cores: all requests reach the node at 110. The node has two cores: two reads are
    // ready at 125, two at 140. Two reads run at a time. The second pair begins at 1,225, and its bytes reach
    // the store at 2,325, one after the other. The last request has its bytes at 2,525 and is sent at 2,625 +
    // 100; then follows the round trip.
    assert_eq!(outcome.seconds, (2_525.0 + 100.0 + 100.0 + 50.0) / 1e6);
}

#[test]
fn more_cores_serve_more() {
    let rate = |cores| {
        let node = NodeCosts { cores, ..modern().node };
        let model = Modern { node, network: NetworkCosts { gbit_s: 1e3, rtt_us: 0.0 }, ..modern() };
        run(Costs::Modern(model), 24, &[KIB], &[0; 20_000]).throughput
    };
    // A request takes 11 us at the node, and 11 us at one of four cores of the switch.
    for (cores, expected) in [(1, 1e6 / 11.0), (2, 2e6 / 11.0), (8, 4e6 / 11.0)] {
        let rate = rate(cores);
        assert!((rate / expected - 1.0).abs() < 0.01, "{cores} cores: {rate} instead of {expected}");
    }
}

#[test]
fn values_out_of_range_are_refused() {
    let broken = [
        Costs::Modelled(ModelledNode { chunk_bytes: 1, ..exact() }),
        Costs::Modelled(ModelledNode { cores: 0, ..exact() }),
        Costs::Modelled(ModelledNode { seek_us: f64::NAN, ..exact() }),
        Costs::Modern(Modern { network: NetworkCosts { gbit_s: 0.0, rtt_us: 0.0 }, ..modern() }),
        Costs::Modern(Modern { node: NodeCosts { cores: 0, ..modern().node }, ..modern() }),
        Costs::Modern(Modern { storage: Storage { reads_at_once: 0, ..Storage::NVME }, ..modern() }),
    ];
    for costs in broken {
        assert!(costs.check().is_err(), "{costs:?}");
    }
    for name in Costs::NAMES {
        assert_eq!(Costs::by_name(name).map(|costs| costs.check()), Some(Ok(())), "{name}");
    }
}
