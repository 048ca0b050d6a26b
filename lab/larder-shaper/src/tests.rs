//! The shaper on the links of a small topology.

use super::*;
use larder_kernel::netns::{Topology, TopologySpec};
use larder_testkit::or_skip;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

fn topology() -> Option<Topology> {
    or_skip(Topology::new(&TopologySpec { nodes: 1, ..TopologySpec::default() }))
}

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

/// Sends `bytes` from the node to the client and checks them. Returns the duration, including the time to connect.
fn transfer(topology: &Topology, address: IpAddr, bytes: usize) -> Duration {
    let node = &topology.nodes[0];
    let bind = || TcpListener::bind(SocketAddr::new(address, 0));
    let listener = node.namespace.run(bind).expect("entered").expect("bound");
    let to = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let content: Vec<u8> = (0..bytes).map(byte).collect();
        stream.write_all(&content).expect("sent");
    });
    let from = Instant::now();
    let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(20));
    let mut stream = topology.client().namespace.run(connect).expect("entered").expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let mut got = Vec::new();
    stream.read_to_end(&mut got).expect("read");
    let took = from.elapsed();
    server.join().expect("ended");
    assert_eq!(got.len(), bytes);
    assert!(got.iter().enumerate().all(|(at, &b)| b == byte(at)), "a wrong byte");
    took
}

fn start(topology: &Topology) -> Shaper {
    Shaper::start(&topology.hub, &[&topology.client().port, &topology.nodes[0].port]).expect("attached")
}

/// Returns the counts when no packet is in transit. The last packets of a connection can arrive after its bytes.
fn settled(shaper: &Shaper) -> ShaperCounts {
    let mut before = shaper.counts();
    for _ in 0..200 {
        larder_testkit::take_time(Duration::from_millis(50));
        let after = shaper.counts();
        if after == before {
            break;
        }
        before = after;
    }
    before
}

/// The delay applies to both directions, so the handshake takes a round trip. The links have hardly any delay of their own.
#[test]
fn delay_is_added_to_every_packet() {
    let Some(topology) = topology() else { return };
    let shaper = start(&topology);
    let node = &topology.nodes[0];
    transfer(&topology, node.v4.into(), 10_000);
    assert_eq!(shaper.counts().seen, 0, "without impairments, packets are not counted");
    let delay = Duration::from_millis(30);
    shaper.set_all(&Shape { delay, ..Shape::default() }).expect("set");
    for address in [IpAddr::V4(node.v4), IpAddr::V6(node.v6)] {
        // SYN and SYN-ACK; then data and FIN follow the client's ACK.
        let took = transfer(&topology, address, 10_000);
        assert!(took >= delay * 3, "{took:?}");
    }
    let counts = settled(&shaper);
    assert_eq!(counts.delayed, counts.seen, "{counts:?}");
    assert_eq!((counts.ring_full, counts.unsent, counts.too_long), (0, 0, 0), "{counts:?}");
}

#[test]
fn lost_packets_are_retransmitted_and_counted() {
    let Some(topology) = topology() else { return };
    let shaper = start(&topology);
    shaper.set_all(&Shape { seed: 1, loss: 0.02, ..Shape::default() }).expect("set");
    transfer(&topology, topology.nodes[0].v4.into(), 2_000_000);
    let counts = settled(&shaper);
    // At least 1,400 segments: 28 losses are expected, and 5 or fewer have a probability of 1e-7.
    assert!(counts.lost > 5 && counts.lost < counts.seen / 10, "{counts:?}");
}

/// The third packet of the node is data, that of the client an acknowledgement. Only these are lost, on each flow.
#[test]
fn the_nth_packet_of_each_flow_is_lost() {
    let Some(topology) = topology() else { return };
    let shaper = start(&topology);
    shaper.set_all(&Shape { drop_nth: 3, ..Shape::default() }).expect("set");
    for _ in 0..3 {
        transfer(&topology, topology.nodes[0].v4.into(), 5_000);
    }
    let counts = settled(&shaper);
    assert_eq!((counts.nth_lost, counts.lost), (6, 0), "{counts:?}");
}

#[test]
fn tcp_survives_duplicates_and_reordering() {
    let Some(topology) = topology() else { return };
    let shaper = start(&topology);
    let shape = Shape {
        seed: 2,
        duplicate: 0.1,
        delay: Duration::from_micros(300),
        jitter: Duration::from_micros(500),
        reorder: 0.05,
        reorder_by: Duration::from_millis(3),
        ..Shape::default()
    };
    shaper.set_all(&shape).expect("set");
    transfer(&topology, topology.nodes[0].v6.into(), 1_000_000);
    let counts = settled(&shaper);
    assert!(counts.duplicated > counts.seen / 20, "{counts:?}");
    // A duplicated packet is counted once.
    assert_eq!(counts.delayed + counts.too_long, counts.seen, "{counts:?}");
}

/// The same flow gets the same impairments. Addresses and ports are fixed, and the packets are numbered.
#[test]
fn a_seed_repeats() {
    let Some(topology) = topology() else { return };
    let (client, node) = (topology.client(), &topology.nodes[0]);
    let bind = |host: &larder_kernel::netns::Host| {
        let bound = host.namespace.run(|| std::net::UdpSocket::bind((host.v4, 40_000)));
        bound.expect("entered").expect("bound")
    };
    let (from, to) = (bind(client), bind(node));
    to.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    let received = |seed| -> Vec<u8> {
        let shaper = start(&topology);
        shaper.set_all(&Shape { seed, loss: 0.5, ..Shape::default() }).expect("set");
        for number in 0..64_u8 {
            from.send_to(&[number], (node.v4, 40_000)).expect("sent");
        }
        let mut buffer = [0; 1];
        std::iter::from_fn(|| to.recv(&mut buffer).ok().map(|_| buffer[0])).collect()
    };
    let first = received(3);
    // Half of 64, within 5 standard deviations.
    assert!((12..=52).contains(&first.len()), "{first:?}");
    assert_eq!(received(3), first);
    assert_ne!(received(4), first);
}

#[test]
fn unknown_interfaces_are_refused() {
    let Some(topology) = topology() else { return };
    let shaper = start(&topology);
    let error = shaper.set("front0", &Shape::default()).expect_err("another interface");
    assert!(error.to_string().contains("front0"), "{error}");
    assert!(Shaper::start(&topology.hub, &["nothing"]).is_err());
}

#[test]
fn delayed_frames_are_ordered_by_time() {
    let mut queue = FrameQueue::default();
    for (due, tag) in [(5_u64, 0_u8), (3, 1), (5, 2), (4, 3)] {
        let mut record = due.to_ne_bytes().to_vec();
        record.extend_from_slice(&1_u32.to_ne_bytes());
        record.extend_from_slice(&1_u32.to_ne_bytes());
        record.push(tag);
        queue.put(&record);
    }
    // One record is shorter than its length field, the other shorter than the header.
    queue.put(&[0xff; 20]);
    queue.put(&[0; 3]);
    let order: Vec<u8> = std::iter::from_fn(|| queue.heap.pop()).map(|w| w.frame[0]).collect();
    assert_eq!(order, [1, 3, 0, 2]);
}

#[test]
fn the_objects_are_current() {
    larder_testkit::assert_objects_are_current(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf"));
}
