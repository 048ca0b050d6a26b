//! Several active switches with routers that move clients between them.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use larder_kernel::netns::{Capture, INTERFACE, TopologySpec, Wire};
use larder_testkit::within;

use crate::client::{self, Behaviour, ClientSettings, Plan};
use crate::cluster::{Cluster, Spec};
use crate::content::Content;
use crate::counters::counter;

const CLIENTS: usize = 16;
/// More than a node sends without an acknowledgement.
const BYTES: u64 = 100_000;
/// A client that receives nothing for this long has failed.
const STALL: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(10);
const COOKIE: &str = "mechanism = \"cookie\"\nlocality_lost_max = 1.0";
/// Offset of the source port in a frame with a TCP segment over IPv4.
const SOURCE_PORT_AT: usize = 34;
const DESTINATION_PORT_AT: usize = 36;
/// Maximum length of a segment without payload.
const HEADERS_BYTES: usize = 100;

/// Starts two switches. Each uses a single node, and the second one uses the node with the higher tag.
fn cluster() -> Option<Cluster> {
    let topology = TopologySpec {
        nodes: 2,
        fronts: 2,
        clients: 2,
        port_range: (30_000, 60_999),
        ..TopologySpec::default()
    };
    let spec = Spec { topology, handoff: COOKIE, ..Spec::default() };
    let cluster = Cluster::new(&spec, Content::new(&[BYTES], 1))?;
    cluster.post_to(0, "/nodes/n1/drain");
    cluster.post_to(1, "/nodes/n0/drain");
    Some(cluster)
}

/// Returns the number of connections that a switch has handed over.
fn handover_count(cluster: &Cluster, switch: usize) -> usize {
    cluster.metric_of(switch, "larder_switch_deliveries_total", &["mechanism=\"cookie\""]) as usize
}

/// Waits until a frame of this kind has passed the hub for each client. Clients are identified by their port
/// at `port_at`.
fn await_frames(capture: &mut Capture, port_at: usize, kind: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let (began, mut by_port) = (Instant::now(), HashMap::new());
    while by_port.len() < CLIENTS {
        assert!(began.elapsed() < PATIENCE, "{} of {CLIENTS} clients", by_port.len());
        for captured in capture.read(64, Duration::from_millis(5)).unwrap() {
            if kind(&captured.frame) {
                let port = [captured.frame[port_at], captured.frame[port_at + 1]];
                by_port.entry(port).or_insert(captured.frame);
            }
        }
    }
    by_port.into_values().collect()
}

/// Reports whether a frame contains a request to this host.
fn is_request_to(frame: &[u8], mac: [u8; 6]) -> bool {
    frame.starts_with(&mac) && frame.windows(5).any(|bytes| bytes == b"GET /")
}

/// Each switch gets a copy of the clients' first segments, and hands the connections to a different node. The
/// clients keep to the node with the higher timestamps (RFC 7323 section 5). Their packets arrive at the
/// switch that chose the other node.
#[test]
fn a_connection_that_two_nodes_have_continues() {
    let Some(cluster) = cluster() else { return };
    let topology = &cluster.topology;
    let (client, sink) = (topology.client(), &topology.clients[1]);
    let mut capture = Capture::open(&topology.hub).unwrap();
    let server = cluster.service()[0];
    let connect = || -> Vec<_> { (0..CLIENTS).map(|_| TcpStream::connect(server).unwrap()).collect() };
    let mut streams = client.namespace.run(connect).unwrap();
    // The hub learns the sink's port, so that it does not flood the frames to it.
    let spoken = sink.namespace.run(|| UdpSocket::bind("0.0.0.0:0")?.send_to(&[0], (client.v4, 9)));
    assert_eq!(spoken.unwrap().unwrap(), 1);
    topology.point_clients_at(sink).unwrap();
    let target = &cluster.content.targets[0];
    let request =
        format!("GET {} HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n", target.path);
    for stream in &mut streams {
        stream.set_read_timeout(Some(STALL)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
    }
    let requests = await_frames(&mut capture, SOURCE_PORT_AT, |frame| is_request_to(frame, sink.mac));
    let (wire, ifindex) =
        (Wire::open(&client.namespace).unwrap(), client.namespace.ifindex(INTERFACE).unwrap());
    let copy_to = |mac: [u8; 6]| {
        for request in &requests {
            wire.send(ifindex, &[&mac, &request[6..]].concat()).unwrap();
        }
    };
    // A switch drops first segments that it reads late, so they are resent until each is accepted.
    let give_to = |switch: usize| {
        let all = within(PATIENCE, || {
            copy_to(topology.fronts[switch].mac);
            handover_count(&cluster, switch) == CLIENTS
        });
        assert!(all, "{} by switch {switch}\n{}", handover_count(&cluster, switch), cluster.logs());
    };
    give_to(1);
    let node = cluster.node(1).mac;
    await_frames(&mut capture, DESTINATION_PORT_AT, |frame| {
        frame.get(6..12) == Some(&node[..]) && frame.len() > HEADERS_BYTES
    });
    give_to(0);
    topology.point_clients_at(topology.front()).unwrap();
    for mut stream in streams {
        let (mut reply, port) = (Vec::new(), stream.local_addr().unwrap().port());
        let read = stream.read_to_end(&mut reply);
        assert!(read.is_ok(), "{} bytes, {read:?}\n{}", reply.len(), cluster.state_of(&[port]));
        let body = reply.len() - BYTES as usize;
        assert!(reply.starts_with(b"HTTP/1.1 200 ") && target.first_difference(0, &reply[body..]).is_none());
    }
    assert!(counter(&client.namespace, "TcpExtPAWSEstab") > 0, "only one node has answered");
    assert!(cluster.metric("larder_switch_plane_total", &["other_node"]) > 0);
    cluster.await_idle();
}

/// The clients' first segments reach a stopped switch. The clients resend them to another switch, which
/// serves them. When the first switch continues, it must not hand the connections to a second node.
#[test]
fn a_late_switch_gives_no_connection_to_a_second_node() {
    let Some(cluster) = cluster() else { return };
    let topology = &cluster.topology;
    let mut capture = Capture::open(&topology.hub).unwrap();
    let plan = Plan {
        behaviour: Behaviour::Plain,
        server: cluster.service()[0],
        same_port: false,
        targets: cluster.content.targets.clone(),
    };
    let plans = vec![plan; CLIENTS];
    let setup = ClientSettings { threads: CLIENTS, first_port: 20_000, stall: STALL };
    topology.point_clients_at(&topology.fronts[1]).unwrap();
    cluster.others[0].halt();
    let load = topology.client().namespace.thread(move || client::run(&plans, setup)).unwrap();
    await_frames(&mut capture, SOURCE_PORT_AT, |frame| is_request_to(frame, topology.fronts[1].mac));
    topology.point_clients_at(topology.front()).unwrap();
    let tally = load.join();
    println!("{tally}");
    cluster.assert_faultless(&tally);
    cluster.others[0].resume();
    let late = || cluster.metric_of(1, "larder_switch_handoff_lost_total", &["late"]) as usize;
    assert!(within(PATIENCE, || late() >= CLIENTS), "{} late\n{}", late(), cluster.logs());
    // Connections that the plane has opened by itself are counted a moment later.
    let all = within(PATIENCE, || handover_count(&cluster, 0) == CLIENTS);
    assert!(
        all && handover_count(&cluster, 1) == 0,
        "{} and {}",
        handover_count(&cluster, 0),
        handover_count(&cluster, 1)
    );
    cluster.await_idle();
}
