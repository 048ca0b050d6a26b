use super::*;

fn assert_near(ours: f64, expected: f64, within: f64, what: &str) {
    assert!((ours - expected).abs() <= within, "{what}: {ours}, expected {expected}");
}

/// Checks two solutions against the results of an independent program for table 1.
#[test]
fn two_points_come_out_to_the_digit() {
    let fast = Press { file_kb: 16.0, hit_rate: 0.75, nodes: 8, ..Press::default() };
    let solution = fast.solve().unwrap();
    assert_near(solution.files, 200_193.0, 0.5, "F");
    assert_near(solution.hit_rate_cluster, 0.9016, 5e-5, "H");
    assert_near(solution.hit_rate_replicated, 0.6016, 5e-5, "h");
    assert_near(solution.forwarded, 0.3486, 5e-5, "Q");
    assert_near(solution.throughput(Server::Trad), 1_326.0, 0.5, "trad");
    assert_near(solution.throughput(Server::Portable), 3_370.0, 0.5, "port, fast");
    assert_near(solution.throughput(Server::NonPortable), 3_370.0, 0.5, "non-port, fast");
    assert!(solution.servers.iter().all(|answer| answer.binds == Resource::Disk));
    let slow = Press { network: Network::Slow, ..fast }.solve().unwrap();
    assert_near(slow.throughput(Server::Portable), 2_877.0, 0.5, "port, slow");
    assert_eq!(slow.servers[1].binds, Resource::Cpu);
    assert_near(slow.throughput(Server::NonPortable), 3_370.0, 0.5, "non-port, slow");

    let fast = Press { file_kb: 64.0, hit_rate: 0.65, nodes: 96, ..Press::default() };
    let solution = fast.solve().unwrap();
    assert_near(solution.forwarded, 0.4950, 5e-5, "Q");
    assert_near(solution.throughput(Server::Portable), 14_437.0, 0.5, "port, fast");
    assert_near(solution.throughput(Server::NonPortable), 16_412.0, 0.5, "non-port, fast");
    assert_near(solution.throughput(Server::Trad), 6_834.0, 0.5, "trad");
    let slow = Press { network: Network::Slow, ..fast }.solve().unwrap();
    assert_near(slow.throughput(Server::Portable), 8_289.0, 0.5, "port, slow");
    assert_near(slow.throughput(Server::NonPortable), 16_067.0, 0.5, "non-port, slow");
}

#[test]
fn measured_shares_stand_for_the_models() {
    let press = Press { file_kb: 16.0, hit_rate: 0.75, nodes: 8, ..Press::default() };
    let solution = press.solve().unwrap();
    let (hits, forwarded) = (solution.hit_rate_cluster, solution.forwarded);
    assert_eq!(press.at(Server::Portable, hits, forwarded), Ok(solution.servers[1]));
    let all_in_memory = press.at(Server::Trad, 1.0, 0.0).unwrap();
    assert_eq!((all_in_memory.binds, all_in_memory.demand.disk_s), (Resource::Cpu, 0.0));
    assert!(press.at(Server::Trad, 1.01, 0.0).is_err() && press.at(Server::Trad, 0.5, f64::NAN).is_err());
}

/// Peaks of M1 over the whole space, computed by the same independent program. Columns: N; fast, port/trad;
/// fast, gain of np over port in percent; slow, port/trad; slow, gain of np over port in percent.
const PEAKS: [(u32, f64, f64, f64, f64); 7] = [
    (2, 3.33, 5.4, 2.86, 37.6),
    (4, 5.25, 8.9, 4.17, 62.0),
    (8, 7.07, 11.3, 5.19, 78.3),
    (16, 8.63, 13.0, 5.97, 89.4),
    (32, 9.95, 14.2, 6.70, 97.4),
    (64, 11.25, 15.2, 7.23, 103.7),
    (96, 11.98, 15.6, 7.57, 107.0),
];

#[test]
fn peaks_are_those_of_the_table() {
    for (nodes, fast_gain, fast_cost, slow_gain, slow_cost) in PEAKS {
        let of = |network, of, over| {
            find_peak(&Press { nodes, network, ..Press::default() }, of, over).unwrap().ratio
        };
        let (portable, other) = (Server::Portable, Server::NonPortable);
        assert_near(of(Network::Fast, portable, Server::Trad), fast_gain, 0.0051, "fast gain");
        assert_near(of(Network::Slow, portable, Server::Trad), slow_gain, 0.0051, "slow gain");
        assert_near(of(Network::Fast, other, portable) * 100.0 - 100.0, fast_cost, 0.051, "fast cost");
        assert_near(of(Network::Slow, other, portable) * 100.0 - 100.0, slow_cost, 0.051, "slow cost");
    }
}

#[test]
fn the_literal_model_peaks_elsewhere() {
    let of = |nodes, network, of, over| {
        let base = Press { nodes, network, reading: PressVariant::M0, ..Press::default() };
        find_peak(&base, of, over).unwrap().ratio
    };
    assert_near(of(32, Network::Fast, Server::Portable, Server::Trad), 11.02, 0.0051, "fast gain, N = 32");
    assert_near(of(32, Network::Slow, Server::Portable, Server::Trad), 7.56, 0.0051, "slow gain, N = 32");
    assert_near(
        of(96, Network::Fast, Server::NonPortable, Server::Portable),
        1.158,
        0.00051,
        "fast cost, N = 96",
    );
    assert_near(
        of(96, Network::Slow, Server::NonPortable, Server::Portable),
        2.090,
        0.00051,
        "slow cost, N = 96",
    );
}

#[test]
fn interfaces_never_bind() {
    for network in [Network::Fast, Network::Slow] {
        for nodes in [1, 8, 96] {
            for file_kb in [2.0, 16.0, 64.0] {
                for hit_rate in [0.3, 0.75, 1.0] {
                    let solution =
                        Press { nodes, network, file_kb, hit_rate, ..Press::default() }.solve().unwrap();
                    for answer in solution.servers {
                        assert!(matches!(answer.binds, Resource::Cpu | Resource::Disk), "{answer:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn queues_grow_without_bound_near_the_throughput() {
    let solution = Press::default().solve().unwrap();
    let answer = solution.servers[1];
    let idle = answer.demand.response_s(0.0).unwrap();
    let demand = answer.demand;
    assert_near(
        idle,
        demand.cpu_s + demand.disk_s + demand.external_s + demand.internal_s,
        1e-12,
        "no queue",
    );
    assert!(answer.demand.response_s(answer.throughput / 8.0 * 0.99).unwrap() > 20.0 * idle);
    assert_eq!(answer.demand.response_s(answer.throughput / 8.0 * 1.01), None);
}

#[test]
fn wrong_parameters_are_named() {
    let cases = [
        (Press { nodes: 0, ..Press::default() }, "nodes is out of range: it must be 1 to 65534"),
        (
            Press { hit_rate: 0.0, ..Press::default() },
            "hit_rate is out of range: it must be above 0 and at most 1",
        ),
        (Press { file_kb: f64::NAN, ..Press::default() }, "file_kb is out of range: it must be above 0"),
    ];
    for (press, text) in cases {
        assert_eq!(press.solve().unwrap_err().to_string(), text);
    }
    let lowest = Press { alpha: 2.0, hit_rate: 0.1, ..Press::default() }.solve().unwrap_err();
    assert!(lowest.to_string().contains("hottest files alone"), "{lowest}");
}
